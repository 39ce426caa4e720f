"""Unit vectors, and the four triangular operations the dense family rests on.

The latter call LAPACK directly: SciPy's wrappers spend more time on checks than LAPACK on a small
matrix. A failed factorisation is an ordinary outcome here, so it returns None instead of raising.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# A pivot this small relative to its diagonal entry is rounding error: its reciprocal would be a
# meaningless variance.
SMALLEST_RELATIVE_PIVOT = 8 * np.finfo(float).eps


def units(dim: int, components: ArrayLike) -> Array:
    """Return the unit vectors (k, d) of some components, without those of all the others."""
    which = np.atleast_1d(np.asarray(components, np.int64))
    vectors = np.zeros((which.size, dim))
    vectors[np.arange(which.size), which] = 1.0
    return vectors


def cholesky(matrix: Array) -> Array | None:
    """Lower factor L with L L' = matrix, or None where the matrix is not positive definite."""
    factor, info = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1)
    if info != 0:
        return None
    pivots = np.square(factor.diagonal())
    # Written so that NaN fails it too.
    if not np.all(pivots > SMALLEST_RELATIVE_PIVOT * matrix.diagonal()) or np.isinf(pivots).any():
        return None
    return np.asarray(factor)


def solve_lower(factor: Array, right: Array, *, transpose: bool = False) -> Array:
    """Solve L x = b, or L' x = b with `transpose`, for one or several right-hand sides (d, k)."""
    solution, _ = scipy.linalg.lapack.dtrtrs(factor, right, lower=1, trans=int(transpose))
    return np.asarray(solution)


def inverse_lower(factor: Array) -> Array:
    """Inverse of a lower triangular matrix, itself lower triangular."""
    inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1)
    return np.asarray(inverse)


def lower_factor_of_gram(root: Array) -> Array:
    """Lower factor L with L L' = R' R for a square R, by QR, never forming the product.

    Forming R' R would square the condition number; the factor found here is as accurate as R.
    """
    workspace, _ = scipy.linalg.lapack.dgeqrf_lwork(*root.shape)  # LAPACK's minimum is slow
    packed, _, _, _ = scipy.linalg.lapack.dgeqrf(root, lwork=int(workspace))
    upper = np.triu(packed)
    signs = np.where(upper.diagonal() < 0, -1.0, 1.0)
    return np.asfortranarray((signs[:, None] * upper).T)


def symmetrise(matrix: Array) -> Array:
    """Return (M + M') / 2."""
    return (matrix + matrix.T) / 2
