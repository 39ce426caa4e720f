"""A level: iterate on one set of common draws until it settles."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from pymc_ngvi.core import designs
from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Stein, decouple, pool
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Guard, Mixed
from pymc_ngvi.core.projections import Identity, Projection
from pymc_ngvi.core.target import Target
from pymc_ngvi.engine.evaluated import Draws, Noise, Sample, squared_displacement
from pymc_ngvi.engine.secants import Secants, residual
from pymc_ngvi.errors import NonFiniteError

#: Draws per dimension from which on two batches have exact second moments.
DRAWS_PER_DIMENSION = 4
#: Part of the squared error allowed that may be left to go.
NEGLIGIBLE = 0.04

# Part of the noise that may be left to go, and the noise that counts at most, in nats a dimension.
_EXCUSED, _LARGEST_NOISE = 0.3, 0.1
_SHORTEST_STEP = 2.0**-40
_SHORTEST_LATER_STEP = 2.0**-4
_MOST_SHRINKS = 40


@dataclass(frozen=True)
class Step:
    """A step, the sample it leads to unless that was left unseen, and the retreats before it."""

    mixed: Mixed
    there: Sample | None = None
    retreats: int = 0


#: Iterations of a level; at its end the state, the noise of its draws, and whether it settled.
Level: TypeAlias = Generator[tuple[State, Info], None, tuple[State, Noise, bool]]


def longest_step(q: Gaussian) -> float:
    """Longest step after the warm-up, in nats."""
    return max(1.0, q.dim / 2)


class Levels:
    """What iterates on common draws of one target.

    Parameters
    ----------
    target : Target
    estimator : BonnetPrice or Stein
    guard, projection
        As in :func:`pymc_ngvi.core.algorithm.run`.
    accuracy : float
        Tolerated error of every mean, in posterior standard deviations, and of every log standard
        deviation.
    max_evaluations : int
        Evaluations of the target after which the fit stops in any case.
    rng : numpy.random.Generator

    Attributes
    ----------
    n_samples : int
        Draws of the current level.
    evaluations : int
        Evaluations of the target spent so far.
    """

    def __init__(
        self,
        target: Target,
        *,
        estimator: BonnetPrice | Stein,
        guard: Guard,
        projection: Projection,
        accuracy: float,
        max_evaluations: int,
        rng: np.random.Generator,
    ) -> None:
        self.target = target
        if type(estimator) is BonnetPrice:
            estimator = BonnetPrice(antithetic=estimator.antithetic, coupled=True)
        self.estimator = estimator
        self.guard = guard
        self.projection = projection
        self.accuracy = accuracy
        self.max_evaluations = max_evaluations
        self.rng = rng
        self.n_samples = 0
        self.evaluations = 0
        self._secants = Secants()
        self._least_asked = np.inf
        self._amplification = 1.0
        self._warming_up = True
        self._most_samples = 0

    @property
    def spent(self) -> bool:
        """Whether the budget has no room for the draws of this level."""
        return self.evaluations + self.n_samples > self.max_evaluations

    def draw(self, n: int, q: Gaussian) -> Draws:
        """Draw about n standard normal rows, in batches, and the seed of their minibatches."""
        self._most_samples = max(self._most_samples, n)
        batches = designs.batches(n, q.dim, self.rng)
        return Draws(batches, int(self.rng.integers(2**63)) if self.target.reads_batches else None)

    def evaluate(self, q: Gaussian, z: Draws) -> Sample:
        """Evaluate a member on common draws, and count the evaluations."""
        if z.seed is not None:
            self.target.reseed(z.seed)
        parts = []
        for batch in z.batches:
            try:
                parts.append(self.estimator.at(self.target, q, batch))
            except NonFiniteError as error:
                self.evaluations += error.evaluations
                raise
            self.evaluations += parts[-1].evaluations
        estimate = plain = pool(parts)
        if plain.coupling is not None:
            estimate, *parts = decouple([plain, *parts], plain.coupling)
        return Sample(q, estimate, parts, self._asked(q, estimate), plain)

    def anchor(self, q: Gaussian | None) -> None:
        """Expand a target that reads batches at the mean of q, or nowhere, if it may."""
        self.target.place_anchor(q)

    def _follow(self, q: Gaussian) -> bool:
        """Let a target that reads batches of data come along, and tell whether it did.

        Only between two sets of draws: those in use would have less in common afterwards.
        """
        return self.target.follow(q, self.n_samples)

    def _asked(self, q: Gaussian, estimate: Estimate) -> Noise:
        """Squared displacement an estimate asks for, less what the projection takes back."""
        if isinstance(self.projection, Identity):
            return squared_displacement(q, residual(q, estimate))
        end = self.projection(self.guard(q, estimate, 1.0).q)
        return Noise(
            np.square(end.mean - q.mean) / q.variance,
            np.square(np.log(end.variance / q.variance) / 2),
            end.kl(q),
        )

    def _level(self, state: State, *, forced: bool = False) -> Level:
        """Iterate on one set of draws until it settles.

        Returns the state, the noise of its draws, and whether it settled.
        """
        if not self._warming_up:  # from far away the next step leads far from an anchor
            self._follow(state.q)
        z = self.draw(self.n_samples, state.q)
        state, here = self._finite_start(state, z)
        noise, step_size = here.noise(self._secants), 1.0
        self._least_asked = np.inf
        while forced or not self._settled(here, noise):
            self._least_asked = min(self._least_asked, here.asked.nats)
            step = self._extrapolate(here, z)
            step = step or self._climb(here, here.estimate, z, step_size, forced=forced)
            if step is None and here.plain.coupling is not None:
                step = self._climb(here, here.plain, z, step_size, forced=forced)
            forced = False
            if step is None or step.there is None:
                return replace(state, evaluations=self.evaluations), noise, False
            state, info = self._take(state, here, step)
            yield state, info
            before, here = here, step.there
            if not self._warming_up:  # far from the solution they would mislead
                self._secants.add((before.q, before.estimate), (here.q, here.estimate))
            noise, step_size = here.noise(self._secants), min(1.0, 2 * info.step_size)
            gain = here.estimate.elbo - before.estimate.elbo
            if self._warming_up and gain < 0.01 * state.q.dim:
                break  # to have come near is enough
        of_step = here.noise(Secants()).nats
        self._amplification = noise.nats / of_step if of_step else 1.0
        return state, noise, True

    def _settled(self, here: Sample, noise: Noise) -> bool:
        """Whether what is left to go no longer matters, against the accuracy or the noise.

        Both what the draws ask for and what the secants make of it have to be small, and noise
        that is out of all proportion excuses nothing.
        """
        excused = _EXCUSED * min(noise.nats, _LARGEST_NOISE * here.q.dim)
        lefts = [here.asked]
        if isinstance(self.projection, Identity):
            lefts.append(here.left(self._secants))
        return all(left.excess(self.accuracy) < NEGLIGIBLE or left.nats < excused for left in lefts)

    def _finite_start(self, state: State, z: Draws) -> tuple[State, Sample]:
        """Evaluate where a level starts, narrowed until the target is finite on all draws."""
        q = state.q
        for _ in range(_MOST_SHRINKS):
            try:
                here = self.evaluate(q, z)
            except NonFiniteError as error:
                last = error
                q = type(q).from_mean_precision(q.mean, 4 * q.precision)
            else:
                return replace(state, q=q, evaluations=self.evaluations), here
        message = f"{last} however close to the starting point; start elsewhere"
        raise NonFiniteError(message, last.draws, self.evaluations) from last

    def _extrapolate(self, here: Sample, z: Draws) -> Step | None:
        """Go where the last steps together lead to, if that is progress."""
        if self.spent or not len(self._secants) or not isinstance(self.projection, Identity):
            return None
        member = self._secants.extrapolate(here.q, here.estimate)
        if member is None or member.kl(here.q) > longest_step(here.q):
            return None
        try:
            there = self.evaluate(member, z)
        except NonFiniteError:
            return None
        step = Step(Mixed(member, 1.0, active=False), there)
        return step if self._progress(here, there) else None

    def _climb(
        self,
        here: Sample,
        estimate: Estimate,
        z: Draws,
        step_size: float,
        *,
        forced: bool,
    ) -> Step | None:
        """Take the longest step, halving from the given one, that is progress."""
        retreats = 0
        shortest = _SHORTEST_STEP if self._warming_up else _SHORTEST_LATER_STEP
        longest = np.inf if self._warming_up else longest_step(here.q)
        while step_size >= shortest and (forced or not self.spent):
            mixed = self.guard(here.q, estimate, step_size)
            candidate = self.projection(mixed.q)
            step_size /= 2
            if candidate.kl(here.q) > longest:
                continue
            try:
                there = self.evaluate(candidate, z)
            except NonFiniteError:
                retreats += 1
                continue
            if self._progress(here, there):
                return Step(mixed, there, retreats)
        return None

    def _progress(self, here: Sample, there: Sample) -> bool:
        """Whether a step helped: the ELBO rose, or less is left to go than ever in this level.

        Not merely less than before the step, or the two conditions could take turns for ever.
        """
        closer = not self._warming_up and there.asked.nats < self._least_asked
        return closer or there.ascends(here)

    def _take(self, state: State, here: Sample, step: Step) -> tuple[State, Info]:
        q = self.projection(step.mixed.q) if step.there is None else step.there.q
        info = Info(
            iteration=state.iteration,
            elbo=here.estimate.elbo,
            elbo_se=here.estimate.elbo_se,
            step_size=step.mixed.step_size,
            n_samples=self.n_samples,
            kl=q.kl(here.q),
            guard_active=step.mixed.active,
            projection_active=q is not step.mixed.q,
            retreats=step.retreats,
            evaluations=self.evaluations,
            passes=self.target.passes,
        )
        return State(q, state.iteration + 1, self.evaluations, previous=here.q), info

    def _rounded(self, n: int, q: Gaussian) -> int:
        if isinstance(self.estimator, Stein):
            n = max(n, DRAWS_PER_DIMENSION * q.dim)
        return designs.rounded_size(n, q.dim)
