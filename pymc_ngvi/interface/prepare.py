"""Before the first iteration: compile the target, check the starts, choose where to start from."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pymc.exceptions import SamplingError

from pymc_ngvi.core.algorithm import State
from pymc_ngvi.core.estimators import Stein
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import warn
from pymc_ngvi.interface.options import Options, Parts
from pymc_ngvi.interface.start import Start, other_points
from pymc_ngvi.interface.stopwatch import Stopwatch
from pymc_ngvi.model.hessian import HessianUnavailableError
from pymc_ngvi.model.target import ModelTarget

# Points tried for each start that is asked for, in search of a finite log density.
_TRIES_PER_START = 20

#: With more parameters no dense Hessian is formed where only its diagonal is wanted.
MOST_FORMED = 1000


@dataclass(frozen=True)
class StateMaker:
    """Makes states to start from.

    Attributes
    ----------
    target : ModelTarget
    parts : Parts
    has_hessians : bool
        Whether the target evaluates Hessians in this fit.
    first : Start
        The start around which others are looked for.
    rng : numpy.random.Generator
    """

    target: ModelTarget
    parts: Parts
    has_hessians: bool
    first: Start
    rng: np.random.Generator

    def at(self, start: Start, *, explain: bool = True) -> State:
        """Return the state at a start.

        Its Gaussian is the one given, or has the curvature of the log density at the point.

        Raises
        ------
        pymc.exceptions.SamplingError
            Where the log density or its gradient is not finite there; with its terms, if `explain`.
        """
        point = start.point_or(self.target.initial_point)
        self.target.check_start(point, explain=explain)
        member = start.gaussian
        if member is None:
            member = self.parts.family.from_curvature(
                point, self._hessian(point), deviations=start.deviations
            )
        return State(self.parts.projection(member))

    def elsewhere(self, n: int) -> list[State]:
        """Return at most n states at other points, where the log density is finite.

        The points are drawn from the prior, or around the first start.
        """
        around = self.first.point_or(self.target.initial_point)
        points = other_points(self.target.model, self.target.layout, around, self.rng)
        found: list[State] = []
        for point in itertools.islice(points, max(0, _TRIES_PER_START * n)):
            if len(found) == n:
                break
            start = dataclasses.replace(self.first, gaussian=None, point=point)
            try:
                found.append(self.at(start, explain=False))
            except SamplingError:
                continue
        return found

    def _hessian(self, point: Array) -> Array | None:
        """Hessian at a point, or its diagonal, as the family takes it; None where it costs much."""
        curvature = self.parts.family.curvature
        # At the start they may have proved to be of no use.
        if self.has_hessians and self.target.hessian_route != "none":
            evaluation = self.target.evaluate(point[np.newaxis], curvature)
            assert evaluation.hessian is not None
            return evaluation.hessian[0]
        if curvature != "full" and self.target.dim > MOST_FORMED:
            return None
        hessian = self.target.difference_hessian(point)
        return hessian if curvature == "full" else hessian.diagonal().copy()


@dataclass(frozen=True)
class Prepared:
    """A fit that is ready to run.

    Attributes
    ----------
    target : ModelTarget
    options : Options
    parts : Parts
        Those of the options; the estimator may be another one, as the model has no Hessians.
    states : list of State
        Where to start; the first is tried first.
    maker : StateMaker
        Makes further states, should these not do.
    rng : numpy.random.Generator
    stopwatch : Stopwatch
        Tells the time of the fit, from the building of its target on.
    recentred : str
        How variables were recentred, for the report.
    """

    target: ModelTarget
    options: Options
    parts: Parts
    states: list[State]
    maker: StateMaker
    rng: np.random.Generator
    stopwatch: Stopwatch
    recentred: str = ""


def prepare(
    target: ModelTarget,
    options: Options,
    starts: Sequence[Start],
    rng: np.random.Generator,
    stopwatch: Stopwatch,
) -> Prepared:
    """Compile the target, check the starts, and make the states to start from.

    Parameters
    ----------
    target : ModelTarget
    options : Options
    starts : sequence of Start
        Those given, or one that leaves the point to PyMC.
    rng : numpy.random.Generator
    stopwatch : Stopwatch
        Told of the target, whose building it counts.

    Raises
    ------
    pymc.exceptions.SamplingError
        Where the log density is not finite at a start.
    """
    stopwatch.watch(target)
    if options.control_variates and not target.reads_batches:
        raise ValueError(
            "control_variates=True is for models that read batches of their data, by "
            "pm.Minibatch or from a loader: this model does not"
        )
    target.begin(rng, controlled=options.controlled)
    parts = options.parts
    has_hessians = parts.needs_hessian is not False and target.hessian_route != "none"
    if has_hessians and parts.family.factorised and target.dim > MOST_FORMED:
        # The diagonal alone would cost as much as the whole Hessian, unless that is sparse.
        has_hessians = target.structure is not None or target.reads_batches
    maker = StateMaker(target, parts, has_hessians, starts[0], rng)
    states = _first_states(maker, options)
    states += [maker.at(start) for start in starts[1:]]
    states += maker.elsewhere(options.n_starts - len(states))
    has_hessians = has_hessians and target.hessian_route != "none"
    if not has_hessians and _asks_for_hessians(parts, target, states[0]):
        stein = Stein(antithetic=getattr(parts.estimator, "antithetic", True))
        parts = dataclasses.replace(parts, estimator=stein)
    return Prepared(target, options, parts, states, maker, rng, stopwatch)


def _asks_for_hessians(parts: Parts, target: ModelTarget, state: State) -> bool:
    """Whether the estimator needs Hessians; one that does not say is tried on two draws."""
    if parts.needs_hessian is None:
        try:
            parts.estimator(target, state.q, 2, np.random.default_rng(0))
        except HessianUnavailableError:
            return True
        except Exception:  # any other error is told by the fit
            return False
    return bool(parts.needs_hessian)


def _first_states(maker: StateMaker, options: Options) -> list[State]:
    """Return the state at the first start, or one elsewhere if PyMC's own point is no start."""
    try:
        return [maker.at(maker.first)]
    except SamplingError:
        given = maker.first.gaussian is not None or maker.first.point is not None
        others = [] if given or not options.automatic else maker.elsewhere(1)
        if not others:
            raise
        warn("ngvi: the log density is not finite at PyMC's initial point; starting elsewhere")
        return others
