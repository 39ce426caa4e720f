"""The ELBO of a fit, whatever made it, by the same draws and the same function."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.results.checks import fresh_log_ratios
from pymc_ngvi.results.importance import Importance

ELBO_DRAWS = 4000


def log_ratios(target: Any, q: Gaussian, seed: int = 0) -> np.ndarray:
    """Log p - log q at draws from q, from the same standard normal draws for every q."""
    return fresh_log_ratios(target.log_density, q, np.random.default_rng(seed), ELBO_DRAWS)


def elbo(target: Any, q: Gaussian, seed: int = 0) -> tuple[float, float]:
    """ELBO of q with its standard error, from the same standard normal draws for every q."""
    return mean_and_error(log_ratios(target, q, seed), antithetic=True)


def elbo_and_khat(target: Any, q: Gaussian) -> dict[str, float]:
    """ELBO of q with its standard error, and the k-hat of the same draws."""
    ratios = log_ratios(target, q)
    value, error = mean_and_error(ratios, antithetic=True)
    return {"elbo": value, "elbo_se": error, "khat": Importance.from_ratios(ratios).khat}


def gaussian_of_peer(approx: Any, target: Any) -> FullGaussian:
    """Return the Gaussian of a peer, its variables in the order of our target."""
    order = np.concatenate(
        [np.arange(target.dim)[approx.ordering[slot.name][1]] for slot in target.layout]
    )
    mean, covariance = approx.mean.eval(), approx.cov.eval()
    return FullGaussian.from_mean_covariance(mean[order], covariance[np.ix_(order, order)])
