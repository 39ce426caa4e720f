"""Walk outwards on a grid, along one axis or two, as far as the points are worth it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from pymc_ngvi.core.families import Gaussian

#: A stride is doubled up to so many times the distance of neighbours.
LONGEST_STRIDE = 8

Index: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """A point of the grid.

    Attributes
    ----------
    q : Gaussian
        Fit of the rest.
    elbo : float
        Conditional ELBO; minus infinity where the fit failed.
    settled : bool
        Whether the fit came to its end.
    foreseen : bool
        Whether the points before it, continued in a straight line, have led to it.
    """

    q: Gaussian
    elbo: float
    settled: bool = False
    foreseen: bool = False


Points: TypeAlias = dict[Index, Point]
#: Fits the point of an index.
Fit: TypeAlias = Callable[[Index], Point]
#: Tells whether there is room for another point.
Room: TypeAlias = Callable[[Points], bool]


def walk(axes: int, fit: Fit, room: Room, drop: float) -> Points:
    """Fit outwards from the centre until the conditional ELBO has fallen by `drop`, best first."""
    return (_walk_line if axes == 1 else _walk_plane)(fit, room, drop)


def neighbours(index: Index) -> Iterator[Index]:
    """Yield the points next to this one."""
    for axis, step in itertools.product(range(len(index)), (1, -1)):
        yield (*index[:axis], index[axis] + step, *index[axis + 1 :])


def _walk_plane(fit: Fit, room: Room, drop: float) -> Points:
    points: Points = {}
    open_points: dict[Index, float] = {(0, 0): np.inf}
    top = -np.inf
    while open_points and room(points):
        index = max(open_points, key=lambda one: open_points[one])
        if open_points.pop(index) < top - drop:
            continue
        point = points[index] = fit(index)
        top = max(top, point.elbo)
        for neighbour in neighbours(index):
            if neighbour not in points:
                open_points[neighbour] = max(point.elbo, open_points.get(neighbour, -np.inf))
    return points


def _walk_line(fit: Fit, room: Room, drop: float) -> Points:
    centre = fit((0,))
    points: Points = {(0,): centre}
    sides = [_Side(sign, fit, centre.elbo, points) for sign in (1, -1)]
    while sides and room(points):
        side = max(sides, key=lambda one: one.elbo)
        top = max(point.elbo for point in points.values())
        if side.ended or side.elbo < top - drop:
            sides.remove(side)
        else:
            side.advance()
    return points


@dataclass
class _Side:
    """One side of a line.

    A tail that goes on straight, as below a scale parameter, is walked in longer and longer
    strides. A stride that has led where nothing can be fitted is halved.
    """

    sign: int
    fit: Fit
    elbo: float  # at the last point
    points: Points = field(repr=False)
    last: int = 0
    stride: int = 1
    end: int | None = None  # where nothing can be fitted

    @property
    def ended(self) -> bool:
        return self.end is not None and self.last + 1 >= self.end

    def advance(self) -> None:
        """Fit the next point."""
        here = self.last + self.stride
        point = self.fit((self.sign * here,))
        if self.stride > 1 and not point.settled:
            self.end, self.stride = here, self.stride // 2
            return
        self.points[(self.sign * here,)] = point
        if self.end is not None:
            self.stride = max(1, min(self.stride, (self.end - here) // 2))
        elif point.foreseen:
            self.stride = min(2 * self.stride, LONGEST_STRIDE)
        elif self.stride > 1:
            middle = (self.sign * (here - self.stride // 2),)
            self.points[middle] = self.fit(middle)
            self.stride = 1
        self.last, self.elbo = here, point.elbo
