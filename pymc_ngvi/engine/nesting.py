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
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from scipy.special import logsumexp

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
from pymc_ngvi.engine.walking import Index, Point, Points, neighbours, walk
from pymc_ngvi.errors import DomainError, NonFiniteError

#: The walk ends where the conditional ELBO is this much below its top, in nats, for one and for two
#: axes, and what is lower still by so much is taken to be that low.
DROP, FLOOR = (8.0, 6.0), (5.0, 12.0)
#: Distance of neighbours on the grid, in standard deviations, for one and for two axes.
SPACING = (0.6, 1.2)
#: Points of the grid at most.
MOST_POINTS = (60, 160)
#: Draws of log densities alone that give the conditional ELBO.
ELBO_DRAWS = 256
#: Draws of them that tell how close to a Gaussian the rest is.
JUDGED_DRAWS = 2048
#: Draws of them where the Gaussians of neighbours are compared, far from the top.
_FILLING_DRAWS = 64
#: Draws on which the rest is fitted at a point, for one and for two axes.
DRAWS = (32, 16)
#: One more for each of so many components, whose noise adds up, and so many at most. They
#: are of gradients alone, and no fewer than the others.
_COMPONENTS, MOST_DRAWS = 4, 64
#: Evaluations of a fit at a point, at most.
MOST_EVALUATIONS = 4000
#: Half as many are taken where the conditional ELBO is expected so far below its top, in nats.
_LOW = 3.0
#: A point was foreseen if its conditional ELBO and its Gaussian are as close, in nats, to those
#: that go on in a straight line from the points before it; for each nat below the top, so much
#: more.
FORESEEN = 0.05
#: How far a line through two points is followed, in multiples of their distance.
_FARTHEST = 2.1
#: Fits at most, in each direction, that find out how far a standard deviation is.
_PROBES = 6
#: A fall of the conditional ELBO between these, in nats, tells that.
_TELLING = (0.5, 4.0)
#: Points of the grid that are kept in any case.
_FEWEST = 4

