"""A level: iterate on one set of common draws until it settles."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.engine.evaluated import Evaluated, SplitError, SquaredError
from pymc_ngvi.engine.flatness import FlatDirection, find_flat_direction
from pymc_ngvi.engine.problem import Budget, Draws, Problem, Size
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.settings import Settings
from pymc_ngvi.engine.steps import Rule, Step, advance, climb, finite_start, settled
from pymc_ngvi.errors import NonFiniteError


@dataclass(frozen=True)
class LevelResult:
    """How a level, or the averaging after it, ended.

    Attributes
    ----------
    state : State
    error : SquaredError
        Squared standard error of the solution, from the scatter of the draws.
    settled : bool
        Whether the iteration settled, so that `error` is all that is left.
    size : Size
        The draws that the error is of.
    parts : SplitError or None
        The error by where it comes from, of a level that has settled.
    amplification : float
        Squared error of the solution relative to that of one step, in nats.
    flat : FlatDirection or None
        Where the iteration did not settle, the direction in which the target has no curvature.
    """

    state: State
    error: SquaredError
    settled: bool
    size: Size
    parts: SplitError | None = None
    amplification: float = 1.0
    flat: FlatDirection | None = None


#: Generator of the iterations of a level; returns how it ended.
LevelIterations: TypeAlias = Generator[tuple[State, Info], None, LevelResult]


def level(
    budget: Budget,
    secants: Secants,
    state: State,
    size: Size,
    last: int,
    *,
    near: tuple[Evaluated, Draws] | None = None,
    least_steps: int = 0,
) -> LevelIterations:
    """Iterate on one set of draws until it settles, no step helps, or the budget is spent.

    Parameters
    ----------
    budget : Budget
    secants : Secants
        What past steps have shown; the steps of this level are added.
    state : State
    size : Size
        Draws of the level.
    last : int
        Iteration to stop at.
    near : tuple of (Evaluated, Draws), optional
        The member of the state on draws of this size, to go on with instead of fresh ones.
    least_steps : int
        Steps to take even where nothing is left to go, the first even where the budget is spent. By
        themselves steps turn into the direction in which the iteration closes in most slowly: it
        takes some to see how slowly that is.
    """
    problem, settings = budget.problem, budget.problem.settings
    # Between two sets of draws only: those in use would have less in common afterwards.
    moved = problem.target.follow(state.q, size.total)
    if near is None or moved:
        draws = budget.draw(size, state.q.dim)
        state, here = finite_start(budget, state, draws)
    else:
        here, draws = near
    spent = budget.evaluations
    here = budget.lead(here, draws)
    looked, looked_at = budget.evaluations > spent, here.q
    if budget.leaders is not None:
        secants.clear()
    step_size, least = 1.0, np.inf

    def helps(here: Evaluated, there: Evaluated) -> bool:
        # Closer than ever in this level: if closer than before the step were enough, this
        # condition and a rise of the ELBO could take turns for ever.
        return there.asked.nats < least or there.ascends(here, settings.rounding)

    steps = 0
    while True:
        if not _goes_on(problem, here, secants, steps, least_steps):
            if budget.leaders is not None or not _may_lead(here, looked_at, settings):
                break
            here, least = budget.lead(here, draws), np.inf
            if budget.leaders is None:
                break
            secants.clear()
            continue
        least = min(least, here.asked.nats)
        rule = Rule(settings.shortest_step, problem.longest_step(here.q), helps)
        step = _extrapolate(budget, secants, here, draws, rule)
        forced = steps == 0 < least_steps
        step = step or climb(budget, here, draws, step_size, rule, forced=forced)
        steps += 1
        if step is None and settled(problem, here, secants):
            break
        if step is None:
            flat = find_flat_direction(here, settings.flat_curvature)
            error = here.error_of_draws(secants)
            return LevelResult(budget.counted(state), error, False, size, flat=flat)
        state, info = advance(
            budget, state, here, step.mixed, step.there.q, len(draws), step.retreats
        )
        yield state, info
        before, here = here, step.there
        if state.iteration >= last:
            return LevelResult(state, here.error_of_draws(secants), False, size)
        if budget.leaders is None:
            secants.add((before.q, before.estimate), (here.q, here.estimate))
        step_size = min(1.0, 2 * info.step_size)
        slow = here.asked.nats > settings.slow * before.asked.nats and here.q.hubs() is not None
        if budget.leaders is None and slow and not looked:
            here, looked = budget.lead(here, draws, slow=True), True
            if budget.leaders is not None:
                secants.clear()
                least = np.inf
        elif budget.leaders is not None and budget.leaders.is_far_from(
            here.q, settings.far_from_leaders
        ):
            here, least = budget.lead(here, draws), np.inf
    error = here.error_of_draws(secants)
    of_step = here.error_of_draws(Secants(settings)).nats if len(secants) else error.nats
    amplification = error.nats / of_step if of_step else 1.0
    parts = here.error_of_parts(secants)
    return LevelResult(budget.counted(state), error, True, size, parts, amplification)


def _may_lead(here: Evaluated, looked_at: Gaussian, settings: Settings) -> bool:
    """Whether most noise is that of a hub that was looked at from afar, and may lead."""
    hubs, q = here.q.hubs(), here.q
    if hubs is None:
        return False
    noisiest = int(np.argmax(here.error_of_draws(Secants(settings)).mean))
    way = (q.mean[noisiest] - looked_at.mean[noisiest]) / np.sqrt(q.variance[noisiest])
    return noisiest in hubs and bool(abs(way) > settings.far_from_leaders)


def _goes_on(
    problem: Problem, here: Evaluated, secants: Secants, steps: int, least_steps: int
) -> bool:
    """Whether a level takes another step.

    It needs no more of the least steps where what they leave is so small beside the noise that no
    direction can be slow: the noise of new draws is in all directions, and in a slow one it stays.
    """
    settings = problem.settings
    if settings.least_steps_closing_in <= steps < least_steps:
        noise = here.error_of_draws(secants)
        closed = problem.excess(here.asked) < settings.closed * max(problem.excess(noise), 1.0)
        return not (closed and settled(problem, here, secants, noise))
    return steps < least_steps or not settled(problem, here, secants)


def _extrapolate(
    budget: Budget, secants: Secants, here: Evaluated, draws: Draws, rule: Rule
) -> Step | None:
    """Go where the last steps together lead to, if that helps."""
    if budget.remaining < len(draws) or not len(secants) or budget.problem.constrained:
        return None
    member = secants.extrapolate(here.q, here.estimate)
    if member is None or member.kl(here.q) > rule.longest:
        return None
    try:
        there = budget.evaluate(member, draws)
    except NonFiniteError:
        return None
    return Step(Mixed(member, 1.0, active=False), there) if rule.helps(here, there) else None
