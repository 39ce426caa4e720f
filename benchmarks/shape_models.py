"""Models whose posteriors are not one Gaussian: hierarchies with few data, and their relatives.

Each model is written as a user would write it first. NUTS needs another centring for some of them,
which `CENTRING` has; draws of the variables are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

MODELS: dict[str, Callable[[], pm.Model]] = {}
#: Hierarchies with so many rows for each group that one Gaussian on the values as they are does.
PLAIN: dict[str, Callable[[], pm.Model]] = {}

#: Degrees of centring with which NUTS samples the reference.
CENTRING: dict[str, dict[str, float]] = {
    "eight_schools": {"theta": 0.0},
    "poisson_hierarchy": {"theta": 0.0},
    "varying_intercepts": {"intercept": 0.0},
    "meta_analysis": {"effect": 0.0},
    "two_levels": {"district": 0.0, "school": 0.0},
}

#: What someone who knows the model would hold.
NESTED: dict[str, list[str]] = {
    "eight_schools": ["tau"],
    "poisson_hierarchy": ["tau"],
    "varying_intercepts": ["tau"],
    "meta_analysis": ["tau"],
    "two_levels": ["between", "within"],
    "stochastic_volatility": ["step"],
    "hsgp_regression": ["eta", "length"],
    "horseshoe": ["shared"],
    "student_hierarchy": ["tau"],
    "beta_binomial": ["size"],
}


def model(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
    """Register the function that builds a model, under the function's name."""
    MODELS[build.__name__] = build
    return build


@model
def eight_schools() -> pm.Model:
    """Eight schools, centred."""
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, error, observed=effect)
    return built


@model
def poisson_hierarchy() -> pm.Model:
    """Poisson counts of 20 groups, one for each, centred."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(rng.normal(0.5, 0.4, 20)))
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        theta = pm.Normal("theta", mu, tau, shape=20)
        pm.Poisson("y", pt.exp(theta), observed=counts)
    return built


@model
def varying_intercepts() -> pm.Model:
    """Linear regression with a slope and 30 intercepts, from 1 to 5 rows each."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    x = rng.normal(size=group.size)
    y = rng.normal(1.0, 0.5, 30)[group] + 0.7 * x + rng.normal(size=group.size)
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        slope = pm.Normal("slope", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        intercept = pm.Normal("intercept", mu, tau, shape=30)
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y)
    return built


@model
def meta_analysis() -> pm.Model:
    """Random effects of 12 trials of different sizes, log odds ratios with known errors."""
    rng = np.random.default_rng(3)
    error = rng.uniform(0.1, 0.8, 12)
    estimate = rng.normal(rng.normal(-0.3, 0.15, 12), error)
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 1.0)
        tau = pm.HalfNormal("tau", 0.5)
        effect = pm.Normal("effect", mu, tau, shape=12)
        pm.Normal("y", effect, error, observed=estimate)
    return built


