"""The warm-up: come near the optimum on a few draws, judged by the ELBO alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, Returning, State
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.flatness import FlatDirection, find_flat_direction
from pymc_ngvi.engine.problem import Budget
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.settings import Settings
from pymc_ngvi.engine.steps import Rule, advance, climb, finite_start, settled


@dataclass(frozen=True)
class WarmedUp:
    """Where the warm-up ended.

    Attributes
    ----------
    state : State
    flat : FlatDirection or None
        A direction along which every step widened the member: the posterior is not proper there.
    """

    state: State
    flat: FlatDirection | None = None


def warm_up(
    budget: Budget, state: State, n_samples: int, last: int, limit: int
) -> Generator[tuple[State, Info], None, WarmedUp]:
    """Raise the ELBO on a few draws.

    With a target that reads batches, repeat this until the anchor no longer moves.

    Parameters
    ----------
    budget : Budget
    state : State
    n_samples : int
        Draws of a set.
    last : int
        Iteration to stop at.
    limit : int
        Number of evaluations beyond which no further step is taken.
    """
    target = budget.problem.target
    target.place_anchor(None)  # from far away the next step leads far from any anchor
    near = False
    while not near:
        rising = Returning(_rise(budget, state, n_samples))
        for moved, info in rising:
            state = moved
            yield state, info
            if state.iteration >= last or budget.evaluations + n_samples > limit:
                return WarmedUp(replace(state, evaluations=budget.evaluations))
        if rising.value is not None:
            return WarmedUp(replace(state, evaluations=budget.evaluations), rising.value)
        # A few batches of data lead to the optimum of these batches, which may be far from that of
        # all the data. With an anchor there, as many draws come nearer.
        near = not target.follow(state.q, n_samples)
    return WarmedUp(replace(state, evaluations=budget.evaluations))


def _rise(
    budget: Budget, state: State, n_samples: int
) -> Generator[tuple[State, Info], None, FlatDirection | None]:
    """Raise the ELBO on one set of draws, until a step gains little or the set has settled.

    Returns the direction along which the member was widened again and again, if there is one.
    """
    problem, settings = budget.problem, budget.problem.settings

    def helps(here: Evaluated, there: Evaluated) -> bool:
        return there.ascends(here, settings.rounding)

    rule = Rule(settings.shortest_warm_up_step, np.inf, helps)
    none = Secants(settings)  # far from the solution past steps would mislead
    draws = budget.draw(n_samples, state.q.dim)
    state, here = finite_start(budget, state, draws)
    step_size, forced, widenings, begun = 1.0, True, 0, here.q.variance
    while True:
        step = climb(budget, here, draws, step_size, rule, forced=forced)
        if step is None:
            return None
        state, info = advance(
            budget, state, here, step.mixed, step.there.q, n_samples, step.retreats
        )
        yield state, info
        before, here = here, step.there
        step_size, forced = min(1.0, 2 * info.step_size), False
        gain = here.estimate.elbo - before.estimate.elbo
        flat = _flat_direction(before, here, gain, settings)
        widenings = 0 if flat is None else widenings + 1
        grown = (here.q.variance > settings.most_widening * begun).any()
        if widenings and (grown or widenings == settings.most_widenings):
            return flat
        if gain < settings.least_gain * state.q.dim and flat is None:
            return None
        if settled(problem, here, none, here.error_of_draws(none)):
            return None


def _flat_direction(
    before: Evaluated, here: Evaluated, gain: float, settings: Settings
) -> FlatDirection | None:
    """Return the flat direction along which the last step has gained by widening the member.

    Whether the posterior is proper there shows soonest on the few draws of the warm-up.
    """
    growth = float(np.max(here.q.variance / before.q.variance))
    if gain < settings.flat_gain or growth < 1.5:
        return None
    return find_flat_direction(here, settings.flat_curvature)
