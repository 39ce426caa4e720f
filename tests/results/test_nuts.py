"""NUTS from a fit: the right variables in the right order, and far fewer gradients."""

import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.nested import Nested
from pymc_ngvi.results.approximation import create_approximation
from pymc_ngvi.results.verdict import Verdict
from tests.conftest import fit

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC's advice on chains and cores
        yield


# A correlated posterior on two variables, one of them transformed.
COVARIANCE = np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 0.04]])


def correlated() -> pm.Model:
    with pm.Model() as model:
        x = pm.Flat("x", shape=2, initval=[30.0, -30.0])
        scale = pm.LogNormal("scale", 0.0, 0.2)  # a Gaussian on the unconstrained scale
        pm.Potential("gaussian", -0.5 * x @ np.linalg.inv(COVARIANCE[:2, :2]) @ x)
        pm.Deterministic("log_scale", np.log(scale))
    return model


@pytest.fixture(scope="module")
def approx():
    gaussian = FullGaussian.from_mean_covariance(np.zeros(3), COVARIANCE)
    return create_approximation(correlated(), gaussian)


def gradients(idata) -> tuple[int, int]:
    """Leapfrog steps of tuning and of sampling."""
    return tuple(
        int(idata[group]["n_steps"].sum()) for group in ("warmup_sample_stats", "sample_stats")
    )


def smallest_ess(idata) -> float:
    ess = az.ess(idata, var_names=["x", "log_scale"])
    ess = ess["posterior"] if "posterior" in getattr(ess, "children", ()) else ess
    return min(float(ess[name].min()) for name in ("x", "log_scale"))


def test_chains_start_at_draws_of_the_fit(approx):
    keywords = approx.nuts_kwargs(chains=3, tune=50, random_seed=1)
    assert (keywords["chains"], keywords["tune"]) == (3, 50)
    starts = np.array([[*point["x"], np.log(point["scale"])] for point in keywords["initvals"]])
    expected = approx.sample(3, random_seed=1)["unconstrained_posterior"]
    np.testing.assert_allclose(starts[:, :2], expected["x"].values[0])
    np.testing.assert_allclose(starts[:, 2], expected["scale_log__"].values[0])


def test_the_metric_is_the_covariance_of_the_fit(approx):
    step = approx.nuts_kwargs(chains=1, target_accept=0.9)["step"]
    assert step.target_accept == 0.9
    names = [variable.name for variable in step.vars]
    assert names == [slot.name for slot in approx.layout]
    columns = np.array([step.potential.velocity(row) for row in np.eye(3)])
    np.testing.assert_allclose(columns, COVARIANCE, atol=1e-12)
    diagonal = DiagonalGaussian.from_mean_covariance(np.zeros(3), [1.0, 4.0, 0.04])
    step = create_approximation(approx.model, diagonal).nuts_kwargs(chains=1)["step"]
    np.testing.assert_allclose(step.potential.velocity(np.ones(3)), [1.0, 4.0, 0.04])


def test_steps_are_shorter_where_the_posterior_is_no_gaussian():
    funnel = create_approximation(correlated(), nested())
    assert funnel.nuts_kwargs(chains=1)["step"].target_accept == 0.95
    assert funnel.nuts_kwargs(chains=1, target_accept=0.7)["step"].target_accept == 0.7
    gaussian = fit(correlated(), remedy=None)
    assert gaussian.nuts_kwargs(chains=1)["step"].target_accept == 0.8  # PyMC's own
    poor = Verdict(elbo=0.0, elbo_se=0.1, khat=1.2, ess=100.0, draws=1000)
    gaussian.report = gaussian.report.judged(poor)
    assert gaussian.nuts_kwargs(chains=1)["step"].target_accept == 0.95


def nested() -> Nested:
    """A grid along the first component, with the same Gaussian of the rest everywhere."""
    rest = FullGaussian.from_mean_covariance(np.zeros(2), np.eye(2))
    axis = np.linspace(-3, 3, 7)
    return Nested(Split(3, [0]), [0.0], [[1.0]], [axis], -(axis**2) / 2, [rest] * 7)


def test_tuning_is_cut(approx):
    """A tenth of the gradients for tuning, and five times the effective draws per gradient."""
    settings = {"draws": 200, "random_seed": 4, "discard_tuned_samples": False, **QUIET}
    with approx.model:
        warm = pm.sample(**settings, **approx.nuts_kwargs(chains=1, tune=50, random_seed=1))
        cold = pm.sample(**settings, chains=1, tune=300)
    assert gradients(warm)[0] < gradients(cold)[0] / 10
    efficiency = [smallest_ess(idata) / sum(gradients(idata)) for idata in (warm, cold)]
    assert efficiency[0] > 5 * efficiency[1]
    x = warm["posterior"]["x"].values.reshape(-1, 2)
    error = 1 / np.sqrt(smallest_ess(warm))
    assert (abs(x.mean(0)) < 4 * error).all()
    np.testing.assert_allclose(np.cov(x.T), COVARIANCE[:2, :2], atol=0.35)


def test_words_that_are_no_sampler(approx):
    with pytest.raises(ValueError, match="did you mean 'nutpie'"):
        approx.nuts_kwargs(sampler="nutpi")
    with pytest.raises(ValueError, match="chains"):
        approx.nuts_kwargs(chains=0)


def test_nutpie_gets_a_start(approx):
    if not PYMC_6:
        with pytest.raises(NotImplementedError, match="PyMC 5 does not pass a start to nutpie"):
            approx.nuts_kwargs(sampler="nutpie")
        return
    keywords = approx.nuts_kwargs(sampler="nutpie", tune=300, random_seed=1)
    assert keywords["nuts_sampler"] == "nutpie"
    assert set(keywords["initvals"]) == {"x", "scale"}
    assert "step" not in keywords
    with pytest.raises(TypeError, match="target_accept: these are options of"):
        approx.nuts_kwargs(sampler="nutpie", target_accept=0.9)


@pytest.mark.skipif(not PYMC_6, reason="PyMC 5 does not pass a start to nutpie")
def test_nutpie_samples_from_a_fit(approx):
    pytest.importorskip("nutpie")
    pytest.importorskip("jax")  # compiles in a fifth of the time that Numba takes
    keywords = approx.nuts_kwargs(chains=2, sampler="nutpie", tune=300, random_seed=1)
    with pytensor.config.change_flags(mode="JAX"), approx.model:
        idata = pm.sample(300, random_seed=1, **QUIET, **keywords)
    assert abs(float(idata["posterior"]["x"].mean())) < 0.5
