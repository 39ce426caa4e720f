r"""Draws that are moved by Hamiltonian dynamics, which leave a target's distribution as it is.

Draws of a Gaussian q that is close to the target p need few steps. In its standard normal
coordinates z the dynamics of q itself are a rotation of (z, v), which is exact whatever its angle,
and only the rest of the force, :math:`\nabla_z (\log p - \log q)`, is applied in kicks between
rotations. Where p is q there are no kicks and every move is accepted, in any dimension; after a
quarter of a turn nothing is left of where a draw was. A move is accepted or rejected by its change
of energy (Metropolis), so that draws of p stay draws of p, and other draws come nearer to them with
each move.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Target

#: Angle of a move. Half a turn would lead to the opposite side, at the same distance.
_ANGLE = 2.0
#: The angle differs from move to move by this share of it, so that no direction comes round to
#: where it was in every one of them.
_JITTER = 0.2


def move(
    target: Target, q: Gaussian, draws: Array, rng: np.random.Generator, *, moves: int, steps: int
) -> Iterator[tuple[Array, float]]:
    """Move draws again and again, and yield them after each move.

    Parameters
    ----------
    target : Target
        One that holds all its data.
    q : Gaussian
        Close to the target; its coordinates are taken.
    draws : array, (n, d)
    rng : numpy.random.Generator
    moves : int
        How often.
    steps : int
        Kicks in each move, and so gradients of each draw.

    Yields
    ------
    draws : array, (n, d)
    accepted : float
        Share of the draws for which the move was accepted.
    """
    z = q.whiten(draws)
    log_p, force = _evaluate(target, q, z)
    for _ in range(moves):
        step = _ANGLE / steps * rng.uniform(1 - _JITTER, 1 + _JITTER)
        start = velocity = rng.standard_normal(z.shape)
        new, new_log_p, new_force = z, log_p, force
        # What runs away overflows, and is rejected.
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(steps):
                velocity = velocity + step / 2 * new_force
                new, velocity = (
                    np.cos(step) * new + np.sin(step) * velocity,
                    np.cos(step) * velocity - np.sin(step) * new,
                )
                new_log_p, new_force = _evaluate(target, q, new)
                velocity = velocity + step / 2 * new_force
            energy = np.square(velocity).sum(axis=1) - np.square(start).sum(axis=1)
            gain = new_log_p - log_p - energy / 2
        accepted = np.log(rng.uniform(size=len(z))) < gain  # not where it is NaN
        log_p = np.where(accepted, new_log_p, log_p)
        z = np.where(accepted[:, np.newaxis], new, z)
        force = np.where(accepted[:, np.newaxis], new_force, force)
        yield q.unwhiten(z), float(accepted.mean())


def _evaluate(target: Target, q: Gaussian, z: Array) -> tuple[Array, Array]:
    """Log p (n,), and the gradients (n, d) of log p - log q in the coordinates z (n, d) of q."""
    found = target.evaluate(q.unwhiten(z), "none")
    # A draw where either is not finite is on its way to be rejected.
    gradient = np.nan_to_num(found.gradient, nan=0.0, posinf=0.0, neginf=0.0)
    log_p = np.where(np.isfinite(found.log_density), found.log_density, -np.inf)
    return log_p, q.whiten_gradients(gradient) + z
