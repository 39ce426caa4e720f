"""Importance weights of draws from an approximation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import UnreliableFit, first_line, warn
from pymc_ngvi.model.densities import Values
from pymc_ngvi.results.draws import DrawTransform
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.matching import Matching, match_moments
from pymc_ngvi.results.verdict import Verdict

IMPORTANCE = ("auto", None, "psis", "resample", "match")

#: Those that choose draws by their weights.
RESAMPLED = ("resample", "match")

#: Number of draws made for each one that resampling chooses.
POOL = 10


@dataclass(frozen=True)
class WeighedDraws:
    """Draws of an approximation, with their densities and weights.

    Attributes
    ----------
    draws : array, (n, d)
        On the unconstrained scale.
    log_q : array, (n,)
        Log density of the approximation.
    log_p : array, (n,), or None
        Log density of the model, where it is available.
    importance : Importance or None
        Weights of the draws; after resampling, of all draws among which these were chosen.
    resampled : bool
        Whether the draws were chosen by their weights, and so have equal weights now.
    problem : str
        Why the log density of the model is not available.
    matching : Matching or None
        The maps that moved the draws, where it was asked for them.
    unmatched : Importance or None
        Weights of the same draws without these maps.
    """

    draws: Array
    log_q: Array
    log_p: Array | None = None
    importance: Importance | None = None
    resampled: bool = False
    problem: str = ""
    matching: Matching | None = None
    unmatched: Importance | None = None

    @property
    def statistics(self) -> Values:
        """The group `sample_stats`."""
        if self.log_p is None or self.importance is None:
            return {"log_q": self.log_q}
        n = len(self.draws)
        weights = np.full(n, -np.log(n)) if self.resampled else self.importance.log_weights
        return {"lp": self.log_p, "log_q": self.log_q, "log_weight": weights}

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the group `sample_stats`, about all draws together."""
        if self.importance is None:
            return {"lp_missing": self.problem}
        matched = {}
        if self.matching is not None and self.unmatched is not None:
            matched = {
                "khat_unmatched": self.unmatched.khat,
                "ess_unmatched": self.unmatched.ess,
                "matched": str(self.matching),
            }
        return matched | {
            "khat": self.importance.khat,
            "ess": self.importance.ess,
            "weighed_draws": self.importance.log_weights.size,
            "resampled": int(self.resampled),
        }

    @property
    def verdict(self) -> Verdict:
        """What the weights say of themselves."""
        if self.importance is None:
            return Verdict()
        n = self.importance.log_weights.size
        return Verdict(khat=self.importance.khat, ess=self.importance.ess, draws=n)

    def warn_if_unreliable(self, *, chosen: bool) -> None:
        """Warn where weights cannot correct for what the approximation misses.

        Parameters
        ----------
        chosen : bool
            Whether the user chose to weigh the draws, who may do something else instead.
        """
        if self.importance is None:
            return
        verdict, n = self.verdict, self.importance.log_weights.size
        if np.isnan(verdict.khat):
            warn(f"{n} draws are too few to tell whether importance weights help", UnreliableFit)
        elif not verdict.weighable:
            other = 'fit with remedy="auto", or ' if chosen else ""
            warn(
                f"importance weights cannot correct this fit (k-hat {verdict}): {other}sample the "
                "model by pm.sample(**approx.nuts_kwargs())",
                UnreliableFit,
            )


def check_importance(importance: str | None, *, replace: bool = False) -> None:
    """Raise where `importance` is not one of the choices, or `replace` has no meaning."""
    check_choice("importance", importance, IMPORTANCE)
    if replace and importance not in RESAMPLED:
        raise ValueError('replace=True belongs to importance="resample" and importance="match"')


def weigh(
    draws: Array,
    log_q: Array,
    transform: DrawTransform,
    *,
    required: bool = False,
) -> WeighedDraws:
    """Evaluate both densities at draws (n, d) and compute their importance weights.

    Parameters
    ----------
    draws : array, (n, d)
    log_q : array, (n,)
        Log density of the distribution that the draws are from.
    transform : DrawTransform
        The transform of the model, which evaluates its density.
    required : bool
        Raise where the density of the model is not available. Otherwise draws have no weights in
        two cases: densities would take long, as those of batches and of very many data do; or the
        density fails, for example because predictors were replaced for a prediction and no longer
        have as many rows as the observations.
    """
    try:
        if not required and transform.is_costly(len(draws)):
            problem = "it takes many seconds: ask for it by importance= or log_likelihood="
            return WeighedDraws(draws, log_q, problem=problem)
        log_p = transform.log_density(draws)
    # Data of different lengths may fail in any operation, with any error.
    except Exception as error:
        if required:
            raise
        return WeighedDraws(draws, log_q, problem=first_line(error))
    return WeighedDraws(draws, log_q, log_p, Importance.from_ratios(log_p - log_q))


def match(
    pool: WeighedDraws, pilot: Array, log_q_pilot: Array, transform: DrawTransform
) -> WeighedDraws:
    """Move the draws in `pool` to the moments of the posterior, unless this raises their k-hat.

    Parameters
    ----------
    pool : WeighedDraws
        Draws of the approximation with their weights.
    pilot : array, (n, d)
        Other draws of it, on which the maps are found.
    log_q_pilot : array, (n,)
        Their log densities.
    transform : DrawTransform
    """
    assert pool.importance is not None
    matching = match_moments(transform.log_density, pilot, log_q_pilot)
    draws, log_q = matching(pool.draws, pool.log_q)
    log_p = transform.log_density(draws)
    importance = Importance.from_ratios(log_p - log_q)
    # NaN, of too few draws to tell, leaves it to the pilot draws.
    if importance.khat > pool.importance.khat:
        return dataclasses.replace(pool, matching=Matching(), unmatched=pool.importance)
    return WeighedDraws(
        draws, log_q, log_p, importance, matching=matching, unmatched=pool.importance
    )


def resample(
    pool: WeighedDraws, n: int, rng: np.random.Generator, *, replace: bool = False
) -> WeighedDraws:
    """Choose n of the draws in `pool` by their weights."""
    assert pool.log_p is not None
    assert pool.importance is not None
    chosen = pool.importance.resample(n, rng, replace=replace)
    return dataclasses.replace(
        pool,
        draws=pool.draws[chosen],
        log_q=pool.log_q[chosen],
        log_p=pool.log_p[chosen],
        resampled=True,
    )
