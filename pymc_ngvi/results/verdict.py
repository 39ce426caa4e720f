"""How good a fitted Gaussian is, judged on fresh draws from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.importance import Importance

#: Fresh draws on which a fit is judged.
VERDICT_DRAWS = 1000
#: Above this k-hat, trust neither the Gaussian nor importance weights on its draws.
UNRELIABLE_KHAT = 0.7
#: Below this k-hat, the Gaussian is close to the posterior.
GOOD_KHAT = 0.5
#: Where fewer of the draws than this share are effective, trust neither of them, whatever k-hat.
LEAST_EFFICIENCY = 0.2
#: Where more of the draws than this share are effective, the ratios are nearly equal.
FULL_EFFICIENCY = 0.95


@dataclass(frozen=True)
class Verdict:
    """How good a fit is, judged on fresh draws from it.

    Attributes
    ----------
    elbo, elbo_se : float
        Mean of log p - log q, and its standard error.
    khat : float
        Pareto shape of the importance ratios p/q; NaN where they are not available.
    ess : float
        Effective sample size of the weights.
    draws : int
        Number of draws it was judged on; 0 for a fit that was not judged.
    problem : str
        Why the fit could not be judged, where it was tried.
    """

    elbo: float = np.nan
    elbo_se: float = np.nan
    khat: float = np.nan
    ess: float = np.nan
    draws: int = 0
    problem: str = ""

    @property
    def unreliable(self) -> bool:
        """Whether the ratios say that the Gaussian misses part of the posterior."""
        if self.only_tails:
            return False
        return self.khat > UNRELIABLE_KHAT or self.ess < LEAST_EFFICIENCY * self.draws

    @property
    def only_tails(self) -> bool:
        """Whether a large k-hat is about tails that hold hardly any of the posterior.

        k-hat does not depend on the scale of the log ratios: where a fit is nearly exact they are
        all near a constant, and their tail may have any shape.
        """
        many = self.ess > FULL_EFFICIENCY * self.draws
        return many and UNRELIABLE_KHAT < self.khat < np.inf

    def __str__(self) -> str:
        if np.isnan(self.khat):
            return "not judged"
        word = "unreliable" if self.unreliable else "good" if self.khat < GOOD_KHAT else "fair"
        if self.only_tails:
            word = "good but for the tails"
        return f"{self.khat:.2f}, {self.ess:.0f} of {self.draws} draws effective: {word}"


def judge(target: ModelTarget, q: Gaussian, rng: np.random.Generator) -> Verdict:
    """Judge a Gaussian by the importance ratios p/q at fresh draws from it.

    Parameters
    ----------
    target : ModelTarget
    q : Gaussian
    rng : numpy.random.Generator

    Returns
    -------
    Verdict
        Without k-hat where p is estimated from batches that leave too much noise in it: the ratios
        are then those of the batches, not of the posterior.
    """
    full = target.of_all_data(q, rng)
    draws = VERDICT_DRAWS
    log_ratios = fresh_log_ratios(full.log_density, q, rng, draws)
    if not np.isfinite(log_ratios).all():
        elbo = np.nan if np.isnan(log_ratios).any() else -np.inf
        return Verdict(elbo, np.nan, khat=np.inf, ess=0.0, draws=draws)
    elbo, elbo_se = mean_and_error(log_ratios, antithetic=True)
    elbo_se = math.hypot(elbo_se, full.noise * math.sqrt(full.shared / draws))
    if full.is_noisy:
        return Verdict(elbo, elbo_se, draws=draws)
    importance = Importance.from_ratios(log_ratios)
    return Verdict(elbo, elbo_se, importance.khat, importance.ess, draws)


def fresh_log_ratios(
    log_density: Callable[[Array], Array],
    q: Gaussian,
    rng: np.random.Generator,
    n: int,
) -> Array:
    """Log p - log q (n,) at fresh antithetic draws from q.

    Parameters
    ----------
    log_density : callable
        Maps draws (n, d) to log p (n,).
    q : Gaussian
    rng : numpy.random.Generator
    n : int
        Number of draws.
    """
    z = standard_normal(n, q.dim, rng, antithetic=True)
    return np.asarray(log_density(q.unwhiten(z)) - q.log_density_whitened(z))
