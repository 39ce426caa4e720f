"""How good a fitted distribution is, judged on fresh draws from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas

from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.checks import (
    FEWEST_MOVED,
    MOST_MOVED,
    MOVES,
    NUMBERS,
    SETTLING,
    STEPS,
    Check,
    FreshDraws,
)
from pymc_ngvi.results.draws import OwnScale
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.parameters import (
    beyond,
    describe,
    empty_table,
    severity,
    worst,
)

#: Fresh draws on which a fit is judged, where they give a clear answer.
VERDICT_DRAWS = 1000
#: So many numbers may go through the log density for them, which takes half a second; a target of
#: more data is judged on fewer draws, but on so many at least.
_CHEAP, FEWEST_DRAWS = 2**24, 100
#: Where they do not, their number is multiplied by this, so many times.
MORE_DRAWS, ROUNDS = 3, 2
#: Above this k-hat, trust neither the Gaussian nor importance weights on its draws.
UNRELIABLE_KHAT = 0.7
#: Below this k-hat, the Gaussian is close to the posterior.
GOOD_KHAT = 0.5
#: Where fewer of the draws than this share are effective, trust neither of them, whatever k-hat.
LEAST_EFFICIENCY = 0.2
#: Where more of the draws than this share are effective, the ratios are nearly equal.
FULL_EFFICIENCY = 0.95
#: Where fewer are, or an sd seems to be less than this share of the posterior's, draws of the fit
#: may miss the tail that would tell of a bad fit.
CLEAR_EFFICIENCY, CLEAR_SPREAD = 0.8, 0.95
#: What a gradient costs, in log densities, roughly.
_GRADIENT_PRICE = 3


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
    moved : int
        Number of draws, after moves towards the posterior, by which the parameters were judged; 0
        where weights were enough, or moves too expensive.
    matched_khat : float or None
        k-hat of the draws that `sample` moves to the moments of the posterior, and which are then
        relied on in place of the fit; None where it does not.
    parameters : pandas.DataFrame
        How far each parameter is off, by moved draws or else by weights; empty where the fit was
        not judged.
    """

    elbo: float = np.nan
    elbo_se: float = np.nan
    khat: float = np.nan
    ess: float = np.nan
    draws: int = 0
    problem: str = ""
    moved: int = 0
    matched_khat: float | None = None
    parameters: pandas.DataFrame = field(default_factory=empty_table, compare=False, repr=False)

    @property
    def unreliable(self) -> bool:
        """Whether not to rely on the fit: it is off, or nothing says that it is not.

        False takes weights that can be trusted, or moved draws where they cannot, and no parameter
        that is off. In many dimensions weights are of no use long before a parameter is off: small
        differences in each of them add up. False, too, where `sample` matches draws.
        """
        if self.matched_khat is not None:
            return False
        return not (self.weighable or self.moved) or len(self.off) > 0

    @property
    def weighable(self) -> bool:
        """Whether importance weights can be trusted to correct what the Gaussian misses."""
        # Comparisons with NaN are false.
        return self.only_tails or (
            self.khat <= UNRELIABLE_KHAT and self.ess >= LEAST_EFFICIENCY * self.draws
        )

    @property
    def only_tails(self) -> bool:
        """Whether a large k-hat is about tails that hold hardly any of the posterior.

        k-hat does not depend on the scale of the log ratios: where a fit is nearly exact they are
        all near a constant, and their tail may have any shape. Where it is less so, it takes draws
        that were moved into the tails to tell.
        """
        many = self.nearly_even if self.moved else self.ess > FULL_EFFICIENCY * self.draws
        return many and UNRELIABLE_KHAT < self.khat < np.inf

    @property
    def beyond_support(self) -> bool:
        """Whether there are draws of the fit where the posterior has no density."""
        return self.draws > 0 and self.elbo == -np.inf

    @property
    def nearly_even(self) -> bool:
        """Whether most of the draws are effective."""
        return self.ess > CLEAR_EFFICIENCY * self.draws

    @property
    def off(self) -> pandas.DataFrame:
        """Parameters that moved draws or trustworthy weights show to be off, worst first."""
        if not (self.weighable or self.moved):
            return self.parameters.iloc[:0]
        moved = self.moved > 0
        count = int((severity(self.parameters, moved=moved) > 1).sum())
        return worst(self.parameters, count, moved=moved)

    @property
    def unclear(self) -> bool:
        """Whether more draws may change the word: an error of an estimate reaches over a limit."""
        if not self.khat < np.inf or self.ess > FULL_EFFICIENCY * self.draws:
            return False
        # The standard error of the shape of a Pareto tail; ArviZ's tail has 3 sqrt(n) draws.
        khat_error = (1 + self.khat) / math.sqrt(3 * math.sqrt(self.draws))
        if abs(self.khat - UNRELIABLE_KHAT) < 2 * khat_error:
            return True
        # Few draws of a Gaussian that is too narrow hardly see the tail that it lacks, and k-hat
        # may come out low.
        if not self.unreliable and not self.nearly_even:
            return True
        return self.weighable and bool(
            np.any(beyond(self.parameters) & (severity(self.parameters) <= 1))
        )

    @property
    def doubtful(self) -> bool:
        """Whether draws beyond those of the fit may change the word, from good or from bad."""
        if not self.weighable:
            return self.khat < np.inf
        narrow = bool((self.parameters["sd_ratio"] < CLEAR_SPREAD).any())
        return not len(self.off) and (narrow or not self.nearly_even)

    def __str__(self) -> str:
        if not self.draws or np.isnan(self.khat):
            return f"not judged{self.problem and f': {self.problem}'}"
        if self.only_tails:
            word = "good but for the tails"
        elif not self.weighable:
            word = "no parameter off, but no weights to use" if self.moved else "unreliable"
        else:
            word = "good" if self.khat < GOOD_KHAT else "fair"
        if len(self.off):
            word = f"{len(self.off)} of {len(self.parameters)} parameters off"
        if self.matched_khat is not None:
            word += f"; {self.matched_khat:.2f} of the draws that sample() matches"
        return f"{self.khat:.2f}, {self.ess:.0f} of {self.draws} draws effective: {word}"

    def warning(self, remedies: Sequence[str] = (), tried: Sequence[str] = ()) -> str:
        """Say in one line what to warn of, and what to do; nothing for a fit to rely on.

        A fit that was cut short is not judged, and its status says so.

        Parameters
        ----------
        remedies : sequence of str
            What may help, in the order in which to try it. NUTS is always the last.
        tried : sequence of str
            What was tried, and did not suffice.
        """
        if self.problem:
            return f"the fit was not judged: {self.problem}"
        if not self.draws or not self.unreliable:
            return ""
        ways = ", or ".join([*remedies, "NUTS: pm.sample(**approx.nuts_kwargs())"])
        advice = f"{', '.join(tried)} did not suffice; try {ways}" if tried else f"try {ways}"
        if self.beyond_support:
            return (
                "the log density is -inf at some draws of the fit: where a switch or a bound ends "
                "it, give the variable a distribution that has the bound (pm.Truncated, "
                f"pm.Uniform); {advice}"
            )
        if not len(self.off):
            return f"the posterior is not close to the approximation (k-hat {self}): {advice}"
        first = next(describe(self.off))
        more = f" (and {len(self.off) - 1} more: approx.report.parameters)"
        return f"the fit is off in {first}{more if len(self.off) > 1 else ''}: {advice}"


