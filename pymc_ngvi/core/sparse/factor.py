"""The factor of a sparse positive definite matrix, and what is computed with it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from pymc_ngvi.core.linalg import SMALLEST_RELATIVE_PIVOT, Array
from pymc_ngvi.core.sparse.structure import Integers, Structure
from pymc_ngvi.core.sparse.tail import inverted

# Vectors that are handled together: their components lie side by side, in a few cache lines.
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
    lower : array
        L below its diagonal.
    pivots : array, (d,)
        D, in the order of elimination.
    """

    def __init__(self, structure: Structure, lower: Array, pivots: Array) -> None:
        self.structure = structure
        self.lower = lower
        self.pivots = pivots

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
        from pymc_ngvi.core.sparse import kernels

        mode = ("plain", "transposed", "inverse", "inverse transposed").index(what)
        start, index, _, _ = self.structure.columns_of_factor
        order, ones = self.structure.order, np.ones(self.structure.dim)
        before, after = ones if before is None else before, ones if after is None else after
        rows = np.ascontiguousarray(rows, float)
        result = np.empty(rows.shape)
        for begin in range(0, len(rows), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            kernels.triangular(
                mode, start, index, self.lower, order, before, after, rows[part], result[part]
            )
        return result

    # The inverse.

    @cached_property
    def selected_inverse(self) -> tuple[Array, Array]:
        """Inverse on the pattern of the factor: below the diagonal, and on it."""
        from pymc_ngvi.core.sparse import kernels

        start, index, _, _ = self.structure.columns_of_factor
        tail, lower, pivots = self.structure.tail, self.lower, self.pivots
        below, diagonal = np.empty_like(lower), 1 / pivots
        if tail.size:
            tail.invert(tail.inverse(lower, pivots), lower, below, diagonal)
        kernels.selected_inverse(start, index, lower, pivots, below, diagonal, tail.head, tail.done)
        return below, diagonal

    @cached_property
    def inverse(self) -> Array:
        """Inverse on the structure, (nnz,)."""
        return _gather(self.structure, *self.selected_inverse)

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
        from pymc_ngvi.core.sparse import kernels

        start, index, _, _ = self.structure.columns_of_factor
        tail, change = self.structure.tail, other.lower - self.lower
        below, diagonal = self.selected_inverse
        spread = kernels.quadratic_forms(start, index, change, below, diagonal, tail.head)
        if tail.size:
            spread[tail.head :] = tail.quadratic_forms(change, tail.matrix(below, diagonal))
        excess = (other.pivots - self.pivots) / self.pivots
        return 0.5 * float((excess - np.log1p(excess) + other.pivots * spread).sum())


def factorise(structure: Structure, values: Array) -> Factor | None:
    """Factorise a matrix of values (nnz,); None where it is not positive definite."""
    diagonal = values[structure.diagonal][structure.order]
    if not (np.all(diagonal > 0) and np.isfinite(values).all()):
        return None
    rule = np.array([SMALLEST_RELATIVE_PIVOT, 0.0, 0.0, 0.0, 0.0])
    lower, pivots, stopped, _ = _factorise(structure, values, diagonal, rule)
    return Factor(structure, lower, pivots) if stopped < 0 else None


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
    _, _, stopped, raised = _factorise(structure, values, reference, rule)
    if stopped >= 0 or not np.isfinite(raised).all():
        return None
    result = values.copy()
    result[structure.diagonal] += raised[structure.inverse_order]
    return result


def inverse_derivative(structure: Structure, values: Array, direction: Array) -> Array:
    """Return the derivative of the inverse on the structure, (nnz,), as the matrix moves.

    It is exact: that of the factorisation and of the recursion for the inverse, by a step along the
    imaginary axis. The direction is scaled so that rounding does not depend on its units.
    """
    from pymc_ngvi.core.sparse import kernels

    root = np.sqrt(values[structure.diagonal])
    relative = np.abs(direction) / (root[structure.rows] * root[structure.columns])
    size = _TINY / max(float(relative.max()), np.finfo(float).tiny)
    moved = values + 1j * size * direction
    reference = values[structure.diagonal][structure.order]
    lower, pivots, _, _ = _eliminate(
        structure, moved, reference, np.array([-np.inf, 0.0, 0.0, 0.0, 0.0])
    )
    start, index, _, _ = structure.columns_of_factor
    below, diagonal, tail = np.empty_like(lower), 1 / pivots, structure.tail
    if tail.size:
        matrix = tail.matrix(lower, pivots)
        # Not as a complex matrix, in whose pivoting and norms the imaginary part would be lost.
        inverse = inverted(matrix.real)
        derivative = -inverse @ (matrix.imag / _TINY) @ inverse
        tail.invert(inverse + 1j * _TINY * derivative, lower, below, diagonal)
    kernels.selected_inverse(start, index, lower, pivots, below, diagonal, tail.head, tail.done)
    return _gather(structure, below.imag, diagonal.imag) / size


def _factorise(
    structure: Structure, values: Array, reference: Array, rule: Array
) -> tuple[Array, Array, int, Array]:
    from pymc_ngvi.core.sparse import kernels

    lower, pivots, stopped, raised = _eliminate(structure, values, reference, rule)
    tail = structure.tail
    if stopped >= 0 or not tail.size:
        return lower, pivots, stopped, raised
    if rule[1] == 0:
        done = tail.factorise(lower, pivots, rule[0] * reference[tail.head :])
        return lower, pivots, -1 if done else tail.head, raised
    start, index, _, _ = structure.columns_of_factor
    stopped, more = kernels.factorise(
        start, index, lower, pivots, reference, rule, tail.head, structure.dim
    )
    return lower, pivots, stopped, raised + more


def _eliminate(
    structure: Structure, values: Array, reference: Array, rule: Array
) -> tuple[Array, Array, int, Array]:
    """Factorise all columns but the tail, and subtract from it what they take away."""
    from pymc_ngvi.core.sparse import kernels

    start, index, which, place = structure.columns_of_factor
    lower = np.zeros(index.size, values.dtype)
    lower[place] = values[which]
    pivots = values[structure.diagonal][structure.order]
    tail = structure.tail
    stopped, raised = kernels.factorise(start, index, lower, pivots, reference, rule, 0, tail.head)
    if stopped < 0 and tail.size:
        kernels.reduce_tail(start, index, lower, pivots, tail.head, tail.done)
        tail.reduce(lower, pivots)
    return lower, pivots, stopped, raised


def _gather(structure: Structure, below: Array, diagonal: Array) -> Array:
    _, _, which, place = structure.columns_of_factor
    values = np.empty(structure.nnz)
    values[which] = below[place]
    values[structure.diagonal] = diagonal[structure.inverse_order]
    return values
