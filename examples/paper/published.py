"""Two parts of the paper's published code for the Student regression, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.paper.common import Array
from pymc_ngvi import BonnetPrice, EigenvalueBounds, FullGaussian
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.guards import Guard, Mixed


class PublishedEstimate(BonnetPrice):
    r"""The estimate of the published code: without :math:`-H\mu` and the prior's gradient.

    Adding :math:`H\mu` to the gradient passed to `mix` removes the term from the natural gradient.

    Parameters
    ----------
    prior_variance : float
    """

    def __init__(self, prior_variance: float) -> None:
        super().__init__(antithetic=False)
        self.prior_variance = prior_variance

    def at(self, target: Any, q: Any, z: Array) -> Estimate:
        """Estimate from standard normal rows z (n, d)."""
        found = super().at(target, q, z)
        prior = -q.unwhiten(z).mean(axis=0) / self.prior_variance
        gradient = found.gradient - prior + found.hessian @ q.mean
        return Estimate(gradient, found.hessian, found.elbo, found.elbo_se, found.evaluations)


def clip_covariance(bounds: EigenvalueBounds) -> Guard:
    """Clip the eigenvalues of the updated covariance, indefinite or not, and keep its mean."""

    def clip(q: Any, estimate: Estimate, step_size: float) -> Mixed:
        precision = (1 - step_size) * q.precision - step_size * estimate.hessian
        mean = q.mean + step_size * np.linalg.solve(precision, estimate.gradient)
        values, vectors = np.linalg.eigh(np.linalg.inv(precision))
        clipped = np.clip(values, bounds.alpha, bounds.beta)
        covariance = (vectors * clipped) @ vectors.T
        member = FullGaussian.from_mean_covariance(mean, (covariance + covariance.T) / 2)
        return Mixed(member, step_size, active=not np.array_equal(values, clipped))

    return clip
