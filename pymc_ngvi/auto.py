r"""The automatic engine: no schedule to choose, and a stop with a statistical meaning.

The engine works in levels. A level fixes a set of standard normal draws and iterates on them: with
the draws common to all members there is no noise between two of them, a step of size 1 can be tried
and halved until it helps, past steps can be combined, and the iteration settles where the estimate
on these draws asks for no further move. What is left is the error of the draws themselves, told
from the scatter of a few batches of them at the solution: the standard error of every mean, in
posterior standard deviations, of every log standard deviation, and the expected Bregman distance in
nats. If these are small against the posterior the fit has converged; if not, the next level takes
as many fresh draws as the error asks for, and starts where this one ended.

The first level is the warm-up: a few draws, far from the optimum, and progress judged by the ELBO.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pymc_ngvi import designs, theory
from pymc_ngvi.acceleration import Secants, residual
from pymc_ngvi.algorithm import Info, Iterations, State
from pymc_ngvi.errors import NonFiniteError
from pymc_ngvi.estimators import BonnetPrice, Estimate, Stein, decouple, pool
from pymc_ngvi.families import Gaussian, Natural
from pymc_ngvi.guards import Guard, Mixed
from pymc_ngvi.projections import Identity, Projection

Array = NDArray[np.float64]

#: Draws of the first level.
WARM_UP_DRAWS = 16
#: Draws of the second level, at least, and the fewest whose scatter is believed.
FEWEST_DRAWS = 64
#: No level takes more.
MOST_DRAWS = 8192
#: Draws per dimension from which on two batches have exact second moments. Twice as many can be
#: balanced, which matters as long as there are no more than so many in all.
DRAWS_PER_DIMENSION, BALANCED_DRAWS = 4, 256

# Degrees of freedom that the mean over the components lends to each.
_SHARED_FREEDOM = 8
# Noise, in nats a dimension, up to which it is an excuse for leaving some way to go.
_LARGEST_NOISE = 0.1
_EXCUSED = 0.3
# Part of the squared error allowed that may be left to go.
_NEGLIGIBLE = 0.04
# New draws at a time, relative to all before.
_MOST_GROWTH = 16
# Squared error, relative to the one allowed, from which on draws are averaged.
_MOST_EXCESS = 60.0
# Squared error of the solution, relative to that of one step, up to which they are.
_MOST_AMPLIFICATION = 4.0
# Ratio of a squared distance to the one that noise explains.
_SURPRISE = 9.0
_SHORTEST_STEP = 2.0**-40
_SHORTEST_LATER_STEP = 2.0**-4
_MOST_SHRINKS = 40
# Levels in a row that end without a step that helps.
_MOST_STUCK = 2


@dataclass(frozen=True)
class Noise:
    """Squared errors of a fit, or of an estimate, against the posterior.

    Attributes
    ----------
    mean : array, (d,)
        Of the means, in posterior variances.
    log_sd : array, (d,)
        Of the log standard deviations.
    nats : float
        Bregman distance.
    freedom : float
        Degrees of freedom each number was estimated with.
    """

    mean: Array
    log_sd: Array
    nats: float
    freedom: float = np.inf

    @classmethod
    def unknown(cls, dim: int) -> Noise:
        """Errors of which nothing is known."""
        return cls(np.full(dim, np.inf), np.full(dim, np.inf), np.inf)

    def averaged(self, other: Noise, share: float) -> Noise:
        """Errors of the average with something independent that has this share in it."""
        return Noise(
            (1 - share) ** 2 * self.mean + share**2 * other.mean,
            (1 - share) ** 2 * self.log_sd + share**2 * other.log_sd,
            (1 - share) ** 2 * self.nats + share**2 * other.nats,
            freedom=other.freedom,
        )

    def excess(self, accuracy: float) -> float:
        """Largest ratio of a squared error to the one allowed; at most 1 when converged.

        The standard error allowed is such that nine errors in ten are within the accuracy: the
        accuracy over the quantile of Student's t, as the error itself is an estimate. A few
        batches tell little of one component, and the largest of many such estimates is far too
        large, so each is drawn towards their mean.
        """
        dim = len(self.mean)
        shared = min(_SHARED_FREEDOM, self.freedom * (dim - 1)) if np.isfinite(self.freedom) else 0
        freedom = self.freedom + shared
        weight = shared / freedom
        allowed = (accuracy / float(stdtrit(freedom, 0.95))) ** 2
        worst = max(
            float(((1 - weight) * squares + weight * squares.mean()).max())
            for squares in (self.mean, self.log_sd)
        )
        return max(worst / allowed, self.nats / (accuracy**2 * dim))


def squared_displacement(q: Gaussian, direction: Natural) -> Noise:
    r"""How far a direction in natural parameters moves q, squared, to first order.

    The Fisher information turns it into changes of mean and covariance, and
    :math:`\frac12\Delta\theta' F \Delta\theta` is its Bregman distance.

    Parameters
    ----------
    q : Gaussian
    direction : Natural
        Seen from the mean of q, where its first part is the gradient alone.
    """
    centred = q.with_mean(np.zeros(q.dim))
    moved = centred.fisher_product(direction)
    variance = moved.second if moved.second.ndim == 1 else moved.second.diagonal()
    with np.errstate(over="ignore"):  # far away it is anything
        mean = np.square(moved.first) / q.variance if moved.first.size else np.zeros(q.dim)
        return Noise(mean, np.square(variance / (2 * q.variance)), direction.inner(moved) / 2)


@dataclass(frozen=True)
class Sample:
    """A member evaluated on the draws of a level.

    Attributes
    ----------
    q : Gaussian
    estimate : Estimate
        Over all draws.
    parts : sequence of Estimate
        Over each batch of them.
    asked : Noise
        Squared displacement the estimate asks for.
    plain : Estimate
        Before the gradient was preconditioned by the whole Hessian, where it was.
    """

    q: Gaussian
    estimate: Estimate
    parts: Sequence[Estimate]
    asked: Noise
    plain: Estimate

    def ascends(self, other: Sample) -> bool:
        """Whether the ELBO is no lower than at another member, but for rounding."""
        rounding = 1e-12 * (1 + abs(other.estimate.elbo))
        return self.estimate.elbo >= other.estimate.elbo - rounding

    def noise(self, secants: Secants) -> Noise:
        """Squared standard errors of the solution on these draws, from the scatter of its parts."""
        errors = [residual(self.q, part) - residual(self.q, self.estimate) for part in self.parts]
        moves = [squared_displacement(self.q, way) for way in secants.solve(self.q, errors)]
        scale = len(moves) * (len(moves) - 1)
        return Noise(
            np.sum([move.mean for move in moves], axis=0) / scale,
            np.sum([move.log_sd for move in moves], axis=0) / scale,
            sum(move.nats for move in moves) / scale,
            freedom=len(moves) - 1,
        )

    def left(self, secants: Secants) -> Noise:
        """Squared distance from here to the solution on these draws."""
        (way,) = secants.solve(self.q, [residual(self.q, self.estimate)])
        return squared_displacement(self.q, way)


@dataclass(frozen=True)
class Draws:
    """Draws common to all members evaluated on them.

    Attributes
    ----------
    batches : list of array, (n, d)
        Standard normal rows.
    seed : int or None
        Seed of the minibatches that go with them, where the target takes any.
    """

    batches: list[Array]
    seed: int | None = None


class Engine:
    """The automatic engine for one target.

    Parameters
    ----------
    target : Target
    estimator : BonnetPrice or Stein
    guard, projection
        As in :func:`pymc_ngvi.algorithm.run`.
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
        target: Any,
        *,
        estimator: BonnetPrice | Stein,
        guard: Guard,
        projection: Projection,
        accuracy: float,
        max_evaluations: int,
        rng: np.random.Generator,
    ) -> None:
        self.target = target
        self._stochastic = getattr(target, "stochastic", False)
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
        self._most_samples = FEWEST_DRAWS

    def fit(self, state: State, n_iterations: int) -> Iterations:
        """Fit from a state, for so many iterations at most; returns the status at the end."""
        last = state.iteration + n_iterations
        state = yield from self.warm_up(state, last)
        if state.iteration >= last:
            return "max_iterations", state
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
        self._secants = Secants()
        self.evaluations = max(self.evaluations, state.evaluations)
        limit = self.max_evaluations if budget is None else self.evaluations + budget
        for moved, info in self._level(state, forced=True):
            state = moved
            yield state, info
            if state.iteration >= last or self.evaluations + self.n_samples > limit:
                break
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
                return "max_iterations", state
            if settled and noise.excess(self.accuracy) <= 1:
                return "converged", state
            # A level takes three evaluations of its draws at least: where to start, one step, and
            # what is left after it.
            affordable = (self.max_evaluations - self.evaluations) // 3
            if affordable <= self.n_samples:
                break
            if stuck == _MOST_STUCK:
                return "stalled", state
            wanted = min(self._planned(noise, self.n_samples), 8 * self.n_samples, MOST_DRAWS)
            self.n_samples = self._rounded(
                min(max(wanted, 2 * self.n_samples), affordable), state.q
            )
        return "max_evaluations", replace(state, evaluations=self.evaluations)

    def _until(self, last: int, level: _Level) -> _Level:
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
            self.n_samples = self._rounded(min(2 * self._most_samples, MOST_DRAWS), state.q)
            before = state.iteration
            for moved, info in self._level(state, forced=True):
                state = moved
                yield state, info
                if state.iteration >= last:
                    break
            if state.iteration == before:
                break  # no step is progress any more
        return "refined", state

    @property
    def spent(self) -> bool:
        """Whether the budget has no room for the draws of this level."""
        return self.evaluations + self.n_samples > self.max_evaluations

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

    def _polish(self, state: State, noise: Noise) -> _Level:
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
                here = self.evaluate(state.q, self.draw(self.n_samples, state.q))
                if here.left(self._secants).excess(self.accuracy) > _NEGLIGIBLE:
                    self._look_ahead(here, few)
                own, left = here.noise(self._secants), here.left(self._secants)
                unexplained = left.nats > _SURPRISE * (own.nats + noise.nats)
                if unexplained and left.excess(self.accuracy) > 1:
                    total, surprises = 0, surprises + 1
                share = self.n_samples / (total + self.n_samples)
                member = self._secants.extrapolate(here.q, here.estimate, share)
                if member is None or surprises > 1:
                    return replace(state, evaluations=self.evaluations), own, False
                state, info = self._take(state, here, _Step(Mixed(member, share, active=False)))
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
        if ahead is not None and ahead.kl(here.q) < _longest(here.q):
            before, after = self.evaluate(here.q, few), self.evaluate(ahead, few)
            self._secants.add((here.q, before.estimate), (ahead, after.estimate))

    def _level(self, state: State, *, forced: bool = False) -> _Level:
        """Iterate on one set of draws until it settles.

        Returns the state, the noise of its draws, and whether it settled.
        """
        z = self.draw(self.n_samples, state.q)
        state, here = self._finite_start(state, z)
        noise, step_size = here.noise(self._secants), 1.0
        self._amplification = 1.0
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
            if self._warming_up and 0 <= gain < 0.01 * state.q.dim:
                break  # to have come near is enough
        of_step = here.noise(Secants()).nats
        self._amplification = noise.nats / of_step if of_step else 1.0
        return state, noise, True

    def _settled(self, here: Sample, noise: Noise) -> bool:
        """Whether what is left to go matters, against the accuracy or the noise.

        Both what the draws ask for and what the secants make of it have to be small, and noise
        that is out of all proportion excuses nothing.
        """
        excused = _EXCUSED * min(noise.nats, _LARGEST_NOISE * here.q.dim)
        lefts = [here.asked]
        if isinstance(self.projection, Identity):
            lefts.append(here.left(self._secants))
        return all(
            left.excess(self.accuracy) < _NEGLIGIBLE or left.nats < excused for left in lefts
        )

    def draw(self, n: int, q: Gaussian) -> Draws:
        """Draw about n standard normal rows, in batches, and the seed of their minibatches."""
        self._most_samples = max(self._most_samples, n)
        batches = designs.batches(n, q.dim, self.rng)
        return Draws(batches, int(self.rng.integers(2**63)) if self._stochastic else None)

    def evaluate(self, q: Gaussian, z: Draws) -> Sample:
        """Evaluate a member on common draws, and count the evaluations."""
        if z.seed is not None:
            self.target.reseed(np.random.default_rng(z.seed))
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

    def _extrapolate(self, here: Sample, z: Draws) -> _Step | None:
        """Go where the last steps together lead to, if that is progress."""
        if self.spent or not len(self._secants) or not isinstance(self.projection, Identity):
            return None
        member = self._secants.extrapolate(here.q, here.estimate)
        if member is None or member.kl(here.q) > _longest(here.q):
            return None
        try:
            there = self.evaluate(member, z)
        except NonFiniteError:
            return None
        step = _Step(Mixed(member, 1.0, active=False), there)
        return step if self._progress(here, there) else None

    def _climb(
        self,
        here: Sample,
        estimate: Estimate,
        z: Draws,
        step_size: float,
        *,
        forced: bool,
    ) -> _Step | None:
        """Take the longest step, halving from the given one, that is progress."""
        retreats = 0
        shortest = _SHORTEST_STEP if self._warming_up else _SHORTEST_LATER_STEP
        longest = np.inf if self._warming_up else _longest(here.q)
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
                return _Step(mixed, there, retreats)
        return None

    def _progress(self, here: Sample, there: Sample) -> bool:
        """Whether a step helped: the ELBO rose, or less is left to go than ever in this level.

        Not merely less than before the step, or the two conditions could take turns for ever.
        """
        closer = not self._warming_up and there.asked.nats < self._least_asked
        return closer or there.ascends(here)

    def _take(self, state: State, here: Sample, step: _Step) -> tuple[State, Info]:
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
        )
        return State(q, state.iteration + 1, self.evaluations, previous=here.q), info

    def _rounded(self, n: int, q: Gaussian) -> int:
        if isinstance(self.estimator, Stein):
            n = max(n, DRAWS_PER_DIMENSION * q.dim)
        return designs.rounded_size(n, q.dim)


