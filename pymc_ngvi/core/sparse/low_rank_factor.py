r"""The factor of a matrix that is sparse but for a few rows, by its sparse part and a small matrix.

With S = L L', :math:`T = W^{1/2} A L^{-\top}` and the small matrix :math:`I + T T' = C C'`,

.. math:: S + A' W A = L (I + T'T) L' = (L R)(L R)', \qquad R = I + T' (I + C)^{-1} T .

R is a root of :math:`I + T'T`: with :math:`K = (I + C)^{-1}`, which commutes with C,
:math:`I - K = K C` and so :math:`K + K' + K T T' K' = I`. It takes triangular solves only, and
neither it nor T is ever formed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pymc_ngvi.core import linalg
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.factor import Factor, factorise, inverse_derivative
from pymc_ngvi.core.sparse.low_rank import LowRankStructure

# Rows of A that are handled together.
_AT_ONCE = 128
# Numbers of products of rows, entry by entry, that are held at a time.
_NUMBERS = 2**21


class LowRankFactor(Factor):
    """Factor of a matrix on a :class:`LowRankStructure`; build it with :func:`factorise_low_rank`.

    Attributes
    ----------
    structure : LowRankStructure
    base : Factor
        That of the sparse part.
    roots : array, (r,)
        Square roots of the weights.
    products : array, (r, r)
        A inv(S) A'.
    small : array, (r, r)
        C.
    """

    structure: LowRankStructure

    def __init__(
        self, structure: LowRankStructure, base: Factor, roots: Array, products: Array, small: Array
    ) -> None:
        super().__init__(structure, base.entries)
        self.base, self.roots, self.products, self.small = base, roots, products, small
        self._kept: tuple[Array, Array] | None = None

    @cached_property
    def log_det(self) -> float:
        """Log-determinant of the matrix."""
        return self.base.log_det + 2 * float(np.log(self.small.diagonal()).sum())

    @property
    def _rows(self) -> Array:
        return self.structure.factor

    @cached_property
    def _shifted(self) -> Array:
        """I + C."""
        return np.asarray(self.small + np.eye(len(self.small)))

    def _down(self, rows: Array) -> Array:
        """T times every row (n, d): columns (r, n)."""
        return np.asarray(self.roots[:, None] * (self._rows @ self.base.solve_transposed(rows).T))

    def _up(self, columns: Array) -> Array:
        """T' times every column (r, n): rows (n, d)."""
        return self.base.solve_root((self.roots[:, None] * columns).T @ self._rows)

    def _weighted(self, columns: Array, *steps: tuple[Array, bool]) -> Array:
        for factor, transpose in steps:
            columns = linalg.solve_lower(factor, columns, transpose=transpose)
        return columns

    def solve(self, vector: Array) -> Array:
        """Inverse of the matrix times a vector (d,), or times every row of an array (n, d)."""
        rows = self.base.solve(np.atleast_2d(vector))
        ahead = self.roots[:, None] * (self._rows @ rows.T)
        ahead = self._weighted(ahead, (self.small, False), (self.small, True))
        back = self.base.solve((self.roots[:, None] * ahead).T @ self._rows)
        return np.asarray(rows - back).reshape(vector.shape)

    def multiply(self, rows: Array) -> Array:
        """Root times every row (n, d)."""
        ahead = self._weighted(self._down(rows), (self._shifted, False))
        return self.base.multiply(rows + self._up(ahead))

    def multiply_transposed(self, rows: Array) -> Array:
        """Transposed root times every row (n, d)."""
        rows = self.base.multiply_transposed(rows)
        ahead = self._weighted(self._down(rows), (self._shifted, True))
        return np.asarray(rows + self._up(ahead))

    def solve_root(self, rows: Array) -> Array:
        """Inverse of the root times every row (n, d)."""
        rows = self.base.solve_root(rows)
        ahead = self._weighted(self._down(rows), (self.small, False), (self._shifted, True))
        return np.asarray(rows - self._up(ahead))

    def solve_transposed(self, rows: Array) -> Array:
        """Inverse of the transposed root times every row (n, d)."""
        ahead = self._weighted(self._down(rows), (self._shifted, False), (self.small, True))
        return self.base.solve_transposed(rows - self._up(ahead))

    # The inverse is inv(S) - Y'Y, with Y = inv(C) W^(1/2) A inv(S).

    def _solved(self) -> Array:
        """Y, (r, d); not kept, as it is as large as A."""
        columns = _solved_rows(self.base, self._rows)
        columns *= self.roots[:, None]
        step = max(1, _NUMBERS // max(1, len(columns)))
        for start in range(0, columns.shape[1], step):
            part = slice(start, start + step)
            columns[:, part] = linalg.solve_lower(self.small, columns[:, part])
        return columns

    @cached_property
    def inverse(self) -> Array:
        """Inverse on the structure, and in the squares of the rows of A, (nnz,)."""
        solved = self._solved()
        sparse = self.base.inverse - self._on_structure(solved, solved)
        del solved
        ahead = linalg.solve_lower(self.small, self.roots[:, None] * self.products)
        rows = self.products.diagonal() - np.square(ahead).sum(axis=0)
        return np.concatenate([sparse, rows])

    def _on_structure(self, left: Array, right: Array) -> Array:
        """Entries of left' right on the sparse structure, for matrices (r, d)."""
        base = self.structure.base
        if base.nnz == base.dim:
            return np.asarray(np.einsum("ri,ri->i", left, right))
        total, step = np.zeros(base.nnz), max(1, _NUMBERS // base.nnz)
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            total += np.einsum("ri,ri->i", left[part][:, base.rows], right[part][:, base.columns])
        return total

    def inverse_derivative(self, values: Array, direction: Array) -> Array:
        """Return the derivative of `inverse` as the matrix of values (nnz,) moves, (nnz,).

        Parts of the direction that are zero cost nothing.
        """
        base = self.structure.base
        (sparse, _), (way, weights) = map(self.structure.split, (values, direction))
        change, of_rows = np.zeros(base.nnz), np.zeros(len(weights))
        if weights.any():
            # A inv(P), and A inv(P) A'.
            rows, products = self._inverse_rows
            for part in _blocks(len(rows)):
                weighted = rows[part] * weights[part, None]
                change -= self._on_structure(weighted, rows[part])
            of_rows -= np.square(products) @ weights
        if way.any():
            solved = self._solved()
            change += inverse_derivative(base, sparse, way)
            for part in _blocks(len(solved)):
                own = solved[part]
                moved = np.array([base.product(way, row) for row in own])
                ahead = self.base.solve(moved) - (moved @ solved.T) @ solved / 2
                change += self._on_structure(ahead, own) + self._on_structure(own, ahead)
            rows, _ = self._inverse_rows
            of_rows -= np.array([row @ base.product(way, row) for row in rows])
        return np.concatenate([change, of_rows])

    @property
    def _inverse_rows(self) -> tuple[Array, Array]:
        """A inv(P), (r, d), and A inv(P) A', (r, r).

        They are kept by the factor that was asked last, and by no other on the same structure: the
        first is as large as A.
        """
        kept, reference = self._kept, self.structure.last_asked
        if kept is None:
            if reference is not None and (last := reference()) is not None:
                last._kept = None
            rows = _solved_rows(self, self._rows)
            self._kept = kept = rows, rows @ self._rows.T
            self.structure.last_asked = weakref.ref(self)
        return kept

    def divergence(self, other: Factor) -> float:
        """KL divergence of N(0, inv(P)) from N(0, inv(other)), in nats."""
        assert isinstance(other, LowRankFactor)
        change = other.values - self.values
        trace = float((self.structure.multiplicity * change) @ self.inverse)
        return max(0.0, (trace - (other.log_det - self.log_det)) / 2)

    values: Array


def _blocks(rows: int) -> Iterator[slice]:
    """Yield the rows that are handled together: copies of all of A would take its memory again."""
    yield from (slice(start, start + _AT_ONCE) for start in range(0, rows, _AT_ONCE))


def _solved_rows(factor: Factor, rows: Array) -> Array:
    """Inverse of a matrix times every row (r, d), a few rows at a time."""
    solved = np.empty_like(rows)
    for part in _blocks(len(rows)):
        solved[part] = factor.solve(rows[part])
    return solved


def factorise_low_rank(structure: LowRankStructure, values: Array) -> LowRankFactor | None:
    """Factorise a matrix of values (nnz,).

    None where its sparse part is not positive definite, or a weight is negative: then the sum may
    be positive definite all the same, but the family does not have it.
    """
    sparse, weights = structure.split(values)
    if not (np.all(weights >= 0) and np.isfinite(weights).all()):
        return None
    base = factorise(structure.base, sparse)
    if base is None:
        return None
    rows, roots = structure.factor, np.sqrt(weights)
    products = np.empty((len(rows), len(rows)))
    for part in _blocks(len(rows)):
        products[:, part] = rows @ base.solve(rows[part]).T
    products = linalg.symmetrise(products)
    small = linalg.cholesky(roots[:, None] * products * roots + np.eye(len(rows)))
    if small is None:
        return None
    factor = LowRankFactor(structure, base, roots, products, small)
    factor.values = values
    return factor
