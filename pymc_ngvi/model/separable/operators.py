r"""Row vectors as linear maps of the flat vector, made for repeated products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.separable.linear import LinearMap, check_size

# Columns of a sparse matrix that are so full, and at least so long, are kept dense.
_FULL, _LONG = 0.25, 64

# A row vector is wide if its rows depend on more components than this, and if there are fewer rows
# by this factor, or so many components that their Hessian would take a large part of the memory.
_WIDE, _NARROWER, _TOO_WIDE = 200, 4, 4000

# From so many rows on, products with the transposed matrix are made for one draw after the other.
_MANY_ROWS = 4096


@dataclass(frozen=True)
class RowVector:
    """The affine map x -> offset + D x[columns] + S x, with values for all rows.

    Attributes
    ----------
    offset : array, (r,)
    dense : array, (r, p)
        D, of p components that most rows depend on.
    columns : array of int, (p,)
        These components, in ascending order.
    sparse : csr_array, (r, d)
        S.
    """

    offset: Array
    dense: Array
    columns: np.ndarray
    sparse: Any

    @classmethod
    def of(cls, linear: LinearMap) -> RowVector:
        """Sort the columns of a linear map into dense and sparse ones."""
        matrix, designs = linear.sparse, list(linear.designs)
        n = linear.size
        counts = np.bincount(matrix.indices, minlength=linear.dim)
        full = np.flatnonzero(counts > _FULL * n) if n >= _LONG else np.empty(0, dtype=int)
        blocks = [design.matrix for design in designs]
        columns = [design.columns for design in designs]
        if full.size:
            by_column = matrix.tocsc()
            blocks.insert(0, by_column[:, full].toarray())
            columns.insert(0, full)
            by_column = by_column @ scipy.sparse.diags_array((counts <= _FULL * n).astype(float))
            matrix = by_column.tocsr()
            matrix.eliminate_zeros()
        dense, places = _merge(blocks, columns, n)
        return cls(linear.offset, dense, places, matrix)

    @classmethod
    def scalar(cls, linear: LinearMap) -> RowVector:
        """Return a number that all rows see: one row."""
        none = np.empty(0, dtype=np.int64)
        return cls(linear.offset, np.empty((linear.size, 0)), none, linear.tosparse())

    @cached_property
    def transposed(self) -> Any:
        """S' in compressed rows."""
        return self.sparse.T.tocsr()

    @cached_property
    def used(self) -> np.ndarray:
        """Components that S depends on."""
        return np.unique(self.sparse.indices)

    @cached_property
    def width(self) -> int:
        """Most components that a row depends on."""
        return self.columns.size + int(np.diff(self.sparse.indptr).max(initial=0))

    @property
    def is_wide(self) -> bool:
        """Whether its rows depend on so many components that the square of them is too much."""
        width = self.width
        return width > _WIDE and (_NARROWER * len(self.offset) < width or width > _TOO_WIDE)

    @property
    def matrix(self) -> Array:
        """D and S together, (r, d)."""
        if self.columns.size == self.sparse.shape[1]:
            return self.dense
        check_size(self.sparse.shape[0] * self.sparse.shape[1])
        whole = self.sparse.toarray()
        whole[:, self.columns] += self.dense
        return np.asarray(whole)

    def __call__(self, draws: Array) -> Array:
        """Values (n, r) at draws (n, d)."""
        values = self.apply(draws)
        values += self.offset
        return values

    def apply(self, vectors: Array) -> Array:
        """Multiply vectors (n, d) by the matrix: (n, r)."""
        parts = []
        if self.columns.size:
            parts.append(vectors[:, self.columns] @ self.dense.T)
        if self._selected is not None:
            parts.append(np.take(vectors, self._selected, axis=1))
        elif self.sparse.nnz:
            parts.append((self.sparse @ vectors.T).T)
        if not parts:
            return np.zeros((len(vectors), len(self.offset)))
        result, *others = parts
        for other in others:
            result += other
        return np.asarray(result)

    @cached_property
    def _selected(self) -> np.ndarray | None:
        """The component that each row of S picks, where it does nothing else."""
        picks = self.sparse.nnz == self.sparse.shape[0] and (np.diff(self.sparse.indptr) == 1).all()
        return self.sparse.indices if picks and (self.sparse.data == 1).all() else None

    def add_transposed(self, rows: Array, to: Array) -> None:
        """Add the products (n, d) of the transposed matrix with row vectors (n, r)."""
        if self.columns.size:
            to[:, self.columns] += rows @ self.dense
        if not self.sparse.nnz:
            return
        if rows.shape[1] < _MANY_ROWS:
            to += (self.transposed @ rows.T).T
            return
        for row, total in zip(rows, to, strict=True):  # SciPy would copy all rows, transposed
            total += self.transposed @ row


def _merge(blocks: list[Array], columns: list[np.ndarray], n: int) -> tuple[Array, np.ndarray]:
    """Put matrices on several components side by side; add columns of the same component."""
    if not blocks:
        return np.empty((n, 0)), np.empty(0, dtype=np.int64)
    places = np.concatenate(columns)
    if len(blocks) == 1 and (np.diff(places) > 0).all():
        return blocks[0], places
    unique, inverse = np.unique(places, return_inverse=True)
    merged = np.zeros((n, unique.size))
    start = 0
    for block in blocks:
        for column in block.T:
            merged[:, inverse[start]] += column
            start += 1
    return merged, unique
