r"""Linear maps of the flat vector: sparse matrices, and dense ones on a few of its components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array

# A matrix of data with more zeros than this is kept sparse.
_MOST_ZEROS = 0.9

# Matrices with more entries than this are not built: it is 1.6 GB.
_MOST_ENTRIES = 10**8


class TooLargeError(ValueError):
    """The matrix of a linear map would not fit in memory."""


@dataclass(frozen=True)
class Design:
    """A dense matrix that acts on some components of the flat vector.

    Attributes
    ----------
    matrix : array, (r, p)
    columns : array of int, (p,)
        The components.
    width, output : int
        The rows of the map are the elements of an (r, width) array, and this matrix gives its
        column `output`.
    """

    matrix: Array
    columns: np.ndarray
    width: int = 1
    output: int = 0

    def take(self, rows: np.ndarray, dim: int) -> Design | Any:
        """Return some rows: as a design if they are of one output, else as a sparse matrix."""
        if not ((rows % self.width) == self.output).all():
            return self.tosparse(dim)[rows]
        inner = rows // self.width
        same = len(inner) == len(self.matrix) and (inner == np.arange(len(inner))).all()
        return Design(self.matrix if same else self.matrix[inner], self.columns)

    def tosparse(self, dim: int) -> Any:
        """Return the matrix in sparse form."""
        r, p = self.matrix.shape
        check_size(r * p)
        rows = np.repeat(np.arange(r) * self.width + self.output, p)
        columns = np.tile(self.columns, r)
        return scipy.sparse.csr_array(
            (self.matrix.ravel(), (rows, columns)), shape=(r * self.width, dim)
        )


@dataclass(frozen=True)
class LinearMap:
    """An affine map of the flat vector to an array: offset + (sparse + designs) x.

    Attributes
    ----------
    shape : tuple of int
        Of the array; the rows of the matrices are its elements in C order.
    offset : array, (size,)
    sparse : csr_array, (size, d)
    designs : tuple of Design
    """

    shape: tuple[int, ...]
    offset: Array
    sparse: Any
    designs: tuple[Design, ...] = ()

    @classmethod
    def identity(cls, dim: int) -> LinearMap:
        """Return the flat vector itself."""
        return cls((dim,), np.zeros(dim), scipy.sparse.eye_array(dim, format="csr"))

    @classmethod
    def constant(cls, value: Any, dim: int) -> LinearMap:
        """Return an array that does not depend on the flat vector."""
        value = np.asarray(value, dtype="float64")
        return cls(value.shape, value.ravel(), scipy.sparse.csr_array((value.size, dim)))

    @classmethod
    def add(cls, terms: Sequence[LinearMap]) -> LinearMap:
        """Add maps of the same shape."""
        first = terms[0]
        matrix, offset = first.sparse, first.offset
        for term in terms[1:]:
            matrix = matrix + term.sparse if term.sparse.nnz else matrix
            offset = offset + term.offset
        return cls(first.shape, offset, matrix, tuple(d for term in terms for d in term.designs))

    @classmethod
    def concatenate(cls, maps: Sequence[LinearMap]) -> LinearMap:
        """Put the elements of several maps into one vector."""
        if len(maps) == 1:
            return maps[0]
        matrices = [m.tosparse() for m in maps]
        offset = np.concatenate([m.offset for m in maps])
        return cls(offset.shape, offset, scipy.sparse.vstack(matrices, format="csr"))

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.offset)

    @property
    def dim(self) -> int:
        """Number of components of the flat vector."""
        return self.sparse.shape[1]

    def tosparse(self) -> Any:
        """Return the whole matrix in sparse form."""
        return sum((d.tosparse(self.dim) for d in self.designs), start=self.sparse).tocsr()

    def take(self, positions: np.ndarray) -> LinearMap:
        """Return the array of the elements at these positions."""
        rows = positions.ravel()
        if len(rows) == self.size and (rows == np.arange(self.size)).all():
            return LinearMap(positions.shape, self.offset, self.sparse, self.designs)
        matrix, designs = self.sparse[rows], []
        for part in (design.take(rows, self.dim) for design in self.designs):
            if isinstance(part, Design):
                designs.append(part)
            else:
                matrix = matrix + part
        return LinearMap(positions.shape, self.offset[rows], matrix, tuple(designs))

    def broadcast(self, shape: tuple[int, ...]) -> LinearMap:
        """Repeat the elements as NumPy broadcasts."""
        if shape == self.shape:
            return self
        return self.take(np.broadcast_to(np.arange(self.size).reshape(self.shape), shape))

    def transpose(self) -> LinearMap:
        """Reverse the axes."""
        if len(self.shape) < 2:
            return self
        return self.take(np.arange(self.size).reshape(self.shape).T)

    def scale(self, factor: Array) -> LinearMap:
        """Multiply each element by a factor, of the same shape."""
        flat = factor.ravel()
        if (flat == 1).all():
            return self
        designs = tuple(
            Design(d.matrix * flat[d.output :: d.width, None], d.columns, d.width, d.output)
            for d in self.designs
        )
        matrix = self.sparse.copy()
        matrix.data = matrix.data * np.repeat(flat, np.diff(matrix.indptr))
        return LinearMap(self.shape, self.offset * flat, matrix, designs)

    def sum(self, axis: Any) -> LinearMap:
        """Sum over axes, all if None."""
        axes = tuple(range(len(self.shape))) if axis is None else tuple(np.atleast_1d(axis))
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
        target = np.broadcast_to(np.arange(np.prod(kept, dtype=int)).reshape(kept), self.shape)
        shape = tuple(n for i, n in enumerate(self.shape) if i not in axes)
        size = int(np.prod(kept, dtype=int))
        entries = (np.ones(self.size), (target.ravel(), np.arange(self.size)))
        return self._left(scipy.sparse.csr_array(entries, shape=(size, self.size)), shape)

    def cumsum(self, axis: int | None) -> LinearMap:
        """Sum cumulatively along an axis, of the flattened array if None."""
        shape = self.shape if axis is not None else (self.size,)
        axis = axis or 0
        n = shape[axis]
        check_size(self.size * n)
        positions = np.moveaxis(np.arange(self.size).reshape(shape), axis, -1).reshape(-1, n)
        later, earlier = np.tril_indices(n)
        rows, columns = positions[:, later].ravel(), positions[:, earlier].ravel()
        matrix = scipy.sparse.csr_array(
            (np.ones(rows.size), (rows, columns)), shape=(self.size,) * 2
        )
        return self._left(matrix, shape)

    def _left(self, matrix: Any, shape: tuple[int, ...]) -> LinearMap:
        return LinearMap(shape, matrix @ self.offset, (matrix @ self.tosparse()).tocsr())

    def multiplied(self, matrix: Array) -> LinearMap:
        """Multiply from the left by a matrix (r, p): this map has shape (p,) or (p, width)."""
        p = self.shape[0]
        width = self.size // p
        shape = (*matrix.shape[:-1], *self.shape[1:])
        matrix = matrix.reshape(-1, p)
        inner = self.tosparse()
        offset = (matrix @ self.offset.reshape(p, width)).ravel()
        empty = scipy.sparse.csr_array((offset.size, self.dim))
        if np.count_nonzero(matrix) < (1 - _MOST_ZEROS) * matrix.size:
            wide = scipy.sparse.kron(
                scipy.sparse.csr_array(matrix), scipy.sparse.eye_array(width), format="csr"
            )
            return LinearMap(shape, offset, (wide @ inner).tocsr())
        designs = []
        for output in range(width):
            block = inner[output::width]
            columns = np.unique(block.indices)
            if not columns.size:
                continue
            check_size(len(matrix) * columns.size)
            right = block[:, columns]
            same = right.shape == (p, p) and (right != scipy.sparse.eye_array(p)).nnz == 0
            product = matrix if same else np.asarray(matrix @ right)
            designs.append(Design(product, columns, width, output))
        return LinearMap(shape, offset, empty, tuple(designs))


def check_size(entries: int) -> None:
    """Raise where a matrix of so many entries would be too large."""
    if entries > _MOST_ENTRIES:
        raise TooLargeError(f"a matrix of {entries:,} entries would be too large")
