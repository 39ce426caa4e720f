r"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry 2024).

The largest importance ratios follow, above a threshold u, nearly a generalised Pareto distribution

.. math:: p(y \mid k, \sigma) = \frac1\sigma \Bigl(1 + k \frac{y - u}{\sigma}\Bigr)^{-1/k - 1}

whose shape k tells how many moments they have. Its quantiles replace them as weights. ArviZ offers
the same, and a test compares the two; importing ArviZ takes longer than a fit.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array

#: The tail is this share of the draws at most, and this many times the root of their number.
_TAIL_SHARE, _TAIL_ROOT = 0.2, 3.0
#: Fewest draws in a tail to which a shape can be fitted.
_FEWEST = 5
#: Shape of the prior, and the number of draws that it is worth.
_PRIOR_SHAPE, _PRIOR_DRAWS = 0.5, 10
#: Zhang and Stephens put the prior's scale at a third of the first quartile, and take this many
#: grid points more than the root of the number of draws.
_PRIOR_SCALE, _GRID = 3.0, 30


def smooth_ratios(log_ratios: Array) -> tuple[Array, float]:
    """Smooth log importance ratios (n,), and return log weights (n,), not normalised, and k-hat.

    Where no tail can be fitted because many of the largest ratios are equal, the ratios are
    returned as they are and k-hat is infinite.
    """
    n = len(log_ratios)
    weights = log_ratios - log_ratios.max()
    size = math.floor(min(_TAIL_SHARE * n, _TAIL_ROOT * math.sqrt(n)))
    order = np.argsort(weights)
    tail = order[-size:]
    # A threshold below the smallest normal number would leave tails without any digits.
    threshold = max(weights[order[-size - 1]], math.log(np.finfo(float).tiny))
    tail = tail[weights[tail] > threshold]
    if len(tail) < _FEWEST:
        return log_ratios, np.inf
    base = math.exp(threshold)
    shape, scale = fit_pareto(np.exp(weights[tail]) - base)
    if not np.isfinite(shape):
        return log_ratios, np.inf
    chances = (np.arange(len(tail)) + 0.5) / len(tail)
    with np.errstate(over="ignore"):
        if abs(shape) < np.finfo(float).eps:
            quantiles = -scale * np.log1p(-chances)
        else:
            quantiles = scale * np.expm1(-shape * np.log1p(-chances)) / shape
        weights[tail] = np.minimum(np.log(quantiles + base), 0.0)  # no more than the largest ratio
    return weights, float(shape)


def leave_out(log_ratios: Array, log_likelihood: Array) -> tuple[float, float, float]:
    r"""Predict an observation from all the others, by weights :math:`p / (q\, p(y_i))` of draws.

    Parameters
    ----------
    log_ratios : array, (n,)
        Log p - log q at the draws.
    log_likelihood : array, (n,)
        Log-likelihood of the observation at the draws.

    Returns
    -------
    elpd, khat, efficiency : float
        Log predictive density, shape of the tail of the weights, and share of draws that are
        effective. Where a ratio is not finite they are NaN, infinite and 0.
    """
    ratios = log_ratios - log_likelihood
    if not np.isfinite(ratios).all():
        return np.nan, np.inf, 0.0
    ratios = ratios - ratios.max()
    weights, khat = smooth_ratios(ratios)
    logsumexp = scipy.special.logsumexp
    elpd = logsumexp(weights + log_likelihood) - logsumexp(weights)
    raw = np.exp(ratios)
    return float(elpd), khat, float(raw.mean() ** 2 / np.square(raw).mean())


def fit_pareto(exceedances: Array) -> tuple[float, float]:
    """Fit shape and scale of a generalised Pareto distribution to increasing numbers (n,) above 0.

    The estimator is that of Zhang and Stephens (2009), a posterior mean over a grid, with the shape
    drawn a little towards 0.5 as in PSIS.
    """
    n = len(exceedances)
    quartile, largest = exceedances[int(n / 4 + 0.5) - 1], exceedances[-1]
    m = _GRID + int(math.sqrt(n))
    grid = 1 / largest + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (_PRIOR_SCALE * quartile)
    with np.errstate(all="ignore"):
        shapes = np.log1p(-np.outer(grid, exceedances)).mean(axis=1)
        log_likelihoods = n * (np.log(-grid / shapes) - shapes - 1)
        likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
        kept = likelihoods >= 10 * np.finfo(float).eps * likelihoods.sum()
        grid, likelihoods = grid[kept], likelihoods[kept]
        rate = float((grid * likelihoods).sum() / likelihoods.sum())
        shape = float(np.log1p(-rate * exceedances).mean())
        scale = -shape / rate
    prior = _PRIOR_DRAWS
    return (n * shape + prior * _PRIOR_SHAPE) / (n + prior), scale
