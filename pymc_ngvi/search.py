"""Several starts: warm up each, abandon the poor ones, and fit the best to the end.

Where a single start ends badly, others are tried in the same way before the fit gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_ngvi import designs
from pymc_ngvi.algorithm import Iterations, State
from pymc_ngvi.auto import FEWEST_DRAWS, Engine
from pymc_ngvi.errors import DomainError, NonFiniteError

#: Starts tried where a single one ends badly.
RETRIES = 4


@dataclass(frozen=True)
class Attempt:
    """What became of one start.

    Attributes
    ----------
    outcome : str
        "best", "same" (it came to the same optimum), "other" (another one, fitted to the end),
        "abandoned" (another one, and a poor one), "stalled" or "failed".
    elbo : float
        ELBO it came to: of starts fitted to the end all on the same draws, of the others after
        the warm-up; NaN where it failed.
    """

    outcome: str
    elbo: float = np.nan


class Search:
    """Fit from several starts with one engine.

    Parameters
    ----------
    engine : Engine
    spare : callable
        Gives so many more states to start from; fewer where it finds none.

    Attributes
    ----------
    attempts : list of Attempt
        What became of each start so far.
    best : State or None
        Best state of the starts before the one that is being fitted.
    """

    def __init__(self, engine: Engine, spare: Callable[[int], Sequence[State]]) -> None:
        self.engine = engine
        self.spare = spare
        self.attempts: list[Attempt] = []
        self.best: State | None = None

    def fit(self, states: Sequence[State], n_iterations: int) -> Iterations:
        """Fit from the given states, for so many iterations at most in all."""
        if len(states) > 1:
            return (yield from self._best_of(states, n_iterations))
        (first,) = states
        error: NonFiniteError | DomainError | None = None
        try:
            status, state = yield from self.engine.fit(first, n_iterations)
        except (NonFiniteError, DomainError) as raised:
            status, state, error = "failed", first, raised
        if status not in ("stalled", "failed"):
            self.attempts.append(Attempt("best"))
            return status, state
        self.attempts.append(Attempt(status))
        others = self.spare(RETRIES)
        used = state.iteration - first.iteration
        if others and used < n_iterations:
            others = [self._continued(other, state) for other in others]
            try:
                return (yield from self._best_of(others, n_iterations - used))
            except (NonFiniteError, DomainError):
                pass
        if error is not None:
            raise error
        return status, state

    def _best_of(self, states: Sequence[State], n_iterations: int) -> Iterations:
        """Warm up every state, and fit the best to the end; with it any that comes close."""
        engine, last = self.engine, states[0].iteration + n_iterations
        warmed: list[State] = []
        error: Exception = NonFiniteError("no start was given", np.empty((0, 0)), 0)
        state = states[0]
        for i, start in enumerate(states):
            share = (engine.max_evaluations - engine.evaluations) // (2 * (len(states) - i))
            start = self._continued(start, state)
            try:
                state = yield from engine.warm_up(start, last, share)
            except (NonFiniteError, DomainError) as raised:
                error = raised
                state = self._continued(start, state)
                self.attempts.append(Attempt("failed"))
            else:
                warmed.append(state)
                self.best = warmed[0]
            if state.iteration >= last:
                break
        if not warmed:
            raise error
        elbos = list(self._elbos(warmed))
        order = sorted(range(len(warmed)), key=lambda i: -elbos[i])
        leaders: list[int] = []
        for i in order:
            q = warmed[i].q
            near = any(q.kl(warmed[j].q) < _distance(q.dim) for j in leaders)
            poor = elbos[i] < elbos[order[0]] - _distance(q.dim)
            if near or poor:
                self.attempts.append(Attempt("same" if near else "abandoned", elbos[i]))
            else:
                leaders.append(i)
        ended: list[tuple[str, State]] = []
        self.best = warmed[order[0]]
        for i in leaders:
            state = self._continued(warmed[i], state)
            if state.iteration >= last:
                status = "max_iterations"
            elif ended and engine.spent:
                status = "max_evaluations"
            else:
                status, state = yield from engine.converge(state, last)
            ended.append((status, state))
            self.best = ended[0][1]
        elbos = list(self._elbos([ending for _, ending in ended]))
        best = int(np.argmax(elbos))
        for i, elbo in enumerate(elbos):
            self.attempts.append(Attempt("best" if i == best else "other", elbo))
        status, self.best = ended[best]
        return status, self._continued(self.best, state)

    def _elbos(self, states: Sequence[State]) -> Iterator[float]:
        """ELBO of each state, all on the same draws."""
        if len(states) == 1:
            yield np.nan  # nothing to compare with
            return
        z = designs.batches(FEWEST_DRAWS, states[0].q.dim, self.engine.rng)
        for state in states:
            try:
                yield self.engine.evaluate(state.q, z).estimate.elbo
            except NonFiniteError:
                yield -np.inf

    def _continued(self, start: State, before: State) -> State:
        """Let a state follow on the iterations and evaluations before it."""
        return replace(
            start,
            iteration=max(start.iteration, before.iteration),
            evaluations=self.engine.evaluations,
        )


def _distance(dim: int) -> float:
    """Nats beyond which two optima are told apart, and a start is poor, after the warm-up."""
    return max(3.0, dim / 2)
