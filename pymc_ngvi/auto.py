r"""The automatic engine: no schedule to choose, and a stop with a statistical meaning.

The engine works in levels. A level fixes a set of standard normal draws and iterates on them: with
the draws common to all members there is no noise between two of them, a step of size 1 can be tried
and halved until it helps, and the iteration settles where the estimate on these draws asks for no
further move. What is left is the error of the draws themselves, told from the scatter of a few
batches of them at the solution: the standard error of every mean, in posterior standard deviations,
of every log standard deviation, and the expected Bregman distance in nats. If these are small
against the posterior the fit has converged; if not, the next level takes as many fresh draws as the
error asks for, and starts where this one ended.

The first level is the warm-up: a few draws, far from the optimum, and progress judged by the ELBO.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.algorithm import Info, Iterations, State
from pymc_ngvi.errors import NonFiniteError
from pymc_ngvi.estimators import BonnetPrice, Estimate, Stein, pool
from pymc_ngvi.families import Gaussian, Natural, standard_normal
from pymc_ngvi.guards import Guard
from pymc_ngvi.projections import Identity, Projection

Array = NDArray[np.float64]

#: Draws of the first level.
WARM_UP_DRAWS = 16
#: Draws of the second level, and the fewest whose scatter is believed.
FEWEST_DRAWS = 64
#: No level takes more.
MOST_DRAWS = 8192
#: Batches of a level's draws, whose scatter tells the noise.
BATCHES = 4
#: Gradients alone tell less of the curvature: draws needed per dimension.
STEIN_DRAWS_PER_DIMENSION = 10

_SHORTEST_STEP = 2.0**-14
_SHORTEST_LATER_STEP = 2.0**-4
_MOST_SHRINKS = 40


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
    """

    mean: Array
    log_sd: Array
    nats: float

    def excess(self, accuracy: float) -> float:
        """Largest ratio of a squared error to the one allowed; at most 1 when converged.

        The standard error allowed is such that nine errors in ten are within the accuracy.
        """
        allowed = (accuracy / 1.7) ** 2
        worst = max(float(self.mean.max()), float(self.log_sd.max()))
        return max(worst / allowed, self.nats / (accuracy**2 * len(self.mean)))


def squared_displacement(q: Gaussian, gradient: Array, change: Array) -> Noise:
    r"""How far a mean gradient and a change of the Hessian would move q, squared, to first order.

    They are the direction :math:`\Delta\theta` of the natural gradient; the Fisher information
    turns it into changes of mean and covariance, and :math:`\frac12\Delta\theta' F \Delta\theta`
    is its Bregman distance.
    """
    # Seen from the mean, theta_1 moves by the gradient alone, and nothing large cancels.
    centred = q.with_mean(np.zeros(q.dim))
    first = gradient if q.natural.first.size else np.empty(0)
    direction = Natural(first, change / 2)
    moved = centred.fisher_product(direction)
    variance = moved.second if moved.second.ndim == 1 else moved.second.diagonal()
    mean = np.square(moved.first) / q.variance if first.size else np.zeros(q.dim)
    return Noise(mean, np.square(variance / (2 * q.variance)), direction.inner(moved) / 2)


def noise_of_pooled(q: Gaussian, estimates: Sequence[Estimate], pooled: Estimate) -> Noise:
    """Squared standard errors of a pooled estimate, from the scatter of its parts."""
    parts = [
        squared_displacement(
            q, estimate.gradient - pooled.gradient, estimate.hessian - pooled.hessian
        )
        for estimate in estimates
    ]
    scale = len(parts) * (len(parts) - 1)
    return Noise(
        np.sum([part.mean for part in parts], axis=0) / scale,
        np.sum([part.log_sd for part in parts], axis=0) / scale,
        sum(part.nats for part in parts) / scale,
    )