@dataclass(frozen=True)
class _Step:
    """A step, the sample it leads to unless that was left unseen, and the retreats before it."""

    mixed: Mixed
    there: Sample | None = None
    retreats: int = 0


_Level: TypeAlias = Generator[tuple[State, Info], None, tuple[State, Noise, bool]]


def _longest(q: Gaussian) -> float:
    """Longest step after the warm-up, in nats."""
    return max(1.0, q.dim / 2)


def starting_member(
    family: type[Gaussian],
    mean: Array,
    hessian: Array | None,
    *,
    deviations: Array | None = None,
) -> Gaussian:
    """Where a fit starts: the absolute curvature at a point as precision, and at least 1.

    Parameters
    ----------
    family : type
    mean : array, (d,)
        Starting point; a centred family starts at zero in any case.
    hessian : array or None
        Hessian there, as the family's `curvature` asks for it; None gives a precision of 1.
    deviations : array, (d,), optional
        Standard deviations to start from where they are not NaN; these components start
        independent of the others.
    """
    dim = len(mean)
    precision: Array = np.eye(dim) if family.curvature == "full" else np.ones(dim)
    if hessian is not None and np.isfinite(hessian).all():
        if hessian.ndim == 1:
            precision = np.maximum(np.abs(hessian), 1.0)
        else:
            values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
            precision = (vectors * np.maximum(np.abs(values), 1.0)) @ vectors.T
    if deviations is not None and np.isfinite(deviations).any():
        given = np.isfinite(deviations)
        if precision.ndim == 1:
            precision[given] = deviations[given] ** -2.0
        else:
            precision[given, :] = 0.0
            precision[:, given] = 0.0
            precision[given, given] = deviations[given] ** -2.0
    centred = family.from_mean_precision(np.zeros(dim), precision)
    return centred if centred.natural.first.size == 0 else centred.with_mean(mean)
