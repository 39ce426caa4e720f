"""Several starts: warm up each, abandon the poor ones, and fit the best to the end.

Where a single start stalls or fails, others are tried in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_ngvi.core.algorithm import Iterations, Returning, State, Status
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.errors import DomainError, NonFiniteError


@dataclass(frozen=True)
class Attempt:
    """The outcome of one start.

    Attributes
    ----------
    outcome : str
        "best", "same" (it reached the same optimum), "other" (it reached another one), "abandoned"
        (its ELBO was far below the best after the warm-up), "stalled" or "failed".
    elbo : float
        ELBO of the fit, or after the warm-up where it was not fitted to the end, all on the same
        draws; NaN where the start failed, or is the only one.
    """

    outcome: str
    elbo: float = np.nan


class Search:
    """Fit from several starts with one engine.

    Parameters
    ----------
    engine : Engine
    spare : callable
        ``spare(n)`` returns n further states to start from, or fewer where it finds no more.

    Attributes
    ----------
    attempts : list of Attempt
        The outcomes of the starts so far.
    best : State or None
        The state to return if the fit is interrupted now, instead of the one being fitted.
    """

    def __init__(self, engine: Engine, spare: Callable[[int], Sequence[State]]) -> None:
        self.engine = engine
        self.spare = spare
        self.attempts: list[Attempt] = []
        self.best: State | None = None

    def fit(self, states: Sequence[State], n_iterations: int) -> Iterations:
        """Fit from the given states, for at most `n_iterations` in all."""
        last = states[0].iteration + n_iterations
        if len(states) > 1:
            return (yield from self._best_of(states, last))
        (state,) = states
        error: NonFiniteError | DomainError | None = None
        iterations = Returning(self.engine.fit(state, n_iterations))
        try:
            for state, info in iterations:
                yield state, info
            status, state = iterations.value
        except (NonFiniteError, DomainError) as raised:
            status, error = Status.FAILED, raised
        if status not in (Status.STALLED, Status.FAILED):
            self.attempts.append(Attempt("best"))
            return status, state
        others = [] if state.iteration >= last else self.spare(self.engine.problem.settings.retries)
        if status == Status.STALLED and others:
            self.best = state
        if others:
            if status == Status.FAILED:
                self.attempts.append(Attempt("failed"))
            ended = [] if status == Status.FAILED else [(status, state)]
            followed = [self._after(state, other) for other in others]
            try:
                return (yield from self._best_of(followed, last, ended))
            except (NonFiniteError, DomainError):
                pass
        else:
            self.attempts.append(Attempt(status))
        if error is not None:
            raise error
        return status, state

    def _best_of(
        self,
        states: Sequence[State],
        last: int,
        ended: Sequence[tuple[Status, State]] = (),
    ) -> Iterations:
        """Warm up every state, and fit to the end the best and those that come close to it.

        The best is chosen among these and the fits that have `ended` before.
        """
        engine, state = self.engine, states[0]
        warmed: list[State] = []
        error: Exception | None = None
        for i, start in enumerate(states):
            if state.iteration >= last:
                break
            share = engine.remaining // (2 * (len(states) - i))
            begun = self._after(state, start)
            try:
                state = yield from engine.warm_up(begun, last, share)
            except (NonFiniteError, DomainError) as raised:
                error, state = raised, begun
                self.attempts.append(Attempt("failed"))
            else:
                warmed.append(state)
                self.best = self.best or state
        if not warmed and not ended:
            assert error is not None
            raise error
        finished = list(ended)
        for leader in self._leaders(warmed):
            state = self._after(state, leader)
            if state.iteration >= last:
                finished.append((Status.MAX_ITERATIONS, state))
            elif finished and engine.spent:
                finished.append((Status.MAX_EVALUATIONS, state))
            else:
                # If interrupted from here on, a later leader must not replace the first.
                self.best = finished[0][1] if finished else None
                try:
                    status, state = yield from engine.converge(state, last)
                except (NonFiniteError, DomainError) as raised:
                    error = raised
                    self.attempts.append(Attempt("failed"))
                else:
                    finished.append((status, state))
        if not finished:
            assert error is not None
            raise error
        status, best = self._choose(finished)
        self.best = None
        return status, engine.budget.counted(replace(best, iteration=state.iteration))

    def _leaders(self, warmed: Sequence[State]) -> list[State]:
        """Return the states worth fitting to the end, the best first."""
        elbos = self.engine.elbos(warmed)
        leaders: list[State] = []
        for i in sorted(range(len(warmed)), key=lambda i: -elbos[i]):
            q = warmed[i].q
            near = any(q.kl(leader.q) < self._distinct(q.dim) for leader in leaders)
            poor = elbos[i] < max(elbos) - self._distinct(q.dim)
            if near or poor:
                self.attempts.append(Attempt("same" if near else "abandoned", elbos[i]))
            else:
                leaders.append(warmed[i])
        return leaders

    def _choose(self, finished: Sequence[tuple[Status, State]]) -> tuple[Status, State]:
        """Return the best of the states fitted to the end, and record all outcomes."""
        states = [state for _, state in finished]
        alone = len(states) == 1 and not self.attempts
        elbos = [np.nan] if alone else self.engine.elbos(states)
        best = int(np.argmax(elbos))
        chosen, same = finished[best][1].q, self.engine.problem.settings.same_fit
        for i, (status, state) in enumerate(finished):
            near = min(state.q.kl(chosen), chosen.kl(state.q)) < same
            outcome = "best" if i == best else "same" if near else "other"
            self.attempts.append(
                Attempt("stalled" if status == Status.STALLED and i != best else outcome, elbos[i])
            )
        return finished[best]

    def _after(self, before: State, start: State) -> State:
        """Let a start continue the count of iterations and evaluations."""
        start = replace(start, iteration=before.iteration, previous=None)
        return self.engine.budget.counted(start)

    def _distinct(self, dim: int) -> float:
        """Nats beyond which two optima differ, and a start is poor, after the warm-up."""
        settings = self.engine.problem.settings
        return max(settings.distinct, settings.distinct_per_dimension * dim)
