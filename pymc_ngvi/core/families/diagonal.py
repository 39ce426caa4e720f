"""Gaussians with diagonal covariance: with a mean, and centred at zero."""

from __future__ import annotations

from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families.base import Gaussian
from pymc_ngvi.core.families.parameters import Expectation, Natural, as_vector, domain_error
from pymc_ngvi.core.linalg import Array


class FactorisedGaussian(Gaussian):
    """A family with independent components: everything is elementwise, precisions are vectors (d,).

    A family that ties its variances together overrides `symmetrise`, the orthogonal projection
    onto the vectors of precisions that it allows.
    """

    curvature: ClassVar[str] = "diagonal"
    factorised: ClassVar[bool] = True

    def __init__(self, mean: Array, precision: Array) -> None:
        for array in (mean, precision):
            array.setflags(write=False)  # a member is a value
        self.mean = mean
        self._precision = precision

    # Matrices are vectors (d,) here.

    @classmethod
    def symmetrise(cls, matrix: Array) -> Array:
        return matrix

    @classmethod
    def outer(cls, vector: Array) -> Array:
        return cls.symmetrise(np.square(vector))

    @classmethod
    def product(cls, matrix: Array, vector: Array) -> Array:
        return matrix * vector

    @classmethod
    def plus_diagonal(cls, matrix: Array, diagonal: Array) -> Array:
        return matrix + diagonal

    @classmethod
    def diagonal(cls, matrix: Array) -> Array:
        return matrix

    @classmethod
    def smallest_eigenvalue(cls, matrix: Array) -> float:
        return float(matrix.min())

    # Members.

    @classmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        return cls(*cls._checked(mean, precision, "precision"))

    @classmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        mean, variance = cls._checked(mean, covariance, "covariance")
        return cls(mean, 1 / variance)

    @classmethod
    def from_mean_variance(cls, mean: ArrayLike, variance: ArrayLike) -> Self:
        return cls.from_mean_covariance(mean if cls.has_mean else np.zeros_like(mean), variance)

    @classmethod
    def from_curvature(
        cls, mean: ArrayLike, hessian: Array | None, *, deviations: Array | None = None
    ) -> Self:
        mean = as_vector(mean, "mean")
        precision = np.ones(mean.size)
        if hessian is not None and np.isfinite(hessian).all():
            precision = np.maximum(np.abs(hessian), 1.0)
        if deviations is not None:
            precision = np.where(np.isfinite(deviations), deviations**-2.0, precision)
        return cls.from_mean_precision(mean if cls.has_mean else np.zeros(mean.size), precision)

    @classmethod
    def _checked(cls, mean: ArrayLike, values: ArrayLike, what: str) -> tuple[Array, Array]:
        vector, diagonal = cls.as_mean(mean), as_vector(values, what)
        if diagonal.shape != vector.shape:
            raise ValueError(f"{what} has shape {diagonal.shape}, the mean has {vector.shape}")
        diagonal = cls.symmetrise(diagonal)
        if diagonal.min() <= 0:
            raise domain_error(what, float(diagonal.min()))
        return vector, diagonal

    def with_precision(self, precision: Array) -> Self | None:
        if not np.all(precision > 0) or np.isinf(precision).any():
            return None
        return type(self)(self.mean, precision)

    @property
    def precision(self) -> Array:
        return self._precision

    @property
    def covariance(self) -> Array:
        return 1 / self._precision

    # The distribution.

    @property
    def log_det_precision(self) -> float:
        return float(np.log(self._precision).sum())

    def solve(self, vector: Array) -> Array:
        return vector / self._precision

    def unwhiten(self, z: Array) -> Array:
        return self.mean + z / np.sqrt(self._precision)

    def whiten(self, draws: Array) -> Array:
        return (draws - self.mean) * np.sqrt(self._precision)

    @property
    def root_diagonal(self) -> Array:
        return np.asarray(1 / np.sqrt(self._precision))

    def conditional(self, split: Split, values: Array) -> Self:
        return type(self)(self.mean[split.rest], self._precision[split.rest])

    def continued(self, before: Self, share: float) -> Self:
        scale = self._scaling(before.root_diagonal, self.root_diagonal, share)
        return super().continued(before, share).with_precision(self._precision / scale**2) or self

    def score_whitened(self, z: Array) -> Array:
        return -z * np.sqrt(self._precision)

    def kl(self, other: Self) -> float:
        ratio = other.precision / self.precision
        distance = other.precision * np.square(other.mean - self.mean)
        return 0.5 * float((ratio - 1 - np.log(ratio) + distance).sum())

    def fisher_product(self, direction: Natural) -> Expectation:
        change = 2 * np.square(self.covariance) * direction.second
        if not self.has_mean:
            return Expectation(np.empty(0), self.symmetrise(change))
        mean = self.covariance * (direction.first + 2 * direction.second * self.mean)
        return Expectation(mean, self.symmetrise(change + 2 * mean * self.mean))

    def flat_direction(self, hessian: Array, least: float) -> Array | None:
        curvature = -hessian * self.variance
        lowest = curvature.min()
        return (
            np.where(curvature == lowest, np.sqrt(self.variance), 0.0) if lowest < least else None
        )

    def whiten_gradients(self, gradients: Array) -> Array:
        return np.asarray(gradients * np.sqrt(self.variance))

    def relative_trace(self, hessians: Array) -> Array:
        return np.asarray(hessians @ self.variance)

    def stein_hessian(self, z: Array, residual: Array) -> Array:
        curvature = np.sqrt(self._precision) * (z * residual).mean(axis=0)
        return self.symmetrise(curvature) - self._precision

    # The update.

    def corrected_precision(self, hessian: Array, step_size: float, margin: float) -> Array:
        bare = self.mixed_precision(hessian, step_size)
        corrected = (self._precision + bare * (bare / self._precision)) / 2
        return np.where(bare > margin * self._precision, bare, corrected)

    def mix_clipped(
        self, gradient: Array, hessian: Array, step_size: float, lowest: float, highest: float
    ) -> Self:
        precision = np.clip(self.mixed_precision(hessian, step_size), lowest, highest)
        clipped = self._updated(precision, step_size * gradient)
        if clipped is None:
            raise domain_error("clipped precision", float(precision.min()))
        return clipped

    def clip_precision(self, lowest: float, highest: float) -> Self:
        clipped = np.clip(self._precision, lowest, highest)
        return self if np.array_equal(clipped, self._precision) else type(self)(self.mean, clipped)


@final
class DiagonalGaussian(FactorisedGaussian):
    r"""Gaussian with diagonal covariance (mean-field), kept as mean and precisions, both (d,).

    .. math:: \theta = (\mu/\sigma^2, -1/(2\sigma^2)), \quad \omega = (\mu, \sigma^2 + \mu^2)

    Examples
    --------
    >>> q = DiagonalGaussian.from_mean_covariance([0.0, 1.0], [1.0, 4.0])
    >>> q.expectation.second
    array([1., 5.])
    """

    name: ClassVar[str] = "meanfield"


@final
class CentredDiagonalGaussian(FactorisedGaussian):
    r"""Gaussian with mean zero and diagonal covariance, kept as precisions (d,).

    .. math:: \theta = -1/(2\sigma^2), \quad \omega = \sigma^2, \quad
              A(\theta) = -\tfrac12 \textstyle\sum_i \log(-2\theta_i)

    Its natural and expectation parameters have a `first` of length 0.
    """

    name: ClassVar[str] = "centred_meanfield"
    has_mean: ClassVar[bool] = False
