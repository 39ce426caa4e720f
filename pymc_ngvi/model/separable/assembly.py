r"""Hessians of sums over rows, as values on a fixed sparse pattern.

With row vectors :math:`u_k = A_k x` and second derivatives :math:`w_{kl}` of the row function,

.. math:: H = \sum_{kl} A_k' \, \mathrm{diag}(w_{kl}) \, A_l .

Each pair of row vectors gives up to four blocks, of dense and sparse parts of A. Only the lower
triangle is computed: an entry (a, b) of the block of a pair k < l stands for itself and for its
mirror image, so that it counts once off the diagonal and twice on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.model.separable.linear import check_size
from pymc_ngvi.model.separable.operators import RowVector

# Rows of dense matrices are weighted in blocks of this many numbers, which stay in the cache.
_BLOCK = 2**16


@dataclass(frozen=True)
class Piece:
    """One block of a Hessian: where its entries are, and how they follow from the weights.

    Attributes
    ----------
    rows, columns : array of int, (m,)
        Places of the entries in the lower triangle.
    values : callable
        Maps second derivatives (r,) to entries (m,).
    """

    rows: np.ndarray
    columns: np.ndarray
    values: Callable[[Array], Array]


def pieces_of(first: RowVector, second: RowVector) -> list[Piece]:
    """Return the blocks of the pair of two row vectors, which may be the same."""
    same = first is second
    found = []
    if first.columns.size and second.columns.size:
        found.append(_dense_piece(first, second, same))
    if first.sparse.nnz and second.sparse.nnz:
        found.append(_sparse_piece(first.sparse, second.sparse, same))
    if first.sparse.nnz and second.columns.size:
        found.append(_mixed_piece(first, second))
    if second.sparse.nnz and first.columns.size and not same:
        found.append(_mixed_piece(second, first))
    return found


def gram(left: Array, weights: Array, right: Array) -> Array:
    """Compute left' diag(weights) right for matrices (r, p) and (r, q)."""
    total = np.zeros((left.shape[1], right.shape[1]))
    step = max(_BLOCK // max(left.shape[1], 1), 64)
    sign = -1.0 if (weights <= 0).all() else 1.0
    # For weights of one sign, BLAS needs half the work: it sees a matrix times its transpose.
    rooted = left is right and (sign * weights >= 0).all()
    if rooted:
        weights = np.sqrt(sign * weights)
    buffer = np.empty((min(step, len(left)), left.shape[1]))
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        scaled = buffer[: len(left[part])]
        np.multiply(left[part], weights[part, None], out=scaled)
        total += scaled.T @ (scaled if rooted else right[part])
    return sign * total if rooted else total


def _dense_piece(first: RowVector, second: RowVector, same: bool) -> Piece:
    if same:
        a, b = np.tril_indices(first.columns.size)
        rows, columns = first.columns[a], first.columns[b]
        return Piece(rows, columns, lambda w: gram(first.dense, w, first.dense)[a, b])
    check_size(first.columns.size * second.columns.size)
    rows, columns, factor = _mirrored(first.columns, second.columns)
    return Piece(rows, columns, lambda w: gram(first.dense, w, second.dense).ravel() * factor)


def _mirrored(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, Array]:
    """Return the places in the lower triangle of a block, and the weights of its entries."""
    a, b = (side.ravel() for side in np.meshgrid(first, second, indexing="ij"))
    return np.maximum(a, b), np.minimum(a, b), 1.0 + (a == b)


def _mixed_piece(thin: RowVector, full: RowVector) -> Piece:
    rows, columns, factor = _mirrored(thin.used, full.columns)
    check_size(rows.size)
    matrix = thin.transposed[thin.used].tocsr()
    indices = matrix.indices

    def values(weights: Array) -> Array:
        weighted = scipy.sparse.csr_array(
            (matrix.data * weights[indices], indices, matrix.indptr), shape=matrix.shape
        )
        return (weighted @ full.dense).ravel() * factor

    return Piece(rows, columns, values)


def _sparse_piece(first: Any, second: Any, same: bool) -> Piece:
    n = first.shape[0]
    n_first, n_second = np.diff(first.indptr), np.diff(second.indptr)
    pairs = n_first.astype(np.int64) * n_second
    check_size(int(pairs.sum()))
    row = np.repeat(np.arange(n), pairs)
    within = np.arange(row.size) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    i = first.indptr[row] + within // n_second[row]
    j = second.indptr[row] + within % n_second[row]
    a, b = first.indices[i].astype(np.int64), second.indices[j].astype(np.int64)
    values = first.data[i] * second.data[j]
    if same:
        lower = a >= b
        a, b, row, values = a[lower], b[lower], row[lower], values[lower]
    else:
        values = values * (1.0 + (a == b))
        a, b = np.maximum(a, b), np.minimum(a, b)
    dim = first.shape[1]
    keys, place = np.unique(a * dim + b, return_inverse=True)
    matrix = scipy.sparse.csr_array((values, (place, row)), shape=(keys.size, n))
    return Piece(keys // dim, keys % dim, lambda weights: matrix @ weights)


def scalar_piece(scalar: RowVector, vector: RowVector) -> Piece:
    """Return the block of a number that all rows see, and a row vector."""
    own, weight = scalar.sparse.indices, scalar.sparse.data
    touched = np.union1d(vector.columns, vector.used).astype(np.int64)
    rows, columns, factor = _mirrored(own, touched)

    def values(weights: Array) -> Array:
        total = np.zeros((1, vector.sparse.shape[1]))
        vector.add_transposed(weights[None], total)
        return np.outer(weight, total[0, touched]).ravel() * factor

    return Piece(rows, columns, values)


class Places:
    """Where the entries of a piece stand among the values on a structure.

    Entries that the structure lacks are left out: they are zero, and belong to a block of which not
    all entries are needed.

    Parameters
    ----------
    piece : Piece
    structure : Structure
    """

    def __init__(self, piece: Piece, structure: Structure) -> None:
        every = structure.columns * structure.dim + structure.rows
        keys = piece.columns.astype(np.int64) * structure.dim + piece.rows
        place = np.searchsorted(every, keys)
        found = every[np.minimum(place, every.size - 1)] == keys
        self._kept = None if found.all() else found
        self._place = place[found]
        self._unique = np.unique(self._place).size == self._place.size

    def add(self, values: Array, to: Array) -> None:
        """Add the entries of the piece to the values (nnz,) on the structure."""
        kept = values if self._kept is None else values[self._kept]
        if self._unique:
            to[self._place] += kept
        else:
            np.add.at(to, self._place, kept)


def structure_of(pieces: Sequence[Piece], dim: int) -> Structure:
    """Return the structure that pieces have together."""
    none = np.empty(0, np.int64)
    return Structure(
        dim,
        np.concatenate([none, *(piece.rows for piece in pieces)]),
        np.concatenate([none, *(piece.columns for piece in pieces)]),
    )
