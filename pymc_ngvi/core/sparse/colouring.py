"""Sparse Hessians from a few products with vectors: columns that do not meet share a product."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.elimination import Integers
from pymc_ngvi.core.sparse.structure import Structure

#: Part of the sum of absolute terms by which a product may differ from the matrix found.
TOLERANCE = 1e-6


class Colouring:
    """Colours of the columns of a structure, such that products with the colours give its values.

    Dense columns have a colour each. The others are coloured so that no row outside the dense ones
    meets a colour twice: each of its values then stands alone in a product. Dense rows follow by
    symmetry from the dense columns.

    Parameters
    ----------
    structure : Structure

    Attributes
    ----------
    colours : array of int, (d,)
    count : int
        Number of colours.

    Examples
    --------
    >>> arrowhead = Structure(6, [5, 5, 5, 5, 5], [0, 1, 2, 3, 4])
    >>> Colouring(arrowhead).seeds
    array([[0., 0., 0., 0., 0., 1.],
           [1., 1., 1., 1., 1., 0.]])
    """

    def __init__(self, structure: Structure) -> None:
        from pymc_ngvi.core.sparse import kernels

        self.structure = structure
        off = structure.rows != structure.columns
        rows, columns = structure.rows[off], structure.columns[off]
        self._dense = _dense_columns(structure.dim, rows, columns)
        sparse = ~self._dense
        number = np.cumsum(sparse) - 1
        kept = sparse[rows] & sparse[columns]
        rows, columns = number[rows[kept]], number[columns[kept]]
        pairs = np.concatenate([rows, columns]), np.concatenate([columns, rows])
        n, n_dense = int(sparse.sum()), int(self._dense.sum())
        graph = scipy.sparse.csr_array((np.ones(2 * rows.size, np.int8), pairs), (n, n))
        self.colours: Integers = np.empty(structure.dim, np.int64)
        self.colours[self._dense] = np.arange(n_dense)
        self.colours[sparse] = n_dense + kernels.distance_two_colours(
            graph.indptr.astype(np.int64), graph.indices.astype(np.int32)
        )
        self.count = int(self.colours.max()) + 1

    def __repr__(self) -> str:
        return f"Colouring(dim={self.structure.dim}, count={self.count})"

    @property
    def seeds(self) -> Array:
        """Vectors (count, d) to multiply with, each 1 on the columns of its colour."""
        seeds = np.zeros((self.count, self.structure.dim))
        seeds[self.colours, np.arange(self.structure.dim)] = 1.0
        return seeds

    @cached_property
    def _places(self) -> Integers:
        """Where each value stands among the products (count, d) of a draw, (nnz,)."""
        rows, columns = self.structure.rows, self.structure.columns
        swapped = self._dense[rows] & ~self._dense[columns]
        row, column = np.where(swapped, columns, rows), np.where(swapped, rows, columns)
        return np.asarray(self.colours[column] * self.structure.dim + row)

    def recover(self, products: Array) -> Array:
        """Values (n, nnz) from the products (n, count, d) with the seeds."""
        return np.take(products.reshape(len(products), -1), self._places, axis=1)


def _dense_columns(dim: int, rows: Integers, columns: Integers) -> NDArray[np.bool_]:
    """Choose the columns that get a colour each, so that the rest needs few.

    The rest needs at least one colour more than its largest number of neighbours.
    """
    degree = np.bincount(rows, minlength=dim) + np.bincount(columns, minlength=dim)
    by_degree = np.argsort(-degree, kind="stable")
    rank = np.empty(dim, np.int64)
    rank[by_degree] = np.arange(dim)
    largest = degree[by_degree]
    drops = np.flatnonzero(largest[1:] <= largest[:-1] / 2) + 1
    powers = 2 ** np.arange(int(np.log2(dim)) + 1)
    best, fewest = 0, dim + 1
    for count in np.unique(np.concatenate([[0], drops, powers])):
        if count >= fewest:
            break
        kept = (rank[rows] >= count) & (rank[columns] >= count)
        left = np.bincount(rows[kept], minlength=dim) + np.bincount(columns[kept], minlength=dim)
        needed = count + int(left.max()) + 1
        if needed < fewest:
            best, fewest = int(count), needed
    return rank < best


def agrees(structure: Structure, values: Array, vector: Array, product: Array) -> bool:
    """Whether a product (d,) with a vector (d,) is that of the matrix of these values (nnz,).

    Each component is compared with the sum of its absolute terms, which makes the test free of the
    units of the parameters, provided that those of the vector are theirs; see :func:`probe`.
    """
    expected = structure.product(values, vector)
    size = structure.product(np.abs(values), np.abs(vector))
    return bool(np.all(np.abs(product - expected) <= TOLERANCE * size))


def probe(structure: Structure, values: Array, rng: np.random.Generator) -> Array:
    """Draw a vector (d,) of random signs and sizes, in the units of the parameters."""
    curvature = np.abs(values[structure.diagonal])
    usual = np.median(curvature[curvature > 0]) if (curvature > 0).any() else 1.0
    units = np.sqrt(np.where(curvature > 0, curvature, usual))
    return np.asarray(
        rng.choice([-1.0, 1.0], structure.dim) * rng.uniform(0.5, 1.5, structure.dim) / units
    )
