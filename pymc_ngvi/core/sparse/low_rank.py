r"""Symmetric matrices that are sparse but for a few rows: :math:`S + A' \mathrm{diag}(w) A`.

The Hessian of a regression on more predictors than rows is such a matrix, and so is that of a field
whose sum is held near zero. It has d^2 entries, and yet it is known by those of S and by w.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.elimination import Elimination, Integers
from pymc_ngvi.core.sparse.structure import Structure

if TYPE_CHECKING:
    from pymc_ngvi.core.sparse.low_rank_factor import LowRankFactor

# Numbers of A that are squared at a time.
_NUMBERS = 2**20


class LowRankStructure(Structure):
    """Structure of matrices S + A' diag(w) A with the same A.

    A matrix is the vector of the values (nnz - r,) of S, followed by the weights w (r,).

    Parameters
    ----------
    base : Structure
        That of S.
    factor : array, (r, d)
        A.

    Examples
    --------
    >>> structure = LowRankStructure(Structure(3, [], []), np.ones((1, 3)))
    >>> structure.dense(np.array([1.0, 2.0, 3.0, 0.5]))
    array([[1.5, 0.5, 0.5],
           [0.5, 2.5, 0.5],
           [0.5, 0.5, 3.5]])
    """

    def __init__(self, base: Structure, factor: Array) -> None:
        super().__init__(base.dim, base.rows, base.columns, base._given_order)
        self.base = base
        self.factor = factor
        #: The factor that keeps what is as large as A.
        self.last_asked: weakref.ref[LowRankFactor] | None = None

    def __repr__(self) -> str:
        return f"LowRankStructure(dim={self.dim}, nnz={self.nnz}, rank={self.rank})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LowRankStructure, (self.base, self.factor)

    @property
    def elimination(self) -> Elimination:
        """How the sparse part is factorised."""
        return self.base.elimination

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return the values of S and the weights, of values (..., nnz)."""
        return values[..., : self.base.nnz], values[..., self.base.nnz :]

    @property
    def nnz(self) -> int:
        """Numbers that a matrix is known by."""
        return self.base.nnz + self.rank

    @property
    def rank(self) -> int:
        """Number of rows r of A."""
        return len(self.factor)

    @property
    def is_full(self) -> bool:
        """Whether all entries are kept: never."""
        return False

    def has_places_of(self, other: Structure) -> bool:
        """Whether values on the other structure are values on this one."""
        return (
            isinstance(other, LowRankStructure)
            and self.base.has_places_of(other.base)
            and np.array_equal(self.factor, other.factor)
        )

    def union(self, other: Structure) -> Structure:
        """Structure of the sum of a matrix on this one and a matrix on the other."""
        return LowRankStructure(self.base.union(other), self.factor)

    def places(self, other: Structure) -> Integers:
        """Where the values of another structure, a part of this one, stand among the values."""
        if not isinstance(other, LowRankStructure):
            return self.base.places(other)
        weights = self.base.nnz + np.arange(self.rank)
        return np.concatenate([self.base.places(other.base), weights])

    @cached_property
    def multiplicity(self) -> Array:
        """How often each number counts in the whole matrix, (nnz,)."""
        return np.concatenate([self.base.multiplicity, np.ones(self.rank)])

    def values(self, matrix: Array) -> Array:
        """Refuse: entries do not tell which part they belong to."""
        raise TypeError("a matrix does not tell its sparse part from that of low rank")

    def diagonal_of(self, values: Array) -> Array:
        """Diagonals (..., d) of matrices of values (..., nnz)."""
        sparse, weights = self.split(values)
        diagonals = self.base.diagonal_of(sparse)
        step = max(1, _NUMBERS // max(1, self.rank))
        for start in range(0, self.dim, step):  # all squares would take as much memory as A
            part = slice(start, start + step)
            diagonals[..., part] += weights @ np.square(self.factor[:, part])
        return diagonals

    def matrix(self, values: Array) -> LowRankMatrix:
        """Return the matrix (d, d) of values (nnz,), which is not formed."""
        return LowRankMatrix(self, values)

    def dense(self, values: Array) -> Array:
        """Symmetric matrices (..., d, d) of values (..., nnz)."""
        sparse, weights = self.split(values)
        products = np.einsum("...r,ri,rj->...ij", weights, self.factor, self.factor, optimize=True)
        return np.asarray(self.base.dense(sparse) + products)

    def product(self, values: Array, vector: Array) -> Array:
        """Matrix times a vector (d,)."""
        sparse, weights = self.split(values)
        ahead = weights * (self.factor @ vector)
        return np.asarray(self.base.product(sparse, vector) + ahead @ self.factor)

    @property
    def fill(self) -> int:
        """Numbers that factorising leaves, with the products of the rows of A."""
        return self.base.fill + self.rank * (self.rank + 1) // 2

    @property
    def flops(self) -> int:
        """Multiplications that factorising takes, and finding the variances."""
        return self.base.flops + self.rank * (self.base.fill + 2 * self.rank * self.dim)


class LowRankMatrix:
    """A matrix S + A' diag(w) A, known by what it does to vectors."""

    def __init__(self, structure: LowRankStructure, values: Array) -> None:
        self._structure, self._values = structure, values
        self.shape = (structure.dim, structure.dim)

    def __matmul__(self, vector: Array) -> Array:
        return self._structure.product(self._values, vector)

    def __abs__(self) -> LowRankMatrix:
        """Matrix that bounds the absolute values of all entries."""
        absolute = LowRankStructure(self._structure.base, np.abs(self._structure.factor))
        return LowRankMatrix(absolute, np.abs(self._values))

    def diagonal(self) -> Array:
        """Diagonal (d,)."""
        return self._structure.diagonal_of(self._values)

    def toarray(self) -> Array:
        """Matrix (d, d) with all its entries."""
        return self._structure.dense(self._values)
