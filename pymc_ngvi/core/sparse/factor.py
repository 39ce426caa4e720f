"""The factor of a sparse positive definite matrix, and what is computed with it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import SMALLEST_RELATIVE_PIVOT, Array
from pymc_ngvi.core.sparse.elimination import Elimination, Integers, Triangle
from pymc_ngvi.core.sparse.structure import Structure
from pymc_ngvi.core.sparse.tail import inverted

# Columns of an inverse that are found together.
_AT_ONCE = 32
# Imaginary part of a derivative: no product of two of them is seen beside a real part.
_TINY = 1e-30


class Factor:
    r"""Factor of a sparse matrix on a structure, :math:`P = R R'`, :math:`R = \Pi' L D^{1/2} \Pi`.

    L is lower triangular with a unit diagonal in the order of elimination, which :math:`\Pi` brings
    about. All vectors are in the order of the structure's rows.

    Build it with :func:`factorise`.

    Attributes
    ----------
    structure : Structure
    entries : array
        L below its diagonal, in the order of elimination, and then D.
    pivots : array, (d,)
        D.
    """

    def __init__(self, structure: Structure, entries: Array) -> None:
        self.structure = structure
        self.entries = entries
        self._lower, self.pivots = structure.elimination.split(entries)

    @cached_property
    def log_det(self) -> float:
        """Log-determinant of the matrix."""
        return float(np.log(self.pivots).sum())

    @cached_property
    def _roots(self) -> Array:
        return np.sqrt(self.pivots)

    def solve(self, vector: Array) -> Array:
        """Inverse of the matrix times a vector (d,), or times every row of an array (n, d)."""
        half = self._apply("inverse", np.atleast_2d(vector), after=1 / self.pivots)
        return self._apply("inverse transposed", half).reshape(vector.shape)

    def multiply(self, rows: Array) -> Array:
        """R times every row (n, d)."""
        return self._apply("plain", rows, before=self._roots)

    def multiply_transposed(self, rows: Array) -> Array:
        """R' times every row (n, d)."""
        return self._apply("transposed", rows, after=self._roots)

    def solve_root(self, rows: Array) -> Array:
        """Inverse of R times every row (n, d)."""
        return self._apply("inverse", rows, after=1 / self._roots)

    def solve_transposed(self, rows: Array) -> Array:
        """Inverse of R' times every row (n, d): draws, where the rows are standard normal."""
        return self._apply("inverse transposed", rows, before=1 / self._roots)

    def _apply(
        self, what: str, rows: Array, before: Array | None = None, after: Array | None = None
    ) -> Array:
        """Apply L, scaling the components before or after, in the order of elimination."""
        triangle = self._triangle
        rows = np.ascontiguousarray(rows, float)
        result = np.empty(rows.shape)
        for begin in range(0, len(rows), triangle.at_once):
            part = slice(begin, begin + triangle.at_once)
            triangle.apply(what, rows[part], result[part], before, after)
        return result

    @cached_property
    def _triangle(self) -> Triangle:
        return self.structure.elimination.triangle(self.entries)

    # The inverse.

    @cached_property
    def selected_inverse(self) -> Array:
        """Inverse on the pattern of the factor, below the diagonal and then on it."""
        elimination = self.structure.elimination
        tail = elimination.tail
        inner = tail.inverse(self._lower, self.pivots) if tail.size else None
        return _inverted(elimination, self.entries, inner)

    @cached_property
    def inverse(self) -> Array:
        """Inverse on the structure, (nnz,)."""
        return _gather(self.structure, self.selected_inverse)

    def inverse_at(self, first: Integers, second: Integers) -> Array:
        """Inverse at pairs of components, each (k,): one solve for each different second one."""
        wanted, which = np.unique(second, return_inverse=True)
        found = np.empty(len(first))
        for begin in range(0, wanted.size, _AT_ONCE):
            units = np.zeros((min(_AT_ONCE, wanted.size - begin), self.structure.dim))
            units[np.arange(len(units)), wanted[begin : begin + _AT_ONCE]] = 1.0
            columns = self.solve(units)
            here = (which >= begin) & (which < begin + _AT_ONCE)
            found[here] = columns[which[here] - begin, np.asarray(first)[here]]
        return found

    def divergence(self, other: Factor) -> float:
        r"""KL divergence of N(0, inv(P)) from N(0, inv(other)), in nats.

        Component by component, given those after it in the order of elimination:

        .. math:: \tfrac12 \sum_j r_j - 1 - \log r_j + D'_j\,
            \mathrm{Var}\bigl((L' - L)_{\cdot j}\cdot x\bigr), \quad r_j = D'_j / D_j

        All terms are at least 0, so that nothing cancels.
        """
        elimination, inverse = self.structure.elimination, self.selected_inverse
        tail, change = elimination.tail, other._lower - self._lower
        spread = elimination.quadratic_forms(change, inverse)
        if tail.size:
            tail.quadratic_forms(change, tail.matrix(*elimination.split(inverse)), spread)
        excess = (other.pivots - self.pivots) / self.pivots
        return 0.5 * float((excess - np.log1p(excess) + other.pivots * spread).sum())


