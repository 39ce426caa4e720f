"""A member evaluated on common draws: the step its estimate asks for, and the error of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.estimators import Estimate, Slope
from pymc_ngvi.core.families import Gaussian, Natural
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.engine.secants import Secants, residual
from pymc_ngvi.engine.settings import DEFAULTS, Settings


@dataclass(frozen=True)
class SquaredError:
    """Squared error, or squared distance, of a Gaussian, in units of the posterior.

    Attributes
    ----------
    mean : array, (d,)
        Of the means, in posterior variances.
    log_sd : array, (d,)
        Of the log standard deviations.
    nats : float
        Bregman distance.
    freedom : float
        Degrees of freedom with which each number was estimated.
    hubs : array of int, optional
        Components that are connected with many others, where they are known: what their noise is
        has little to do with that of the others.
    """

    mean: Array
    log_sd: Array
    nats: float
    freedom: float = np.inf
    hubs: NDArray[np.int64] | None = None

    def plus(self, other: SquaredError) -> SquaredError:
        """Squared error of the difference of two that are independent."""
        return SquaredError(
            self.mean + other.mean,
            self.log_sd + other.log_sd,
            self.nats + other.nats,
            freedom=min(self.freedom, other.freedom),
            hubs=self.hubs,
        )

    def averaged(self, other: SquaredError, share: float) -> SquaredError:
        """Squared error of `(1 - share) * self + share * other`, the two being independent."""
        return SquaredError(
            (1 - share) ** 2 * self.mean + share**2 * other.mean,
            (1 - share) ** 2 * self.log_sd + share**2 * other.log_sd,
            (1 - share) ** 2 * self.nats + share**2 * other.nats,
            freedom=other.freedom,
            hubs=self.hubs,
        )

    def excess(self, accuracy: float, settings: Settings = DEFAULTS) -> float:
        """Largest ratio of a squared error to the one allowed; at most 1 when converged.

        The standard error allowed is such that nine errors in ten are within the accuracy: the
        accuracy over a quantile of Student's t, as the error itself is an estimate. A few
        replicates say little about one component, and the largest of many such estimates is far
        too large, so each is shrunk towards their mean: that of the hubs, or of the others.
        """
        squares = np.array([self.mean, self.log_sd])
        kinds, dim = [squares], len(self.mean)
        if self.hubs is not None and 0 < len(self.hubs) < dim:
            kinds = [squares[:, self.hubs], np.delete(squares, self.hubs, axis=1)]
        worst = max(self._worst(kind, settings) for kind in kinds)
        return max(worst, self.nats / dim) / accuracy**2

    def _worst(self, squares: Array, settings: Settings) -> float:
        """Largest of squared errors (2, k), as the squared accuracy that would allow it."""
        shared = 0.0
        if np.isfinite(self.freedom):
            shared = min(settings.shared_freedom, self.freedom * (squares.shape[1] - 1))
        freedom = self.freedom + shared
        weight = shared / freedom
        shrunk = (1 - weight) * squares + weight * squares.mean(axis=1, keepdims=True)
        return float(shrunk.max()) * float(scipy.special.stdtrit(freedom, settings.confidence)) ** 2

    def largest_by_chance(self, components: int) -> float:
        """How much larger than of so many components the largest is of all, where all are equal.

        Of estimates with few degrees of freedom, the largest grows with their number.
        """
        if len(self.mean) <= components or not np.isfinite(self.freedom):
            return 1.0
        tails = 0.5 / np.array([len(self.mean), components])
        ours, theirs = scipy.special.chdtri(self.freedom, tails)
        return float(ours / theirs)


@dataclass(frozen=True)
class SplitError:
    """Squared error by where it comes from.

    Attributes
    ----------
    whole : SquaredError
        Of both together: their noise is that of the same draws.
    of_gradients, of_hessians : SquaredError
        From the noise of either.
    """

    whole: SquaredError
    of_gradients: SquaredError
    of_hessians: SquaredError

    def averaged(self, other: SplitError, shares: tuple[float, float]) -> SplitError:
        """Squared errors where an independent one has these shares of gradients and Hessians."""
        gradients = self.of_gradients.averaged(other.of_gradients, shares[0])
        hessians = self.of_hessians.averaged(other.of_hessians, shares[1])
        ours, theirs = (1 - shares[0]) * (1 - shares[1]), shares[0] * shares[1]

        def both(name: str) -> Any:
            mine, others = self._product(name), other._product(name)
            sum_ = getattr(gradients, name) + getattr(hessians, name) + ours * mine
            return np.maximum(sum_ + theirs * others, 0.0)

        whole = replace(
            gradients, mean=both("mean"), log_sd=both("log_sd"), nats=float(both("nats"))
        )
        return SplitError(whole, gradients, hessians)

    def _product(self, name: str) -> Any:
        """Twice the product of both errors, in one of the numbers of a squared error."""
        whole, gradients, hessians = self.whole, self.of_gradients, self.of_hessians
        return getattr(whole, name) - getattr(gradients, name) - getattr(hessians, name)


def squared_displacement(q: Gaussian, direction: Natural) -> SquaredError:
    """Squared distance by which a direction moves q; see :meth:`.Gaussian.displacement`."""
    return SquaredError(*q.displacement(direction), hubs=q.hubs())


def scatter(
    q: Gaussian, parts: Sequence[Estimate], share: float, share_of_hessians: float
) -> list[Natural]:
    """Return errors of the mean of independent estimates, times a share of each of their parts.

    Their squares, in any norm, add up to the squared standard error.
    """
    if len(parts) < 2:
        return []
    steps = [residual(q, part) for part in parts]
    first = np.mean([step.first for step in steps], axis=0)
    second = np.mean([step.second for step in steps], axis=0)
    scale = 1 / np.sqrt(len(parts) * (len(parts) - 1))
    return [
        Natural(
            share * scale * (step.first - first),
            share_of_hessians * scale * (step.second - second),
        )
        for step in steps
    ]


@dataclass(frozen=True)
class Evaluated:
    """A member of the family, evaluated on common draws.

    Attributes
    ----------
    q : Gaussian
    estimate : Estimate
        From all draws.
    noise : tuple of two sequences of Natural
        Errors of the step that the estimate asks for, by the noise of the gradients and by that of
        the Hessians; see :func:`scatter`.
    freedom : int
        Degrees of freedom of the errors.
    asked : SquaredError
        Squared length of the step that the estimate asks for.
    plain : Estimate
        The estimate before its gradient was preconditioned by the whole Hessian; `estimate` itself
        where it was not.
    parts : tuple of (sequence of Estimate, sequence of Slope)
        What each replicate gave.
    behind : Natural or None
        The part of the step that the Hessians ask for, where it is more than a new precision.
    """

    q: Gaussian
    estimate: Estimate
    noise: tuple[Sequence[Natural], Sequence[Natural]]
    freedom: int
    asked: SquaredError
    plain: Estimate
    parts: tuple[Sequence[Estimate], Sequence[Slope]] = ((), ())
    behind: Natural | None = None

    def ascends(self, other: Evaluated, rounding: float) -> bool:
        """Whether the ELBO is no lower than at another member, up to a relative rounding error."""
        allowance = rounding * (1 + abs(other.estimate.elbo))
        return self.estimate.elbo >= other.estimate.elbo - allowance

    def error_of_draws(self, secants: Secants) -> SquaredError:
        """Squared standard error of the solution on these draws, from the replicates' scatter."""
        sums = zip(*self.noise, strict=True)
        return self._propagated(secants, [g + h for g, h in sums])

    def error_of_parts(self, secants: Secants) -> SplitError:
        """Squared errors that the noise of the gradients makes, and that of the Hessians."""
        parts = (self._propagated(secants, [*errors]) for errors in self.noise)
        return SplitError(self.error_of_draws(secants), *parts)

    def asked_in_shares(self, of_gradients: float, of_hessians: float) -> Natural:
        """Shares of the step that the gradients ask for, and of the one that the Hessians do."""
        step = residual(self.q, self.estimate)
        behind = np.zeros_like(step.first) if self.behind is None else self.behind.first
        first = of_gradients * (step.first - behind) + of_hessians * behind
        return Natural(first, of_hessians * step.second)

    def _propagated(self, secants: Secants, errors: list[Natural]) -> SquaredError:
        moves = [squared_displacement(self.q, way) for way in secants.solve(self.q, errors)]
        return SquaredError(
            np.sum([move.mean for move in moves], axis=0),
            np.sum([move.log_sd for move in moves], axis=0),
            sum(move.nats for move in moves),
            freedom=self.freedom,
            hubs=self.q.hubs(),
        )

    def distance(self, secants: Secants) -> SquaredError:
        """Squared distance from this member to the solution on these draws."""
        (way,) = secants.solve(self.q, [residual(self.q, self.estimate)])
        return squared_displacement(self.q, way)
