"""The precision on a structure that has given covariances there: covariance selection.

Of all Gaussians with these covariances it is the one of largest entropy (Dempster 1972).
"""

from __future__ import annotations

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.factor import factorise, inverse_derivative
from pymc_ngvi.core.sparse.structure import Structure

_MOST_STEPS = 100
# Relative error of the covariances that is left to rounding.
_TOLERANCE = 1e-13


def complete(structure: Structure, covariance: Array) -> Array | None:
    r"""Precision (nnz,) whose inverse has these values (nnz,) on the structure.

    Newton's method for the convex problem

    .. math:: \min_P \mathrm{tr}(P S) - \log\det P

    over the precisions on the structure, from the diagonal one. For theory and tests: a fit never
    goes from covariances to precisions.

    Returns
    -------
    array, (nnz,), or None
        None where no positive definite matrix has these entries.
    """
    variance = covariance[structure.diagonal]
    if not np.all(variance > 0):
        return None
    scale = np.sqrt(variance[structure.rows] * variance[structure.columns])
    correlation, twice = covariance / scale, structure.multiplicity
    precision = np.zeros(structure.nnz)
    precision[structure.diagonal] = 1.0
    factor = factorise(structure, precision)
    for _ in range(_MOST_STEPS):
        assert factor is not None
        gap = factor.inverse - correlation
        if np.abs(gap).max() < _TOLERANCE * max(1.0, np.abs(factor.inverse).max()):
            break
        way = _newton(structure, precision, gap)
        decrement, size = float((twice * gap * way).sum()), 1.0
        if decrement < 0 and np.abs(gap).max() > 1e-6:
            return None  # near a singular matrix rounding points anywhere
        loss = float((twice * precision * correlation).sum()) - factor.log_det
        while True:
            ahead = precision + size * way
            factor = factorise(structure, ahead)
            if factor is not None:
                value = float((twice * ahead * correlation).sum()) - factor.log_det
                if decrement < 1e-8 or value <= loss - 1e-4 * size * decrement:
                    break
            size /= 2
            if size < 1e-12:
                return None
        precision = ahead
        if decrement < 1e-24:
            break
    else:
        return None
    return precision / scale


def _newton(structure: Structure, precision: Array, gap: Array) -> Array:
    """Solve for the change of the precision that removes the gap, by conjugate gradients."""
    root = np.sqrt(structure.multiplicity)  # off the diagonal, a value stands for two entries

    def information(direction: Array) -> Array:
        return -root * inverse_derivative(structure, precision, direction / root)

    n = structure.nnz
    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=information, dtype=float)
    way, _ = scipy.sparse.linalg.cg(operator, root * gap, rtol=1e-10, maxiter=4 * n + 20)
    return np.asarray(way / root)