def factorise(structure: Structure, values: Array) -> Factor | None:
    """Factorise a matrix of values (nnz,); None where it is not positive definite."""
    diagonal = values[structure.diagonal][structure.order]
    if not (np.all(diagonal > 0) and np.isfinite(values).all()):
        return None
    rule = np.array([SMALLEST_RELATIVE_PIVOT, 0.0, 0.0, 0.0, 0.0])
    entries, stopped, _ = _factorise(structure, values, diagonal, rule)
    return Factor(structure, entries) if stopped < 0 else None


def raised_diagonal(
    structure: Structure,
    values: Array,
    reference: Array,
    *,
    margin: float,
    least: float,
    growth: float = 0.0,
    shift: float = 0.0,
) -> Array | None:
    r"""Raise the diagonal of a symmetric matrix just where its factorisation finds it too small.

    A pivot b that does not exceed `margin` times its reference r becomes

    .. math:: \max(a r + c\, b^2 / r, |b + s| - s)

    with a = `least`, c = `growth` and s = `shift`, or more where the column below it is so large
    that the later pivots would suffer.

    Parameters
    ----------
    structure : Structure
    values : array, (nnz,)
    reference : array, (d,)
        Sizes to measure pivots by, positive, in the order of elimination.
    margin, least, growth, shift : float

    Returns
    -------
    array, (nnz,), or None
        The matrix with the raised diagonal; None where it overflows.
    """
    rule = np.array([margin, 1.0, least, growth, shift])
    _, stopped, raised = _factorise(structure, values, reference, rule)
    if stopped >= 0 or not np.isfinite(raised).all():
        return None
    result = values.copy()
    result[structure.diagonal] += raised[structure.elimination.inverse_order]
    return result


def inverse_derivative(structure: Structure, values: Array, direction: Array) -> Array:
    """Return the derivative of the inverse on the structure, (nnz,), as the matrix moves.

    It is exact: that of the factorisation and of the recursion for the inverse, by a step along the
    imaginary axis. The direction is scaled so that rounding does not depend on its units.
    """
    elimination = structure.elimination
    root = np.sqrt(values[structure.diagonal])
    relative = np.abs(direction) / (root[structure.rows] * root[structure.columns])
    size = _TINY / max(float(relative.max()), np.finfo(float).tiny)
    moved = values + 1j * size * direction
    reference = values[structure.diagonal][structure.order]
    # No pivot is too small, and none is raised.
    rule, raised = np.array([-np.inf, 0.0, 0.0, 0.0, 0.0]), np.zeros(structure.dim)
    entries, _ = _eliminate(structure, moved, reference, rule, raised)
    tail = elimination.tail
    inner: NDArray[np.complex128] | None = None
    if tail.size:
        matrix = tail.matrix(*elimination.split(entries))
        # Not as a complex matrix, in whose pivoting and norms the imaginary part would be lost.
        inverse = inverted(matrix.real)
        derivative = -inverse @ (matrix.imag / _TINY) @ inverse
        inner = inverse + 1j * _TINY * derivative
    return _gather(structure, _inverted(elimination, entries, inner).imag) / size


def _factorise(
    structure: Structure, values: Array, reference: Array, rule: Array
) -> tuple[Array, int, Array]:
    """Factorise a matrix of values (nnz,): the entries, where it stopped, and what was raised."""
    elimination, raised = structure.elimination, np.zeros(structure.dim)
    entries, stopped = _eliminate(structure, values, reference, rule, raised)
    if stopped < 0 and elimination.tail.size:
        stopped = elimination.tail.factorise(*elimination.split(entries), reference, rule, raised)
    return entries, stopped, raised


def _eliminate(
    structure: Structure, values: Array, reference: Array, rule: Array, raised: Array
) -> tuple[Array, int]:
    """Factorise all columns but the tail, and subtract from it what they take away."""
    elimination = structure.elimination
    _, index, which, place = elimination.pattern
    entries = np.zeros(index.size + structure.dim, values.dtype)
    entries[place] = values[which]
    entries[index.size :] = values[structure.diagonal][structure.order]
    stopped = elimination.factorise(entries, reference, rule, raised)
    if stopped < 0:
        elimination.tail.reduce(*elimination.split(entries))
    return entries, stopped


def _inverted(elimination: Elimination, entries: Array, inner: NDArray[Any] | None) -> Array:
    """Return the inverse on the pattern of the factor, by that (m, m) of the tail."""
    lower, pivots = elimination.split(entries)
    inverse = np.empty_like(entries)
    below, diagonal = elimination.split(inverse)
    diagonal[:] = 1 / pivots
    if inner is not None:
        elimination.tail.invert(inner, lower, below, diagonal)
    elimination.invert(entries, inverse)
    return inverse


def _gather(structure: Structure, inverse: Array) -> Array:
    elimination = structure.elimination
    below, diagonal = elimination.split(inverse)
    values = np.empty(structure.nnz)
    values[elimination.pattern.which] = below[elimination.pattern.place]
    values[structure.diagonal] = diagonal[elimination.inverse_order]
    return values
