"""Where a symmetric sparse matrix has entries, and what its factorisation costs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.elimination import Elimination, Integers, inverted
from pymc_ngvi.core.sparse.levels import with_values
from pymc_ngvi.core.sparse.trees import find_levels

if TYPE_CHECKING:
    from pymc_ngvi.core.sparse.compiled import Compiled

# Rows that are eliminated after all others, and entries of the factor for each of the matrix, at
# most, where there are two sides: else it pays to look for a better order.
_MOST_LAST, _MOST_FILL = 1000, 4


class Structure:
    """Pattern of a symmetric sparse matrix, with an order in which its factor stays sparse.

    A matrix on the structure is the vector of its values (nnz,) in the lower triangle, column by
    column with increasing rows; the diagonal belongs to every structure. The order and the pattern
    of the factor are found once, when they are first asked for.

    Parameters
    ----------
    dim : int
        Number of rows d.
    rows, columns : array of int
        Places of the entries, in either triangle, each once or several times.
    order : array of int, (d,), optional
        Order of elimination; by default that of minimum degree, with dense rows last.

    Examples
    --------
    >>> chain = Structure(4, [1, 2, 3], [0, 1, 2])
    >>> chain.nnz, chain.rows, chain.columns
    (7, array([0, 1, 1, 2, 2, 3, 3]), array([0, 0, 1, 1, 2, 2, 3]))
    >>> chain.fill
    7
    """

    def __init__(
        self, dim: int, rows: ArrayLike, columns: ArrayLike, order: ArrayLike | None = None
    ) -> None:
        first, second = (np.asarray(indices, np.int64).ravel() for indices in (rows, columns))
        if first.shape != second.shape:
            raise ValueError(f"{first.size} rows and {second.size} columns")
        if first.size and not (
            0 <= min(first.min(), second.min()) <= max(first.max(), second.max()) < dim
        ):
            raise ValueError(f"rows and columns of a structure of {dim} must lie in [0, {dim})")
        self.dim = int(dim)
        diagonal = np.arange(dim)
        low = np.concatenate([diagonal, np.minimum(first, second)])
        high = np.concatenate([diagonal, np.maximum(first, second)])
        # Transposed, so that SciPy sorts by columns; adding duplicates leaves each place once.
        pattern = scipy.sparse.csr_array((np.ones(low.size, np.int8), (low, high)), (dim, dim))
        pattern.sum_duplicates()
        #: Where each column begins among the values: the places of the diagonal.
        self.start: Integers = pattern.indptr.astype(np.int64)
        self.rows: Integers = pattern.indices.astype(np.int64)
        self.columns: Integers = np.repeat(diagonal, np.diff(self.start))
        self._given_order = None if order is None else np.asarray(order, np.int64)
        if self._given_order is not None and not np.array_equal(
            np.sort(self._given_order), diagonal
        ):
            raise ValueError(f"the order is no permutation of the {dim} rows")

    @classmethod
    def full(cls, dim: int) -> Structure:
        """Structure of a matrix with all entries."""
        return cls(dim, *np.tril_indices(dim))

    def __repr__(self) -> str:
        return f"Structure(dim={self.dim}, nnz={self.nnz})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Structure, (self.dim, self.rows, self.columns, self.order)

    @property
    def nnz(self) -> int:
        """Entries of the lower triangle, with the diagonal."""
        return int(self.rows.size)

    @property
    def rank(self) -> int:
        """Dense rows that matrices have beside their entries; see :class:`LowRankStructure`."""
        return 0

    @property
    def is_full(self) -> bool:
        """Whether the matrix has all entries, so that nothing is gained by leaving some out."""
        return self.nnz == self.dim * (self.dim + 1) // 2

    def has_places_of(self, other: Structure) -> bool:
        """Whether values on the other structure are values on this one."""
        return (
            self.dim == other.dim
            and not other.rank
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.columns, other.columns)
        )

    def union(self, other: Structure) -> Structure:
        """Structure of the sum of a matrix on this one and a matrix on the other."""
        rows = np.concatenate([self.rows, other.rows])
        return Structure(self.dim, rows, np.concatenate([self.columns, other.columns]))

    def places(self, other: Structure) -> Integers:
        """Where the values of another structure, a part of this one, stand among the values."""
        mine, its = (part.columns * part.dim + part.rows for part in (self, other))
        return np.searchsorted(mine, its)

    @property
    def diagonal(self) -> Integers:
        """Places of the diagonal entries among the values, (d,)."""
        return self.start[:-1]

    def diagonal_of(self, values: Array) -> Array:
        """Diagonals (..., d) of matrices of values (..., nnz)."""
        return np.asarray(values[..., self.diagonal])

    @cached_property
    def multiplicity(self) -> Array:
        """How often each value stands in the whole matrix: 1 on the diagonal, 2 off it, (nnz,)."""
        twice = np.full(self.nnz, 2.0)
        twice[self.diagonal] = 1.0
        return twice

    # Matrices on the structure.

    def values(self, matrix: Array) -> Array:
        """Values (nnz,) of a symmetric dense or sparse matrix (d, d); the rest is left out."""
        return np.asarray(matrix[self.rows, self.columns], float).ravel()

    def matrix(self, values: Array) -> scipy.sparse.csr_array:
        """Sparse matrix (d, d), both triangles, of values (nnz,)."""
        off = self.rows != self.columns
        rows = np.concatenate([self.rows, self.columns[off]])
        columns = np.concatenate([self.columns, self.rows[off]])
        both = np.concatenate([values, values[off]])
        return scipy.sparse.csr_array((both, (rows, columns)), (self.dim, self.dim))

    def dense(self, values: Array) -> Array:
        """Symmetric matrices (..., d, d) of values (..., nnz)."""
        matrices = np.zeros((*values.shape[:-1], self.dim, self.dim))
        matrices[..., self.rows, self.columns] = values
        matrices[..., self.columns, self.rows] = values
        return matrices

    def product(self, values: Array, vector: Array) -> Array:
        """Matrix times a vector (d,)."""
        lower, upper = (with_values(triangle, values) for triangle in self._triangles)
        return np.asarray(lower @ vector + upper @ vector - values[self.diagonal] * vector)

    @cached_property
    def _triangles(self) -> tuple[scipy.sparse.csc_array, scipy.sparse.csr_array]:
        """Both triangles, to fill with values: the lower one by columns is the upper by rows."""
        arrays, shape = (np.zeros(self.nnz), self.rows, self.start), (self.dim, self.dim)
        return scipy.sparse.csc_array(arrays, shape), scipy.sparse.csr_array(arrays, shape)

    # The factor.

    @cached_property
    def elimination(self) -> Elimination:
        """How matrices are factorised: by levels where there are few, else by compiled loops."""
        if (order := self._given_order) is not None:
            return self._in_order(order)
        graph, sparse, dense = self._graph()
        # Trees, chains and cliques: outwards in has no fill, and asks for nothing to be compiled.
        order = dense
        if sparse.size:
            inwards = scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
            order = np.concatenate([sparse[inwards], dense])
        by_sides = np.concatenate([sparse[_sides(graph)], dense])
        levels = self._by_levels(order) or self._two_sided(by_sides)
        if levels is not None:
            return levels
        found = self._compiled(order)
        if found.heights.sum() + self.dim > self.nnz + dense.size**2:
            order = np.concatenate([sparse[_minimum_degree(graph)], dense])
            found = self._compiled(order)
        return self._in_order(found.postorder())

    def _in_order(self, order: Integers) -> Elimination:
        return self._by_levels(order) or self._two_sided(order) or self._compiled(order)

    def _by_levels(self, order: Integers) -> Elimination | None:
        """Return the elimination by levels, if these are few, with no fill but in dense rows."""
        last, off = self.hubs.size, np.flatnonzero(self.rows != self.columns)
        entries = self.rows[off], self.columns[off], off
        return find_levels(order, *entries, last=last, most=off.size + last**2)

    def _two_sided(self, order: Integers) -> Elimination | None:
        """Return the elimination by levels, where all but few rows, the last, do not meet.

        These are many persons who answered some of few items, for example.
        """
        off = np.flatnonzero(self.rows != self.columns)
        place, entries = inverted(order), (self.rows[off], self.columns[off])
        last = self.dim - int(np.maximum(*(place[part] for part in entries)).min(initial=self.dim))
        if last > _MOST_LAST:
            return None
        return find_levels(order, *entries, off, last=last, most=_MOST_FILL * self.nnz)

    def _compiled(self, order: Integers) -> Compiled:
        from pymc_ngvi.core.sparse.compiled import Compiled

        return Compiled(order, self._rows(order))

    @property
    def order(self) -> Integers:
        """Order of elimination, (d,)."""
        return self.elimination.order

    @property
    def fill(self) -> int:
        """Entries of the factor, with its diagonal; known before it is computed."""
        return int(self.elimination.heights.sum()) + self.dim

    @property
    def flops(self) -> int:
        """Multiplications that factorising takes; known before it is done."""
        heights = self.elimination.heights.astype(float)
        return int((heights * (heights + 3) / 2).sum())

    @property
    def height(self) -> float:
        """Mean number of entries of a column of the factor, with the diagonal."""
        return self.fill / self.dim

    @cached_property
    def hubs(self) -> Integers:
        """Dense rows: the components that are connected with many others, most entries last."""
        off = self.rows != self.columns
        degree = np.bincount(self.rows[off], minlength=self.dim)
        degree += np.bincount(self.columns[off], minlength=self.dim)
        dense = np.flatnonzero(degree > max(16.0, 10 * np.sqrt(self.dim)))
        return dense[np.argsort(degree[dense], kind="stable")]

    def _graph(self) -> tuple[scipy.sparse.csr_array, Integers, Integers]:
        """Graph of the sparse rows among themselves, these, and the dense rows, most entries last.

        Dense rows, such as the parameters common to all groups, are eliminated last. In the search
        for an order they would only be slow, since each step looks at all neighbours of neighbours.
        """
        off = self.rows != self.columns
        rows, columns = self.rows[off], self.columns[off]
        dense, is_dense = self.hubs, np.zeros(self.dim, bool)
        is_dense[dense] = True
        number = np.cumsum(~is_dense) - 1
        kept = ~(is_dense[rows] | is_dense[columns])
        rows, columns = number[rows[kept]], number[columns[kept]]
        pairs = np.concatenate([rows, columns]), np.concatenate([columns, rows])
        n = self.dim - dense.size
        graph = scipy.sparse.csr_array((np.ones(2 * rows.size, np.int8), pairs), (n, n))
        return graph, np.flatnonzero(~is_dense), dense

    def _rows(self, order: Integers) -> tuple[Integers, Integers, Integers]:
        """Rows of the reordered matrix left of the diagonal, and which value each entry is."""
        inverse = inverted(order)
        off = np.flatnonzero(self.rows != self.columns)
        first, second = inverse[self.rows[off]], inverse[self.columns[off]]
        rows = scipy.sparse.csr_array(
            (off, (np.maximum(first, second), np.minimum(first, second))), (self.dim, self.dim)
        )
        return rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data


def _minimum_degree(graph: scipy.sparse.csr_array) -> Integers:
    from pymc_ngvi.core.sparse.compiled import minimum_degree

    return minimum_degree(graph)


def _sides(graph: scipy.sparse.csr_array) -> Integers:
    """Order the nodes of a graph that only meet others of more neighbours before the rest."""
    n = graph.shape[0]
    degree = np.diff(graph.indptr) * n + np.arange(n)  # no two are the same
    node = np.repeat(np.arange(n), np.diff(graph.indptr))
    later = np.zeros(n, bool)
    later[node[degree[node] > degree[graph.indices]]] = True
    return np.argsort(later, kind="stable")
