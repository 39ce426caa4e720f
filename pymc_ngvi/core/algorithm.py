r"""Projected stochastic natural-gradient variational inference: Algorithm 1 of the paper.

.. math::

    \theta_+ &= (1-\eta_t)\,\theta_t + \eta_t\, g^{N_t}(\omega_t) \\
    \omega_{t+1} &= \mathrm{proj}_C(\omega_+)

An iteration estimates the mean gradient and Hessian under the current Gaussian, mixes them into its
natural parameter (with a guard on the family's domain) and projects. Estimator, guard, projection
and schedules are arguments: the loop does not depend on which they are, nor on how the family keeps
its precision.

Examples
--------
A Gaussian target is found in one step of size 1:

>>> import numpy as np
>>> from pymc_ngvi.core.target import Evaluation, Target
>>> from pymc_ngvi.core.families import FullGaussian
>>> class Quadratic(Target):
...     dim = 2
...     precision = np.array([[2.0, 1.0], [1.0, 3.0]])
...     def log_density(self, draws):
...         return -0.5 * np.einsum("ni,ij,nj->n", draws - 1, self.precision, draws - 1)
...     def evaluate(self, draws, curvature):
...         hessian = np.broadcast_to(-self.precision, (len(draws), 2, 2))
...         return Evaluation(self.log_density(draws), (1 - draws) @ self.precision, hessian)
>>> start = FullGaussian.from_mean_covariance([9.0, -9.0], np.eye(2))
>>> rng = np.random.default_rng(1)
>>> result = run(Quadratic(), start, n_iterations=1, step_size=1.0, n_samples=2, rng=rng)
>>> result.q.mean.round(9), result.q.precision.round(9)
(array([1., 1.]), array([[2., 1.],
       [1., 3.]]))
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.arguments import check_count
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Estimator
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Guard, get_guard
from pymc_ngvi.core.projections import Identity, Projection, check_projection
from pymc_ngvi.core.schedules import (
    SampleSchedule,
    StepSchedule,
    as_schedule,
    check_sample_size,
    check_step_size,
)
from pymc_ngvi.core.subsampling import FiniteSum
from pymc_ngvi.core.target import Target
from pymc_ngvi.errors import NGVIError, NonFiniteError

# Halvings of a step after which a target that is still not finite is an error: a millionth of it.
_MOST_RETREATS = 20


@dataclass(frozen=True)
class State:
    """What the next iteration needs.

    Attributes
    ----------
    q : Gaussian
        Current member of the family.
    iteration : int
        Iterations done, and so the t of the next one.
    evaluations : int
        Evaluations of the target spent so far, by the estimator.
    gradients : int
        Further evaluations so far, of gradients or log densities alone.
    previous : Gaussian or None
        Member before the last step, to retreat to where the target turns out not to be finite.
    average : Gaussian or None
        Average of the natural parameters of the iterates before `q`, with `averaging`. An iterate
        enters once the target has been evaluated under it.
    averaged : int
        Number of iterates in the average.
    """

    q: Gaussian
    iteration: int = 0
    evaluations: int = 0
    gradients: int = 0
    previous: Gaussian | None = None
    average: Gaussian | None = None
    averaged: int = 0

    @property
    def fitted(self) -> Gaussian:
        """The Gaussian fitted so far: the average of all iterates where one is kept, else `q`."""
        if self.average is None:
            return self.q
        return self.average.interpolate(self.q, 1 / (self.averaged + 1))


@dataclass(frozen=True)
class Info:
    """What happened in one iteration.

    Attributes
    ----------
    iteration : int
        Its number t, from 0.
    elbo, elbo_se : float
        Estimate of the ELBO, and its standard error, of the member the iteration started from.
    step_size : float
        Step size taken (a guard may have shortened the scheduled one).
    n_samples : int
        Sample size.
    kl : float
        KL divergence of the new member from the old one, in nats.
    guard_active, projection_active : bool
        Whether the guard, and the projection, changed the update.
    retreats : int
        Times the previous step was halved because the target was not finite where it led (the
        entry of that step describes it as it was first taken).
    evaluations : int
        Evaluations of the target so far, all iterations, by the estimator.
    gradients : int
        Further evaluations so far, of gradients or log densities alone: the automatic engine takes
        them where Hessians would tell no more.
    passes : float
        Passes over the data so far, of a target that reads its data in batches.
    """

    iteration: int
    elbo: float
    elbo_se: float
    step_size: float
    n_samples: int
    kl: float
    guard_active: bool
    projection_active: bool
    retreats: int
    evaluations: int
    gradients: int = 0
    passes: float = 0.0


class Status(StrEnum):
    """Why a run ended. Each member equals, and prints as, its word."""

    INITIALISED = "initialised"
    CONVERGED = "converged"
    MAX_ITERATIONS = "max_iterations"
    MAX_EVALUATIONS = "max_evaluations"
    STALLED = "stalled"
    IMPROPER = "improper"
    REFINED = "refined"
    STOPPED_BY_CALLBACK = "stopped_by_callback"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    """Outcome of :func:`run`.

    Attributes
    ----------
    state : State
        Last good state.
    history : list of Info
        One entry per iteration.
    status : Status
        Why the run ended.
    """

    state: State
    history: list[Info] = field(default_factory=list)
    status: Status = Status.MAX_ITERATIONS

    @property
    def q(self) -> Gaussian:
        """The fitted Gaussian: the average where one was kept, else the last iterate."""
        return self.state.fitted

    def trace(self, name: str) -> NDArray[Any]:
        """One field of :class:`Info` over the iterations, as an array."""
        return np.array([getattr(info, name) for info in self.history])


Callback: TypeAlias = Callable[[State, Info], object]
#: Generator of iterations; returns the status, and the state with all evaluations counted.
Iterations: TypeAlias = Generator[tuple[State, Info], None, tuple[Status, State]]


Item = TypeVar("Item")
Value = TypeVar("Value")


class Returning(Generic[Item, Value]):
    """A generator to loop over that keeps what it returns at its end.

    Attributes
    ----------
    value
        What the generator returned; only once the loop has ended by itself.
    """

    value: Value

    def __init__(self, generator: Generator[Item, None, Value]) -> None:
        self._generator = generator

    def __iter__(self) -> Generator[Item, None, None]:
        self.value = yield from self._generator


def init(q: Gaussian, projection: Projection | None = None) -> State:
    """Start from a member of a family, projected onto the constraint set if one is given."""
    return State(q if projection is None else projection(q))


def step(
    state: State,
    rng: np.random.Generator,
    *,
    target: Target | FiniteSum,
    estimator: Estimator,
    guard: Guard,
    projection: Projection,
    step_size: float,
    n_samples: int,
    averaging: bool = False,
) -> tuple[State, Info]:
    """One iteration of Algorithm 1: estimate, mix under the guard, project.

    Parameters
    ----------
    state : State
    rng : numpy.random.Generator
    target : Target or FiniteSum
        Whatever the estimator evaluates.
    estimator, guard, projection
        Parts of the algorithm; see their modules.
    step_size : float
        Step size eta_t in (0, 1].
    n_samples : int
        Sample size N_t.
    averaging : bool
        Also keep the running average of the natural parameters.

    Returns
    -------
    State, Info
    """
    step_size = check_step_size(step_size, state.iteration)
    n_samples = check_sample_size(n_samples, state.iteration)
    q, estimate, retreats, wasted = _estimate(state, rng, target, estimator, n_samples)
    mixed = guard(q, estimate, step_size)
    projected = projection(mixed.q)

    evaluations = state.evaluations + wasted + estimate.evaluations
    average, averaged = None, 0
    if averaging and state.previous is not None:  # the start itself is no iterate
        average, averaged = state.average, state.averaged + 1
        average = q if average is None else average.interpolate(q, 1 / averaged)
    info = Info(
        iteration=state.iteration,
        elbo=estimate.elbo,
        elbo_se=estimate.elbo_se,
        step_size=mixed.step_size,
        n_samples=n_samples,
        kl=projected.kl(q),
        guard_active=mixed.active,
        projection_active=projected is not mixed.q,
        retreats=retreats,
        evaluations=evaluations,
        passes=target.passes,
    )
    after = State(
        projected, state.iteration + 1, evaluations, state.gradients, q, average, averaged
    )
    return after, info


def run(
    target: Target | FiniteSum,
    start: Gaussian | State,
    *,
    n_iterations: int,
    step_size: float | StepSchedule,
    n_samples: int | SampleSchedule,
    rng: np.random.Generator,
    estimator: Estimator | None = None,
    guard: str | Guard = "lin",
    projection: Projection | None = None,
    averaging: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Run Algorithm 1 for a number of iterations, exactly as given.

    Parameters
    ----------
    target : Target or FiniteSum
        Log density with derivatives, or a sum of terms where the estimator is
        :class:`~pymc_ngvi.core.subsampling.Subsampling`.
    start : Gaussian or State
        Where to start; a state goes on from where it was.
    n_iterations : int
        Iterations to run.
    step_size, n_samples
        A number, or a callable of the iteration t.
    rng : numpy.random.Generator
        Source of all randomness.
    estimator : Estimator
        Default :class:`~pymc_ngvi.core.estimators.BonnetPrice`.
    guard : {"lin", "backtrack", "none"} or callable
        What to do with an update that leaves the domain.
    projection : callable
        Bregman projection; none by default.
    averaging : bool
        Keep the running average of the natural parameters, and return it as `Result.q`.
    callbacks : iterable of callables
        Each is called with the new state and the info; raising `StopIteration` ends the run.

    Returns
    -------
    Result
        An interrupt (Ctrl-C) returns the last good state with status "interrupted". An error
        carries the same, with status "failed", on its `result` attribute.
    """
    state = start if isinstance(start, State) else State(start)
    iterations = iterate(
        target,
        state,
        n_iterations=n_iterations,
        step_size=step_size,
        n_samples=n_samples,
        rng=rng,
        estimator=BonnetPrice() if estimator is None else estimator,
        guard=guard,
        projection=Identity() if projection is None else projection,
        averaging=averaging,
    )
    checked_by = target if isinstance(target, Target) else None  # a sum has no log density
    return drive(iterations, state, callbacks, checked_by)


