"""The warm-up: come near the optimum on a few draws, judged by the ELBO alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.problem import Budget
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.steps import Rule, advance, climb, finite_start, settled


def warm_up(
    budget: Budget, state: State, n_samples: int, last: int, limit: int
) -> Generator[tuple[State, Info], None, State]:
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
        for moved, info in _rise(budget, state, n_samples):
            state = moved
            yield state, info
            if state.iteration >= last or budget.evaluations + n_samples > limit:
                return replace(state, evaluations=budget.evaluations)
        # A few batches of data lead to the optimum of these batches, which may be far from that of
        # all the data. With an anchor there, as many draws come nearer.
        near = not target.follow(state.q, n_samples)
    return replace(state, evaluations=budget.evaluations)


def _rise(
    budget: Budget, state: State, n_samples: int
) -> Generator[tuple[State, Info], None, None]:
    """Raise the ELBO on one set of draws, until a step gains little or the set has settled."""
    problem, settings = budget.problem, budget.problem.settings

    def helps(here: Evaluated, there: Evaluated) -> bool:
        return there.ascends(here, settings.rounding)

    rule = Rule(settings.shortest_warm_up_step, np.inf, helps)
    none = Secants(settings)  # far from the solution past steps would mislead
    draws = budget.draw(n_samples, state.q.dim)
    state, here = finite_start(budget, state, draws)
    step_size, forced = 1.0, True
    while True:
        step = climb(budget, here, draws, step_size, rule, forced=forced)
        if step is None:
            return
        state, info = advance(
            budget, state, here, step.mixed, step.there.q, n_samples, step.retreats
        )
        yield state, info
        before, here = here, step.there
        step_size, forced = min(1.0, 2 * info.step_size), False
        gain = here.estimate.elbo - before.estimate.elbo
        if gain < settings.least_gain * state.q.dim:
            return
        if settled(problem, here, none, here.error_of_draws(none)):
            return
