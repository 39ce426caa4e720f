"""Interpolation between nodes, as weights of the values there."""

from __future__ import annotations

import numpy as np

from pymc_ngvi.core.linalg import Array


def interpolation(nodes: Array, t: Array) -> Array:
    """Weights (n, g) by which values at nodes (g,) are interpolated at points t (n,).

    The weights are those of cubic pieces whose slopes at the nodes are differences of neighbours.
    Beyond the nodes the line goes on straight, for half of their range, and then is level.
    """
    reach = (nodes[-1] - nodes[0]) / 2
    beyond = np.clip(t, nodes[0] - reach, nodes[-1] + reach)
    t = np.clip(t, nodes[0], nodes[-1])
    beyond = beyond - t
    steps = np.diff(nodes)
    left = np.clip(np.searchsorted(nodes, t, side="right") - 1, 0, steps.size - 1)
    step = steps[left]
    s, rows = (t - nodes[left]) / step, np.arange(t.size)
    slopes = _slopes(nodes)
    weights = (s * (1 - s) ** 2 * step)[:, np.newaxis] * slopes[left]
    weights -= (s**2 * (1 - s) * step)[:, np.newaxis] * slopes[left + 1]
    weights[rows, left] += (1 + 2 * s) * (1 - s) ** 2
    weights[rows, left + 1] += s**2 * (3 - 2 * s)
    weights += beyond[:, np.newaxis] * slopes[np.where(beyond < 0, 0, -1)]
    return np.asarray(weights)


def _slopes(nodes: Array) -> Array:
    """Matrix (g, g) that turns values at the nodes into slopes there, exact for parabolas."""
    steps = np.diff(nodes)
    ahead = (np.eye(nodes.size)[1:] - np.eye(nodes.size)[:-1]) / steps[:, np.newaxis]
    slopes = np.empty((nodes.size, nodes.size))
    slopes[0], slopes[-1] = ahead[0], ahead[-1]
    share = (steps[1:] / (steps[:-1] + steps[1:]))[:, np.newaxis]
    slopes[1:-1] = share * ahead[:-1] + (1 - share) * ahead[1:]
    return slopes


def refined(nodes: Array, pieces: int) -> Array:
    """Nodes with so many pieces between two neighbours."""
    places = np.arange(pieces * (nodes.size - 1) + 1) / pieces
    return np.interp(places, np.arange(nodes.size), nodes)
