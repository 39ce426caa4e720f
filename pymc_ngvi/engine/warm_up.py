"""The warm-up: come near the optimum on a few draws, judged by the ELBO alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, Returning, State
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.flatness import FlatDirection, find_flat_direction
from pymc_ngvi.engine.problem import Budget, Draws, Size
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.settings import Settings
from pymc_ngvi.engine.steps import Rule, advance, climb, finite_start, settled
from pymc_ngvi.errors import DomainError, NonFiniteError


@dataclass(frozen=True)
class WarmedUp:
    """Where the warm-up ended.

    Attributes
    ----------
    state : State
    flat : FlatDirection or None
        A direction along which every step widened the member: the posterior is not proper there.
    near : tuple of (Evaluated, Draws), or None
        The last member on the draws of the warm-up, from which a level on them can go on.
    """

    state: State
    flat: FlatDirection | None = None
    near: tuple[Evaluated, Draws] | None = None


def warm_up(
    budget: Budget, state: State, size: Size, last: int, limit: int
) -> Generator[tuple[State, Info], None, WarmedUp]:
    """Raise the ELBO on a few draws, by the curvature at the mean alone and then by theirs.

    With a target that reads batches, repeat this until the anchor no longer moves.

    Parameters
    ----------
    budget : Budget
    state : State
    size : Size
        Draws of a set.
    last : int
        Iteration to stop at.
    limit : int
        Number of evaluations beyond which no further step is taken.
    """
    problem = budget.problem
    problem.target.place_anchor(None)  # from far away the next step leads far from any anchor
    moved, at_points = True, problem.takes_hessians and not problem.target.reads_batches
    near: tuple[Evaluated, Draws] | None = None
    while moved:
        draws, widenings = budget.draw(size, state.q.dim), Widenings(state.q, problem.settings)
        rising = Returning(_rise(budget, state, draws, widenings, at_points=at_points))
        for state, info in rising:
            yield state, info
            spent = budget.evaluations + budget.gradients
            if state.iteration >= last or spent + size.total > limit:
                return WarmedUp(budget.counted(state))
        flat, near = rising.value
        # A batch may have no row of some components: what is flat in a few of them need not be so.
        if flat is not None and not problem.target.reads_batches:
            return WarmedUp(budget.counted(state), flat)
        if near is not None:
            state = replace(state, q=near[0].q)  # the start may have been narrowed
        # A few batches of data lead to the optimum of these batches, which may be far from that of
        # all the data. With an anchor there, as many draws come nearer.
        moved = problem.target.follow(state.q, size.total)
    return WarmedUp(budget.counted(state), near=near)


class Widenings:
    """Counts the steps in a row that gain by widening a member along a flat direction.

    Whether the posterior is proper there shows soonest on the few draws of the warm-up.

    Parameters
    ----------
    q : Gaussian
        The member before the first step.
    settings : Settings

    Attributes
    ----------
    flat : FlatDirection or None
        The direction along which the last step widened the member.
    """

    def __init__(self, q: Gaussian, settings: Settings) -> None:
        self._begun, self._settings = q.variance, settings
        self._count = 0
        self.flat: FlatDirection | None = None

    def add(self, before: Gaussian, here: Evaluated, gain: float) -> bool:
        """Count a step, and return whether the posterior is not proper."""
        settings, variance = self._settings, here.q.variance
        widened = gain >= settings.flat_gain and np.max(variance / before.variance) >= 1.5
        self.flat = find_flat_direction(here, settings.flat_curvature) if widened else None
        self._count = self._count + 1 if self.flat else 0
        grown = (variance > settings.most_widening * self._begun).any()
        return self.flat is not None and bool(grown or self._count >= settings.most_widenings)


#: What a rise returns: a flat direction that was found, and the last member evaluated.
_Risen = tuple[FlatDirection | None, tuple[Evaluated, Draws] | None]


def _rise_by_points(
    budget: Budget,
    state: State,
    draws: Draws,
    widenings: Widenings,
    known: tuple[float, float] | None = None,
) -> Generator[tuple[State, Info], None, tuple[State, FlatDirection | None]]:
    """Raise the ELBO on a set of draws by steps of Newton, which take the Hessian at the mean only.

    The mode may be far from the optimum, or at no finite point: what a step is worth is judged by
    the log densities of the draws, and the first one that gains little is the last. So is one after
    which hardly less is left to go: near a mode at a scale of zero many small steps still gain.

    The ELBO of the state on the draws, and its standard error, may be `known`.
    """
    problem, settings = budget.problem, budget.problem.settings
    point = Draws([np.zeros((1, state.q.dim))])
    elbo, elbo_se = budget.elbo(state.q, draws) if known is None else known
    gain, before, asked = 0.0, state.q, np.inf
    least = settings.least_gain * state.q.dim
    for _ in range(settings.most_newton_steps):
        try:
            here = budget.evaluate(state.q, point)
        except NonFiniteError:
            break
        if gain and widenings.add(before, here, gain):
            return state, widenings.flat
        if not here.asked.nats > least or not np.isfinite(elbo):
            break
        near = asked < problem.longest_step(state.q)
        if near and here.asked.nats > settings.newton_progress * asked:
            break
        asked = here.asked.nats
        step_size, gain = 1.0, -np.inf
        while step_size >= settings.shortest_newton_step and not gain > 0:
            try:
                mixed = problem.guard(here.q, here.estimate, step_size)
            except DomainError:
                return state, None
            candidate = problem.projection(mixed.q)
            there, there_se = budget.elbo(candidate, draws)
            gain, step_size = there - elbo, step_size / 2
        if not gain > 0:
            break
        here = replace(here, estimate=replace(here.estimate, elbo=elbo, elbo_se=elbo_se))
        state, info = advance(budget, state, here, mixed, candidate, len(draws))
        yield state, info
        before, elbo, elbo_se = here.q, there, there_se
        if gain < least:
            break
    return state, None


def _rise(
    budget: Budget, state: State, draws: Draws, widenings: Widenings, *, at_points: bool
) -> Generator[tuple[State, Info], None, _Risen]:
    """Raise the ELBO on one set of draws, until a step gains little or the set has settled.

    A direction along which the member was widened again and again is returned. Where steps may be
    taken `at_points`, which cost a Hessian each, these come first. Those that did not help at one
    point may do so at another: far from the optimum they are tried again, after twice as many steps
    by the draws each time that they do not.
    """
    begun = state
    if at_points:
        state, flat = yield from _rise_by_points(budget, state, draws, widenings)
        if flat is not None:
            return flat, None
    problem, settings = budget.problem, budget.problem.settings

    def helps(here: Evaluated, there: Evaluated) -> bool:
        return there.ascends(here, settings.rounding)

    rule = Rule(settings.shortest_warm_up_step, np.inf, helps, by_elbo=True)
    none = Secants(settings)  # far from the solution past steps would mislead
    # Where steps at a point did not help, one by the draws may well be too long, too.
    wary = at_points and state is begun
    state, here = finite_start(budget, state, draws)
    step_size, growth, forced = 1.0, 2.0, True
    steps, patience = 0, 1
    least = settings.least_gain * state.q.dim
    while not settled(problem, here, none):
        if here.asked.nats < least and not find_flat_direction(here, settings.flat_curvature):
            break  # a level can go on from here
        step = climb(budget, here, draws, step_size, rule, forced=forced, wary=wary)
        if step is None:
            break
        state, info = advance(
            budget, state, here, step.mixed, step.there.q, len(draws), step.retreats
        )
        yield state, info
        before, here = here, step.there
        wary = info.step_size < step_size
        # One short step is not to be followed by many.
        growth = 2.0 if wary or info.step_size == 1 else growth**2
        step_size, forced = min(1.0, growth * info.step_size), False
        gain = here.estimate.elbo - before.estimate.elbo
        if widenings.add(before.q, here, gain):
            return widenings.flat, None
        if gain < least and widenings.flat is None:
            break
        steps += 1
        far = here.asked.nats > problem.longest_step(here.q)
        if at_points and far and steps >= patience:
            known = here.estimate.elbo, here.estimate.elbo_se
            state, flat = yield from _rise_by_points(budget, state, draws, widenings, known)
            if flat is not None:
                return flat, None
            if state.q is here.q:
                patience *= 2
            else:
                state, here = finite_start(budget, state, draws)
                step_size, growth, wary, patience = 1.0, 2.0, False, 1
            steps = 0
    return None, (here, draws)
