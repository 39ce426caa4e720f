"""Averaging: add fresh draws to those of a settled level, each evaluated once."""

from __future__ import annotations

from dataclasses import replace

from pymc_ngvi.core import designs
from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.engine.evaluated import Evaluated, SquaredError
from pymc_ngvi.engine.level import LevelIterations, LevelResult
from pymc_ngvi.engine.problem import Budget, Draws, Problem, Size
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.steps import advance
from pymc_ngvi.errors import NonFiniteError


def average(budget: Budget, secants: Secants, level: LevelResult, last: int) -> LevelIterations:
    """Average fresh draws into a settled level until the accuracy is reached.

    The step size is the share of the new draws in all draws, as in the paper's decreasing schedule:
    it averages the solutions of all draws so far. A few common draws show the secant along a step
    before it is taken. The first draws are added in any case: a level that claims to suffice has
    only its own draws to show for it. If these are too few to have the right fourth moments, which
    their scatter does not show, the first draws take their place. A step that matters, and is much
    longer than the errors of old and new draws explain, shows that the old draws were misleading:
    they count no more, and if it happens again, averaging ends unsettled. It also does where the
    common draws show that Hessians differ much, and the level had few of them.

    Parameters
    ----------
    budget : Budget
    secants : Secants
        What the level's steps have shown.
    level : LevelResult
        How the level ended.
    last : int
        Iteration to stop at.
    """
    problem, settings = budget.problem, budget.problem.settings
    state, error, parts, total = level.state, level.error, level.parts, level.size
    assert parts is not None
    known, surprises, long_steps = total, 0, 0  # the draws whose error is known
    few = problem.first(level.state.q)
    least = max(few.hessians, round(settings.least_averaged * level.size.hessians))
    if not designs.is_balanced(total.hessians, state.q.dim):
        total, least = Size(0), 2 * max(few.hessians, designs.exact_size(state.q.dim))
    common = budget.draw(few, state.q.dim)
    many = level.size.hessians >= settings.telling_draws
    while True:
        wanted = problem.planned(error, parts, known, problem.most(known))
        hessians = max(wanted.hessians - total.hessians, least)
        size = Size(hessians, max(wanted.gradients - total.gradients, 0))
        size = problem.rounded_size(size, state.q)
        if budget.remaining < size.total:
            break
        problem.target.follow(state.q, size.total)
        try:
            here = budget.evaluate(state.q, budget.draw(size, state.q.dim))
            left = here.distance(secants)
            short = left.mean.max() < settings.negligibly_linear * problem.accuracy
            ahead = problem.excess(left) > settings.negligible and not (len(secants) and short)
            ahead = ahead and budget.leaders is None  # whose steps need no secant
            even = not ahead or _look_ahead(budget, secants, here, common) or many
        except NonFiniteError:
            break
        own, left = here.error_of_draws(secants), here.distance(secants)
        of_own = here.error_of_parts(secants)
        surprised = _is_surprising(problem, left, own, error)
        if surprised:
            total, surprises = Size(0), surprises + 1
        share, of_hessians = size.total / (total.total + size.total), 1.0
        if total.hessians:
            of_hessians = size.hessians / (total.hessians + size.hessians)
        long = share**2 * left.mean.max() > settings.linear * problem.accuracy
        if long:
            share, of_hessians = 1.0, 1.0
            total, long_steps = Size(0), long_steps + 1
        member = secants.follow(here.q, here.asked_in_shares(share, of_hessians))
        if (
            member is None
            or not even
            or surprises > settings.most_surprises
            or long_steps > settings.most_long_steps
        ):
            error, parts, known = own, of_own, size
            break
        mixed = budget.led(here, Mixed(member, share, active=False))
        state, info = advance(budget, state, here, mixed, mixed.q, size.total)
        yield state, info
        known = Size(total.hessians + size.hessians, total.gradients + size.gradients)
        total = Size(0) if long else known
        parts = parts.averaged(of_own, (share, of_hessians))
        error = parts.whole
        if state.iteration >= last:
            return LevelResult(state, error, False, known)
        if problem.excess(error) <= 1 and not (long or surprised):
            return LevelResult(budget.counted(state), error, True, known, parts)
    return LevelResult(budget.counted(state), error, False, known, parts)


def confirmed(budget: Budget, secants: Secants, level: LevelResult) -> bool:
    """Whether a few fresh draws agree with a settled level; they are taken whatever the budget.

    As in averaging, one surprise may be chance.
    """
    problem, q, settings = budget.problem, level.state.q, budget.problem.settings
    n = min(round(settings.least_averaged * level.size.hessians), settings.most_confirming)
    for _ in range(1 + settings.most_surprises):
        try:
            here = budget.evaluate(q, budget.draw(Size(problem.rounded(n, q)), q.dim))
        except NonFiniteError:
            return False
        left = here.asked if problem.constrained else here.distance(secants)
        if not _is_surprising(problem, left, here.error_of_draws(secants), level.error):
            return True
    return False


def _is_surprising(
    problem: Problem, left: SquaredError, own: SquaredError, error: SquaredError
) -> bool:
    """Whether a distance matters, and is much more than the errors of new and old draws explain."""
    explained, surprise = own.plus(error), problem.settings.surprise
    beyond = left.nats > surprise * explained.nats
    surprise *= replace(left, freedom=1).largest_by_chance(problem.settings.judged_components)
    return problem.excess(left) > max(1.0, 0.0 if beyond else surprise * problem.excess(explained))


def _look_ahead(budget: Budget, secants: Secants, here: Evaluated, common: Draws) -> bool:
    """Learn the secant along the step that an evaluated member asks for, on a few common draws.

    Returns whether these draws agree that Hessians differ little: those of a level of as few may
    have done so by chance.
    """
    problem, size = budget.problem, Size(sum(map(len, common.replicates)))
    ahead = secants.extrapolate(here.q, here.estimate)
    if ahead is None or ahead.kl(here.q) >= problem.longest_step(here.q):
        return True
    before, after = budget.evaluate(here.q, common), budget.evaluate(ahead, common)
    error = before.error_of_draws(secants)
    secants.add((here.q, before.estimate), (ahead, after.estimate))
    return problem.is_telling(error, size)