def iterate(
    target: Target | FiniteSum,
    state: State,
    *,
    n_iterations: int,
    step_size: float | StepSchedule,
    n_samples: int | SampleSchedule,
    rng: np.random.Generator,
    estimator: Estimator,
    guard: str | Guard,
    projection: Projection,
    averaging: bool = False,
) -> Iterations:
    """Check the arguments at once, and return a generator of the iterations.

    Parameters are those of :func:`run`.
    """
    sizes, counts = as_schedule(step_size, "step_size"), as_schedule(n_samples, "n_samples")
    chosen_guard = get_guard(guard, projection)
    check_projection(projection, type(state.q))
    first = state.iteration
    last = first + check_count("n_iterations", n_iterations) - 1
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    if not isinstance(target, Target | FiniteSum):
        raise TypeError(
            f"a target is a subclass of pymc_ngvi.core.target.Target, not {type(target).__name__}"
        )
    if target.dim != state.q.dim:
        raise ValueError(f"the target has {target.dim} dimensions, the start has {state.q.dim}")
    for t in (first, last):  # the rest of the schedule is checked as it is used
        check_step_size(sizes(t), t)
        check_sample_size(counts(t), t)

    def generate() -> Iterations:
        current = init(state.q, projection) if first == 0 else state
        for t in range(first, last + 1):
            current, info = step(
                current,
                rng,
                target=target,
                estimator=estimator,
                guard=chosen_guard,
                projection=projection,
                step_size=sizes(t),
                n_samples=counts(t),  # type: ignore[arg-type]
                averaging=averaging,
            )
            yield current, info
        return Status.MAX_ITERATIONS, current

    return generate()


