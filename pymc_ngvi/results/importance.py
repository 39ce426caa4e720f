"""Importance ratios of a fit: how far its draws can be trusted, and how to weigh them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi._compat import pareto_smooth
from pymc_ngvi.core.linalg import Array

Indices = NDArray[np.intp]

#: Of fewer draws the largest fifth is no tail to which a Pareto distribution could be fitted.
_FEWEST = 25

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
        Infinite where a ratio is, NaN where there are too few draws to tell.
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
        if n < _FEWEST:
            weights = np.exp(log_ratios - log_ratios.max())
            with np.errstate(divide="ignore"):
                return cls(np.log(weights / weights.sum()), np.nan)
        return cls(*pareto_smooth(log_ratios - log_ratios.max()))

    def resample(self, n: int, rng: np.random.Generator, *, replace: bool = False) -> Indices:
        """Choose n of the draws, each with a probability that grows with its weight.

        Without replacement no draw appears twice, which keeps one of a large weight from taking
        over, at the price of a bias that vanishes as there are more draws to choose from.

        Returns
        -------
        array of int, (n,)
            In the order of the draws, so that they stay independent of each other.
        """
        if replace:
            weights = np.exp(self.log_weights)
            return np.sort(rng.choice(weights.size, n, p=weights / weights.sum()))
        available = int((self.log_weights > -np.inf).sum())
        if available < n:
            raise ValueError(
                f"{n} draws cannot be chosen without replacement: only {available} of "
                f"{self.log_weights.size} have any weight"
            )
        # The n largest of these keys are a weighted choice without replacement.
        keys = self.log_weights + rng.gumbel(size=self.log_weights.size)
        return np.sort(np.argpartition(-keys, n - 1)[:n])

    @property
    def ess(self) -> float:
        """Effective sample size of the weights: n where they are equal."""
        return float(1 / np.exp(2 * self.log_weights).sum())
