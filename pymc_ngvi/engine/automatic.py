r"""The automatic engine: no schedule to choose, and a stop with a statistical meaning.

The engine works in levels. A level fixes a set of standard normal draws and iterates on them: with
the draws common to all members there is no noise between two of them, a step of size 1 can be tried
and halved until it helps, past steps can be combined, and the iteration settles where the estimate
on these draws asks for no further move. What is left is the error of the draws themselves, told
from the scatter of a few batches of them at the solution: the standard error of every mean, in
posterior standard deviations, of every log standard deviation, and the expected Bregman distance in
nats.

The first level is the warm-up: a few draws, far from the optimum, and progress judged by the ELBO.
The second takes more, and then fresh draws are averaged in until the error is small against the
posterior: the fit has converged. Where the iteration closes in slowly, or the draws of a level
prove to have been misleading, a level of more draws takes the place of the averaging.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import replace

from pymc_ngvi.core import theory
from pymc_ngvi.core.algorithm import Info, Iterations, State, Status
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.engine.evaluated import Draws, Noise, Sample
from pymc_ngvi.engine.level import (
    DRAWS_PER_DIMENSION,
    NEGLIGIBLE,
    Level,
    Levels,
    Step,
    longest_step,
)
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.errors import NonFiniteError

#: Draws of the first level.
WARM_UP_DRAWS = 16
#: Draws of the second level, at least.
FEWEST_DRAWS = 64
#: Draws up to which twice as many as have exact moments are taken, so that they can be balanced.
BALANCED_DRAWS = 256
#: No level takes more.
MOST_DRAWS = 8192

# New draws at a time, relative to all before.
_MOST_GROWTH = 16
# Squared error, relative to the one allowed, from which on draws are averaged.
_MOST_EXCESS = 60.0
# Squared error of the solution, relative to that of one step, up to which they are.
_MOST_AMPLIFICATION = 4.0
# Ratio of a squared distance to the one that noise explains.
_SURPRISE = 9.0
# Levels in a row that end without a step that helps.
_MOST_STUCK = 2


class Engine(Levels):
    """The automatic engine: levels of more and more draws, until they suffice.

    Parameters and attributes are those of :class:`pymc_ngvi.engine.level.Levels`.
    """

    def fit(self, state: State, n_iterations: int) -> Iterations:
        """Fit from a state, for so many iterations at most; returns the status at the end."""
        last = state.iteration + n_iterations
        state = yield from self.warm_up(state, last)
        if state.iteration >= last:
            return Status.MAX_ITERATIONS, state
        return (yield from self.converge(state, last))

    def warm_up(
        self, state: State, last: int, budget: int | None = None
    ) -> Generator[tuple[State, Info], None, State]:
        """Come near the optimum on a few draws.

        Parameters
        ----------
        state : State
        last : int
            Iteration to stop at.
        budget : int, optional
            Evaluations to spend at most, where that is less than the engine has left.
        """
        self.n_samples = self._rounded(WARM_UP_DRAWS, state.q)
        self._warming_up = True
        self.anchor(None)
        self._secants = Secants()
        self.evaluations = max(self.evaluations, state.evaluations)
        limit = self.max_evaluations if budget is None else self.evaluations + budget
        near = False
        while not near:
            for moved, info in self._level(state, forced=True):
                state = moved
                yield state, info
                if state.iteration >= last or self.evaluations + self.n_samples > limit:
                    return replace(state, evaluations=self.evaluations)
            # A few batches of data come near the optimum of these batches, which may be far from
            # that of all the data. With an anchor there, the same draws come as near as others.
            near = not self._follow(state.q)
        return replace(state, evaluations=self.evaluations)

    def converge(self, state: State, last: int) -> Iterations:
        """Fit from near the optimum on, with as many draws as the accuracy asks for."""
        self._secants, self._warming_up = Secants(), False
        self.n_samples = self._first_size(state.q)
        stuck = 0
        while not self.spent:
            state, noise, settled = yield from self._until(last, self._level(state))
            # More draws do not help where it is not their noise that stands in the way.
            stuck = 0 if settled else stuck + 1
            if state.iteration < last and settled and self._nearly(noise):
                polishing = self._polish(state, noise)
                state, noise, settled = yield from self._until(last, polishing)
            if state.iteration >= last:
                return Status.MAX_ITERATIONS, state
            if settled and noise.excess(self.accuracy) <= 1:
                return Status.CONVERGED, state
            if self._follow(state.q):
                continue  # the noise was that of an anchor far away
            # A level takes three evaluations of its draws at least: where to start, one step, and
            # what is left after it.
            affordable = (self.max_evaluations - self.evaluations) // 3
            if affordable <= self.n_samples:
                break
            if stuck == _MOST_STUCK:
                return Status.STALLED, state
            wanted = min(self._planned(noise, self.n_samples), 8 * self.n_samples, MOST_DRAWS)
            self.n_samples = self._rounded(
                min(max(wanted, 2 * self.n_samples), affordable), state.q
            )
        return Status.MAX_EVALUATIONS, replace(state, evaluations=self.evaluations)

    def _until(self, last: int, level: Level) -> Level:
        """Go through a level, up to the last iteration."""
        while True:
            try:
                state, info = next(level)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield state, info
            if state.iteration >= last:
                return state, Noise.unknown(state.q.dim), False

    def refine(self, state: State, n_iterations: int) -> Iterations:
        """Go on from a state with more and more draws, whatever the accuracy and the budget."""
        self.max_evaluations, self._warming_up = sys.maxsize, False
        last = state.iteration + n_iterations
        while state.iteration < last:
            more = min(max(FEWEST_DRAWS, 2 * self._most_samples), MOST_DRAWS)
            self.n_samples = self._rounded(more, state.q)
            before = state.iteration
            for moved, info in self._level(state, forced=True):
                state = moved
                yield state, info
                if state.iteration >= last:
                    break
            if state.iteration == before:
                break  # no step is progress any more
        return Status.REFINED, state

    def _first_size(self, q: Gaussian) -> int:
        least = DRAWS_PER_DIMENSION * q.dim
        return self._rounded(max(FEWEST_DRAWS, least, min(2 * least, BALANCED_DRAWS)), q)

    def _planned(self, noise: Noise, draws: int) -> int:
        """Draws that the theory plans for the accuracy, given the noise of so many."""
        excess = noise.excess(self.accuracy)
        if excess <= 1:
            return draws
        # The error aimed at, in nats, is the one at which the largest excess is a little below 1.
        aim = noise.nats / (1.1 * excess)
        return theory.plan(aim, variance=noise.nats * draws, distance=aim)[0].n_samples

    def _nearly(self, noise: Noise) -> bool:
        """Whether a settled level is so close that more draws only have to be averaged in.

        Where the iteration closes in slowly, they would not go where they should in one step.
        """
        return (
            isinstance(self.projection, Identity)
            and self._amplification < _MOST_AMPLIFICATION
            and noise.excess(self.accuracy) < _MOST_EXCESS
        )

    def _polish(self, state: State, noise: Noise) -> Level:
        r"""Add fresh draws to those of a settled level, each evaluated once, until they suffice.

        The step size is the new draws' share of all, as in the paper's decreasing schedule: it
        averages the solutions of all draws so far. Where a step leads is looked at with a few
        common draws, for the secant along it. The first draws are added in any case: a level that
        claims to suffice has only its own to show for it. A step that matters, and is much longer
        than the noise explains, says that the draws before were misleading: they count no more,
        and if it happens again it is back to a level.
        """
        total, surprises = self.n_samples, 0
        few = self.draw(self._first_size(state.q), state.q)
        try:
            while True:
                wanted = min(self._planned(noise, total) - total, _MOST_GROWTH * total, MOST_DRAWS)
                self.n_samples = self._rounded(max(wanted, self._first_size(state.q)), state.q)
                if self.spent:
                    return replace(state, evaluations=self.evaluations), noise, False
                self._follow(state.q)
                here = self.evaluate(state.q, self.draw(self.n_samples, state.q))
                if here.left(self._secants).excess(self.accuracy) > NEGLIGIBLE:
                    self._look_ahead(here, few)
                own, left = here.noise(self._secants), here.left(self._secants)
                unexplained = left.nats > _SURPRISE * (own.nats + noise.nats)
                if unexplained and left.excess(self.accuracy) > 1:
                    total, surprises = 0, surprises + 1
                share = self.n_samples / (total + self.n_samples)
                member = self._secants.extrapolate(here.q, here.estimate, share)
                if member is None or surprises > 1:
                    return replace(state, evaluations=self.evaluations), own, False
                state, info = self._take(state, here, Step(Mixed(member, share, active=False)))
                yield state, info
                total += self.n_samples
                noise = noise.averaged(own, share)
                if noise.excess(self.accuracy) <= 1:
                    return replace(state, evaluations=self.evaluations), noise, True
        except NonFiniteError:
            return replace(state, evaluations=self.evaluations), noise, False

    def _look_ahead(self, here: Sample, few: Draws) -> None:
        """Learn the secant along the step a sample asks for, on a few common draws."""
        ahead = self._secants.extrapolate(here.q, here.estimate)
        if ahead is not None and ahead.kl(here.q) < longest_step(here.q):
            before, after = self.evaluate(here.q, few), self.evaluate(ahead, few)
            self._secants.add((here.q, before.estimate), (ahead, after.estimate))
