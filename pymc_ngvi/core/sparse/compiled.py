"""Elimination of any sparse matrix, column by column, by the loops that Numba compiles."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import kernels, ordering
from pymc_ngvi.core.sparse.elimination import Elimination, Integers, Pattern, Triangle

_MODES = ("plain", "transposed", "inverse", "inverse transposed")


class Compiled(Elimination):
    """Elimination in a given order.

    Parameters
    ----------
    order : array of int, (d,)
    rows : tuple of arrays
        Rows of the reordered matrix left of the diagonal, and which value each entry is.
    """

    compiled: ClassVar[bool] = True
    fewest: ClassVar[int] = 32

    def __init__(self, order: Integers, rows: tuple[Integers, Integers, Integers]) -> None:
        self.order = order
        self._rows = rows
        self._parent, self.heights = kernels.elimination_tree(*rows[:2])

    def postorder(self) -> Integers:
        """Return the order in which what is eliminated together lies together.

        It has the same entries of the factor.
        """
        return np.asarray(self.order[kernels.postorder(self._parent)])

    @cached_property
    def pattern(self) -> Pattern:
        """Pattern of the factor."""
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.heights)])
        row_start, row_index, which = self._rows
        index, place = kernels.fill_columns(row_start, row_index, self._parent, start)
        return Pattern(start, index, which, place)

    def factorise(self, entries: Array, reference: Array, rule: Array, raised: Array) -> int:
        """Factorise the columns before the tail in place, and subtract from it what they take."""
        start, index, _, _ = self.pattern
        tail, (lower, pivots) = self.tail, self.split(entries)
        stopped = kernels.factorise(start, index, lower, pivots, reference, rule, raised, tail.head)
        if stopped < 0 and tail.size:
            kernels.reduce_tail(start, index, lower, pivots, tail.head, tail.done)
        return int(stopped)

    def invert(self, entries: Array, inverse: Array) -> None:
        """Write the inverse of the columns that are neither in the tail nor done there."""
        start, index, _, _ = self.pattern
        tail = self.tail
        kernels.selected_inverse(
            start, index, *self.split(entries), *self.split(inverse), tail.head, tail.done
        )

    def quadratic_forms(self, change: Array, inverse: Array) -> Array:
        """Variance (d,) of each column of a change of L times x; 0 where the tail has it."""
        start, index, _, _ = self.pattern
        tail = self.tail
        below, diagonal = self.split(inverse)
        return np.asarray(
            kernels.quadratic_forms(start, index, change, below, diagonal, tail.head, tail.done)
        )

    def triangle(self, entries: Array) -> Triangle:
        """Return L as an operator on vectors."""
        return _Columns(self, self.split(entries)[0])


class _Columns(Triangle):
    at_once = 32  # their components lie side by side, in a few cache lines

    def __init__(self, elimination: Compiled, lower: Array) -> None:
        self._elimination, self._lower = elimination, lower

    def apply(
        self, what: str, rows: Array, result: Array, before: Array | None, after: Array | None
    ) -> None:
        start, index, _, _ = self._elimination.pattern
        order = self._elimination.order
        ones = np.ones(order.size)
        kernels.triangular(
            _MODES.index(what),
            start,
            index,
            self._lower,
            order,
            ones if before is None else before,
            ones if after is None else after,
            rows,
            result,
        )


def minimum_degree(graph: scipy.sparse.csr_array) -> Integers:
    """Order the nodes of a graph by minimum degree."""
    step = ordering.minimum_degree(graph.indptr.astype(np.int64), graph.indices.astype(np.int32))
    return np.argsort(step, kind="stable")
