"""Pictures show the numbers they are made of; how they look was looked at."""

import sys

import matplotlib as mpl
import numpy as np
import pymc as pm
import pytest

mpl.use("agg")
import matplotlib.pyplot as plt

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.results.approximation import create_approximation
from tests.models import MODELS

pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def line(ax, which=0) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.asarray(values) for values in ax.lines[which].get_data())


def test_the_trace_shows_elbo_steps_and_draws(schools, idata):
    for data in (schools, idata):
        axes = ngvi.plots.fit_trace(data)
        assert [ax.get_xlabel() for ax in axes] == ["iteration", "evaluations", *["iteration"] * 2]
        x, y = line(axes[0])
        np.testing.assert_array_equal(x, np.arange(1, 21))
        np.testing.assert_array_equal(y, -schools.hist)
        evaluations, _ = line(axes[1])
        assert evaluations[-1] == schools.report.evaluations


def test_a_long_climb_is_cut_off():
    figure, ax = plt.subplots()
    from pymc_ngvi.results.plots import _cut_off_the_climb

    elbo = np.concatenate([[-1e6, -1e4], np.linspace(-11, -10, 18)])
    ax.plot(elbo)
    _cut_off_the_climb(ax, elbo)
    assert ax.get_ylim()[0] > -20
    assert ax.get_title() == "2 of 20 iterations below"
    plt.close(figure)


def test_weights_by_rank(schools, idata):
    ax = ngvi.plots.khat(idata)
    _, shares = line(ax)
    assert shares.sum() == pytest.approx(200)
    assert (np.diff(shares) <= 0).all()
    assert f"k-hat {idata['sample_stats'].attrs['khat']:.2f}" in ax.get_title()
    assert ngvi.plots.khat(schools, ax=ax) is ax


def test_pareto_k_of_each_observation():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(30))
    q = FullGaussian.from_mean_covariance([0.0], [[1 / 31]])
    elpd = ngvi.loo(create_approximation(model, q), random_seed=1)
    ax = ngvi.plots.khat(elpd)
    np.testing.assert_array_equal(line(ax)[1], np.ravel(elpd.pareto_k))
    assert "of 30 above" in ax.get_title()


def test_marginals_beside_a_reference(schools, idata):
    axes = ngvi.plots.marginals(idata, reference=idata)
    assert [ax.get_title() for ax in axes[:4]] == [
        "beta[Eton]",
        "beta[Harrow]",
        "beta[Rugby]",
        "scale[Eton, 1]",
    ]
    grid, density = line(axes[0])
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=0.02)
    chosen = ngvi.plots.marginals(schools, var_names=["beta"])
    assert len(chosen) == 3
    with pytest.raises(ValueError, match="did you mean 'beta'"):
        ngvi.plots.marginals(idata, var_names=["betta"])


def test_a_pair_with_its_contours(schools, idata):
    names = ("beta[school=Eton]", "scale_log__[school=Eton, term=1]")
    ax = ngvi.plots.pair(idata, names, reference=idata)
    assert (ax.get_xlabel(), ax.get_ylabel()) == names
    x, y = line(ax)
    np.testing.assert_array_equal(x, idata["unconstrained_posterior"]["beta"].values[0, :, 0])
    np.testing.assert_allclose(np.exp(y), idata["posterior"]["scale"].values[0, :, 0, 0])
    # Every point of a contour is as far from the mean, in the metric of the Gaussian.
    where = [0, 3]
    covariance = schools.gaussian.covariance[np.ix_(where, where)]
    for level, which in ((0.5, 1), (0.99, 3)):
        contour = np.array(line(ax, which)).T - schools.gaussian.mean[where]
        distance = np.einsum("ni,ij,nj->n", contour, np.linalg.inv(covariance), contour)
        np.testing.assert_allclose(distance, -2 * np.log(1 - level))


def test_a_pair_of_independent_components():
    gaussian = DiagonalGaussian.from_mean_covariance(np.zeros(5), np.ones(5))
    approx = create_approximation(MODELS["linear_regression"](), gaussian)
    ax = ngvi.plots.pair(approx, ("slopes[0]", "sigma_log__"))
    assert np.max(line(ax, 1)[0]) == pytest.approx(np.sqrt(2 * np.log(2)), rel=1e-3)
    with pytest.raises(ValueError, match="did you mean 'sigma_log__'"):
        ngvi.plots.pair(approx, ("slopes[0]", "sigma"))


def test_what_cannot_be_shown_is_said(schools, idata):
    del (other := schools.sample(30, random_seed=1))["unconstrained_posterior"]
    with pytest.raises(ValueError, match="include_transformed"):
        ngvi.plots.pair(
            idata, ("beta[school=Eton]", "scale_log__[school=Eton, term=1]"), reference=other
        )
    with pytest.raises(ValueError, match="takes 4 axes, got 1"):
        ngvi.plots.fit_trace(schools, axes=plt.subplots()[1])
    with pytest.raises(ValueError, match="no group 'fit_trace'"):
        ngvi.plots.fit_trace([1, 2])
    unfitted = create_approximation(schools.model, schools.gaussian)
    with pytest.raises(ValueError, match="not fitted"):
        ngvi.plots.fit_trace(unfitted)
    with pm.Model() as many:
        pm.Normal("x", shape=40)
    wide = DiagonalGaussian.from_mean_covariance(np.zeros(40), np.ones(40))
    with pytest.raises(ValueError, match="40 marginals are too many"):
        ngvi.plots.marginals(create_approximation(many, wide))


def test_without_matplotlib(schools, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pymc-ngvi\[plots\]"):
        ngvi.plots.fit_trace(schools)
