"""Targets of the core: the paper's Gaussian one, and its two regressions in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln, log_expit

from examples.paper.common import Array
from examples.paper.compiled import sums_of_logs, weigh
from pymc_ngvi.core.families import FullGaussian
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
    def _workspace(self) -> Array:
        """Residuals of up to 256 draws, (256, M): fresh memory would take most of the time."""
        return np.empty((256, len(self.response)))

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

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set.

        The weights of the rows are averaged first, so that one sum over the rows remains.
        """
        factor, residuals = self.freedom + 1, self._workspace[: len(draws)]
        if len(residuals) < len(draws) or sets > 1:
            return super().average(draws, curvature, sets)
        np.matmul(draws, self.design.T, out=residuals)
        np.subtract(self.response, residuals, out=residuals)
        logs = sums_of_logs(residuals, self.freedom)
        prior = np.square(draws).sum(axis=1) / self.prior_variance
        weights = weigh(residuals, self.freedom)
        gradient = factor * (residuals @ self.design) - draws / self.prior_variance
        hessian = -factor * (weights @ self._products).reshape(1, self.dim, self.dim)
        hessian -= np.eye(self.dim) / self.prior_variance
        return Evaluation(self._constant - 0.5 * (factor * logs + prior), gradient, hessian)

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """All of it at draws (n, d)."""
        # The gradient weighs row m by (nu + 1) r / (nu + r^2), the Hessian by the derivative of it.
        # In place, as most of the time goes into fresh memory otherwise.
        residuals = self._residuals(draws)
        spread = np.square(residuals)
        spread += self.freedom
        weights = 1 / spread
        log_density = self._log_density(draws, spread)
        residuals *= weights
        gradient = (self.freedom + 1) * (residuals @ self.design) - draws / self.prior_variance
        residuals *= residuals
        residuals *= 2
        weights -= residuals
        hessian = (weights @ self._products).reshape(len(draws), self.dim, self.dim)
        hessian *= -(self.freedom + 1)
        hessian -= np.eye(self.dim) / self.prior_variance
        return Evaluation(log_density, gradient, hessian)

    def _residuals(self, draws: Array) -> Array:
        fitted = draws @ self.design.T
        return np.subtract(self.response, fitted, out=fitted)

    def _log_density(self, draws: Array, spread: Array) -> Array:
        """Log density from nu + r^2, which is overwritten."""
        noise = np.log(spread, out=spread).sum(axis=1)
        prior = np.square(draws).sum(axis=1) / self.prior_variance
        return np.asarray(self._constant - 0.5 * ((self.freedom + 1) * noise + prior))


@dataclass(frozen=True)
class LogisticRegression:
    r"""Logistic regression with a standard normal prior, for all runs of an experiment at once.

    .. math:: y_m \sim \mathrm{Bernoulli}(1 / (1 + e^{-z_m'x})), \qquad x \sim N(0, I)

    Draws have shape (runs, n, d).

    Parameters
    ----------
    design : array, (M, d)
    response : array, (M,)
        Zeros and ones.
    """

    design: Array
    response: Array

    def log_density(self, draws: Array) -> Array:
        """Log density (runs, n)."""
        signed = draws @ (self.design * (2 * self.response - 1)[:, np.newaxis]).T
        prior = -0.5 * (np.square(draws) + np.log(2 * np.pi)).sum(axis=-1)
        return np.asarray(log_expit(signed).sum(axis=-1) + prior)

    def mean_derivatives(self, draws: Array) -> tuple[Array, Array]:
        """Gradient and diagonal of the Hessian, both (runs, d), averaged over the draws."""
        chances, spreads = zip(*map(self._mean_chances, draws), strict=True)
        gradient = (self.response - np.array(chances)) @ self.design - draws.mean(axis=1)
        return gradient, -np.array(spreads) @ np.square(self.design) - 1

    def _mean_chances(self, draws: Array) -> tuple[Array, Array]:
        """Mean over draws (n, d) of the probability p of each row, and of p (1 - p)."""
        chance = draws @ self.design.T
        np.negative(chance, out=chance)
        # From 700 on the exponential is cut off, where p is zero to 300 digits.
        np.minimum(chance, 700.0, out=chance)
        np.exp(chance, out=chance)
        chance += 1
        np.reciprocal(chance, out=chance)
        mean = chance.mean(axis=0)
        chance *= 1 - chance
        return mean, chance.mean(axis=0)
