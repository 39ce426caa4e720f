r"""What every Gaussian exponential family provides: parameters, convex duality, and the update.

A member of a family is an immutable object that knows its mean and its precision in whatever
representation serves the family best. In the notation of the paper, with sufficient statistic
:math:`\Gamma`, a member has

.. math::

    q_\theta(x) = \exp(\langle\theta, \Gamma(x)\rangle - A(\theta)), \qquad
    \omega = E_q[\Gamma(X)] = \nabla A(\theta), \qquad \theta = \nabla A^*(\omega),

with densities taken against Lebesgue measure times :math:`(2\pi)^{-d/2}`, the paper's base measure.
`entropy` and `log_density` are the ordinary ones, against Lebesgue measure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import DomainError

LOG_TWO_PI = float(np.log(2 * np.pi))


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


class Gaussian(ABC):
    """One member of a Gaussian exponential family.

    The loop of :mod:`pymc_ngvi.core.algorithm` calls only the methods below, so a family is free to
    keep its precision dense, diagonal, sparse or otherwise. The `hessian` handed to `mix` is of
    the same representation as the precision; the class attribute `curvature` tells the target
    which one to compute.
    """

    #: Word by which `family=` selects it.
    name: ClassVar[str]
    #: Which part of the target's Hessian an update needs: "full" or "diagonal".
    curvature: ClassVar[str]
    #: True where the components are independent.
    factorised: ClassVar[bool]
    #: False for a family whose mean is always zero: its parameters then have a `first` of length 0.
    has_mean: ClassVar[bool] = True

    mean: Array

    @property
    def dim(self) -> int:
        """Number of components d."""
        return int(self.mean.shape[0])

    # Parameters, both ways.

    @classmethod
    @abstractmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        """Build from mean and precision; `DomainError` if that is not positive definite."""

    @classmethod
    @abstractmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        """Build from mean and covariance; `DomainError` if that is not positive definite."""

    @classmethod
    @abstractmethod
    def from_natural(cls, natural: Natural) -> Self:
        """Build from the natural parameter theta."""

    @classmethod
    @abstractmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        """Build from the expectation parameter omega."""

    @classmethod
    def from_mean_variance(cls, mean: ArrayLike, variance: ArrayLike) -> Self:
        """Build with independent components, from means (d,) and variances (d,).

        A family without a mean ignores `mean`.
        """
        return cls.from_mean_covariance(mean if cls.has_mean else np.zeros_like(mean), variance)

    @classmethod
    def from_curvature(
        cls, mean: ArrayLike, hessian: Array | None, *, deviations: Array | None = None
    ) -> Self:
        """Build the member to start a fit from, by the curvature of the target at `mean`.

        The precision is the absolute value of the curvature, and at least 1 in every direction.

        Parameters
        ----------
        mean : array, (d,)
            Starting point. A family without a mean ignores it.
        hessian : array or None
            Hessian of the log density there, of the representation named by `curvature`. None, or
            one that is not finite, gives a precision of 1.
        deviations : array, (d,), optional
            Standard deviations to start from, where they are not NaN. These components start
            independent of the others.
        """
        mean = as_vector(mean, "mean")
        precision = np.ones(mean.size)
        if hessian is not None and np.isfinite(hessian).all():
            precision = np.maximum(np.abs(hessian), 1.0)
        if deviations is not None:
            precision = np.where(np.isfinite(deviations), deviations**-2.0, precision)
        return cls.from_mean_precision(mean if cls.has_mean else np.zeros(mean.size), precision)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by which a file keeps the member.

        `from_arrays` builds the member from them. A family overrides both where mean and precision
        do not give every bit back, or where its precision is not an array.
        """
        return {"mean": self.mean, "precision": self.precision}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Build the member whose `arrays` these are; there may be others among them."""
        return cls.from_mean_precision(arrays["mean"], arrays["precision"])

    @property
    @abstractmethod
    def precision(self) -> Array:
        """Precision P, in the family's representation."""

    @property
    @abstractmethod
    def covariance(self) -> Array:
        """Covariance: (d, d), or the variances (d,) of a factorised family."""

    @property
    @abstractmethod
    def variance(self) -> Array:
        """Marginal variances, (d,)."""

    @property
    @abstractmethod
    def natural(self) -> Natural:
        """Natural parameter theta."""

    @property
    @abstractmethod
    def expectation(self) -> Expectation:
        """Expectation parameter omega."""

    # Convex duality.

    @classmethod
    def log_partition(cls, natural: Natural) -> float:
        r"""Log-partition function, :math:`A(\theta) = (\theta_1'\mu - \log\det P) / 2`."""
        member = cls.from_natural(natural)
        linear = natural.first @ member.mean if cls.has_mean else 0.0
        return float(linear - member.log_det_precision) / 2

    @classmethod
    def conjugate(cls, expectation: Expectation) -> float:
        """Convex conjugate A*(omega), the negative entropy against the paper's base measure."""
        member = cls.from_expectation(expectation)
        return (member.log_det_precision - member.dim) / 2

    @classmethod
    def grad_log_partition(cls, natural: Natural) -> Expectation:
        """Gradient of A at theta, which is omega."""
        return cls.from_natural(natural).expectation

    @classmethod
    def grad_conjugate(cls, expectation: Expectation) -> Natural:
        """Gradient of A* at omega, which is theta."""
        return cls.from_expectation(expectation).natural

    @classmethod
    def bregman(cls, omega: Expectation, other: Expectation) -> float:
        r"""Bregman divergence of A* by its definition.

        .. math:: d_{A^*}(\omega, \omega') = A^*(\omega) - A^*(\omega')
                  - \langle\nabla A^*(\omega'), \omega - \omega'\rangle

        Equal to :meth:`kl`, which cancels less and should be preferred in computations.
        """
        linear = cls.grad_conjugate(other).inner(omega - other)
        return cls.conjugate(omega) - cls.conjugate(other) - linear

    @abstractmethod
    def fisher_product(self, direction: Natural) -> Expectation:
        r"""Fisher information times a direction, :math:`\nabla^2 A(\theta)[\Delta\theta]`.

        The information is the derivative of theta -> omega, so a direction in natural parameters
        becomes one in expectation parameters. Its matrix has d^4 entries for the full family and
        is never formed.
        """

    # The distribution.

    @property
    @abstractmethod
    def log_det_precision(self) -> float:
        """Log-determinant of the precision."""

    @abstractmethod
    def solve(self, vector: Array) -> Array:
        """Covariance times a vector (d,), by a solve."""

    @abstractmethod
    def unwhiten(self, z: Array) -> Array:
        """Map standard normal rows z (n, d) to draws mean + inv(L)' z, with L L' the precision."""

    @abstractmethod
    def whiten(self, draws: Array) -> Array:
        """Inverse of `unwhiten`: the standard normal rows of these draws (n, d)."""

    @abstractmethod
    def kl(self, other: Self) -> float:
        """Kullback-Leibler divergence KL(self, other), in nats."""

    def entropy(self) -> float:
        """Differential entropy, in nats."""
        return 0.5 * (self.dim * (1 + LOG_TWO_PI) - self.log_det_precision)

    def log_density_whitened(self, z: Array) -> Array:
        """Log density (n,) of the draws `unwhiten(z)`."""
        squares = np.einsum("nd,nd->n", z, z)
        return np.asarray(0.5 * (self.log_det_precision - self.dim * LOG_TWO_PI - squares))

    def log_density(self, draws: ArrayLike) -> Array:
        """Log density (n,) at draws (n, d)."""
        draws = np.asarray(draws, float)
        if draws.ndim != 2 or draws.shape[1] != self.dim:
            raise ValueError(f"draws have shape {draws.shape}, expected (n, {self.dim})")
        return self.log_density_whitened(self.whiten(draws))

    def sample(self, n: int, rng: np.random.Generator, *, antithetic: bool = False) -> Array:
        """Draw n rows (n, d), in antithetic pairs around the mean on request."""
        return self.unwhiten(standard_normal(n, self.dim, rng, antithetic=antithetic))

    # The update of Algorithm 1.

    @abstractmethod
    def mix(
        self, gradient: Array, hessian: Array, step_size: float, *, margin: float = 0.0
    ) -> Self | None:
        r"""Natural-gradient update, or None where it leaves the domain.

        .. math:: \theta_+ = (1-\eta)\theta + \eta g^N
            \iff P_+ = (1-\eta) P - \eta H, \quad \mu_+ = \mu + \eta P_+^{-1} g

        Parameters
        ----------
        gradient : array, (d,)
            Mean gradient g of the log density under this member.
        hessian : array
            Mean Hessian H, of the representation named by `curvature`.
        step_size : float
            Step size eta in (0, 1].
        margin : float
            Ask for more than the domain: the new precision is to exceed `margin` times the old.
        """

    @abstractmethod
    def mix_corrected(
        self, gradient: Array, hessian: Array, step_size: float, *, margin: float = 0.0
    ) -> Self | None:
        r"""Update with the second-order correction of Lin, Schmidt and Khan (2020).

        .. math:: P_+ = P + \eta G + \tfrac{\eta^2}{2} G P^{-1} G, \quad G = -H - P

        Positive definite for every symmetric H; None only where rounding or overflow spoils it.
        Independent components are corrected only where the plain update lacks the margin.
        """

    @abstractmethod
    def mix_clipped(
        self, gradient: Array, hessian: Array, step_size: float, lowest: float, highest: float
    ) -> Self:
        """Update whose precision has its eigenvalues clipped to [lowest, highest].

        It exists however indefinite H is: a direction in which the precision came out near zero
        or negative is taken as one of large variance, and gets the lowest precision.
        """

    @abstractmethod
    def smallest_precision(self, hessian: Array, step_size: float) -> float:
        """Smallest eigenvalue of the precision after a plain update, for messages."""

    def symmetrise(self, hessian: Array) -> Array:
        """Remove the rounding errors by which an estimated Hessian may be asymmetric."""
        return hessian

    @abstractmethod
    def interpolate(self, other: Self, weight: float) -> Self:
        """Member with natural parameter (1 - weight) theta + weight theta_other."""

    @abstractmethod
    def clip_precision(self, lowest: float, highest: float) -> Self:
        """Clip the precision's eigenvalues to [lowest, highest]; `self` if they lie inside."""

    @abstractmethod
    def with_mean(self, mean: Array) -> Self:
        """Member with this mean and the same precision."""

    @abstractmethod
    def stein_hessian(self, z: Array, residual: Array) -> Array:
        r"""Mean Hessian from gradients alone, by Stein's identity.

        .. math:: H = -P + \mathrm{sym}\bigl(L\, \overline{z r'}\bigr), \quad r = \nabla f(x) + L z

        Parameters
        ----------
        z : array, (n, d)
            Standard normal rows behind the draws.
        residual : array, (n, d)
            Gradient of the log density minus that of log q, at the draws.
        """

    @abstractmethod
    def score_whitened(self, z: Array) -> Array:
        """Gradient of log q at the draws `unwhiten(z)`: the rows -L z, (n, d)."""


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
