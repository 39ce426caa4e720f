"""Small PyMC models, one for each thing a PyMC model may contain.

``MODELS`` maps a name to a function that builds the model anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def _rng() -> np.random.Generator:
    return np.random.default_rng(20240101)


def conjugate_normal() -> pm.Model:
    """One parameter, known noise: the posterior is a Gaussian in closed form."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 1.0, 2.0)
        pm.Normal("y", mu, 0.5, observed=[0.3, 1.1, 0.7])
    return model


def linear_regression() -> pm.Model:
    rng = _rng()
    x = rng.normal(size=(40, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=40)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 5.0)
        slopes = pm.Normal("slopes", 0.0, 2.0, shape=3)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", intercept + x @ slopes, sigma, observed=y)
    return model


def hierarchical() -> pm.Model:
    """Eight schools, non-centred."""
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=8)
        pm.Normal("y", mu + tau * z, error, observed=effect)
    return model


def coords_and_dims() -> pm.Model:
    coords = {"school": ["Eton", "Harrow", "Rugby"], "term": [1, 2]}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", 0.0, 1.0, dims="school")
        scale = pm.Gamma("scale", 2.0, 1.0, dims=("school", "term"))
        pm.Normal("y", beta[:, None], scale, observed=np.ones((3, 2)), dims=("school", "term"))
    return model


def mutable_data() -> pm.Model:
    rng = _rng()
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=10))
        y = pm.Data("y_data", rng.normal(size=10))
        slope = pm.Normal("slope", 0.0, 1.0)
        pm.Normal("y", slope * x, 1.0, observed=y, shape=x.shape)
    return model


def deterministic() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        square = pm.Deterministic("square", a**2)
        pm.Normal("y", square, 1.0, observed=[0.8, 1.3])
    return model


def potential() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0, shape=2)
        pm.Potential("together", -2.0 * (a[0] - a[1]) ** 2 - 0.1 * a[0] ** 4)
    return model


def censored() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        latent = pm.Normal.dist(mu, sigma)
        pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=[-1.0, 0.2, 0.7, 1.0])
    return model


def truncated() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        latent = pm.Truncated("latent", pm.Normal.dist(0.0, 1.0), lower=-1.0, upper=2.0)
        observed = pm.Normal.dist(mu + latent, 1.0)
        pm.Truncated("y", observed, lower=0.0, observed=[0.3, 0.9, 2.0])
    return model


def mixture() -> pm.Model:
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        means = pm.Normal("means", [-1.0, 1.0], 1.0)
        components = pm.Normal.dist(means, 0.7)
        pm.Mixture("y", weights, components, observed=[-1.2, -0.8, 0.9, 1.4])
    return model


def custom_dist() -> pm.Model:
    def logp(value: pt.TensorVariable, mu: pt.TensorVariable) -> pt.TensorVariable:
        return -pt.log(pt.cosh(value - mu)) - np.log(np.pi)

    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.CustomDist("y", mu, logp=logp, observed=[0.1, -0.4, 1.2])
    return model


def dirichlet() -> pm.Model:
    with pm.Model(coords={"party": ["a", "b", "c"]}) as model:
        share = pm.Dirichlet("share", np.array([2.0, 1.0, 3.0]), dims="party")
        pm.Multinomial("votes", n=20, p=share, observed=[6, 4, 10])
    return model


def lkj_cholesky_cov() -> pm.Model:
    data = _rng().normal(size=(15, 2))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        mu = pm.Normal("mu", 0.0, 1.0, shape=2)
        pm.MvNormal("y", mu, chol=chol, observed=data)
    return model


def ordered() -> pm.Model:
    with pm.Model() as model:
        cuts = pm.Normal(
            "cuts",
            [-1.0, 1.0],
            1.5,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 1.0],
        )
        eta = pm.Normal("eta", 0.0, 1.0)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=[0, 1, 2, 1])
    return model


def zero_sum_normal() -> pm.Model:
    with pm.Model(coords={"group": list("abcd")}) as model:
        effect = pm.ZeroSumNormal("effect", sigma=1.5, dims="group")
        pm.Normal("y", effect, 1.0, observed=[0.5, -0.2, 1.0, -1.1])
    return model


def missing_data() -> pm.Model:
    y = np.ma.masked_array([0.4, 1.2, -0.3, 0.8], mask=[False, True, False, True])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        with warnings.catch_warnings():  # PyMC says that it imputes
            warnings.simplefilter("ignore")
            pm.Normal("y", mu, 0.6, observed=y)
    return model


def scan_time_series() -> pm.Model:
    """A GARCH-like recursion: the variance of each value depends on the one before."""
    y = _rng().normal(size=8)
    with pm.Model() as model:
        omega = pm.HalfNormal("omega", 1.0)
        alpha = pm.Beta("alpha", 2.0, 2.0)

        def step(previous, variance, omega, alpha):
            return omega + alpha * previous**2 + 0.2 * variance

        variance = pytensor.scan(
            step,
            sequences=[pt.as_tensor(y[:-1])],
            outputs_info=[pt.constant(1.0, dtype="float64")],
            non_sequences=[omega, alpha],
            strict=True,
            return_updates=False,
        )
        pm.Normal("y", 0.0, pt.sqrt(variance), observed=y[1:])
    return model


def do_model() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        b = pm.Normal("b", a, 1.0)
        pm.Normal("y", a * b, 1.0, observed=[0.5, 0.1])
    return pm.do(model, {"a": 0.7})


def observe_model() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        b = pm.HalfNormal("b", 1.0)
        pm.Normal("y", a, b, shape=3)
    return pm.observe(model, {"y": np.array([0.2, -0.4, 1.0])})


def float32() -> pm.Model:
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", mu, sigma, observed=np.array([0.5, 1.5, 0.1], dtype="float32"))
    return model


def scalar_parameter() -> pm.Model:
    """One bounded scalar."""
    with pm.Model() as model:
        p = pm.Beta("p", 2.0, 2.0)
        pm.Binomial("y", n=10, p=p, observed=7)
    return model


def many_variables() -> pm.Model:
    with pm.Model() as model:
        total = sum(pm.Normal(f"v{i}", 0.0, 1.0) for i in range(40))  # NumPy adds up 32 at a time
        pm.Normal("y", total, 1.0, observed=3.0)
    return model


def prior_only() -> pm.Model:
    """No observed data."""
    with pm.Model() as model:
        pm.Normal("a", 0.0, 1.0)
        pm.Exponential("b", 2.0, shape=2)
    return model


def nested() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        with pm.Model("inner"):
            scale = pm.HalfNormal("scale", 1.0)
            pm.Normal("y", a, scale, observed=[0.4, 0.9])
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    build.__name__: build
    for build in (
        conjugate_normal,
        linear_regression,
        hierarchical,
        coords_and_dims,
        mutable_data,
        deterministic,
        potential,
        censored,
        truncated,
        mixture,
        custom_dist,
        dirichlet,
        lkj_cholesky_cov,
        ordered,
        zero_sum_normal,
        missing_data,
        scan_time_series,
        do_model,
        observe_model,
        float32,
        scalar_parameter,
        many_variables,
        prior_only,
        nested,
    )
}
