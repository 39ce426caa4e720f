"""Importance ratios of a fit: how far its draws can be trusted, and how to weigh them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi._compat import pareto_smooth

Array = NDArray[np.float64]

#: Ratios that differ by less are equal but for rounding, and there is no tail to look at.
_EQUAL = 1e-8


@dataclass(frozen=True)
class Importance:
    r"""Draws weighed by :math:`p(x) / q(x)`, the largest ratios smoothed by a Pareto tail.

    Attributes
    ----------
    log_weights : array, (n,)
        Smoothed, and normalised: their exponentials sum to 1.
    khat : float
        Shape of the tail. Below 0.5 the Gaussian is close to the posterior and weighing its draws
        corrects what is missing, up to 0.7 weighing helps, and above it cannot be trusted.
        Infinite where a ratio is.
    """

    log_weights: Array
    khat: float

    @classmethod
    def from_ratios(cls, log_ratios: Array) -> Importance:
        """Smooth log p - log q (n,) of draws from q; minus infinity is outside the support."""
        log_ratios = np.asarray(log_ratios, dtype=np.float64)
        n, inside = len(log_ratios), log_ratios > -np.inf
        if not (log_ratios < np.inf).all() or not inside.any():  # NaN included
            return cls(np.full(n, -np.log(n)), np.inf)
        if np.ptp(log_ratios[inside]) < _EQUAL:
            return cls(np.where(inside, -np.log(inside.sum()), -np.inf), 0.0)
        return cls(*pareto_smooth(log_ratios - log_ratios.max()))

    @property
    def ess(self) -> float:
        """Effective sample size of the weights: n where they are equal."""
        return float(1 / np.exp(2 * self.log_weights).sum())
