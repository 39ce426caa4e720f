"""Fits of models with kinks, jumps and flat directions: right, or flagged with the cause."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_ngvi import EstimatorChanged, UnreliableFit
from pymc_ngvi.model.hessian import HessianFallbackWarning
from tests.conftest import fit

# Each with few data, so that the kinks matter.
X = np.random.default_rng(0).normal(size=(40, 2))
Y = X @ [0.5, -0.3] + np.random.default_rng(1).laplace(size=40)


def laplace_prior():
    with pm.Model() as model:
        b = pm.Laplace("b", 0, 0.2)
        pm.Normal("y", b, 1, observed=[0.3, 0.1, -0.2, 0.5])
    return model


def lasso():
    with pm.Model() as model:
        b = pm.Laplace("b", 0, 0.1, shape=2)
        pm.Normal("y", pm.math.dot(X, b), 1, observed=Y)
    return model


def laplace_likelihood():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Laplace("y", pm.math.dot(X, b), 1, observed=Y)
    return model


def quantile_regression():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.AsymmetricLaplace("y", mu=pm.math.dot(X, b), b=1, q=0.7, observed=Y)
    return model


def hinge():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Potential("y", -pt.maximum(0, 1 - np.sign(Y) * pm.math.dot(X, b)).sum())
    return model


def huber():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        off = pt.abs(Y - pm.math.dot(X, b))
        pm.Potential("y", -pt.switch(off < 0.5, off**2, off - 0.25).sum())
    return model


def normal_and_laplace():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", b[0] + b[1], 1, observed=[0.5, 1.0])
        pm.Laplace("z", b[0] - b[1], 0.3, observed=[0.2, 0.4, 0.1])
    return model


def moments(approx, reach=2.5):
    """Mean and standard deviation of `b`, by quadrature over a grid."""
    dim = approx.gaussian.dim
    grid = np.linspace(-reach, reach, 2001 if dim == 1 else 201)
    points = np.stack(np.meshgrid(*[grid] * dim, indexing="ij"), -1).reshape(-1, dim)
    density = approx._transform_for(approx.model).log_density(points)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = weights @ points
    return mean, np.sqrt(weights @ np.square(points - mean))


@pytest.mark.filterwarnings("ignore::pymc_ngvi.BudgetSpent", "ignore::pymc_ngvi.UnreliableFit")
@pytest.mark.parametrize(
    "build",
    [laplace_prior, lasso, laplace_likelihood, quantile_regression, hinge, normal_and_laplace],
)
def test_kinks_are_fitted_by_steins_estimator(build):
    model = build()
    with pytest.warns(EstimatorChanged, match='has kinks .* went on with estimator="stein"'):
        approx = fit(model, accuracy=0.1, max_evaluations=4000)
    mean, sd = moments(approx)
    np.testing.assert_allclose(np.sqrt(approx.gaussian.variance) / sd, 1, atol=0.1)
    np.testing.assert_allclose((approx.gaussian.mean - mean) / sd, 0, atol=0.1)
    assert approx.report.estimator == "stein"
    assert "has kinks" in str(approx.report)


def test_a_paused_fit_with_kinks_is_not_nested_by_its_hessians():
    """At the pause the Gaussian is far off, and its own draws do not yet tell of the kinks."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=200)
    y = 1 + 2 * x + rng.standard_t(3, size=200)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
        s = pm.HalfNormal("s", 2)
        pm.AsymmetricLaplace("y", b=1 / s, q=0.9, mu=a + b * x, observed=y)
    with pytest.warns(EstimatorChanged, match="kinks"):
        approx = fit(model, remedy="auto", random_seed=3)
    # By NUTS, 6,000 draws.
    mean, sd = np.array([2.693, 1.819]), np.array([0.107, 0.077])
    np.testing.assert_allclose((approx.mean.eval()[:2] - mean) / sd, 0, atol=0.15)
    assert approx.report.family == "fullrank"
    assert approx.report.estimator == "stein"


