"""Directions along which a log density has no curvature, so that the posterior may be improper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_ngvi.engine.evaluated import Evaluated


@dataclass(frozen=True)
class FlatDirection:
    """A direction in which a Gaussian asks for ever more variance.

    Attributes
    ----------
    components : tuple of int
        The components that move most along it, against their own standard deviations.
    """

    components: tuple[int, ...]


def find_flat_direction(here: Evaluated, least_curvature: float) -> FlatDirection | None:
    """Return the direction in which the target has no curvature on the scale of the member.

    Parameters
    ----------
    here : Evaluated
    least_curvature : float
        Curvature of the target, relative to that of the member, below which it is flat. It is 1 at
        the optimum.
    """
    q = here.q
    direction = q.flat_direction(here.estimate.hessian, least_curvature)
    if direction is None:
        return None
    share = np.abs(direction) / np.sqrt(q.variance)
    components = tuple(int(i) for i in np.argsort(-share) if share[i] > share.max() / 2)
    return FlatDirection(components)
