"""What the Student regression sums over rows and draws, compiled by Numba: two passes, not ten."""

from __future__ import annotations

import numba
import numpy as np

from examples.paper.common import Array

# Logarithms are taken of products of so many terms; they overflow from terms of 1e18 on.
_TERMS = 16


@numba.njit(cache=True, fastmath={"reassoc", "contract", "arcp"})
def sums_of_logs(residuals: Array, freedom: float) -> Array:
    r"""Sum :math:`\log(\nu + r^2)` over the rows of data, (n,), for residuals (n, M)."""
    n, length = residuals.shape
    block = length // _TERMS
    sums, product = np.empty(n), np.empty(block)
    for i in range(n):
        product[:] = 1.0
        for j in range(_TERMS):
            for m in range(block):
                product[m] *= freedom + residuals[i, j * block + m] ** 2
        total = 0.0
        for m in range(block):
            total += np.log(product[m])
        for m in range(_TERMS * block, length):
            total += np.log(freedom + residuals[i, m] ** 2)
        if not np.isfinite(total):
            total = np.log(freedom + residuals[i] ** 2).sum()
        sums[i] = total
    return sums


@numba.njit(cache=True, fastmath={"reassoc", "contract", "arcp"})
def weigh(residuals: Array, freedom: float) -> Array:
    r"""Replace residuals (n, M) by :math:`r/s`, and return the mean of :math:`1/s - 2(r/s)^2`.

    Here :math:`s = \nu + r^2`, and the mean, (M,), is over the n draws.
    """
    n, length = residuals.shape
    mean = np.zeros(length)
    for i in range(n):
        for m in range(length):
            inverse = 1 / (freedom + residuals[i, m] ** 2)
            score = residuals[i, m] * inverse
            residuals[i, m] = score
            mean[m] += inverse - 2 * score * score
    return mean / n