def judge(
    target: ModelTarget, q: Distribution, rng: np.random.Generator, *, spent: int = 0
) -> Verdict:
    """Judge a distribution by the importance ratios p/q at fresh draws from it.

    Parameters
    ----------
    target : ModelTarget
    q : Distribution
    rng : numpy.random.Generator
    spent : int
        Evaluations of the target by the fit. The verdict takes more than the first draws only as
        long as it costs no more than half a second, or a third of what the fit did. This is counted
        and not timed: the same seed gives the same verdict on every machine.

    Returns
    -------
    Verdict
        Without k-hat where p is estimated from batches that leave too much noise in it: the ratios
        are then those of the batches, not of the posterior.
    """
    full = target.of_all_data(q.gaussian, rng)
    fresh = FreshDraws(q, rng)
    own = OwnScale(target.model, target.layout)
    cheap = _CHEAP // target.numbers
    affordable = max(target.hessian_price * spent / target.price / 3, cheap)
    draws = 2 * (min(max(cheap, FEWEST_DRAWS), VERDICT_DRAWS) // 2)
    for more in [*[True] * ROUNDS, False]:
        log_ratios = fresh.extend(full.log_density, draws)
        if not np.isfinite(log_ratios).all():
            elbo = np.nan if np.isnan(log_ratios).any() else -np.inf
            return Verdict(elbo, np.nan, khat=np.inf, ess=0.0, draws=draws)
        elbo, elbo_se = mean_and_error(log_ratios, antithetic=True)
        elbo_se = math.hypot(elbo_se, full.noise * math.sqrt(full.shared / draws))
        if full.is_noisy:
            problem = f"batches leave {full.noise:.2g} nats of noise in the log density"
            return Verdict(elbo, elbo_se, draws=draws, problem=problem)
        importance = Importance.from_ratios(log_ratios)
        check = Check(fresh, importance.log_weights, own, target)
        verdict = Verdict(
            elbo, elbo_se, importance.khat, importance.ess, draws, parameters=check.weighed()
        )
        if not (more and verdict.unclear and MORE_DRAWS * draws <= affordable):
            break
        draws *= MORE_DRAWS
    chains = int(min(affordable / (_GRADIENT_PRICE * MOVES * STEPS), NUMBERS / q.dim, MOST_MOVED))
    # A fit without correlations may lack them though its means and sds are right.
    blind = q.gaussian.factorised and not (verdict.weighable or verdict.nearly_even)
    if verdict.doubtful and chains >= FEWEST_MOVED and not (target.reads_batches or blind):
        moved = check.moved(chains)
        if moved is not None:
            return replace(verdict, parameters=moved, moved=chains * (MOVES - SETTLING))
    return verdict
