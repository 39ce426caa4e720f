"""Targets of the core: the paper's Gaussian one, and its Student regression in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from examples.paper.common import Array
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.core.target import Evaluation, Target


@dataclass(frozen=True)
class GaussianTarget(Target):
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
        return np.asarray(-0.5 * np.einsum("ni,ni->n", centred @ self.precision, centred))

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
        """Estimate as from `n_samples` draws; the ELBO is not computed."""
        mean = q.mean + (q.sample(1, rng)[0] - q.mean) / np.sqrt(n_samples)
        gradient = target.precision @ (target.mean - mean)
        return Estimate(gradient, -target.precision, np.nan, np.nan, n_samples)


@dataclass(frozen=True)
class StudentRegression(Target):
    r"""Student regression with a Gaussian prior, evaluated at many draws at once.

    .. math:: y_m \sim t_\nu(z_m'x, 1), \qquad x \sim N(0, \sigma_0^2 I)

    The function that a PyMC model compiles to takes one draw after the other; this one makes fifty
    runs of each variant affordable.

    Parameters
    ----------
    design : array, (M, d)
    response : array, (M,)
    freedom : float
        Degrees of freedom of the noise.
    prior_variance : float
    """

    design: Array
    response: Array
    freedom: float
    prior_variance: float

    @property
    def dim(self) -> int:
        """Number of coefficients d."""
        return int(self.design.shape[1])

    @cached_property
    def _products(self) -> Array:
        """Rows z_m z_m', flat: (M, d * d)."""
        outer = self.design[:, :, np.newaxis] * self.design[:, np.newaxis, :]
        return outer.reshape(len(outer), -1)

    @cached_property
    def _constant(self) -> float:
        half = self.freedom / 2
        noise = gammaln(half + 0.5) - gammaln(half) + half * np.log(self.freedom)
        noise -= 0.5 * np.log(np.pi)
        prior = -0.5 * np.log(2 * np.pi * self.prior_variance)
        return float(len(self.response) * noise + self.dim * prior)

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""
        return self._log_density(draws, self.freedom + np.square(self._residuals(draws)))

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """All of it at draws (n, d)."""
        factor, prior_precision = self.freedom + 1, 1 / self.prior_variance
        # The gradient weighs row m by (nu + 1) r / (nu + r^2), the Hessian by the derivative of it.
        # In place, as most of the time goes into fresh memory otherwise.
        residuals = self._residuals(draws)
        spread = np.square(residuals)
        spread += self.freedom
        weights = 1 / spread
        log_density = self._log_density(draws, spread)
        residuals *= weights
        gradient = factor * (residuals @ self.design) - prior_precision * draws
        residuals *= residuals
        residuals *= 2
        weights -= residuals
        hessian = (weights @ self._products).reshape(len(draws), self.dim, self.dim)
        hessian *= -factor
        hessian -= prior_precision * np.eye(self.dim)
        return Evaluation(log_density, gradient, hessian)

    def _residuals(self, draws: Array) -> Array:
        fitted = draws @ self.design.T
        return np.subtract(self.response, fitted, out=fitted)

    def _log_density(self, draws: Array, spread: Array) -> Array:
        """Log density from nu + r^2, which is overwritten."""
        noise = np.log(spread, out=spread).sum(axis=1)
        prior = np.square(draws).sum(axis=1) / self.prior_variance
        return np.asarray(self._constant - 0.5 * ((self.freedom + 1) * noise + prior))
