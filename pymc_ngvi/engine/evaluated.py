"""A member evaluated on common draws: the step its estimate asks for, and the error of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

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
    """

    mean: Array
    log_sd: Array
    nats: float
    freedom: float = np.inf

    def plus(self, other: SquaredError) -> SquaredError:
        """Squared error of the difference of two that are independent."""
        return SquaredError(
            self.mean + other.mean,
            self.log_sd + other.log_sd,
            self.nats + other.nats,
            freedom=min(self.freedom, other.freedom),
        )

    def averaged(self, other: SquaredError, share: float) -> SquaredError:
        """Squared error of `(1 - share) * self + share * other`, the two being independent."""
        return SquaredError(
            (1 - share) ** 2 * self.mean + share**2 * other.mean,
            (1 - share) ** 2 * self.log_sd + share**2 * other.log_sd,
            (1 - share) ** 2 * self.nats + share**2 * other.nats,
            freedom=other.freedom,
        )

    def excess(self, accuracy: float, settings: Settings = DEFAULTS) -> float:
        """Largest ratio of a squared error to the one allowed; at most 1 when converged.

        The standard error allowed is such that nine errors in ten are within the accuracy: the
        accuracy over a quantile of Student's t, as the error itself is an estimate. A few
        replicates say little about one component, and the largest of many such estimates is far
        too large, so each is shrunk towards their mean.
        """
        dim = len(self.mean)
        shared = (
            min(settings.shared_freedom, self.freedom * (dim - 1))
            if np.isfinite(self.freedom)
            else 0
        )
        freedom = self.freedom + shared
        weight = shared / freedom
        allowed = (accuracy / float(scipy.special.stdtrit(freedom, settings.confidence))) ** 2
        worst = max(
            float(((1 - weight) * squares + weight * squares.mean()).max())
            for squares in (self.mean, self.log_sd)
        )
        return max(worst / allowed, self.nats / (accuracy**2 * dim))


def squared_displacement(q: Gaussian, direction: Natural) -> SquaredError:
    """Squared distance by which a direction moves q; see :meth:`.Gaussian.displacement`."""
    return SquaredError(*q.displacement(direction))


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
    """

    q: Gaussian
    estimate: Estimate
    noise: tuple[Sequence[Natural], Sequence[Natural]]
    freedom: int
    asked: SquaredError
    plain: Estimate
    parts: tuple[Sequence[Estimate], Sequence[Slope]] = ((), ())

    def ascends(self, other: Evaluated, rounding: float) -> bool:
        """Whether the ELBO is no lower than at another member, up to a relative rounding error."""
        allowance = rounding * (1 + abs(other.estimate.elbo))
        return self.estimate.elbo >= other.estimate.elbo - allowance

    def error_of_draws(self, secants: Secants) -> SquaredError:
        """Squared standard error of the solution on these draws, from the replicates' scatter."""
        sums = zip(*self.noise, strict=True)
        return self._propagated(secants, [g + h for g, h in sums])

    def error_of_parts(self, secants: Secants) -> tuple[SquaredError, SquaredError]:
        """Squared errors that the noise of the gradients makes, and that of the Hessians."""
        of_gradients, of_hessians = self.noise
        return self._propagated(secants, [*of_gradients]), self._propagated(secants, [*of_hessians])

    def _propagated(self, secants: Secants, errors: list[Natural]) -> SquaredError:
        moves = [squared_displacement(self.q, way) for way in secants.solve(self.q, errors)]
        return SquaredError(
            np.sum([move.mean for move in moves], axis=0),
            np.sum([move.log_sd for move in moves], axis=0),
            sum(move.nats for move in moves),
            freedom=self.freedom,
        )

    def distance(self, secants: Secants) -> SquaredError:
        """Squared distance from this member to the solution on these draws."""
        (way,) = secants.solve(self.q, [residual(self.q, self.estimate)])
        return squared_displacement(self.q, way)
