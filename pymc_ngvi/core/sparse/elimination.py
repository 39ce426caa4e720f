"""What the elimination of a sparse matrix takes: an order, the pattern of the factor, its loops.

There are two ways to go over the columns of a factor. Where the elimination tree has few levels, as
those of groups and of groups in groups do, all columns of a level are handled together by NumPy
(:mod:`pymc_ngvi.core.sparse.levels`). Else the columns are handled one by one, in loops that Numba
compiles once for a machine (:mod:`pymc_ngvi.core.sparse.compiled`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.tail import Tail

Integers = NDArray[Any]


class Pattern(NamedTuple):
    """Pattern of a factor below its diagonal.

    Attributes
    ----------
    start : array of int, (d + 1,)
        Where each column begins.
    row : array of int
        Rows, increasing within a column.
    which, place : array of int, (nnz - d,)
        The values of the matrix off the diagonal, and the entry of `row` to which each belongs.
    """

    start: Integers
    row: Integers
    which: Integers
    place: Integers


class Elimination(ABC):
    """Order of elimination, and the loops over the columns of the factor in this order.

    A factor is an array of entries: those of L below its diagonal, column by column, and then the d
    pivots. So is its inverse on the same pattern.

    Attributes
    ----------
    order : array of int, (d,)
    heights : array of int, (d,)
        Entries of the columns of the factor below the diagonal.
    """

    order: Integers
    heights: Integers

    #: Whether it runs loops that may have to be compiled.
    compiled: ClassVar[bool]
    #: Fewest full columns at the end that are handled as a dense matrix.
    fewest: ClassVar[int]

    @property
    @abstractmethod
    def pattern(self) -> Pattern:
        """Pattern of the factor."""

    @abstractmethod
    def factorise(self, entries: Array, reference: Array, rule: Array, raised: Array) -> int:
        """Factorise the columns before the tail in place, and subtract from it what they take.

        Columns that are `done` in the tail take nothing from it here.

        Parameters
        ----------
        entries : array
            The matrix on the pattern of the factor.
        reference : array, (d,)
        rule : array, (5,)
            See :func:`pymc_ngvi.core.sparse.factor.raised_diagonal`: the margin; 1 to raise smaller
            pivots or 0 to stop at them; and `least`, `growth` and `shift`.
        raised : array, (d,)
            Gets what was added to the pivots.

        Returns
        -------
        int
            Column of a pivot that was too small; -1 where there is none.
        """

    @abstractmethod
    def invert(self, entries: Array, inverse: Array) -> None:
        """Write the inverse of the columns that are neither in the tail nor done there."""

    @abstractmethod
    def quadratic_forms(self, change: Array, inverse: Array) -> Array:
        """Variance (d,) of each column of a change of L times x; 0 where the tail has it."""

    @abstractmethod
    def triangle(self, entries: Array) -> Triangle:
        """Return L as an operator on vectors."""

    @cached_property
    def inverse_order(self) -> Integers:
        """Place of each component in the order of elimination, (d,)."""
        return inverted(self.order)

    @cached_property
    def tail(self) -> Tail:
        """The last columns of the factor, which are full."""
        return Tail(self.pattern.start, self.pattern.row, self.fewest)

    def split(self, entries: Array) -> tuple[Array, Array]:
        """Return the entries below the diagonal, and those on it."""
        below = self.pattern.row.size
        return entries[:below], entries[below:]


class Triangle(ABC):
    """L, lower triangular with a unit diagonal.

    Attributes
    ----------
    at_once : int
        Vectors that are best handled together.
    """

    at_once: int

    @abstractmethod
    def apply(
        self, what: str, rows: Array, result: Array, before: Array | None, after: Array | None
    ) -> None:
        """Apply L to every row (n, d), scaling the components before or after.

        Parameters
        ----------
        what : {"plain", "transposed", "inverse", "inverse transposed"}
        rows, result : array, (n, d)
        before, after : array, (d,), optional
            Factors, in the order of elimination.
        """


def inverted(order: Integers) -> Integers:
    """Return the permutation that undoes another one."""
    inverse = np.empty(order.size, np.int64)
    inverse[order] = np.arange(order.size)
    return inverse