Value = TypeVar("Value")


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
        Where the Hessian of the target has entries; used for a sparse `q`.
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

    def divergence(self) -> float:
        r"""Nats by which the rest is no Gaussian, with the held components at their means.

        The Kullback-Leibler divergence of the fit there from the posterior, by the importance
        ratios r of its draws: :math:`\log E[r] - E[\log r]`. It is what a grid leaves to be gained,
        as far as the middle tells. What bends the rest further may show in its tails alone: these
        take more draws than a fit does.
        """
        middle = np.zeros(self._axes)
        q, rng = self._fit(middle).q, np.random.default_rng([self._seed, 1])
        z = standard_normal(JUDGED_DRAWS, self.split.rest.size, rng, antithetic=True)
        ratios = self._log_ratios(self._target(middle), q, z)
        if not np.isfinite(ratios).all():
            return np.inf
        return float(logsumexp(ratios - ratios.mean()) - np.log(len(ratios)))

    def fit(self) -> NestedFit:
        """Walk outwards from the mean, and join what is found."""
        spacing, drop = self._spacing(), DROP[self._axes - 1]
        found = walk(
            self._axes, lambda index: self._fit(_place(index, spacing)), self._has_room, drop
        )
        if not found:
            raise DomainError("nested: the budget leaves no point")
        points = _without_failed(found)
        top = max(point.elbo for point in points.values())
        near = [point.settled for point in points.values() if point.elbo > top - drop]
        complete = all(near) and self._has_room(points)
        axes = [sorted({index[axis] for index in points}) for axis in range(self._axes)]
        if any(len(axis) == 1 for axis in axes):
            raise DomainError("nested: the budget, or what can be fitted, leaves one point")
        box = list(itertools.product(*axes))
        self._fill(points, box, spacing)
        lowest = top - drop - FLOOR[self._axes - 1]
        elbos = np.array([max(points[index].elbo, lowest) for index in box])
        distribution = Nested(
            self.split,
            self._centre,
            self._scale,
            [_place(axis, sides) for axis, sides in zip(axes, spacing, strict=True)],
            elbos.reshape([len(axis) for axis in axes]),
            [points[index].q for index in box],
        )
        return NestedFit(distribution, len(self._found), self.evaluations, self.gradients, complete)

    def _spacing(self) -> Array:
        """Distances (k, 2) of neighbours along each axis, below the centre and above it.

        On a single axis they may differ, and what was fitted to find them are points of the grid.
        """
        probed = np.array([self._probe(axis) for axis in range(self._axes)])
        distances, deviations = probed[..., 0], probed[..., 1]
        wanted = SPACING[self._axes - 1] * deviations
        if self._axes > 1:
            return np.repeat(wanted.mean(axis=1, keepdims=True), 2, axis=1)
        return np.asarray(distances / np.maximum(np.round(distances / wanted), 1))

    def _probe(self, axis: int) -> list[tuple[float, float]]:
        """Fit below the centre and above it, where the conditional ELBO tells the scale.

        Returns
        -------
        list of tuple
            Of either side the distance, and that of one standard deviation.
        """
        direction = np.eye(self._axes)[axis]
        top = self._fit(0 * direction).elbo
        found = []
        for sign in (-1.0, 1.0):
            distance, shortest, longest = 1.0, 0.0, np.inf
            for left in range(_PROBES, 0, -1):
                elbo = self._fit(sign * distance * direction).elbo
                top, fall = max(top, elbo), top - elbo
                if _TELLING[0] <= fall <= _TELLING[1] or left == 1:
                    break
                if fall > _TELLING[1]:
                    longest = distance
                else:
                    shortest = distance
                distance = 2 * distance if longest == np.inf else (shortest + longest) / 2
            # Of a Gaussian the fall is half the square of the distance in standard deviations.
            fall = min(max(fall, _TELLING[0]), _TELLING[1])
            found.append((distance, distance / float(np.sqrt(2 * fall))))
        return found

    def _has_room(self, points: Points) -> bool:
        """Whether there may be more points."""
        few = len(points) < MOST_POINTS[self._axes - 1]
        return few and self.evaluations < self.max_evaluations

    def _fill(self, points: Points, box: list[Index], spacing: Array) -> None:
        """Give the points of the box that the walk did not reach the best Gaussian of a neighbour.

        Where the rest is wide at one neighbour and narrow at another, only one of them fits.
        """
        while missing := [index for index in box if index not in points]:
            reached = {}
            for index in missing:
                target = self._target(_place(index, spacing))
                near = [points[n].q for n in neighbours(index) if n in points]
                if near:
                    found = [self._point(target, q, self._z[:_FILLING_DRAWS]) for q in near]
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
        start, expected = self._start(t)
        top = max((point.elbo for _, point in self._found), default=-np.inf)
        size = self._size(start, half=bool(expected < top - _LOW))
        state, q, settled = State(start), start, False
        with contextlib.suppress(NonFiniteError, DomainError):
            if not self._found:
                state = _ended(engine.warm_up(state, MOST_EVALUATIONS))
            steps = level(engine.budget, engine.secants, state, size, MOST_EVALUATIONS)
            ended = _ended(steps)
            q, settled = ended.state.q, ended.settled
        self.evaluations += engine.evaluations
        self.gradients += engine.gradients
        point = self._point(target, q, self._z, settled=settled)
        close = FORESEEN * (1 + max(top - point.elbo, 0.0))
        if settled and abs(point.elbo - expected) < close:
            point = replace(point, foreseen=q.kl(start) < close)
        self._found.append((t, point))
        return point

    def _size(self, q: Gaussian, *, half: bool) -> Size:
        """Draws on which the rest is fitted, or half of them."""
        few = DRAWS[self._axes - 1]
        draws = max(few, min(self.split.rest.size // _COMPONENTS, MOST_DRAWS))
        if half:
            few, draws = few // 2, draws // 2
        if not self.problem.takes_gradients:
            return Size(self.problem.rounded(draws, q))
        return self.problem.rounded_size(Size(few, max(few, draws - few) if draws > few else 0), q)

    def _start(self, t: Array) -> tuple[Gaussian, float]:
        """Return the Gaussian to start from, and the conditional ELBO to expect, if any."""
        good = [(known, point) for known, point in self._found if point.settled]
        fitted = good or [one for one in self._found if np.isfinite(one[1].elbo)]
        if not fitted:
            return self.q.conditional(self.split, self._values(t)), np.nan
        nearest, point = min(fitted, key=lambda pair: _distance(pair[0], t))
        behind = [one for one in fitted if _follows(one[0], nearest, t)]
        if not behind:
            return point.q, np.nan
        before, other = min(behind, key=lambda pair: _distance(pair[0], nearest))
        share = _distance(nearest, t) / _distance(before, nearest)
        expected = point.elbo + share * (point.elbo - other.elbo)
        return point.q.continued(other.q, share), expected

    def _values(self, t: Array) -> Array:
        return np.asarray(self._centre + self._scale @ t)

    def _target(self, t: Array) -> Conditional:
        return Conditional(self.problem.target, self.split, self._values(t), self._structure)

    def _point(self, target: Conditional, q: Gaussian, z: Array, *, settled: bool = False) -> Point:
        ratios = self._log_ratios(target, q, z)
        elbo = float(ratios.mean()) if np.isfinite(ratios).all() else -np.inf
        return Point(q, elbo, settled)

    def _log_ratios(self, target: Conditional, q: Gaussian, z: Array) -> Array:
        """Log p - log q of the rest at the draws of standard normal rows."""
        self.gradients += len(z)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(target.log_density(q.unwhiten(z)) - q.log_density_whitened(z))


def _place(index: Sequence[int], spacing: Array) -> Array:
    """Return where points are, by the distances of neighbours below and above the centre."""
    steps = np.asarray(index)
    return np.asarray(steps * np.where(steps < 0, spacing[..., 0], spacing[..., 1]))


def _distance(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other))


def _follows(first: Array, second: Array, third: Array) -> bool:
    """Whether the third point is on the line from the first to the second, and not far beyond."""
    step, further = second - first, third - second
    share = float(step @ further) / max(float(step @ step), np.finfo(float).tiny)
    return 0 < share < _FARTHEST and np.allclose(share * step, further)


def _without_failed(points: Points) -> Points:
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


def _covariance(q: Gaussian, split: Split) -> Array:
    """Covariance (k, k) of the held components."""
    return np.array([q.solve(unit)[split.held] for unit in units(q.dim, split.held)])
