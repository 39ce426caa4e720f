"""Natural and expectation parameters, and the checks that all families share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import DomainError


@dataclass(frozen=True)
class Natural:
    r"""Natural parameter :math:`\theta`, the coefficients of the sufficient statistic.

    Attributes
    ----------
    first : array, (d,)
        Coefficient of x; of length 0 for a family without a mean.
    second : array, (d, d) or (d,)
        Coefficient of xx', or of x squared elementwise.
    """

    first: Array
    second: Array

    def inner(self, other: Expectation) -> float:
        """Scalar product with an expectation parameter (or with a difference of two)."""
        return float(self.first @ other.first + np.vdot(self.second, other.second))

    def __add__(self, other: Natural) -> Natural:
        return Natural(self.first + other.first, self.second + other.second)

    def __sub__(self, other: Natural) -> Natural:
        return Natural(self.first - other.first, self.second - other.second)


@dataclass(frozen=True)
class Expectation:
    r"""Expectation parameter :math:`\omega`, the mean of the sufficient statistic.

    Attributes
    ----------
    first : array, (d,)
        Mean of x; of length 0 for a family without a mean.
    second : array, (d, d) or (d,)
        Mean of xx', or of x squared elementwise.
    """

    first: Array
    second: Array

    def __sub__(self, other: Expectation) -> Expectation:
        return Expectation(self.first - other.first, self.second - other.second)


def standard_normal(n: int, dim: int, rng: np.random.Generator, *, antithetic: bool) -> Array:
    """Draw n standard normal rows; antithetic: z, then -z, with one row unpaired if n is odd."""
    if not antithetic:
        return rng.standard_normal((n, dim))
    half = rng.standard_normal(((n + 1) // 2, dim))
    return np.concatenate([half, -half[: n // 2]])


def as_vector(value: ArrayLike, what: str, size: int | None = None) -> Array:
    """Check and return a finite float vector."""
    vector = np.array(value, dtype=float)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{what} must be a non-empty vector, got shape {vector.shape}")
    if size is not None and vector.size != size:
        raise ValueError(f"{what} has {vector.size} components, expected {size}")
    if not np.isfinite(vector).all():
        raise ValueError(f"{what} is not finite at index {int(np.argmin(np.isfinite(vector)))}")
    return vector


def domain_error(what: str, smallest: float) -> DomainError:
    """Build the error for a matrix that is not positive definite."""
    return DomainError(f"{what} is not positive definite (smallest eigenvalue {smallest:.3g})")
