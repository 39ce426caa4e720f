"""Models of kinds that users have and the other files of models lack, with simulated data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy.special import expit

MODELS: dict[str, Callable[[], pm.Model]] = {}


def model(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
    """Register the function that builds a model, under the function's name."""
    MODELS[build.__name__] = build
    return build


@model
def zero_inflated() -> pm.Model:
    """Zero-inflated negative-binomial counts of 1,000 rows on 4 predictors."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 4))
    rate = np.exp(0.8 + X @ [0.4, -0.3, 0.2, 0.0]) * rng.gamma(2.0, 0.5, 1000)
    counts = rng.poisson(rate) * (rng.random(1000) < 0.7)
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 0.0, 2.5)
        beta = pm.Normal("beta", 0.0, 2.5, shape=4)
        present = pm.Beta("present", 2.0, 2.0)
        alpha = pm.HalfNormal("alpha", 5.0)
        mu = pt.exp(intercept + X @ beta)
        pm.ZeroInflatedNegativeBinomial("y", psi=present, mu=mu, alpha=alpha, observed=counts)
    return built


@model
def softmax_10() -> pm.Model:
    """Multinomial regression with 10 classes and 5 predictors, 2,000 rows."""
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(2000), rng.normal(size=(2000, 4))])
    utility = np.column_stack([np.zeros(2000), X @ rng.normal(0.0, 0.6, (5, 9))])
    choice = np.argmax(utility + rng.gumbel(size=utility.shape), axis=1)
    with pm.Model() as built:
        beta = pm.Normal("beta", 0.0, 2.5, shape=(5, 9))
        logit = pt.concatenate([pt.zeros((2000, 1)), X @ beta], axis=1)
        pm.Categorical("choice", logit_p=logit, observed=choice)
    return built


@model
def survival() -> pm.Model:
    """Weibull times of 400 subjects, a third of them censored."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 3))
    times = np.exp(1.0 + X @ [0.5, -0.3, 0.0]) * rng.weibull(1.5, 400)
    ends = rng.exponential(8.0, 400)
    with pm.Model() as built:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        shape = pm.HalfNormal("shape", 2.0)
        time = pm.Weibull.dist(alpha=shape, beta=pt.exp(intercept + X @ beta))
        upper = np.where(times > ends, ends, np.inf)
        pm.Censored("time", time, lower=None, upper=upper, observed=np.minimum(times, ends))
    return built


@model
def gp_latent() -> pm.Model:
    """Gaussian process as the log rate of 50 counts."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(0.0, 10.0, 50))
    counts = rng.poisson(np.exp(1.0 + np.sin(x)))
    with pm.Model() as built:
        length = pm.InverseGamma("length", 5.0, 8.0)
        eta = pm.HalfNormal("eta", 1.0)
        process = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=length))
        f = process.prior("f", X=x[:, np.newaxis])
        pm.Poisson("y", pt.exp(f), observed=counts)
    return built


@model
def mixture() -> pm.Model:
    """Three Gaussians in order, 400 rows."""
    rng = np.random.default_rng(5)
    y = rng.normal(np.repeat([-3.0, 0.0, 3.5], [120, 160, 120]), 0.8)
    with pm.Model() as built:
        weights = pm.Dirichlet("weights", np.full(3, 2.0))
        start = np.array([-2.0, 0.0, 2.0])
        mu = pm.Normal("mu", 0.0, 5.0, shape=3, transform=ordered, initval=start)
        sigma = pm.HalfNormal("sigma", 2.0, shape=3)
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=y)
    return built


@model
def lasso() -> pm.Model:
    """Regression with Laplace priors: 4 of 20 coefficients matter, 100 rows."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(100, 20))
    y = X[:, :4] @ [1.5, -1.0, 0.7, 0.4] + rng.normal(size=100)
    with pm.Model() as built:
        scale = pm.HalfNormal("scale", 0.5)
        beta = pm.Laplace("beta", 0.0, scale, shape=20)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", X @ beta, sigma, observed=y)
    return built


@model
def state_space() -> pm.Model:
    """Local level of 150 observations with noise on both levels, the level centred."""
    rng = np.random.default_rng(7)
    y = np.cumsum(rng.normal(0.0, 0.3, 150)) + rng.normal(0.0, 0.5, 150)
    with pm.Model() as built:
        step = pm.HalfNormal("step", 1.0)
        noise = pm.HalfNormal("noise", 1.0)
        first = pm.Normal.dist(0.0, 2.0)
        level = pm.GaussianRandomWalk("level", mu=0.0, sigma=step, init_dist=first, shape=150)
        pm.Normal("y", level, noise, observed=y)
    return built


@model
def bambi_mixed() -> pm.Model:
    """Logistic model of bambi with varying intercepts and slopes, as its formula builds it."""
    import bambi
    import pandas

    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(25), 20)
    x = rng.normal(size=500)
    eta = rng.normal(0.3, 0.7, 25)[group] + (0.8 + rng.normal(0.0, 0.3, 25))[group] * x
    data = pandas.DataFrame({"x": x, "group": group.astype(str)})
    data["y"] = (rng.random(500) < expit(eta)).astype(int)
    built = bambi.Model("y ~ x + (x | group)", data, family="bernoulli")
    built.build()
    return built.backend.model


@model
def hssm_ddm() -> pm.Model:
    """Drift-diffusion model of HSSM, 300 decisions."""
    import hssm

    data = hssm.simulate_data(model="ddm", theta=[0.5, 1.5, 0.5, 0.3], size=300, random_state=9)
    return hssm.HSSM(data=data, model="ddm").pymc_model
