"""Gaussians with diagonal covariance: with a mean, and centred at zero."""

from __future__ import annotations

from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike

from pymc_ngvi.core.families.base import Expectation, Gaussian, Natural, as_vector, domain_error
from pymc_ngvi.core.linalg import Array


class _FactorisedGaussian(Gaussian):
    """What the diagonal families share: everything is elementwise, precisions are a vector (d,)."""

    curvature: ClassVar[str] = "diagonal"
    factorised: ClassVar[bool] = True

    def __init__(self, mean: Array, precision: Array) -> None:
        for array in (mean, precision):
            array.setflags(write=False)  # a member is a value
        self.mean = mean
        self._precision = precision

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dim={self.dim}, log_det_precision={self.log_det_precision:.6g})"
        )

    @classmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        return cls(*cls._checked(mean, precision, "precision"))

    @classmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        mean, variance = cls._checked(mean, covariance, "covariance")
        return cls(mean, 1 / variance)

    @classmethod
    def _checked(cls, mean: ArrayLike, values: ArrayLike, what: str) -> tuple[Array, Array]:
        vector = as_vector(mean, "mean")
        diagonal = as_vector(values, what)
        if diagonal.shape != vector.shape:
            raise ValueError(f"{what} has shape {diagonal.shape}, the mean has {vector.shape}")
        if diagonal.min() <= 0:
            raise domain_error(what, float(diagonal.min()))
        return vector, diagonal

    @property
    def precision(self) -> Array:
        return self._precision

    @property
    def covariance(self) -> Array:
        return 1 / self._precision

    @property
    def variance(self) -> Array:
        return 1 / self._precision

    @property
    def log_det_precision(self) -> float:
        return float(np.log(self._precision).sum())

    def solve(self, vector: Array) -> Array:
        return vector / self._precision

    def unwhiten(self, z: Array) -> Array:
        return self.mean + z / np.sqrt(self._precision)

    def whiten(self, draws: Array) -> Array:
        return (draws - self.mean) * np.sqrt(self._precision)

    def score_whitened(self, z: Array) -> Array:
        return -z * np.sqrt(self._precision)

    def kl(self, other: Self) -> float:
        ratio = other.precision / self.precision
        distance = other.precision * np.square(other.mean - self.mean)
        return 0.5 * float((ratio - 1 - np.log(ratio) + distance).sum())

    def stein_hessian(self, z: Array, residual: Array) -> Array:
        curvature = np.sqrt(self._precision) * (z * residual).mean(axis=0)
        return np.asarray(curvature - self._precision)

    def mix(
        self, gradient: Array, hessian: Array, step_size: float, *, margin: float = 0.0
    ) -> Self | None:
        precision = self._bare(hessian, step_size)
        if margin > 0 and not np.all(precision > margin * self._precision):
            return None
        return self._updated(precision, gradient, step_size)

    def mix_corrected(
        self, gradient: Array, hessian: Array, step_size: float, *, margin: float = 0.0
    ) -> Self | None:
        bare = self._bare(hessian, step_size)
        with np.errstate(over="ignore", invalid="ignore"):
            corrected = (self._precision + bare * (bare / self._precision)) / 2
            kept = bare > margin * self._precision
            return self._updated(np.where(kept, bare, corrected), gradient, step_size)

    def smallest_precision(self, hessian: Array, step_size: float) -> float:
        return float(self._bare(hessian, step_size).min())

    def mix_clipped(
        self, gradient: Array, hessian: Array, step_size: float, lowest: float, highest: float
    ) -> Self:
        precision = np.clip(self._bare(hessian, step_size), lowest, highest)
        clipped = self._updated(precision, gradient, step_size)
        if clipped is None:
            raise domain_error("clipped precision", float(precision.min()))
        return clipped

    def interpolate(self, other: Self, weight: float) -> Self:
        precision = (1 - weight) * self.precision + weight * other.precision
        mixed = self._updated(precision, other.precision * (other.mean - self.mean), weight)
        if mixed is None:
            raise domain_error("interpolated precision", float(precision.min()))
        return mixed

    def clip_precision(self, lowest: float, highest: float) -> Self:
        clipped = np.clip(self._precision, lowest, highest)
        return self if np.array_equal(clipped, self._precision) else type(self)(self.mean, clipped)

    def _bare(self, hessian: Array, step_size: float) -> Array:
        return (1 - step_size) * self._precision - step_size * hessian

    def _updated(self, precision: Array, gradient: Array, step_size: float) -> Self | None:
        if not np.all(precision > 0) or np.isinf(precision).any():
            return None
        mean = self._moved(step_size * gradient / precision)
        return type(self)(mean, precision) if np.isfinite(mean).all() else None

    def _moved(self, change: Array) -> Array:
        return self.mean + change


