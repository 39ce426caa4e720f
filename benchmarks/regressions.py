"""Regressions whose evaluation is compared with NumPy by hand.

Each function builds a model of so many rows and predictors with simulated data, and, where the
derivatives are short, returns what computes them by hand: from the flat vector (d,) the log density
with its gradient and Hessian.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy.special import expit, gammaln, softmax

Derivatives = tuple[float, np.ndarray, np.ndarray]
ByHand = Callable[[np.ndarray], Derivatives]
Built = tuple[pm.Model, ByHand | None]

MODELS: dict[str, Callable[[int, int], Built]] = {}  # by the name of their likelihood

# Standard deviation of the prior of a coefficient.
_PRIOR = 2.5


def regression(build: Callable[[int, int], Built]) -> Callable[[int, int], Built]:
    """Register a function that builds a model, under the function's name."""
    MODELS[build.__name__.removesuffix("_regression")] = build
    return build


def _simulated(rows: int, predictors: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Return a generator, predictors, and a linear predictor."""
    rng = np.random.default_rng(rows + predictors)
    X = rng.normal(size=(rows, predictors))
    return rng, X, X @ rng.normal(0.0, 0.5 / np.sqrt(predictors), predictors)


def _with_prior(beta: np.ndarray, value: float, g: np.ndarray, H: np.ndarray) -> Derivatives:
    """Add the prior of the coefficients to the derivatives of a log-likelihood."""
    d = len(beta)
    value += -0.5 * beta @ beta / _PRIOR**2 - d * np.log(_PRIOR * np.sqrt(2 * np.pi))
    H.ravel()[:: d + 1] -= 1 / _PRIOR**2
    return value, g - beta / _PRIOR**2, H


@regression
def logistic(rows: int, predictors: int) -> Built:
    """Logistic regression."""
    rng, X, eta = _simulated(rows, predictors)
    y = (rng.random(rows) < expit(eta)).astype(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)

    def by_hand(beta: np.ndarray) -> Derivatives:
        eta = X @ beta
        p = expit(eta)
        value = float(y @ eta - np.logaddexp(0, eta).sum())
        return _with_prior(beta, value, X.T @ (y - p), -(X.T * (p * (1 - p))) @ X)

    return model, by_hand


@regression
def poisson(rows: int, predictors: int) -> Built:
    """Poisson regression."""
    rng, X, eta = _simulated(rows, predictors)
    y = rng.poisson(np.exp(eta))
    constant = gammaln(y + 1.0).sum()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        pm.Poisson("y", pt.exp(X @ beta), observed=y)

    def by_hand(beta: np.ndarray) -> Derivatives:
        eta = X @ beta
        rate = np.exp(eta)
        value = float(y @ eta - rate.sum() - constant)
        return _with_prior(beta, value, X.T @ (y - rate), -(X.T * rate) @ X)

    return model, by_hand


@regression
def softmax_regression(rows: int, predictors: int) -> Built:
    """Multinomial regression with three categories, of which the first is the reference."""
    rng, X, _ = _simulated(rows, predictors)
    truth = rng.normal(0.0, 0.5 / np.sqrt(predictors), (predictors, 2))
    shares = softmax(np.column_stack([np.zeros(rows), X @ truth]), axis=1)
    y = (rng.random((rows, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    chosen = np.column_stack([y == 1, y == 2]).astype(float)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=(predictors, 2))
        eta = pt.concatenate([pt.zeros((rows, 1)), X @ beta], axis=1)
        pm.Categorical("y", logit_p=eta, observed=y)

    def by_hand(flat: np.ndarray) -> Derivatives:
        eta = X @ flat.reshape(predictors, 2)
        largest = np.maximum(eta.max(axis=1), 0.0)
        e = np.exp(eta - largest[:, np.newaxis])
        total = e.sum(axis=1) + np.exp(-largest)
        p = e / total[:, np.newaxis]
        value = float((chosen * eta).sum() - (largest + np.log(total)).sum())
        gradient = (X.T @ (chosen - p)).ravel()
        hessian = np.empty((predictors, 2, predictors, 2))
        for k, m in ((0, 0), (0, 1), (1, 1)):
            weight = p[:, k] * ((k == m) - p[:, m])
            hessian[:, k, :, m] = -(X.T * weight) @ X
        hessian[:, 1, :, 0] = hessian[:, 0, :, 1].T
        return _with_prior(flat, value, gradient, hessian.reshape(flat.size, flat.size))

    return model, by_hand


@regression
def negative_binomial(rows: int, predictors: int) -> Built:
    """Negative-binomial regression with its dispersion."""
    rng, X, eta = _simulated(rows, predictors)
    y = rng.poisson(np.exp(eta) * rng.gamma(3.0, 1 / 3.0, rows))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        alpha = pm.HalfNormal("alpha", 5.0)
        pm.NegativeBinomial("y", mu=pt.exp(X @ beta), alpha=alpha, observed=y)
    return model, None


@regression
def student(rows: int, predictors: int) -> Built:
    """Regression with Student's errors, of unknown scale and degrees of freedom."""
    rng, X, eta = _simulated(rows, predictors)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        sigma = pm.HalfNormal("sigma", 2.0)
        nu = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=nu, mu=X @ beta, sigma=sigma, observed=eta + rng.standard_t(5, rows))
    return model, None


@regression
def ordered_regression(rows: int, predictors: int) -> Built:
    """Ordered logistic regression with five categories."""
    rng, X, eta = _simulated(rows, predictors)
    y = np.searchsorted([-2.0, -0.5, 0.5, 2.0], eta + rng.logistic(size=rows))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        cutpoints = pm.Normal(
            "cutpoints", 0.0, 3.0, shape=4, transform=ordered, initval=[-2.0, -0.5, 0.5, 2.0]
        )
        pm.OrderedLogistic("y", X @ beta, cutpoints, compute_p=False, observed=y)
    return model, None
