r"""Secants: what past natural-gradient steps on common draws show about where they lead.

With common draws a step of size 1 is a fixed-point iteration :math:`\theta \to \theta + r(\theta)`.
It closes in on the solution by a constant factor: a few hundredths where the posterior is nearly
Gaussian, but close to 1 in a funnel. Where the factor is close to 1, what is left to go is many
times the next step, and so is the error that the noise of the residual makes in the solution. Both
follow from how past residuals changed with the parameter: for a change :math:`\Delta\theta` that
was seen to change the residual by :math:`\Delta r`, the way to remove a residual of
:math:`-\Delta r` is :math:`\Delta\theta`.

Applied to the residual itself this is Anderson acceleration.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian, Natural
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.engine.settings import DEFAULTS, Settings
from pymc_ngvi.errors import DomainError


def residual(q: Gaussian, estimate: Estimate) -> Natural:
    """Step in natural parameters that an estimate asks for, seen from the mean of q."""
    first = estimate.gradient if q.has_mean else np.empty(0)
    return Natural(first, (estimate.hessian + q.precision) / 2)


class Secants:
    """The last few steps between members evaluated on common draws.

    A natural parameter is a quadratic function of x. It is kept with the point it is centred at,
    and recentred at the mean of the member it is used for, so that nothing large cancels.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self._smallest_eigenvalue = settings.smallest_eigenvalue
        self._pairs: deque[tuple[Array, Natural, Natural]] = deque(maxlen=settings.n_secants)

    def add(self, before: tuple[Gaussian, Estimate], after: tuple[Gaussian, Estimate]) -> None:
        """Remember a step: two members, each with the estimate at it."""
        (old, old_estimate), (new, new_estimate) = before, after
        shift = old.mean - new.mean
        zero = np.zeros(new.dim if new.has_mean else 0)
        was = _recentred(new, Natural(zero, -old.precision / 2), shift)
        change = Natural(zero, -new.precision / 2) - was
        response = residual(new, new_estimate) - _recentred(new, residual(old, old_estimate), shift)
        self._pairs.append((new.mean, change, response))

    def clear(self) -> None:
        """Forget all steps."""
        self._pairs.clear()

    def solve(self, q: Gaussian, directions: list[Natural]) -> list[Natural]:
        """Extend each direction, the first step from q, to the whole way to the solution.

        Parameters
        ----------
        q : Gaussian
        directions : list of Natural
            Residuals, or errors of one, seen from the mean of q.
        """
        if not self._pairs:
            return directions
        changes, responses = [], []
        for mean, change, response in self._pairs:
            changes.append(_recentred(q, change, mean - q.mean))
            responses.append(_recentred(q, response, mean - q.mean))
        moved = [q.dual(response) for response in responses]
        gram = np.array([[response.inner(other) for other in moved] for response in responses])
        scale = np.sqrt(np.maximum(gram.diagonal(), np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        kept = values > self._smallest_eigenvalue * values[-1]
        values, vectors = values[kept], vectors[:, kept]
        ways = []
        for direction in directions:
            products = np.array([direction.inner(other) for other in moved]) / scale
            weights = (vectors @ ((vectors.T @ products) / values)) / scale
            first, second = direction.first, direction.second
            for weight, change, response in zip(weights, changes, responses, strict=True):
                first = first - weight * (change.first + response.first)
                second = second - weight * (change.second + response.second)
            ways.append(Natural(first, second))
        return ways

    def __len__(self) -> int:
        return len(self._pairs)

    def extrapolate(self, q: Gaussian, estimate: Estimate) -> Gaussian | None:
        """Go to where the steps lead; None where the family has no member."""
        return self.follow(q, residual(q, estimate))

    def follow(self, q: Gaussian, direction: Natural) -> Gaussian | None:
        """Go to where a first step leads in the end; None where the family has no member."""
        (way,) = self.solve(q, [direction])
        try:
            member = type(q).from_natural(Natural(way.first, way.second - q.precision / 2))
        except (DomainError, ValueError):
            return None
        return member.with_mean(member.mean + q.mean) if q.has_mean else member


def _recentred(q: Gaussian, natural: Natural, shift: Array) -> Natural:
    """See a quadratic function from another point; `shift` leads from there to the old one."""
    if not q.has_mean:
        return natural
    product = q.product(natural.second, shift)
    return Natural(natural.first - 2 * product, natural.second)
