"""Averaging: add fresh draws to those of a settled level, each evaluated once."""

from __future__ import annotations

from dataclasses import replace

from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.level import LevelIterations, LevelResult
from pymc_ngvi.engine.problem import Budget, Draws
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.steps import advance
from pymc_ngvi.errors import NonFiniteError


def average(budget: Budget, secants: Secants, level: LevelResult, last: int) -> LevelIterations:
    """Average fresh draws into a settled level until the accuracy is reached.

    The step size is the share of the new draws in all draws, as in the paper's decreasing schedule:
    it averages the solutions of all draws so far. A few common draws show the secant along a step
    before it is taken. The first draws are added in any case: a level that claims to suffice has
    only its own draws to show for it. A step that matters, and is much longer than the errors of
    old and new draws explain, shows that the old draws were misleading: they count no more, and if
    it happens again, averaging ends unsettled.

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
    state, error, total, surprises = level.state, level.error, level.n_samples, 0
    first_size = problem.first_size(state.q)
    few = budget.draw(first_size, state.q.dim)
    while True:
        most = min(settings.most_averaged * total, settings.most_draws)
        wanted = problem.planned(error, total, total + most) - total
        n_samples = problem.rounded(max(wanted, first_size), state.q)
        if budget.remaining < n_samples:
            break
        problem.target.follow(state.q, n_samples)
        try:
            here = budget.evaluate(state.q, budget.draw(n_samples, state.q.dim))
            if problem.excess(here.distance(secants)) > settings.negligible:
                _look_ahead(budget, secants, here, few)
        except NonFiniteError:
            break
        own, left = here.error_of_draws(secants), here.distance(secants)
        unexplained = left.nats > settings.surprise * (own.nats + error.nats)
        if unexplained and problem.excess(left) > 1:
            total, surprises = 0, surprises + 1
        share = n_samples / (total + n_samples)
        member = secants.extrapolate(here.q, here.estimate, share)
        if member is None or surprises > settings.most_surprises:
            error = own
            break
        mixed = Mixed(member, share, active=False)
        state, info = advance(budget, state, here, mixed, member, n_samples)
        yield state, info
        if state.iteration >= last:
            return LevelResult(state, error, False, n_samples)
        total += n_samples
        error = error.averaged(own, share)
        if problem.excess(error) <= 1:
            state = replace(state, evaluations=budget.evaluations)
            return LevelResult(state, error, True, n_samples)
    return LevelResult(replace(state, evaluations=budget.evaluations), error, False, n_samples)


def _look_ahead(budget: Budget, secants: Secants, here: Evaluated, few: Draws) -> None:
    """Learn the secant along the step that an evaluated member asks for, on a few common draws."""
    ahead = secants.extrapolate(here.q, here.estimate)
    if ahead is not None and ahead.kl(here.q) < budget.problem.longest_step(here.q):
        before, after = budget.evaluate(here.q, few), budget.evaluate(ahead, few)
        secants.add((here.q, before.estimate), (ahead, after.estimate))
