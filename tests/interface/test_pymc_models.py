"""What PyMC offers to write a model with: the fit is that of the same model written plainly.

The same seed gives the same draws in both fits, so that they agree in every step.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from tests.conftest import fit

# Fits of a few iterations are far from the posterior.
pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.errors.UnreliableFit")


def assert_same_fit(one, other, *, rtol=1e-8, **options):
    steps = dict(n=3, step_size=0.5, n_samples=20) | options
    a, b = (fit(model, **steps).gaussian for model in (one, other))
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol)
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=rtol, atol=rtol)


def gumbel(likelihood):
    rng = np.random.default_rng(9)
    x = rng.normal(size=30)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
        scale = pm.HalfNormal("scale", 2)
        likelihood(a + b * x, scale, 1 + 2 * x + rng.gumbel(0, 0.5, 30))
    return model


def test_custom_dist():
    def log_density(value, location, scale):
        z = (value - location) / scale
        return -z - pt.exp(-z) - pt.log(scale)

    assert_same_fit(
        gumbel(lambda mu, s, y: pm.CustomDist("y", mu, s, logp=log_density, observed=y)),
        gumbel(lambda mu, s, y: pm.Gumbel("y", mu, s, observed=y)),
    )


def test_do_and_observe():
    rng = np.random.default_rng(10)
    cause, z, outcome = rng.normal(size=(3, 20))
    priors = {"effect": pm.Normal, "confounding": pm.Normal, "noise": pm.HalfNormal}

    def scheme(names, x=None, z=None, y=None):
        with pm.Model() as model:
            of = {name: priors[name](name) for name in names}
            z = pm.Normal("z", shape=20, observed=z)
            x = pm.Normal("x", 0.8 * z, shape=20) if x is None else x
            mean = of["effect"] * x + of["confounding"] * z
            pm.Normal("y", mean, of["noise"], shape=20, observed=y)
        return model

    by_pymc = pm.do(pm.observe(scheme(priors), {"z": z, "y": outcome}), {"x": cause})
    # `do` and `observe` change the order of the variables, and with it the draws of a seed.
    names = [variable.name for variable in by_pymc.free_RVs]
    assert_same_fit(by_pymc, scheme(names, cause, z, outcome))


@pytest.mark.slow
def test_latent_gaussian_process():
    x = np.linspace(0, 10, 8)
    counts = np.random.default_rng(7).poisson(np.exp(1 + np.sin(x)))

    def process(by_hand):
        with pm.Model() as model:
            length, scale = pm.Gamma("length", 4, 2), pm.HalfNormal("scale", 2)
            if by_hand:
                distance = np.abs(x[:, np.newaxis] - x) / length
                # PyMC adds 1e-6 to the diagonal.
                kernel = scale**2 * pt.exp(-0.5 * distance**2) + 1e-6 * np.eye(8)
                f = pt.linalg.cholesky(kernel) @ pm.Normal("f_rotated_", shape=8)
            else:
                f = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, length)).prior(
                    "f", x[:, np.newaxis]
                )
            pm.Poisson("count", pt.exp(f), observed=counts)
        return model

    assert_same_fit(process(False), process(True), rtol=1e-4, estimator="stein", n_samples=60)


@pytest.mark.slow
def test_differential_equation():
    rng = np.random.default_rng(8)
    times = np.linspace(0.5, 4, 8)
    y = 3 * np.exp(-0.7 * times) + rng.normal(0, 0.1, 8)
    equation = pm.ode.DifferentialEquation(
        func=lambda y, t, p: -p[0] * y[0], times=times, n_states=1, n_theta=1, t0=0
    )

    def decay(solve):
        with pm.Model() as model:
            rate, start = pm.LogNormal("rate", 0, 1), pm.HalfNormal("start", 5)
            pm.Normal("y", solve(rate, start), pm.HalfNormal("noise", 0.5), observed=y)
        return model

    assert_same_fit(
        decay(lambda rate, start: equation(y0=[start], theta=[rate])[:, 0]),
        decay(lambda rate, start: start * pt.exp(-rate * times)),
        rtol=1e-4,
        estimator="stein",
    )
