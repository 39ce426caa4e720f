"""The warm-up: come near the optimum on a few draws, judged by the ELBO alone."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.problem import Evaluator
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.steps import Rule, advance, climb, finite_start, settled


def warm_up(
    evaluator: Evaluator, state: State, n_samples: int, last: int, limit: int
) -> Generator[tuple[State, Info], None, State]:
    """Rise on sets of a few draws until a target that reads batches keeps its anchor.

    Parameters
    ----------
    evaluator : Evaluator
    state : State
    n_samples : int
        Draws of a set.
    last : int
        Iteration to stop at.
    limit : int
        Number of evaluations beyond which no further step is taken.
    """
    target = evaluator.problem.target
    target.place_anchor(None)  # from far away the next step leads far from any anchor
    near = False
    while not near:
        for moved, info in _rise(evaluator, state, n_samples):
            state = moved
            yield state, info
            if state.iteration >= last or evaluator.evaluations + n_samples > limit:
                return replace(state, evaluations=evaluator.evaluations)
        # A few batches of data lead to the optimum of these batches, which may be far from that of
        # all the data. With an anchor there, as many draws come nearer.
        near = not target.follow(state.q, n_samples)
    return replace(state, evaluations=evaluator.evaluations)


def _rise(
    evaluator: Evaluator, state: State, n_samples: int
) -> Generator[tuple[State, Info], None, None]:
    """Raise the ELBO on one set of draws, until a step gains little or the set has settled."""
    problem, settings = evaluator.problem, evaluator.problem.settings

    def helps(here: Evaluated, there: Evaluated) -> bool:
        return there.ascends(here, settings.rounding)

    rule = Rule(settings.shortest_warm_up_step, np.inf, helps)
    none = Secants(settings)  # far from the solution past steps would mislead
    draws = evaluator.draw(n_samples, state.q.dim)
    state, here = finite_start(evaluator, state, draws)
    step_size, forced = 1.0, True
    while True:
        step = climb(evaluator, here, draws, step_size, rule, forced=forced)
        if step is None:
            return
        state, info = advance(
            evaluator, state, here, step.mixed, step.there.q, n_samples, step.retreats
        )
        yield state, info
        before, here = here, step.there
        step_size, forced = min(1.0, 2 * info.step_size), False
        gain = here.estimate.elbo - before.estimate.elbo
        if gain < settings.least_gain * state.q.dim:
            return
        if settled(problem, here, none, here.error_of_draws(none)):
            return
