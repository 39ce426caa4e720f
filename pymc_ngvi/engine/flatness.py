"""Directions along which a log density has no curvature, so that the posterior may be improper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array, symmetrise
from pymc_ngvi.engine.evaluated import Evaluated

#: Products with the Hessian, at most, from which the lowest curvature is found.
_MOST_PRODUCTS = 100
_ROUNDING = 1e-10


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
    q, hessian = here.q, here.estimate.hessian
    if q.factorised:
        curvature = -hessian * q.variance
        lowest, share = float(curvature.min()), (curvature == curvature.min()).astype(float)
    else:
        lowest, direction = _lowest(q, hessian)
        share = np.abs(direction) / np.sqrt(q.variance)
    if not lowest < least_curvature:
        return None
    components = tuple(int(i) for i in np.argsort(-share) if share[i] > share.max() / 2)
    return FlatDirection(components)


def _lowest(q: Gaussian, hessian: Array) -> tuple[float, Array]:
    """Lowest curvature of the target relative to q, and the direction (d,) that has it."""

    def relative(z: Array) -> Array:
        """Minus the Hessian, between whitened points."""
        direction = q.unwhiten(z.reshape(1, -1))[0] - q.mean
        moved = q.mean - q.solve(q.product(hessian, direction))
        return np.asarray(q.whiten(moved[np.newaxis])[0])

    # Lanczos' method: the extreme eigenvalues of a large matrix show in a small space.
    basis = [np.random.default_rng(0).standard_normal(q.dim)]  # the same every time
    basis[0] /= np.linalg.norm(basis[0])
    images = [relative(basis[0])]
    while len(basis) < min(q.dim, _MOST_PRODUCTS):
        known = np.array(basis)
        new = images[-1] - known.T @ (known @ images[-1])
        new -= known.T @ (known @ new)  # once more, against rounding
        size = np.linalg.norm(new)
        if not size > _ROUNDING * np.linalg.norm(images[-1]):
            break  # the space holds all that the start has to do with
        basis.append(new / size)
        images.append(relative(basis[-1]))
    known = np.array(basis)
    values, vectors = np.linalg.eigh(symmetrise(known @ np.array(images).T))
    return float(values[0]), q.unwhiten((vectors[:, 0] @ known)[np.newaxis])[0] - q.mean