@dataclass(frozen=True)
class Sample:
    """A member evaluated on the draws of a level.

    Attributes
    ----------
    q : Gaussian
    estimate : Estimate
        Over all draws.
    noise : Noise
        Squared standard errors of the estimate.
    asked : Noise
        Squared displacement the estimate asks for.
    """

    q: Gaussian
    estimate: Estimate
    noise: Noise
    asked: Noise

    def settled(self, accuracy: float) -> bool:
        """Whether the displacement no longer matters, against the accuracy or the noise."""
        return self.asked.excess(accuracy) < 0.01 or self.asked.nats < 0.1 * self.noise.nats

    def better_than(self, other: Sample) -> bool:
        """Whether a step from `other` to here was progress: a higher ELBO, or less left to go."""
        rounding = 1e-12 * (1 + abs(other.estimate.elbo))
        rises = self.estimate.elbo >= other.estimate.elbo - rounding
        return rises or self.asked.nats < other.asked.nats


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
        self.estimator = estimator
        self.guard = guard
        self.projection = projection
        self.accuracy = accuracy
        self.max_evaluations = max_evaluations
        self.rng = rng
        self.n_samples = 0

    def fit(self, state: State, n_iterations: int) -> Iterations:
        """Fit from a state, for so many iterations at most; returns the status at the end."""
        last = state.iteration + n_iterations
        self.n_samples = self._whole_batches(WARM_UP_DRAWS, state.q)
        while True:
            level = self._level(state, at_least_one=state.iteration == last - n_iterations)
            while True:
                try:
                    state, info = next(level)
                except StopIteration as end:
                    state, noise = end.value
                    break
                yield state, info
                if state.iteration >= last:
                    return "max_iterations", state
                if state.evaluations >= self.max_evaluations:
                    return "max_evaluations", state
            excess = noise.excess(self.accuracy)
            if excess <= 1 and self.n_samples >= FEWEST_DRAWS:
                return "converged", state
            # A level takes three evaluations of its draws at least: where to start, one step, and
            # what is left after it.
            affordable = (self.max_evaluations - state.evaluations) // 3
            if affordable <= self.n_samples:
                return "max_evaluations", state
            factor = min(8.0, max(2.0, 1.2 * excess))
            wanted = min(max(int(factor * self.n_samples), FEWEST_DRAWS), MOST_DRAWS, affordable)
            self.n_samples = self._whole_batches(wanted, state.q)

    def refine(self, state: State, n_iterations: int) -> Iterations:
        """Go on from a state with twice as many draws, whatever the accuracy reached."""
        self.n_samples = self._whole_batches(min(2 * self.n_samples, MOST_DRAWS), state.q)
        last = state.iteration + n_iterations
        while state.iteration < last:
            before = state.iteration
            for moved, info in self._level(state, at_least_one=True):
                state = moved
                yield state, info
                if state.iteration >= last:
                    break
            if state.iteration == before:
                break  # no step is progress any more
        return "refined", state

    def _level(self, state: State, *, at_least_one: bool = False) -> _Level:
        """Iterate on one set of draws until it settles; returns the state and the noise left."""
        each = self.n_samples // BATCHES
        z = [standard_normal(each, state.q.dim, self.rng, antithetic=True) for _ in range(BATCHES)]
        state, here = self._finite_start(state, z)
        step_size, warming_up = 1.0, self.n_samples < FEWEST_DRAWS
        while at_least_one or not here.settled(self.accuracy):
            at_least_one = False
            climbed = self._climb(state, here, z, step_size)
            if climbed is None:
                break
            previous = here
            state, info, here = climbed
            step_size = min(1.0, 2 * info.step_size)
            yield state, info
            gain = here.estimate.elbo - previous.estimate.elbo
            if warming_up and 0 <= gain < 0.01 * state.q.dim:
                break  # to have come near is enough
        return state, here.noise

    def _evaluate(self, q: Gaussian, z: Sequence[Array]) -> Sample:
        estimates = [self.estimator.at(self.target, q, batch) for batch in z]
        pooled = pool(estimates)
        return Sample(q, pooled, noise_of_pooled(q, estimates, pooled), self._asked(q, pooled))

    def _asked(self, q: Gaussian, estimate: Estimate) -> Noise:
        """Squared displacement an estimate asks for, less what the projection takes back."""
        if isinstance(self.projection, Identity):
            return squared_displacement(q, estimate.gradient, estimate.hessian + q.precision)
        end = self.projection(self.guard(q, estimate, 1.0).q)
        return Noise(
            np.square(end.mean - q.mean) / q.variance,
            np.square(np.log(end.variance / q.variance) / 2),
            end.kl(q),
        )

    def _finite_start(self, state: State, z: Sequence[Array]) -> tuple[State, Sample]:
        """Evaluate where a level starts, narrowed until the target is finite on all draws."""
        q, spent = state.q, state.evaluations
        for _ in range(_MOST_SHRINKS):
            try:
                here = self._evaluate(q, z)
            except NonFiniteError as error:
                spent += error.evaluations
                last = error
                q = type(q).from_mean_precision(q.mean, 4 * q.precision)
            else:
                spent += here.estimate.evaluations
                return replace(state, q=q, evaluations=spent), here
        message = f"{last} however close to the starting point; start elsewhere"
        raise NonFiniteError(message, last.draws, spent) from last

    def _climb(
        self, state: State, here: Sample, z: Sequence[Array], step_size: float
    ) -> tuple[State, Info, Sample] | None:
        """Take the longest step, halving from the given one, that is progress."""
        spent, retreats = state.evaluations, 0
        shortest = _SHORTEST_STEP if self.n_samples < FEWEST_DRAWS else _SHORTEST_LATER_STEP
        while step_size >= shortest:
            mixed = self.guard(here.q, here.estimate, step_size)
            candidate = self.projection(mixed.q)
            try:
                there = self._evaluate(candidate, z)
            except NonFiniteError as error:
                spent += error.evaluations
                retreats += 1
            else:
                spent += there.estimate.evaluations
                if there.better_than(here):
                    info = Info(
                        iteration=state.iteration,
                        elbo=here.estimate.elbo,
                        elbo_se=here.estimate.elbo_se,
                        step_size=mixed.step_size,
                        n_samples=self.n_samples,
                        kl=candidate.kl(here.q),
                        guard_active=mixed.active,
                        projection_active=candidate is not mixed.q,
                        retreats=retreats,
                        evaluations=spent,
                    )
                    moved = State(candidate, state.iteration + 1, spent, previous=here.q)
                    return moved, info, there
            step_size /= 2
        return None

    def _whole_batches(self, least: int, q: Gaussian) -> int:
        if isinstance(self.estimator, Stein):
            least = max(least, STEIN_DRAWS_PER_DIMENSION * q.dim)
        pairs = 2 * BATCHES  # each batch is of whole antithetic pairs
        return -(-least // pairs) * pairs


_Level: TypeAlias = Generator[tuple[State, Info], None, tuple[State, Noise]]


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