def test_two_formulas_for_a_smooth_function_are_no_kink():
    """The Huber loss has a second derivative almost everywhere and a gradient without jumps."""
    model = huber()
    approx = fit(model, accuracy=0.05)
    mean, sd = moments(approx)
    np.testing.assert_allclose(np.sqrt(approx.gaussian.variance) / sd, 1, atol=0.1)
    np.testing.assert_allclose((approx.gaussian.mean - mean) / sd, 0, atol=0.1)
    assert approx.report.estimator == "bonnet-price"
    assert approx.report.notes == ()


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
def test_steins_estimator_is_told_nothing():
    approx = fit(laplace_prior(), estimator="stein", accuracy=0.05)
    assert approx.report.notes == ()


def test_batches_with_kinks():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 1))
    y = 0.5 * x[:, 0] + rng.laplace(size=400)

    def build(batches):
        with pm.Model() as model:
            b = pm.Normal("b", shape=1)
            rows = pm.Minibatch(x, y, batch_size=100) if batches else (x, y)
            total = 400 if batches else None
            pm.Laplace("y", pm.math.dot(rows[0], b), 1, observed=rows[1], total_size=total)
        return model

    with pytest.warns(EstimatorChanged):
        whole, batches = (fit(build(b), accuracy=0.05).gaussian for b in (False, True))
    sd = np.sqrt(whole.variance)
    np.testing.assert_allclose(np.sqrt(batches.variance) / sd, 1, atol=0.1)
    np.testing.assert_allclose((batches.mean - whole.mean) / sd, 0, atol=0.2)


def test_a_schedule_runs_as_given_and_warns_of_kinks():
    with pytest.warns(UnreliableFit, match=r'kinks \(abs in b\).*give estimator="stein"'):
        approx = fit(laplace_prior(), n=30, n_samples=20)
    assert approx.report.estimator == "bonnet-price"


@pytest.mark.filterwarnings("ignore::pymc_ngvi.BudgetSpent", "ignore::pymc_ngvi.UnreliableFit")
def test_a_rounded_parameter():
    """Between two integers nothing changes: gradients see the prior only."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 3)
        pm.Normal("y", pt.floor(b), 1, observed=[2.2, 1.8, 2.5])
    with pytest.warns(EstimatorChanged, match=r'jumps \(floor in y\).*estimator="score"'):
        approx = fit(model, accuracy=0.1, max_evaluations=10_000)
    mean, sd = moments(approx, reach=15)
    assert approx.gaussian.mean[0] == pytest.approx(mean[0], abs=0.2 * sd[0])
    assert np.sqrt(approx.gaussian.variance[0]) == pytest.approx(sd[0], rel=0.2)


@pytest.mark.parametrize("prior", [pm.Flat, pm.HalfFlat])
def test_an_improper_posterior_is_named(prior):
    with pm.Model() as model:
        pm.Normal("mu")
        prior("x")
    with pytest.warns(UnreliableFit) as warned:
        approx = fit(model)
    assert approx.report.status != "converged"
    assert any("along x" in str(warning.message) for warning in warned)
    assert not any(issubclass(warning.category, RuntimeWarning) for warning in warned)
    assert any("along x" in note for note in approx.report.notes)


def test_where_a_density_ends_is_named():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("bound", pt.switch(x > 0.5, -np.inf, 0.0))
    with pytest.warns(UnreliableFit, match=r"-inf at some draws.*pm\.Truncated"):
        approx = fit(model)
    assert approx.report.verdict.beyond_support
    assert not any("flat" in note for note in approx.report.notes)


def test_where_no_hessian_is_finite_the_fit_goes_by_gradients():
    """A power of what is cut off at zero has no second derivative there, but a first one."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("cut", (pt.maximum(0.0, -1 - x**2) ** 1.5).sum())
    message = r"not finite at the start.*gradients only"
    with pytest.warns(HessianFallbackWarning, match=message):
        approx = fit(model)
    assert approx.report.estimator == "stein"
    np.testing.assert_allclose(approx.gaussian.variance, 1.0, rtol=0.05)