@final
class DiagonalGaussian(_FactorisedGaussian):
    r"""Gaussian with diagonal covariance (mean-field), kept as mean and precisions, both (d,).

    .. math:: \theta = (\mu/\sigma^2, -1/(2\sigma^2)), \quad \omega = (\mu, \sigma^2 + \mu^2)

    Examples
    --------
    >>> q = DiagonalGaussian.from_mean_covariance([0.0, 1.0], [1.0, 4.0])
    >>> q.expectation.second
    array([1., 5.])
    """

    name: ClassVar[str] = "meanfield"

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        member = cls.from_mean_precision(np.zeros_like(natural.first), -2 * natural.second)
        return member.with_mean(member.solve(natural.first))

    @classmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        mean = expectation.first
        return cls.from_mean_covariance(mean, expectation.second - np.square(mean))

    @property
    def natural(self) -> Natural:
        return Natural(self.precision * self.mean, -self.precision / 2)

    @property
    def expectation(self) -> Expectation:
        return Expectation(self.mean, self.covariance + np.square(self.mean))

    def fisher_product(self, direction: Natural) -> Expectation:
        mean = self.covariance * (direction.first + 2 * direction.second * self.mean)
        return Expectation(
            mean, 2 * np.square(self.covariance) * direction.second + 2 * mean * self.mean
        )

    def with_mean(self, mean: Array) -> Self:
        return type(self)(as_vector(mean, "mean", self.dim), self.precision)


@final
class CentredDiagonalGaussian(_FactorisedGaussian):
    r"""Gaussian with mean zero and diagonal covariance, kept as precisions (d,).

    .. math:: \theta = -1/(2\sigma^2), \quad \omega = \sigma^2, \quad
              A(\theta) = -\tfrac12 \textstyle\sum_i \log(-2\theta_i)

    Its natural and expectation parameters have a `first` of length 0.
    """

    name: ClassVar[str] = "centred_meanfield"
    has_mean: ClassVar[bool] = False

    @classmethod
    def _checked(cls, mean: ArrayLike, values: ArrayLike, what: str) -> tuple[Array, Array]:
        vector, diagonal = super()._checked(mean, values, what)
        if vector.any():
            raise ValueError(
                "the mean of a centred family is zero: "
                f"got {vector[vector != 0][0]:.3g} at index {int(np.argmax(vector != 0))}"
            )
        return vector, diagonal

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        return cls.from_mean_precision(np.zeros(natural.second.shape), -2 * natural.second)

    @classmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        return cls.from_mean_covariance(np.zeros(expectation.second.shape), expectation.second)

    @property
    def natural(self) -> Natural:
        return Natural(np.empty(0), -self.precision / 2)

    @property
    def expectation(self) -> Expectation:
        return Expectation(np.empty(0), self.covariance)

    def fisher_product(self, direction: Natural) -> Expectation:
        return Expectation(np.empty(0), 2 * np.square(self.covariance) * direction.second)

    def with_mean(self, mean: Array) -> Self:
        return type(self).from_mean_precision(mean, self.precision)

    def _moved(self, change: Array) -> Array:
        return self.mean
