"""How good a fitted distribution is, judged on fresh draws from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas

from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.core.families import standard_normal
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.draws import OwnScale
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.parameters import (
    Block,
    Moments,
    beyond,
    describe,
    empty_table,
    make_table,
    narrow,
    severity,
    spread_khat,
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
#: Where fewer are, a thousand draws may miss the tail that would tell of a bad fit.
CLEAR_EFFICIENCY = 0.8
#: Of so many parameters at most, those that look narrowest, the tails are looked at.
_TAILS = 50
#: Numbers in the draws that are held at a time.
_NUMBERS = 2**21


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
    parameters : pandas.DataFrame
        What the weights say of each parameter; empty where the fit was not judged.
    """

    elbo: float = np.nan
    elbo_se: float = np.nan
    khat: float = np.nan
    ess: float = np.nan
    draws: int = 0
    problem: str = ""
    parameters: pandas.DataFrame = field(default_factory=empty_table, compare=False, repr=False)

    @property
    def unreliable(self) -> bool:
        """Whether not to rely on the fit: it is off, or nothing says that it is not.

        False takes a k-hat and an effective sample size that are numbers, and no parameter that is
        off.
        """
        return not self.weighable or len(self.off) > 0

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
        all near a constant, and their tail may have any shape.
        """
        many = self.ess > FULL_EFFICIENCY * self.draws
        return many and UNRELIABLE_KHAT < self.khat < np.inf

    @property
    def off(self) -> pandas.DataFrame:
        """Parameters that trustworthy weights show to be off beyond the limits, worst first."""
        if not self.weighable:
            return self.parameters.iloc[:0]
        return worst(self.parameters, int((severity(self.parameters) > 1).sum()))

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
        if not self.unreliable and self.ess < CLEAR_EFFICIENCY * self.draws:
            return True
        return self.weighable and bool(
            np.any(beyond(self.parameters) & (severity(self.parameters) <= 1))
        )

    def __str__(self) -> str:
        if not self.draws or np.isnan(self.khat):
            return f"not judged{self.problem and f': {self.problem}'}"
        if self.only_tails:
            word = "good but for the tails"
        elif not self.weighable:
            word = "unreliable"
        else:
            word = "good" if self.khat < GOOD_KHAT else "fair"
        if len(self.off):
            word = f"{len(self.off)} of {len(self.parameters)} parameters off"
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
        if not self.weighable:
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
        table = check_parameters(fresh, importance.log_weights, own, target)
        verdict = Verdict(elbo, elbo_se, importance.khat, importance.ess, draws, "", table)
        if not (more and verdict.unclear and MORE_DRAWS * draws <= affordable):
            break
        draws *= MORE_DRAWS
    return verdict


class FreshDraws:
    """Antithetic draws from a distribution in blocks that are made again when they are needed.

    So they take little memory, however many draws and parameters there are.

    Parameters
    ----------
    q : Distribution
    rng : numpy.random.Generator
        Gives the seed of the draws: one number, however many draws are made.
    """

    def __init__(self, q: Distribution, rng: np.random.Generator) -> None:
        self.q = q
        self._seed = int(rng.integers(2**63))
        self._pairs: list[int] = []  # in each block
        self._log_ratios = np.empty((2, 0))  # of the first draws of the pairs, and of the second

    def _generator(self, block: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, block])

    def extend(self, log_density: Callable[[Array], Array], n: int) -> Array:
        """Add blocks until there are n draws, an even number.

        Returns
        -------
        array, (n,)
            Log p - log q at all draws; the second half are the partners of the first.
        """
        most = max(_NUMBERS // (2 * self.q.dim), 1)
        parts = [self._log_ratios]
        while (missing := n // 2 - sum(self._pairs)) > 0:
            rng, size = self._generator(len(self._pairs)), min(missing, most)
            parts.append(fresh_log_ratios(log_density, self.q, rng, 2 * size).reshape(2, size))
            self._pairs.append(size)
        self._log_ratios = np.concatenate(parts, axis=1)
        return self.log_ratios

    @property
    def log_ratios(self) -> Array:
        """Log p - log q (n,) at all draws."""
        return self._log_ratios.ravel()

    def weighed(self, log_weights: Array) -> Iterator[Block]:
        """Make the draws of each block again, with their weights, of which the mean is 1."""
        weights = np.exp(log_weights + np.log(log_weights.size)).reshape(2, -1)
        start = 0
        for block, size in enumerate(self._pairs):
            z = standard_normal(2 * size, self.q.dim, self._generator(block), antithetic=True)
            yield self.q.unwhiten(z), weights[:, start : start + size].ravel()
            start += size


def check_parameters(
    fresh: FreshDraws, log_weights: Array, own: OwnScale, target: ModelTarget
) -> pandas.DataFrame:
    """Compare draws with and without weights, for each component on both of its scales.

    Parameters
    ----------
    fresh : FreshDraws
    log_weights : array, (n,)
    own : OwnScale
        The transformed variables on their own scale.
    target : ModelTarget
        Its layout names the unconstrained components.

    Returns
    -------
    pandas.DataFrame
        The unconstrained components, then those of transformed variables on their own scale. The
        former have the exact mean and sd of the distribution.
    """
    blocks = fresh.weighed(log_weights)
    columns = Moments((np.hstack([x, own(x)]), weights) for x, weights in blocks).compare()
    columns["mean"][: fresh.q.dim] = fresh.q.mean
    columns["sd"][: fresh.q.dim] = np.sqrt(fresh.q.variance)
    slots = [*target.layout.slots, *own.slots()]
    labels = [slot.label(i) for slot in slots for i in range(slot.size)]
    variables = [slot.variable for slot in slots for _ in range(slot.size)]
    table = make_table(labels, variables, columns)
    looked_at = np.flatnonzero(narrow(table))
    looked_at = looked_at[np.argsort(columns["sd_ratio"][looked_at])[:_TAILS]]
    if looked_at.size:
        parts = [np.hstack([x, own(x)])[:, looked_at] for x, _ in fresh.weighed(log_weights)]
        # As the ratios are: first the first draws of all pairs, then their partners.
        halves = [part.reshape(2, -1, looked_at.size) for part in parts]
        values = np.concatenate(halves, axis=1).reshape(-1, looked_at.size)
        khat = spread_khat(values, fresh.log_ratios, log_weights)
        table.iloc[looked_at, table.columns.get_loc("sd_khat")] = khat
    # The diagonal of a correlation matrix, and other constants, are no parameters.
    return table[table["sd"] != 0]


def fresh_log_ratios(
    log_density: Callable[[Array], Array],
    q: Distribution,
    rng: np.random.Generator,
    n: int,
) -> Array:
    """Log p - log q (n,) at fresh antithetic draws from q.

    Parameters
    ----------
    log_density : callable
        Maps draws (n, d) to log p (n,).
    q : Distribution
    rng : numpy.random.Generator
    n : int
        Number of draws.
    """
    z = standard_normal(n, q.dim, rng, antithetic=True)
    return np.asarray(log_density(q.unwhiten(z)) - q.log_density_whitened(z))
