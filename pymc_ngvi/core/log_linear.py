r"""Densities on the line whose logarithm is linear between nodes, with exponential tails.

Such a density can follow any log density that is known at points, and has its normalising constant,
its quantiles and its values in closed form.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array

#: Differences of log densities below this are taken for none.
_EVEN = 1e-6


class LogLinear:
    r"""Densities :math:`\propto e^{v(x)}`, with v linear between nodes and beyond them.

    Parameters
    ----------
    nodes : array, (k,)
        Increasing.
    values : array, (n, k) or (1, k)
        Values of v at the nodes, a row for each of n densities, or one row for all.
    steepest : float
        Slope of v, up to its sign, that tails have at least: without it a density whose values do
        not fall towards the ends could not be normalised.
    """

    def __init__(self, nodes: Array, values: Array, steepest: float) -> None:
        self.nodes, self.values = nodes, values
        self._rise = np.diff(values, axis=1)
        steps = np.diff(nodes)
        self._left = np.maximum(self._rise[:, 0] / steps[0], steepest)
        self._right = np.maximum(-self._rise[:, -1] / steps[-1], steepest)
        top = values.max(axis=1, keepdims=True)
        middle = (values[:, :-1] + values[:, 1:]) / 2 - top
        parts = [
            np.exp(values[:, :1] - top) / self._left[:, np.newaxis],
            np.exp(middle + _log_sinch(self._rise / 2)) * steps,
            np.exp(values[:, -1:] - top) / self._right[:, np.newaxis],
        ]
        masses = np.concatenate(parts, axis=1)
        total = masses.sum(axis=1, keepdims=True)
        self._masses = masses / total
        self._below = np.cumsum(self._masses, axis=1)
        #: Logarithms (n,) of the integrals of exp(v).
        self.log_integral: Array = (top + np.log(total))[:, 0]

    def quantile(self, z: Array) -> Array:
        """Map standard normal numbers (n,) to draws (n,), by their quantiles."""
        below, above = scipy.special.ndtr(z), scipy.special.ndtr(-z)
        rows, count = self._row_of(z), self.nodes.size - 1
        # 0 is the left tail, 1 the first piece between nodes, and `count` + 1 the right tail.
        piece = (self._below[:, :-1] < below[:, np.newaxis]).sum(axis=1)
        inner = np.clip(piece - 1, 0, count - 1)
        masses, rise = self._masses[rows, inner + 1], self._rise[rows, inner]
        share = (below - self._below[rows, inner]) / np.where(masses > 0, masses, 1.0)
        share = np.clip(share, 0.0, 1.0)
        even = np.abs(rise) < _EVEN
        safe = np.where(even, 1.0, rise)
        along = np.where(even, share, np.log1p(share * np.expm1(safe)) / safe)
        found = self.nodes[inner] + along * np.diff(self.nodes)[inner]
        with np.errstate(divide="ignore"):
            left = self.nodes[0] + np.log(below / self._masses[rows, 0]) / self._left[rows]
            right = self.nodes[-1] - np.log(above / self._masses[rows, -1]) / self._right[rows]
        found = np.where(piece == count + 1, right, found)
        return np.asarray(np.where(piece == 0, left, found))

    def log_density(self, x: Array) -> Array:
        """Log density (n,) at points (n,), each under the density of its row."""
        rows = self._row_of(x)
        inner = np.clip(np.searchsorted(self.nodes, x) - 1, 0, self.nodes.size - 2)
        share = (x - self.nodes[inner]) / np.diff(self.nodes)[inner]
        value = self.values[rows, inner] + share * self._rise[rows, inner]
        left = self.values[rows, 0] + self._left[rows] * (x - self.nodes[0])
        right = self.values[rows, -1] - self._right[rows] * (x - self.nodes[-1])
        value = np.where(x < self.nodes[0], left, np.where(x > self.nodes[-1], right, value))
        return np.asarray(value - self.log_integral[rows])

    def _row_of(self, x: Array) -> NDArray[np.intp]:
        single = len(self.values) == 1
        return np.zeros(len(x), np.intp) if single else np.arange(len(x))


def _log_sinch(x: Array) -> Array:
    """Logarithm of sinh(x) / x, an even function that is 0 at 0."""
    size = np.abs(x)
    large = np.maximum(size, 0.1)
    exact = large + np.log1p(-np.exp(-2 * large)) - np.log(2 * large)
    return np.where(size < 0.1, size**2 / 6 - size**4 / 180, exact)
