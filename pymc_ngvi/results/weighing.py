"""Draws of an approximation beside the posterior: their densities and importance weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import UnreliableFit, first_line, warn
from pymc_ngvi.model.densities import Values
from pymc_ngvi.results.draws import DrawTransform
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.verdict import Verdict

IMPORTANCE = ("psis", "resample")

#: Draws made for each one that is chosen by resampling.
POOL = 10


@dataclass(frozen=True)
class WeighedDraws:
    """Draws of a Gaussian and what is known of each.

    Attributes
    ----------
    draws : array, (n, d)
        On the unconstrained scale.
    log_q : array, (n,)
        Log density of the Gaussian.
    log_p : array, (n,), or None
        Log density of the model, where it can be had.
    importance : Importance or None
        Weights of the draws, or of those among which they were chosen.
    resampled : bool
        Whether they were chosen by their weights, and so carry none any more.
    problem : str
        Why there is no log density of the model.
    """

    draws: Array
    log_q: Array
    log_p: Array | None = None
    importance: Importance | None = None
    resampled: bool = False
    problem: str = ""

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
        """What `sample_stats` says of all draws together."""
        if self.importance is None:
            return {"lp_missing": self.problem}
        return {
            "khat": self.importance.khat,
            "ess": self.importance.ess,
            "weighed_draws": self.importance.log_weights.size,
            "resampled": int(self.resampled),
        }

    def warn_if_unreliable(self) -> None:
        """Warn where weights cannot make up for what the Gaussian misses."""
        if self.importance is None:
            return
        n = self.importance.log_weights.size
        verdict = Verdict(khat=self.importance.khat, ess=self.importance.ess, draws=n)
        if verdict.unreliable:
            warn(
                f"importance weights cannot mend this fit (k-hat {verdict}): reparametrise the "
                "model, or use pm.sample",
                UnreliableFit,
            )


def check_importance(importance: str | None, *, replace: bool = False) -> None:
    """Raise where `importance` is none of the known ways, or `replace` has no meaning."""
    if importance is not None and importance not in IMPORTANCE:
        raise ValueError(
            f"importance {importance!r} is none of None, {', '.join(map(repr, IMPORTANCE))}"
            f"{did_you_mean(importance, IMPORTANCE)}"
        )
    if replace and importance != "resample":
        raise ValueError('replace=True belongs to importance="resample"')


def weigh(
    gaussian: Gaussian,
    draws: Array,
    transform: DrawTransform,
    *,
    required: bool = False,
) -> WeighedDraws:
    """Evaluate the densities at draws (n, d) and weigh them.

    Parameters
    ----------
    gaussian : Gaussian
        What was drawn from.
    draws : array, (n, d)
    transform : DrawTransform
        Of the model.
    required : bool
        Raise where the model's density cannot be had. Otherwise the draws go without: those of a
        model of minibatches, where each takes a pass over the data, and of one whose data no
        longer fit together because predictors were replaced for a prediction.
    """
    log_q = gaussian.log_density(draws)
    if transform.reads_batches and not required:
        problem = "it takes all the data: ask for it by importance= or log_likelihood="
        return WeighedDraws(draws, log_q, problem=problem)
    try:
        log_p = transform.log_density(draws)
    # Data of two lengths may fail in any operation, and in any way.
    except Exception as error:
        if required:
            raise
        return WeighedDraws(draws, log_q, problem=first_line(error))
    return WeighedDraws(draws, log_q, log_p, Importance.from_ratios(log_p - log_q))


def resample(
    pool: WeighedDraws, n: int, rng: np.random.Generator, *, replace: bool = False
) -> WeighedDraws:
    """Choose n draws of a weighed pool by their weights."""
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
