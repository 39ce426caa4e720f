"""The ELBO of a fit, whatever made it, by the same draws and the same function."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.results.verdict import fresh_log_ratios

ELBO_DRAWS = 4000


def elbo(target: Any, q: Gaussian, seed: int = 0) -> tuple[float, float]:
    """ELBO of q with its standard error, from the same standard normal draws for every q."""
    rng = np.random.default_rng(seed)
    return mean_and_error(fresh_log_ratios(target.log_density, q, rng, ELBO_DRAWS), antithetic=True)


def gaussian_of_peer(approx: Any, target: Any) -> FullGaussian:
    """Return the Gaussian of a peer, its variables in the order of our target."""
    order = np.concatenate(
        [np.arange(target.dim)[approx.ordering[slot.name][1]] for slot in target.layout]
    )
    mean, covariance = approx.mean.eval(), approx.cov.eval()
    return FullGaussian.from_mean_covariance(mean[order], covariance[np.ix_(order, order)])
