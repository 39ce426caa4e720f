"""Regressions whose evaluation is compared with NumPy by hand.

Each function builds a model of so many rows and predictors with simulated data, and returns it with
what computes the same by hand: from the flat vector (d,) the log density with its gradient and
Hessian.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy.special import digamma, expit, gammaln, polygamma, softmax

Derivatives = tuple[float, np.ndarray, np.ndarray]
ByHand = Callable[[np.ndarray], Derivatives]
Built = tuple[pm.Model, ByHand]

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
    H[np.arange(d), np.arange(d)] -= 1 / _PRIOR**2
    g[:d] -= beta / _PRIOR**2
    return value, g, H


def _bordered(X: np.ndarray, weight: np.ndarray, cross: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return the Hessian of the coefficients and a few more parameters.

    `weight` (n,) has the second derivatives of each row by its linear predictor, `cross` (n, k)
    those by it and by the other parameters, `rest` (k, k) the sums of those by the latter.
    """
    between = X.T @ cross
    return np.block([[(X.T * weight) @ X, between], [between.T, rest]])


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
    constant = -gammaln(y + 1.0).sum() + np.log(np.sqrt(2 / np.pi) / 5.0)

    def by_hand(flat: np.ndarray) -> Derivatives:
        beta, a = flat[:-1], np.exp(flat[-1])
        eta = X @ beta
        mu = np.exp(eta)
        total = a + mu
        value = float((gammaln(y + a) - (y + a) * np.log(total)).sum() + y @ eta)
        value += rows * (a * np.log(a) - gammaln(a)) + constant - a**2 / 50 + flat[-1]
        excess = (y - mu) / total
        slope = (digamma(y + a) - np.log(total) - excess).sum()
        slope += rows * (np.log(a) - digamma(a)) - a / 25
        bend = (polygamma(1, y + a) - (1 - excess) / total).sum()
        bend += rows * (1 / a - polygamma(1, a)) - 1 / 25
        gradient = np.append(X.T @ (a * excess), a * slope + 1)
        cross = (a * excess * mu / total)[:, np.newaxis]
        weight = -a * mu * (y + a) / total**2
        hessian = _bordered(X, weight, cross, np.array([[a**2 * bend + a * slope]]))
        return _with_prior(beta, value, gradient, hessian)

    return model, by_hand


@regression
def student(rows: int, predictors: int) -> Built:
    """Regression with Student's errors, of unknown scale and degrees of freedom."""
    rng, X, eta = _simulated(rows, predictors)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, _PRIOR, shape=predictors)
        sigma = pm.HalfNormal("sigma", 2.0)
        nu = pm.Gamma("nu", 2.0, 0.1)
        y = eta + rng.standard_t(5, rows)
        pm.StudentT("y", nu=nu, mu=X @ beta, sigma=sigma, observed=y)

    def by_hand(flat: np.ndarray) -> Derivatives:
        beta, (s, v) = flat[:-2], np.exp(flat[-2:])
        error = (y - X @ beta) / s
        square = error**2
        total = v + square
        away = np.log(total / v)
        w = (v + 1) / total
        value = rows * (gammaln((v + 1) / 2) - gammaln(v / 2) - np.log(v * np.pi * s**2) / 2)
        value += float(-(v + 1) / 2 * away.sum() + np.log(np.sqrt(2 / np.pi) / 2.0) - s**2 / 8)
        value += 2 * np.log(0.1) + np.log(v) - 0.1 * v + flat[-2] + flat[-1]
        # By the degrees of freedom, and by them and half the square of the error.
        of_v = rows * (digamma((v + 1) / 2) - digamma(v / 2) - 1 / v) / 2
        of_v += (-away - w + (v + 1) / v).sum() / 2 + 1 / v - 0.1
        of_vv = rows * (polygamma(1, (v + 1) / 2) - polygamma(1, v / 2) + 2 / v**2) / 4
        of_vv += (-1 / total + 1 / v + (w / total - (v + 1) / v**2) / 2).sum() - 1 / v**2
        mixed = (w - 1) / total
        of_s = w @ square
        gradient = np.r_[X.T @ (w * error / s), of_s - rows - s**2 / 4 + 1, v * of_v + 1]
        bent = 2 * w / total * square
        weight = (bent - w) / s**2
        cross = np.column_stack([(bent - 2 * w) * error / s, -v * mixed * error / s])
        rest = np.empty((2, 2))
        rest[0, 0] = bent @ square - 2 * of_s - s**2 / 2
        rest[0, 1] = rest[1, 0] = -v * (mixed @ square)
        rest[1, 1] = v**2 * of_vv + v * of_v
        return _with_prior(beta, value, gradient, _bordered(X, weight, cross, rest))

    return model, by_hand


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
    at_most, above = y < 4, y > 0  # rows with a cutpoint above, and with one below

    def by_hand(flat: np.ndarray) -> Derivatives:
        beta, free = flat[:-4], flat[-4:]
        steps = np.r_[1.0, np.exp(free[1:])]
        cuts = np.cumsum(np.r_[free[0], steps[1:]])
        eta = X @ beta
        upper = np.where(at_most, expit(cuts[np.minimum(y, 3)] - eta), 1.0)
        lower = np.where(above, expit(cuts[np.maximum(y, 1) - 1] - eta), 0.0)
        p = upper - lower
        value = float(np.log(p).sum() - (cuts @ cuts) / 18 + free[1:].sum())
        value -= 4 * np.log(3 * np.sqrt(2 * np.pi))
        # By the cutpoint above a row, and by the one below.
        up, down = upper * (1 - upper) / p, -lower * (1 - lower) / p
        up_up, down_down = up * (1 - 2 * upper - up), down * (1 - 2 * lower - down)
        between = -up * down
        of_cuts = np.bincount(y, up, 5)[:4] + np.bincount(y, down, 5)[1:] - cuts / 9
        bend = np.bincount(y, up_up, 5)[:4] + np.bincount(y, down_down, 5)[1:] - 1 / 9
        beside = np.bincount(y, between, 5)[1:4]
        of_both = np.diag(bend) + np.diag(beside, 1) + np.diag(beside, -1)
        cross = np.zeros((rows, 5))
        cross[np.arange(rows), y] = -up_up - between
        cross[np.arange(rows)[above], y[above] - 1] -= (down_down + between)[above]
        # Cutpoints are sums of steps: the chain rule.
        chain = np.tril(np.broadcast_to(steps, (4, 4)))
        rest = chain.T @ of_both @ chain
        rest[np.arange(1, 4), np.arange(1, 4)] += (chain.T @ of_cuts)[1:]
        gradient = np.r_[X.T @ -(up + down), chain.T @ of_cuts + [0, 1, 1, 1]]
        weight = up_up + 2 * between + down_down
        hessian = _bordered(X, weight, cross[:, :4] @ chain, rest)
        return _with_prior(beta, value, gradient, hessian)

    return model, by_hand
