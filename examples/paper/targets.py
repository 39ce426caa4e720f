"""The paper's Gaussian target, and an estimator that has the law of Bonnet-Price's on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.paper.common import Array
from pymc_ngvi.estimators import Estimate, Evaluation
from pymc_ngvi.families import FullGaussian, Gaussian


@dataclass(frozen=True)
class GaussianTarget:
    """Log density of N(mean, inv(precision)), up to a constant."""

    mean: Array
    precision: Array

    @classmethod
    def random(cls, dim: int, condition: float, seed: int) -> GaussianTarget:
        """Make a target with log-spaced eigenvalues, turned by a random reflection.

        It is the construction of More and Toraldo (1989) for problems of a given condition number.
        """
        rng = np.random.default_rng(seed)
        mean, y = rng.uniform(-5, 5, dim), rng.uniform(-1, 1, dim)
        reflection = np.eye(dim) - 2 * np.outer(y, y) / (y @ y)
        covariance = reflection * np.geomspace(1, condition, dim) @ reflection
        return cls(mean, np.linalg.inv((covariance + covariance.T) / 2))

    @property
    def dim(self) -> int:
        """Number of components d."""
        return len(self.mean)

    @property
    def optimum(self) -> FullGaussian:
        """The target itself, as a member of the family."""
        return FullGaussian.from_mean_precision(self.mean, self.precision)

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""
        centred = draws - self.mean
        return -0.5 * np.einsum("ni,ni->n", centred @ self.precision, centred)

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """All of it at draws (n, d)."""
        hessian = np.broadcast_to(-self.precision, (len(draws), self.dim, self.dim))
        return Evaluation(self.log_density(draws), (self.mean - draws) @ self.precision, hessian)


class MeanOfDraws:
    """Bonnet-Price on a Gaussian target, whose estimate depends on the mean of the draws alone.

    That mean is N(mu, Sigma / N), so that one draw of it stands for N, and sample sizes that grow
    as t^1.5 cost no more than constant ones. The law of the estimate is the same.
    """

    def __call__(
        self, target: GaussianTarget, q: Gaussian, n_samples: int, rng: np.random.Generator
    ) -> Estimate:
        """Estimate as from `n_samples` draws; the ELBO, which nobody asks for here, is left out."""
        mean = q.mean + (q.sample(1, rng)[0] - q.mean) / np.sqrt(n_samples)
        gradient = target.precision @ (target.mean - mean)
        return Estimate(gradient, -target.precision, np.nan, np.nan, n_samples)
