r"""Nested fits: Gaussians of the rest on a grid of one or two held components.

For any distribution :math:`q(u, x) = q(u)\, q(x \mid u)` the ELBO is

.. math:: E_{q(u)}\bigl[L(u) - \log q(u)\bigr], \qquad
          L(u) = E_{q(x \mid u)}\bigl[\log p(u, x) - \log q(x \mid u)\bigr],

so that the best Gaussian at each u is the one with the highest conditional ELBO L(u), a lower bound
of the logarithm of the marginal density, and the best q(u) is proportional to :math:`e^{L(u)}`.
The grid is found by walking outwards, each fit starting from that of a neighbour, until L has
fallen far below its top. All fits use the same standard normal numbers, whose noise is then nearly
the same at neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from pymc_ngvi.core.algorithm import Returning, State
from pymc_ngvi.core.conditional import Conditional, Split
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import Array, units
from pymc_ngvi.core.nested import Nested
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.core.sparse.structure import Structure
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.engine.level import level
from pymc_ngvi.engine.problem import Problem, Size
from pymc_ngvi.errors import DomainError, NonFiniteError

#: The walk ends where the conditional ELBO is this much below its top, in nats, for one and for two
#: axes, and what is lower still by so much is taken to be that low.
DROP, FLOOR = (8.0, 6.0), (5.0, 12.0)
#: Distance of neighbours on the grid, in standard deviations, for one and for two axes.
SPACING = (0.6, 0.9)
#: Points of the grid at most.
MOST_POINTS = (60, 160)
#: Draws of log densities alone that give the conditional ELBO.
ELBO_DRAWS = 256
#: Draws on which the rest is fitted at a point that has a neighbour to start from, for one and for
#: two axes.
DRAWS = (64, 32)
#: Evaluations of a fit at a point, at most.
MOST_EVALUATIONS = 4000
#: Fits at most, in each direction, that find out how far a standard deviation is.
_PROBES = 6
#: A fall of the conditional ELBO between these, in nats, tells that.
_TELLING = (0.5, 4.0)
#: Points of the grid that are kept in any case.
_FEWEST = 4

Index: TypeAlias = tuple[int, ...]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Point:
    """A point of the grid.

    Attributes
    ----------
    q : Gaussian
        Fit of the rest.
    elbo : float
        Conditional ELBO; minus infinity where the fit failed.
    efficiency : float
        Share of draws from it that are effective, by their importance ratios.
    settled : bool
        Whether the fit came to its end.
    """

    q: Gaussian
    elbo: float
    efficiency: float
    settled: bool = False


@dataclass(frozen=True)
class NestedFit:
    """A nested fit, and what it cost.

    Attributes
    ----------
    distribution : Nested
    points : int
        Number of fits.
    evaluations, gradients : int
        Evaluations of the target by the estimator, and of gradients or log densities alone.
    complete : bool
        Whether all fits near the top came to their ends, and the grid to where little is left.
    """

    distribution: Nested
    points: int
    evaluations: int
    gradients: int
    complete: bool


class Nesting:
    """Fit the rest of the components of a target on a grid of held ones.

    Parameters
    ----------
    problem : Problem
        Of the whole target, which holds all its data.
    q : Gaussian
        A fit of all components, which gives the first start and the first scales.
    split : Split
        The held components and the rest.
    rng : numpy.random.Generator
    structure : Structure, optional
        Where the Hessian of the target has entries, for a sparse `q`.
    max_evaluations : int
        Evaluations after which the walk ends in any case.
    """

    def __init__(
        self,
        problem: Problem,
        q: Gaussian,
        split: Split,
        rng: np.random.Generator,
        structure: Structure | None = None,
        max_evaluations: int = sys.maxsize,
    ) -> None:
        self.problem, self.q, self.split = problem, q, split
        self.max_evaluations = max_evaluations
        self._axes = split.held.size
        self._structure = structure
        self._seed = int(rng.integers(2**63))
        self._centre = q.mean[split.held]
        self._scale = np.linalg.cholesky(_covariance(q, split))
        self._z = standard_normal(
            ELBO_DRAWS, split.rest.size, np.random.default_rng(self._seed), antithetic=True
        )
        self._found: list[tuple[Array, Point]] = []
        self.evaluations = self.gradients = 0

    def middle(self) -> Point:
        """Fit the rest with the held components at their means."""
        return self._fit(np.zeros(self._axes))

    def fit(self) -> NestedFit:
        """Walk outwards from the mean, and join what is found."""
        axes = range(self._axes)
        spacing = np.array([self._spacing(axis) for axis in axes])
        points = _without_failed(self._walk(spacing))
        top = max(point.elbo for point in points.values())
        drop = DROP[self._axes - 1]
        near = [point.settled for point in points.values() if point.elbo > top - drop]
        complete = all(near) and not self._spent(points)
        low, high = np.min(list(points), axis=0), np.max(list(points), axis=0)
        box = list(itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True))))
        self._fill(points, box, spacing)
        lowest = top - drop - FLOOR[self._axes - 1]
        elbos = np.array([max(points[index].elbo, lowest) for index in box])
        distribution = Nested(
            self.split,
            self._centre,
            self._scale,
            [spacing[axis] * np.arange(low[axis], high[axis] + 1) for axis in axes],
            elbos.reshape(high - low + 1),
            [points[index].q for index in box],
        )
        return NestedFit(distribution, len(self._found), self.evaluations, self.gradients, complete)

    def _spacing(self, axis: int) -> float:
        """Distance of neighbours along an axis, by how fast the conditional ELBO falls."""
        direction = np.eye(self._axes)[axis]
        top = self._fit(0 * direction).elbo
        deviations = []
        for sign in (1.0, -1.0):
            distance, shortest, longest, fall = 1.0, 0.0, np.inf, np.nan
            for _ in range(_PROBES):
                elbo = self._fit(sign * distance * direction).elbo
                top, fall = max(top, elbo), top - elbo
                if fall > _TELLING[1]:
                    longest = distance
                    distance = (shortest + longest) / 2
                elif fall < _TELLING[0]:
                    shortest = distance
                    distance = 2 * distance if longest == np.inf else (shortest + longest) / 2
                else:
                    break
            # Of a Gaussian the fall is half the square of the distance in standard deviations.
            fall = min(max(fall, _TELLING[0]), _TELLING[1])
            deviations.append(distance / np.sqrt(2 * fall))
        return float(SPACING[self._axes - 1] * np.mean(deviations))

    def _walk(self, spacing: Array) -> dict[Index, Point]:
        """Fit outwards from the centre, until the conditional ELBO has fallen; best first."""
        start = (0,) * spacing.size
        open_points = {start: np.inf}
        points: dict[Index, Point] = {}
        top = -np.inf
        while open_points and not self._spent(points):
            index = max(open_points, key=lambda one: open_points[one])
            if open_points.pop(index) < top - DROP[self._axes - 1]:
                continue
            point = points[index] = self._fit(spacing * index)
            top = max(top, point.elbo)
            for neighbour in _neighbours(index):
                if neighbour not in points:
                    open_points[neighbour] = max(point.elbo, open_points.get(neighbour, -np.inf))
        return points

    def _spent(self, points: dict[Index, Point]) -> bool:
        """Whether there is no room for more points."""
        many = len(points) >= MOST_POINTS[self._axes - 1]
        return many or self.evaluations >= self.max_evaluations

    def _fill(self, points: dict[Index, Point], box: list[Index], spacing: Array) -> None:
        """Give the points of the box that the walk did not reach the best Gaussian of a neighbour.

        Where the rest is wide at one neighbour and narrow at another, only one of them fits.
        """
        while missing := [index for index in box if index not in points]:
            reached = {}
            for index in missing:
                target = self._target(spacing * index)
                near = [points[n].q for n in _neighbours(index) if n in points]
                if near:
                    found = [self._point(target, q) for q in near]
                    reached[index] = max(found, key=lambda point: point.elbo)
            points |= reached

    def _fit(self, t: Array) -> Point:
        """Fit the rest at a point, from the nearest point that was fitted before."""
        for known, point in self._found:
            if np.allclose(known, t):
                return point
        target = self._target(t)
        problem = replace(self.problem, target=target, projection=Identity())
        engine = Engine(problem, MOST_EVALUATIONS, np.random.default_rng(self._seed))
        start = self._start(t)
        state, q, settled = State(start), start, False
        with contextlib.suppress(NonFiniteError, DomainError):
            if not self._found:
                state = _ended(engine.warm_up(state, MOST_EVALUATIONS))
            size = Size(problem.rounded(DRAWS[self._axes - 1], start))
            steps = level(engine.budget, engine.secants, state, size, MOST_EVALUATIONS)
            ended = _ended(steps)
            q, settled = ended.state.q, ended.settled
        self.evaluations += engine.evaluations
        self.gradients += engine.gradients
        point = self._point(target, q, settled=settled)
        self._found.append((t, point))
        return point

    def _start(self, t: Array) -> Gaussian:
        fitted = [(known, point) for known, point in self._found if np.isfinite(point.elbo)]
        if not fitted:
            return self.q.conditional(self.split, self._values(t))
        nearest, point = min(fitted, key=lambda pair: float(np.square(pair[0] - t).sum()))
        opposite = [one.q for known, one in fitted if np.allclose(known, 2 * nearest - t)]
        # The means go on in a straight line.
        return point.q.with_mean(2 * point.q.mean - opposite[0].mean) if opposite else point.q

    def _values(self, t: Array) -> Array:
        return np.asarray(self._centre + self._scale @ t)

    def _target(self, t: Array) -> Conditional:
        return Conditional(self.problem.target, self.split, self._values(t), self._structure)

    def _point(self, target: Conditional, q: Gaussian, *, settled: bool = False) -> Point:
        self.gradients += len(self._z)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = target.log_density(q.unwhiten(self._z)) - q.log_density_whitened(self._z)
        if not np.isfinite(ratios).all():
            return Point(q, -np.inf, 0.0, settled)
        weights = np.exp(ratios - ratios.max())
        efficiency = float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
        return Point(q, float(ratios.mean()), efficiency, settled)


def _without_failed(points: dict[Index, Point]) -> dict[Index, Point]:
    """Leave out fits far from the top that no step could improve.

    Where the scale of the rest is so small that its precision is lost in rounding, the Gaussians of
    the last good points are better: continued in a straight line beyond the end of a single axis,
    and as they are on two.
    """
    if len(next(iter(points))) > 1:
        top = max(point.elbo for point in points.values())
        kept = {i: p for i, p in points.items() if p.settled or p.elbo > top - DROP[1]}
        return kept if len(kept) >= _FEWEST else points
    found = dict(points)
    for end in (max, min):
        while len(found) > _FEWEST:
            last = found[end(found)]
            if last.settled or not np.isfinite(last.elbo):  # there the density itself ends
                break
            del found[end(found)]
    return found


def _ended(iterations: Generator[Any, None, Value]) -> Value:
    """Run iterations to their end, and return what they return."""
    running = Returning(iterations)
    for _ in running:
        pass
    return running.value


def _neighbours(index: Index) -> Iterator[Index]:
    for axis, step in itertools.product(range(len(index)), (1, -1)):
        yield (*index[:axis], index[axis] + step, *index[axis + 1 :])


def _covariance(q: Gaussian, split: Split) -> Array:
    """Covariance (k, k) of the held components."""
    return np.array([q.solve(unit)[split.held] for unit in units(q.dim, split.held)])
