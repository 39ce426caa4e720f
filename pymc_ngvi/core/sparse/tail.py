r"""The tail of a factor: its last columns, which are full, by dense linear algebra.

Where many small blocks meet in a common one, as persons in the items that they answered,
elimination of the small ones leaves a full triangle of hundreds of columns, which is most of the
work. With the matrix ordered as :math:`\begin{pmatrix} A & B' \\ B & C \end{pmatrix}`, the tail is
the factor of :math:`C - B A^{-1} B'`.

Columns before it whose rows all lie in the tail, its leaves, are a dense matrix where they have
many of these rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array

Integers = NDArray[Any]

#: Part of the rows of the tail that leaves have, at least, to be handled as a dense matrix.
_DENSE = 0.3


class Tail:
    """Where the tail of a factor lies, and its leaves.

    Parameters
    ----------
    start, index : arrays
        Pattern of the factor; see :mod:`pymc_ngvi.core.sparse.kernels`.
    fewest : int
        Fewest columns for which dense operations pay.

    Attributes
    ----------
    head : int
        Columns before the tail.
    done : array of bool, (d,)
        Which columns are leaves that are handled here.
    """

    def __init__(self, start: Integers, index: Integers, fewest: int) -> None:
        n = start.size - 1
        full = np.diff(start) == np.arange(n - 1, -1, -1)
        size = n if full.all() else int(np.argmin(full[::-1]))
        self.size = size if size >= fewest else 0
        self.head = n - self.size
        self._begin = int(start[self.head])
        self.done = np.zeros(n, bool)
        if self.size:
            heights = np.diff(start)[: self.head]
            first = np.full(self.head, -1, np.int64)
            some = heights > 0
            first[some] = index[start[: self.head][some]]
            self.done[: self.head] = (first >= self.head) & (heights >= _DENSE * self.size)
        leaves = np.flatnonzero(self.done)
        heights = np.diff(start)[leaves]
        self._leaf = np.repeat(np.arange(leaves.size), heights)
        offsets = np.arange(heights.sum()) - np.repeat(np.cumsum(heights) - heights, heights)
        self._place = np.repeat(start[leaves], heights) + offsets
        self._row = index[self._place].astype(np.int64) - self.head
        self._leaves = leaves

    @cached_property
    def _pairs(self) -> tuple[Integers, Integers]:
        """Columns and rows of the entries below the diagonal, column by column."""
        return np.triu_indices(self.size, 1)

    def matrix(self, lower: Array, pivots: Array) -> Array:
        """Return the symmetric matrix (m, m) whose entries are in the tail."""
        dense = np.empty((self.size, self.size), lower.dtype)
        columns, rows = self._pairs
        dense[rows, columns] = dense[columns, rows] = lower[self._begin :]
        np.fill_diagonal(dense, pivots[self.head :])
        return dense

    def write(self, dense: Array, lower: Array, pivots: Array) -> None:
        """Write the lower triangle of a matrix (m, m) into the tail."""
        columns, rows = self._pairs
        lower[self._begin :] = dense[rows, columns]
        pivots[self.head :] = dense.diagonal()

    def _dense_leaves(self, lower: Array) -> Array:
        dense = np.zeros((self._leaves.size, self.size), lower.dtype)
        dense[self._leaf, self._row] = lower[self._place]
        return dense

    def reduce(self, lower: Array, pivots: Array) -> None:
        """Subtract from the tail what its leaves take away."""
        if self._leaves.size:
            leaves = self._dense_leaves(lower)
            taken = leaves.T @ (leaves * pivots[self._leaves, np.newaxis])
            self.write(self.matrix(lower, pivots) - taken, lower, pivots)

    def factorise(
        self, lower: Array, pivots: Array, reference: Array, rule: Array, raised: Array
    ) -> int:
        """Factorise the tail in place, as :meth:`Elimination.factorise` does what is before it."""
        matrix, reference = self.matrix(lower, pivots), reference[self.head :]
        root, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1)
        found = np.square(root.diagonal())
        if not failed and np.all(found > rule[0] * reference) and not np.isinf(found).any():
            root /= root.diagonal().copy()
            np.fill_diagonal(root, found)
            self.write(root, lower, pivots)
            return -1
        if rule[1] == 0:
            return self.head
        stopped = _factorise_raised(matrix, reference, rule, raised[self.head :])
        self.write(matrix, lower, pivots)
        return stopped if stopped < 0 else self.head + stopped

    def invert(self, inverse: Array, lower: Array, below: Array, diagonal: Array) -> None:
        """Write the inverse of the tail, (m, m), and what follows of it for its leaves.

        The diagonal of a leaf holds the inverse of its pivot before.
        """
        self.write(inverse, below, diagonal)
        if self._leaves.size:
            leaves = self._dense_leaves(lower)
            found = -leaves @ inverse
            below[self._place] = found[self._leaf, self._row]
            diagonal[self._leaves] -= np.einsum("ij,ij->i", leaves, found)

    def inverse(self, lower: Array, pivots: Array) -> Array:
        """Inverse (m, m) of the matrix whose factor is in the tail."""
        root = np.tril(self.matrix(lower, np.ones_like(pivots)))
        root *= np.sqrt(pivots[self.head :])
        return _inverted_root(root)

    def quadratic_forms(self, change: Array, inverse: Array, spread: Array) -> None:
        """Write the variance of the change of every column of the tail, and of its leaves."""
        moved = np.tril(self.matrix(change, np.zeros(self.head + self.size)))
        spread[self.head :] = np.einsum("ij,ij->j", moved, inverse @ moved)
        if self._leaves.size:
            leaves = self._dense_leaves(change)
            spread[self._leaves] = np.einsum("ij,ij->i", leaves, leaves @ inverse)

    def unit_root(self, lower: Array) -> Array:
        """Return L in the tail, (m, m), with its unit diagonal."""
        ones = np.ones(self.head + self.size)
        return np.asfortranarray(np.tril(self.matrix(lower, ones)))


def raised_pivots(pivots: Array, largest: Array, reference: Array, rule: Array) -> Array:
    """Return what pivots are raised to, by the largest entry of the column below each.

    The entries are in units of the pivots: large multipliers would carry what is wrong here on to
    the columns after it. See :func:`pymc_ngvi.core.sparse.factor.raised_diagonal`.
    """
    _, _, least, growth, shift = rule
    values = least * reference + growth * pivots * (pivots / reference)
    values = np.maximum(values, np.abs(pivots + shift) - shift)
    return np.asarray(np.maximum(values, largest))


def _factorise_raised(matrix: Array, reference: Array, rule: Array, raised: Array) -> int:
    """Factorise a matrix (m, m) in place, column by column, raising pivots that are too small."""
    for j, own in enumerate(reference):
        pivot, column = matrix[j, j], matrix[j + 1 :, j]
        if not pivot > rule[0] * own or np.isinf(pivot):
            if np.isnan(pivot):
                return j
            sizes = np.abs(column) * np.sqrt(own / reference[j + 1 :])
            raised[j] = raised_pivots(pivot, sizes.max(initial=0.0), own, rule) - pivot
            pivot += raised[j]
            matrix[j, j] = pivot
        ratios = column / pivot
        matrix[j + 1 :, j + 1 :] -= np.outer(ratios, column)
        column[:] = ratios
    return -1


def inverted(matrix: Array) -> Array:
    """Inverse of a positive definite matrix (m, m); not a number where it is not one."""
    root, failed = scipy.linalg.lapack.dpotrf(matrix, lower=1)
    return np.full_like(matrix, np.nan) if failed else _inverted_root(root)


def _inverted_root(root: Array) -> Array:
    """Inverse (m, m) of the matrix of which this is the lower Cholesky factor."""
    inverse, _ = scipy.linalg.lapack.dpotri(root, lower=1)
    return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T)
