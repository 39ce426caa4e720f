"""Gaussians with full covariance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self, final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.families.base import Gaussian
from pymc_ngvi.core.families.parameters import Expectation, Natural, as_vector, domain_error
from pymc_ngvi.core.linalg import (
    Array,
    cholesky,
    inverse_lower,
    lower_factor_of_gram,
    solve_lower,
    symmetrise,
)


@final
class FullGaussian(Gaussian):
    r"""Gaussian with full covariance, kept as mean, precision P and its lower factor L, L L' = P.

    .. math:: \theta = (P\mu, -P/2), \quad \omega = (\mu, \Sigma + \mu\mu'), \quad
              A(\theta) = -\tfrac14\theta_1'\theta_2^{-1}\theta_1 - \tfrac12\log\det(-2\theta_2)

    Build members with the `from_` constructors.

    Examples
    --------
    >>> q = FullGaussian.from_mean_covariance([0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]])
    >>> q.precision.round(3)
    array([[ 0.667, -0.333],
           [-0.333,  0.667]])
    >>> round(q.kl(q.with_mean([0.0, 2.0])), 3)
    0.333
    """

    name: ClassVar[str] = "fullrank"
    curvature: ClassVar[str] = "full"
    factorised: ClassVar[bool] = False

    def __init__(self, mean: Array, precision: Array, factor: Array) -> None:
        for array in (mean, precision, factor):
            array.setflags(write=False)  # a member is a value, and what it caches stays true
        self.mean = mean
        self._precision = precision
        self.factor = factor

    @classmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        mean, matrix = _checked(mean, precision, "precision")
        factor = cholesky(matrix)
        if factor is None:
            raise domain_error("precision", cls.smallest_eigenvalue(matrix))
        return cls(mean, matrix, factor)

    @classmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        mean, matrix = _checked(mean, covariance, "covariance")
        root = cholesky(matrix)
        if root is None:
            raise domain_error("covariance", cls.smallest_eigenvalue(matrix))
        factor = lower_factor_of_gram(inverse_lower(root))
        return cls(mean, factor @ factor.T, factor)

    def with_precision(self, precision: Array) -> Self | None:
        factor = cholesky(precision)
        return None if factor is None else type(self)(self.mean, precision, factor)

    def arrays(self) -> dict[str, NDArray[Any]]:
        # The precision would have to be factored again, which changes its last bits.
        return {"mean": self.mean, "factor": self.factor}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        mean, factor = arrays["mean"], arrays["factor"]
        if not (np.isfinite([*factor, mean]).all() and (factor.diagonal() > 0).all()):
            raise ValueError("the factor of the precision is not finite with a positive diagonal")
        return cls(mean, factor @ factor.T, factor)

    @property
    def precision(self) -> Array:
        return self._precision

    @cached_property
    def covariance(self) -> Array:
        inverse = inverse_lower(self.factor)
        return inverse.T @ inverse

    @cached_property
    def variance(self) -> Array:
        return np.asarray(np.square(inverse_lower(self.factor)).sum(axis=0))

    def fisher_product(self, direction: Natural) -> Expectation:
        change = symmetrise(direction.second)
        mean = self.solve(direction.first + 2 * change @ self.mean)
        outer = np.outer(mean, self.mean)
        return Expectation(mean, 2 * self.covariance @ change @ self.covariance + outer + outer.T)

    def displacement(self, direction: Natural) -> tuple[Array, Array, float]:
        # The diagonal and the trace of products take one product of matrices, not two.
        mean = self.solve(direction.first)
        change = self.covariance @ symmetrise(direction.second)
        with np.errstate(over="ignore"):
            log_sd = np.square(np.sum(change * self.covariance, axis=1) / self.variance)
            nats = (mean @ direction.first) / 2 + np.vdot(change.T, change)
            return np.square(mean) / self.variance, log_sd, float(nats)

    @cached_property
    def log_det_precision(self) -> float:
        return 2 * float(np.log(self.factor.diagonal()).sum())

    def solve(self, vector: Array) -> Array:
        return solve_lower(self.factor, solve_lower(self.factor, vector), transpose=True)

    def unwhiten(self, z: Array) -> Array:
        return self.mean + solve_lower(self.factor, z.T, transpose=True).T

    def whiten(self, draws: Array) -> Array:
        return (draws - self.mean) @ self.factor

    @property
    def root_diagonal(self) -> Array:
        return np.asarray(1 / self.factor.diagonal())

    def continued(self, before: Self, share: float) -> Self:
        first, second = before.factor.diagonal(), self.factor.diagonal()
        unit = self.factor / second  # with a diagonal of ones, as that of `before`
        unit += share * (unit - before.factor / first)
        factor = unit * second * self._scaling(first, second, share)
        mean = self.mean + share * (self.mean - before.mean)
        return type(self)(mean, factor @ factor.T, factor)

    def kl(self, other: Self) -> float:
        # tr(P_other Sigma) = |inv(L) L_other|^2, and both log-determinants are known.
        ratio = solve_lower(self.factor, other.factor)
        distance = (other.mean - self.mean) @ other.factor
        # Each diagonal term r^2 - 1 - log r^2 is >= 0, so nothing cancels in the sum.
        squared = np.square(ratio.diagonal())
        np.fill_diagonal(ratio, 0.0)
        terms = (squared - 1 - np.log(squared)).sum()
        return 0.5 * float(terms + np.vdot(ratio, ratio) + distance @ distance)

    def corrected_precision(self, hessian: Array, step_size: float, margin: float) -> Array:
        # P + eta G + eta^2/2 G inv(P) G = (P + M M') / 2 with M = L + eta G inv(L)'.
        change = -hessian - self.precision
        root = self.factor + step_size * solve_lower(self.factor, change).T
        return (self.precision + root @ root.T) / 2

    def mix_clipped(
        self, gradient: Array, hessian: Array, step_size: float, lowest: float, highest: float
    ) -> Self:
        values, vectors = scipy.linalg.eigh(self.mixed_precision(hessian, step_size))
        clipped = _from_spectrum(self.mean, np.clip(values, lowest, highest), vectors)
        return clipped.with_mean(self.mean + step_size * clipped.solve(gradient))

    def clip_precision(self, lowest: float, highest: float) -> Self:
        # By the singular values of the factor: the eigenvalues of the precision itself would lose
        # the small ones, which are the large variances.
        vectors, roots, _ = scipy.linalg.svd(self.factor)
        values = np.square(roots)
        # Slack of a rounding error, so that clipping twice changes nothing the second time.
        slack = 1e-9
        if values[-1] >= lowest * (1 - slack) and values[0] <= highest * (1 + slack):
            return self
        return _from_spectrum(self.mean, np.clip(values, lowest, highest), vectors)

    def stein_hessian(self, z: Array, residual: Array) -> Array:
        return symmetrise(self.factor @ (z.T @ residual) / z.shape[0]) - self.precision

    def score_whitened(self, z: Array) -> Array:
        return -z @ self.factor.T


def _checked(mean: ArrayLike, matrix: ArrayLike, what: str) -> tuple[Array, Array]:
    vector = as_vector(mean, "mean")
    square = np.array(matrix, dtype=float)
    if square.shape != (vector.size, vector.size):
        expected = (vector.size, vector.size)
        raise ValueError(f"{what} has shape {square.shape}, the mean asks for {expected}")
    if not np.isfinite(square).all():
        raise ValueError(f"{what} has entries that are not finite")
    asymmetry = np.abs(square - square.T).max()
    scale = np.sqrt(np.abs(square.diagonal()))
    if np.any(np.abs(square - square.T) > 1e-8 * np.outer(scale, scale)):
        raise ValueError(f"{what} is not symmetric (largest difference {asymmetry:.3g})")
    return vector, symmetrise(square)


def _from_spectrum(mean: Array, values: Array, vectors: Array) -> FullGaussian:
    root = (vectors * np.sqrt(values)).T
    factor = lower_factor_of_gram(root)
    return FullGaussian(mean, factor @ factor.T, factor)