@model
def two_levels() -> pm.Model:
    """Rows in 24 schools in 6 districts, centred on both levels."""
    rng = np.random.default_rng(4)
    district, group = np.repeat(np.arange(6), 4), np.repeat(np.arange(24), 4)
    of_school = rng.normal(rng.normal(0.0, 0.5, 6)[district], 0.4)
    y = rng.normal(of_school[group], 1.0)
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 2.0)
        between = pm.HalfNormal("between", 1.0)
        within = pm.HalfNormal("within", 1.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        districts = pm.Normal("district", mu, between, shape=6)
        schools = pm.Normal("school", districts[district], within, shape=24)
        pm.Normal("y", schools[group], sigma, observed=y)
    return built


@model
def stochastic_volatility() -> pm.Model:
    """Log volatility of 200 returns as a random walk."""
    rng = np.random.default_rng(5)
    volatility = np.cumsum(rng.normal(0.0, 0.15, 200)) - 1.0
    returns = rng.normal(0.0, np.exp(volatility))
    with pm.Model() as built:
        step = pm.HalfNormal("step", 0.3)
        first = pm.Normal("first", -1.0, 1.0)
        moves = pm.Normal("moves", 0.0, 1.0, shape=199)
        path = pt.concatenate([first[None], first + step * pt.cumsum(moves)])
        pm.Normal("y", 0.0, pt.exp(path), observed=returns)
    return built


@model
def hsgp_regression() -> pm.Model:
    """Gaussian process by 20 basis functions, 120 points."""
    rng = np.random.default_rng(6)
    x = np.sort(rng.uniform(-1.0, 1.0, 120))
    y = np.sin(4 * x) + 0.3 * x + rng.normal(0.0, 0.3, 120)
    with pm.Model() as built:
        eta = pm.HalfNormal("eta", 1.0)
        length = pm.LogNormal("length", -0.7, 0.5)
        sigma = pm.HalfNormal("sigma", 1.0)
        kernel = eta**2 * pm.gp.cov.ExpQuad(1, ls=length)
        process = pm.gp.HSGP(m=[20], c=2.0, cov_func=kernel)
        basis, density = process.prior_linearized(x[:, None])
        weights = pm.Normal("weights", 0.0, 1.0, shape=20)
        pm.Normal("y", basis @ (density * weights), sigma, observed=y)
    return built


@model
def horseshoe() -> pm.Model:
    """Horseshoe regression, not centred: 3 of 20 coefficients matter, 60 rows."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 20))
    y = X[:, :3] @ [2.0, -1.5, 1.0] + rng.normal(size=60)
    with pm.Model() as built:
        shared = pm.HalfCauchy("shared", 0.2)
        local = pm.HalfCauchy("local", 1.0, shape=20)
        direction = pm.Normal("direction", 0.0, 1.0, shape=20)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", X @ (direction * local * shared), sigma, observed=y)
    return built


@model
def student_hierarchy() -> pm.Model:
    """Effects of 10 groups with heavy tails, from 3 rows each; no constant was settled on it."""
    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(10), 3)
    y = rng.normal(0.6 * rng.standard_t(4, 10)[group], 1.0)
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 1.0)
        tau = pm.HalfNormal("tau", 1.0)
        effect = pm.StudentT("effect", nu=4, mu=mu, sigma=tau, shape=10)
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", effect[group], sigma, observed=y)
    return built


@model
def beta_binomial() -> pm.Model:
    """Rates of 6 groups from a common beta distribution; no constant was settled on it."""
    rng = np.random.default_rng(9)
    trials = np.array([4, 6, 8, 10, 15, 20])
    successes = rng.binomial(trials, rng.beta(3.0, 6.0, 6))
    with pm.Model() as built:
        mean = pm.Beta("mean", 2.0, 2.0)
        size = pm.LogNormal("size", 2.0, 1.0)
        rate = pm.Beta("rate", mean * size, (1 - mean) * size, shape=6)
        pm.Binomial("y", trials, rate, observed=successes)
    return built


def plain(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
    """Register a hierarchy that needs nothing, under the function's name."""
    PLAIN[build.__name__] = build
    return build


@plain
def intercepts_of_many_rows() -> pm.Model:
    """Linear regression with 20 intercepts, from 50 rows each."""
    rng = np.random.default_rng(10)
    group = np.repeat(np.arange(20), 50)
    x = rng.normal(size=group.size)
    y = rng.normal(1.0, 1.0, 20)[group] + 0.7 * x + rng.normal(size=group.size)
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 2.0)
        slope = pm.Normal("slope", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        intercept = pm.Normal("intercept", mu, tau, shape=20)
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y)
    return built


@plain
def rates_of_many_counts() -> pm.Model:
    """Poisson counts of 30 groups, 40 for each."""
    rng = np.random.default_rng(11)
    group = np.repeat(np.arange(30), 40)
    counts = rng.poisson(np.exp(rng.normal(1.0, 0.6, 30))[group])
    with pm.Model() as built:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        rate = pm.Normal("rate", mu, tau, shape=30)
        pm.Poisson("y", pt.exp(rate[group]), observed=counts)
    return built