def drive(
    iterations: Iterations,
    state: State,
    callbacks: Iterable[Callback] = (),
    target: Target | None = None,
) -> Result:
    """Run through iterations, so that no callback, interrupt or error loses what was fitted.

    Whether the target is finite where a step leads shows in the next iteration, which the last step
    does not have. The last step is therefore halved until the log density at the mean is finite.

    Parameters
    ----------
    iterations : generator of (State, Info)
        Its return value is the status and the final state.
    state : State
        The state the iterations start from.
    callbacks : iterable of callables
        As in :func:`run`.
    target : Target, optional
        What the last step is checked against; None for no check.
    """
    callbacks = list(callbacks)
    history: list[Info] = []
    ended = Returning(iterations)
    try:
        for state, info in ended:
            history.append(info)
            if _wants_to_stop(callbacks, state, info):
                status = Status.STOPPED_BY_CALLBACK
                break
        else:
            status, state = ended.value
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except Exception as error:
        if isinstance(error, NGVIError):
            error.args = (f"iteration {state.iteration}: {error}", *error.args[1:])
        error.result = Result(_checked(state, target), history, Status.FAILED)  # type: ignore[attr-defined]
        raise
    return Result(_checked(state, target), history, status)


def _checked(state: State, target: Target | None) -> State:
    """Return the state, its last step halved until the log density at the mean is finite."""
    if state.previous is None or target is None:
        return state
    q = state.q
    for _ in range(_MOST_RETREATS):
        if np.isfinite(target.log_density(np.array([q.mean]))).all():
            break
        q = state.previous.interpolate(q, 0.5)
    else:
        q = state.previous
    return state if q is state.q else replace(state, q=q)


def _wants_to_stop(callbacks: Iterable[Callback], state: State, info: Info) -> bool:
    try:
        for callback in callbacks:
            callback(state, info)
    except StopIteration:
        return True
    return False


def _estimate(
    state: State,
    rng: np.random.Generator,
    target: Target | FiniteSum,
    estimator: Estimator,
    n_samples: int,
) -> tuple[Gaussian, Estimate, int, int]:
    """Estimate at the current member, halving the step that led to it while it is not finite.

    Returns the member the estimate belongs to, the estimate, the number of halvings, and the
    evaluations they cost.
    """
    q, wasted = state.q, 0
    for retreats in range(_MOST_RETREATS + 1):
        try:
            return q, estimator(target, q, n_samples, rng), retreats, wasted
        except NonFiniteError as error:
            wasted += error.evaluations
            if state.previous is None or retreats == _MOST_RETREATS:
                where = (
                    "at the start"
                    if state.previous is None
                    else f"however short the last step was made ({retreats} halvings)"
                )
                message = f"{error} {where}; start closer to the mode, or with smaller variances"
                raise NonFiniteError(message, error.draws, wasted) from error
            q = state.previous.interpolate(q, 0.5)
    raise AssertionError("unreachable")
