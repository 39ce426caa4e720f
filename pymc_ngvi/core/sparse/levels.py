"""Elimination of a sparse matrix whose tree has few levels, a level at a time, by NumPy.

Columns of the factor that do not depend on each other are a level: all groups of a hierarchy, for
example, and then all groups of groups. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.elimination import (
    Elimination,
    Integers,
    Pattern,
    Triangle,
)
from pymc_ngvi.core.sparse.tail import raised_pivots

# Pairs that are handled at a time.
_PAIRS = 2**16
# Numbers that triangles are applied to at a time, and vectors at least.
_NUMBERS, _FEWEST_AT_ONCE = 2**17, 8


class Level(NamedTuple):
    """Columns that are eliminated together.

    Attributes
    ----------
    columns : slice
    part : slice
        Their entries below the diagonal.
    own : array of int
        Those of columns whose pairs are listed, as places in the part.
    first, second : array of int
        Pairs of entries of a column, each with itself too, the one of the smaller row first: as
        places in the part.
    target : array of int
        The entry of the factor that has the row of the second and is in the column of the row of
        the first.
    """

    columns: slice
    part: slice
    own: Integers
    first: Integers
    second: Integers
    target: Integers

    def pairs(self) -> Iterator[tuple[Integers, Integers, Integers]]:
        """Yield the pairs and their targets, some at a time: what they give stays in the cache."""
        for begin in range(0, self.first.size, _PAIRS):
            some = slice(begin, begin + _PAIRS)
            yield self.first[some], self.second[some], self.target[some]


class Levels(Elimination):
    """Elimination by levels; build it with :func:`pymc_ngvi.core.sparse.trees.find_levels`.

    Parameters
    ----------
    order : array of int, (d,)
        One in which the columns of a level lie together.
    pattern : Pattern
    bounds : array of int
        Where each level begins, and where the tail does.
    """

    compiled: ClassVar[bool] = False
    fewest: ClassVar[int] = 1

    def __init__(self, order: Integers, pattern: Pattern, bounds: Integers) -> None:
        self.order = order
        self._pattern = pattern
        start = pattern.start
        self.heights = np.diff(start)
        self._owner = np.repeat(np.arange(order.size), self.heights)
        # The tail may have grown in this order: levels end where it begins.
        bounds = np.append(bounds[bounds < self.tail.head], self.tail.head)
        spans = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        self._spans = list(spans)

    @cached_property
    def _levels(self) -> list[Level]:
        return [self._level(begin, end) for begin, end in self._spans]

    @cached_property
    def _blocks(self) -> list[tuple[Any, Any]]:
        return [self._block(level) for level in self._levels]

    @property
    def pattern(self) -> Pattern:
        """Pattern of the factor."""
        return self._pattern

    @property
    def pairs(self) -> int:
        """Pairs of entries that are listed."""
        heights = self.heights[: self.tail.head][~self.tail.done[: self.tail.head]]
        return int((heights * (heights + 1) // 2).sum())

    def _level(self, begin: int, end: int) -> Level:
        start, index, n = self._pattern.start, self._pattern.row.astype(np.int64), self.order.size
        listed = begin + np.flatnonzero(~self.tail.done[begin:end])
        heights = self.heights[listed]
        pairs = [(np.empty(0, np.int64),) * 2]
        for height in np.unique(heights):
            high, low = np.tril_indices(height)
            at = start[listed[heights == height]][:, np.newaxis]
            pairs.append(((at + low).ravel(), (at + high).ravel()))
        first, second = map(np.concatenate, zip(*pairs, strict=True))
        places = self._owner * n + index
        target = np.searchsorted(places, index[first] * n + index[second])
        same = first == second
        target[same] = places.size + index[first[same]]
        part = slice(int(start[begin]), int(start[end]))
        first, second = first - part.start, second - part.start
        return Level(slice(begin, end), part, first[same], first, second, target)

    def _block(self, level: Level) -> tuple[Any, Any]:
        """Rows after a level of its columns, to fill with values, and the transposed of it."""
        begin, end = level.columns.start, level.columns.stop
        start, index, _, _ = self._pattern
        n, size = self.order.size - end, end - begin
        inner = (index[level.part] - end).astype(np.int32)
        first = (start[begin : end + 1] - start[begin]).astype(np.int32)
        arrays = (np.empty(inner.size), inner, first)
        return (
            scipy.sparse.csc_array(arrays, (n, size)),
            scipy.sparse.csr_array(arrays, (size, n)),
        )

    def factorise(self, entries: Array, reference: Array, rule: Array, raised: Array) -> int:
        """Factorise the columns before the tail in place, and subtract from it what they take."""
        lower, pivots = self.split(entries)
        for level in self._levels:
            columns, part = level.columns, level.part
            real, own = pivots[columns].real, reference[columns]
            small = ~(real > rule[0] * own) | np.isinf(real)
            if small.any():
                if rule[1] == 0 or np.isnan(real[small]).any():
                    return int(columns.start + np.argmax(small))
                value = raised_pivots(real, self._largest(columns, lower, reference), own, rule)
                raised[columns] = np.where(small, value - real, 0.0)
                pivots[columns] += raised[columns]
            before = lower[part].copy()
            lower[part] /= pivots[self._owner[part]]
            after = lower[part]
            for first, second, target in level.pairs():
                np.subtract.at(entries, target, before[first] * after[second])
        return -1

    def _largest(self, columns: slice, lower: Array, reference: Array) -> Array:
        """Largest entry of each column, in units of its pivot."""
        start = self._pattern.start[columns.start : columns.stop + 1]
        part = slice(int(start[0]), int(start[-1]))
        owner, row = self._owner[part], self._pattern.row[part]
        sizes = np.abs(lower[part]) * np.sqrt(reference[owner] / reference[row])
        largest = np.zeros(start.size - 1)
        some = np.diff(start) > 0
        if sizes.size:
            largest[some] = np.maximum.reduceat(sizes, start[:-1][some] - start[0])
        return largest

    def invert(self, entries: Array, inverse: Array) -> None:
        """Write the inverse of the columns that are neither in the tail nor done there."""
        lower, _ = self.split(entries)
        below, diagonal = self.split(inverse)
        for level in reversed(self._levels):
            left, found = lower[level.part], below[level.part]
            found[level.own] = 0.0
            for first, second, target in level.pairs():
                values = inverse[target]
                np.subtract.at(found, first, values * left[second])
                values *= first != second  # an entry with itself counts once
                np.subtract.at(found, second, values * left[first])
            owner = self._owner[level.part][level.own]
            np.subtract.at(diagonal, owner, left[level.own] * found[level.own])

    def quadratic_forms(self, change: Array, inverse: Array) -> Array:
        """Variance (d,) of each column of a change of L times x; 0 where the tail has it."""
        spread = np.zeros(self.order.size)
        for level in self._levels:
            moved, owner = change[level.part], self._owner[level.part]
            for first, second, target in level.pairs():
                terms = inverse[target] * moved[first] * moved[second]
                terms[first != second] *= 2
                np.add.at(spread, owner[first], terms)
        return spread

    def triangle(self, entries: Array) -> Triangle:
        """Return L as an operator on vectors."""
        lower, _ = self.split(entries)
        spans = [level.columns for level in self._levels]
        parts = [level.part for level in self._levels]
        blocks = [
            tuple(with_values(block, lower[part]) for block in both)
            for both, part in zip(self._blocks, parts, strict=True)
        ]
        return _Blocks(self.order, spans, blocks, self.tail.unit_root(lower), self.tail.head)


class _Blocks(Triangle):
    """L by blocks: the rows after each level of the level's columns, and the dense tail."""

    def __init__(
        self,
        order: Integers,
        spans: list[slice],
        blocks: list[tuple[Any, ...]],
        root: Array,
        head: int,
    ) -> None:
        self._order, self._spans, self._blocks = order, spans, blocks
        self._root, self._head = root, head
        self.at_once = max(_FEWEST_AT_ONCE, _NUMBERS // order.size)

    def apply(
        self, what: str, rows: Array, result: Array, before: Array | None, after: Array | None
    ) -> None:
        x = np.take(rows.T, self._order, axis=0)
        if before is not None:
            x *= before[:, np.newaxis]
        getattr(self, "_" + what.replace(" ", "_"))(x)
        if after is not None:
            x *= after[:, np.newaxis]
        result[:, self._order] = x.T

    # In place, for columns (d, n).

    def _plain(self, x: Array) -> None:
        x[self._head :] = self._root @ x[self._head :]
        for own, (block, _) in zip(reversed(self._spans), reversed(self._blocks), strict=True):
            x[own.stop :] += block @ x[own]

    def _transposed(self, x: Array) -> None:
        for own, (_, block) in zip(self._spans, self._blocks, strict=True):
            x[own] += block @ x[own.stop :]
        x[self._head :] = self._root.T @ x[self._head :]

    def _inverse(self, x: Array) -> None:
        for own, (block, _) in zip(self._spans, self._blocks, strict=True):
            x[own.stop :] -= block @ x[own]
        self._solve(x[self._head :], transpose=False)

    def _inverse_transposed(self, x: Array) -> None:
        self._solve(x[self._head :], transpose=True)
        for own, (_, block) in zip(reversed(self._spans), reversed(self._blocks), strict=True):
            x[own] -= block @ x[own.stop :]

    def _solve(self, x: Array, *, transpose: bool) -> None:
        x[:], _ = scipy.linalg.lapack.dtrtrs(
            self._root, x, lower=1, trans=int(transpose), unitdiag=1
        )


def with_values(matrix: Any, values: Array) -> Any:
    """Return a sparse matrix with other values, without the checks that building one takes."""
    result = object.__new__(type(matrix))
    vars(result).update(vars(matrix), data=values)
    return result
