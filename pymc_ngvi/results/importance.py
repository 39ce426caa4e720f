"""Pareto-smoothed importance weights, and what they say about a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi._compat import pareto_smooth
from pymc_ngvi.core.linalg import Array

Indices = NDArray[np.intp]

#: With fewer draws, the largest fifth of the ratios is too few to fit a Pareto distribution to.
_FEWEST = 25

#: Log ratios that differ by less are equal up to rounding.
_EQUAL = 1e-8

#: Where as many draws have the largest ratio, it is a bound of the ratios, and there is no tail.
_BOUND = 5


@dataclass(frozen=True)
class Importance:
    r"""Importance weights :math:`p(x) / q(x)` of draws, the largest smoothed by a Pareto tail.

    Attributes
    ----------
    log_weights : array, (n,)
        Logarithms of the smoothed weights, which sum to 1.
    khat : float
        Shape of the Pareto tail. Below 0.5 the Gaussian is close to the posterior, and weights
        correct what it misses; up to 0.7 weights help; above they cannot be trusted. Infinite where
        a ratio is infinite or NaN or where no tail can be fitted to the ratios, and NaN where there
        are too few draws to fit one. Zero where several draws have the largest ratio, as draws have
        that are of an exact fit or of a density with steps.
    """

    log_weights: Array
    khat: float

    @classmethod
    def from_ratios(cls, log_ratios: Array) -> Importance:
        """Smooth the log ratios log p - log q (n,) at draws from q.

        A draw outside the support of p has a log ratio of minus infinity.
        """
        log_ratios = np.asarray(log_ratios, dtype=np.float64)
        n, inside = len(log_ratios), log_ratios > -np.inf
        if not (log_ratios < np.inf).all() or not inside.any():  # NaN included
            return cls(np.full(n, -np.log(n)), np.inf)
        log_weights, ratios = np.full(n, -np.inf), log_ratios[inside]
        ratios = ratios - ratios.max()
        khat = np.nan
        if (ratios > -_EQUAL).sum() >= min(_BOUND, len(ratios)):
            khat = 0.0
        elif len(ratios) >= _FEWEST:
            ratios, khat = pareto_smooth(ratios)
        log_weights[inside] = ratios - scipy.special.logsumexp(ratios)
        return cls(log_weights, khat)

    def resample(self, n: int, rng: np.random.Generator, *, replace: bool = False) -> Indices:
        """Choose n of the draws by their weights.

        Without replacement no draw appears twice, so that one draw with a large weight cannot fill
        the result. This has a bias, which vanishes as the number of draws to choose from grows.

        Returns
        -------
        array of int, (n,)
            Indices of the chosen draws, in increasing order.
        """
        if replace:
            weights = np.exp(self.log_weights)
            return np.sort(rng.choice(weights.size, n, p=weights / weights.sum()))
        available = int((self.log_weights > -np.inf).sum())
        if available < n:
            raise ValueError(
                f"{n} draws cannot be chosen without replacement: only {available} of "
                f"{self.log_weights.size} have a weight above 0"
            )
        # The draws with the n largest keys are a weighted choice without replacement.
        keys = self.log_weights + rng.gumbel(size=self.log_weights.size)
        return np.sort(np.argpartition(-keys, n - 1)[:n])

    @property
    def ess(self) -> float:
        """Effective sample size of the weights, which is n where they are equal."""
        return float(1 / np.exp(2 * self.log_weights).sum())
