"""A member evaluated on common draws, and what that tells: where to go, and the noise of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian, Natural
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.engine.secants import Secants, residual

# Degrees of freedom that the mean over the components lends to each.
_SHARED_FREEDOM = 8


@dataclass(frozen=True)
class Noise:
    """Squared errors of a fit, or of an estimate, against the posterior.

    Attributes
    ----------
    mean : array, (d,)
        Of the means, in posterior variances.
    log_sd : array, (d,)
        Of the log standard deviations.
    nats : float
        Bregman distance.
    freedom : float
        Degrees of freedom each number was estimated with.
    """

    mean: Array
    log_sd: Array
    nats: float
    freedom: float = np.inf

    @classmethod
    def unknown(cls, dim: int) -> Noise:
        """Errors of which nothing is known."""
        return cls(np.full(dim, np.inf), np.full(dim, np.inf), np.inf)

    def averaged(self, other: Noise, share: float) -> Noise:
        """Errors of the average with something independent that has this share in it."""
        return Noise(
            (1 - share) ** 2 * self.mean + share**2 * other.mean,
            (1 - share) ** 2 * self.log_sd + share**2 * other.log_sd,
            (1 - share) ** 2 * self.nats + share**2 * other.nats,
            freedom=other.freedom,
        )

    def excess(self, accuracy: float) -> float:
        """Largest ratio of a squared error to the one allowed; at most 1 when converged.

        The standard error allowed is such that nine errors in ten are within the accuracy: the
        accuracy over the quantile of Student's t, as the error itself is an estimate. A few
        batches tell little of one component, and the largest of many such estimates is far too
        large, so each is drawn towards their mean.
        """
        dim = len(self.mean)
        shared = min(_SHARED_FREEDOM, self.freedom * (dim - 1)) if np.isfinite(self.freedom) else 0
        freedom = self.freedom + shared
        weight = shared / freedom
        allowed = (accuracy / float(stdtrit(freedom, 0.95))) ** 2
        worst = max(
            float(((1 - weight) * squares + weight * squares.mean()).max())
            for squares in (self.mean, self.log_sd)
        )
        return max(worst / allowed, self.nats / (accuracy**2 * dim))


def squared_displacement(q: Gaussian, direction: Natural) -> Noise:
    r"""How far a direction in natural parameters moves q, squared, to first order.

    The Fisher information turns it into changes of mean and covariance, and
    :math:`\frac12\Delta\theta' F \Delta\theta` is its Bregman distance.

    Parameters
    ----------
    q : Gaussian
    direction : Natural
        Seen from the mean of q, where its first part is the gradient alone.
    """
    centred = q.with_mean(np.zeros(q.dim))
    moved = centred.fisher_product(direction)
    variance = moved.second if moved.second.ndim == 1 else moved.second.diagonal()
    with np.errstate(over="ignore"):  # far away it is anything
        mean = np.square(moved.first) / q.variance if moved.first.size else np.zeros(q.dim)
        return Noise(mean, np.square(variance / (2 * q.variance)), direction.inner(moved) / 2)


@dataclass(frozen=True)
class Sample:
    """A member evaluated on the draws of a level.

    Attributes
    ----------
    q : Gaussian
    estimate : Estimate
        Over all draws.
    parts : sequence of Estimate
        Over each batch of them.
    asked : Noise
        Squared displacement the estimate asks for.
    plain : Estimate
        Before the gradient was preconditioned by the whole Hessian, where it was.
    """

    q: Gaussian
    estimate: Estimate
    parts: Sequence[Estimate]
    asked: Noise
    plain: Estimate

    def ascends(self, other: Sample) -> bool:
        """Whether the ELBO is no lower than at another member, but for rounding."""
        rounding = 1e-12 * (1 + abs(other.estimate.elbo))
        return self.estimate.elbo >= other.estimate.elbo - rounding

    def noise(self, secants: Secants) -> Noise:
        """Squared standard errors of the solution on these draws, from the scatter of its parts."""
        errors = [residual(self.q, part) - residual(self.q, self.estimate) for part in self.parts]
        moves = [squared_displacement(self.q, way) for way in secants.solve(self.q, errors)]
        scale = len(moves) * (len(moves) - 1)
        return Noise(
            np.sum([move.mean for move in moves], axis=0) / scale,
            np.sum([move.log_sd for move in moves], axis=0) / scale,
            sum(move.nats for move in moves) / scale,
            freedom=len(moves) - 1,
        )

    def left(self, secants: Secants) -> Noise:
        """Squared distance from here to the solution on these draws."""
        (way,) = secants.solve(self.q, [residual(self.q, self.estimate)])
        return squared_displacement(self.q, way)


@dataclass(frozen=True)
class Draws:
    """Draws common to all members evaluated on them.

    Attributes
    ----------
    batches : list of array, (n, d)
        Standard normal rows.
    seed : int or None
        Seed of the minibatches that go with them, where the target takes any.
    """

    batches: list[Array]
    seed: int | None = None
