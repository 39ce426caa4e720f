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

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core import linalg
from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.distribution import LOG_TWO_PI, Distribution
from pymc_ngvi.core.families.parameters import (
    Expectation,
    Natural,
    as_vector,
    domain_error,
    standard_normal,
)
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.structure import Structure

#: Factor by which scales change at most, where they go on from one member to the next.
_MOST_SCALING = 10.0


class Gaussian(Distribution):
    """One member of a Gaussian exponential family.

    A family is free to keep its precision dense, diagonal, sparse or otherwise: it gives the
    abstract methods, and everything else is written in terms of them. What is not abstract and
    handles a matrix (`product`, `outer`, `diagonal`, ...) is written for a matrix (d, d);
    :class:`~pymc_ngvi.core.families.FactorisedGaussian` has the same for a vector (d,).
    """

    #: Word by which `family=` selects it.
    name: ClassVar[str]
    #: Which part of the target's Hessian an update needs: "full", "diagonal", or "sparse" for its
    #: entries on a structure.
    curvature: ClassVar[str]
    #: True where the components are independent.
    factorised: ClassVar[bool]
    #: False for a family whose mean is always zero: its parameters then have a `first` of length 0.
    has_mean: ClassVar[bool] = True
    #: False where the root that `unwhiten` multiplies by is triangular in no order of components.
    has_triangular_root: ClassVar[bool] = True
    #: Where the precision has entries, for a family bound to a structure; None for all others.
    structure: ClassVar[Structure | None] = None

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(dim={self.dim}, log_det_precision={self.log_det_precision:.6g})"

    @property
    def can_be_nested(self) -> bool:
        """Whether some components can be held, and a Gaussian of the others be fitted."""
        return self.has_mean and self.has_triangular_root

    @property
    def kind(self) -> str:
        return self.curvature

    @property
    def gaussian(self) -> Self:
        return self

    @property
    def dim(self) -> int:
        """Number of components d."""
        return int(self.mean.shape[0])

    @classmethod
    def on(cls, structure: Structure) -> type[Self]:
        """Return the family for Hessians of a sparse structure: for most, the family itself."""
        return cls

    @classmethod
    def load(cls) -> None:
        """Load the compiled code that members are computed with, so that no step waits for it."""

    @classmethod
    def hubs(cls) -> NDArray[np.int64] | None:
        """Components that are connected with many others; None where nothing is known of that."""
        return None

    @classmethod
    def min_draws(cls, dim: int) -> int:
        """Fewest draws from which an estimate of the mean Hessian is useful."""
        return 4 * dim  # two replicates of antithetic pairs with exact second moments

    # What a family gives: members, and the distribution.

    @classmethod
    @abstractmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        """Build from mean and precision; `DomainError` if that is not positive definite."""

    @classmethod
    @abstractmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        """Build from mean and covariance; `DomainError` if that is not positive definite."""

    @abstractmethod
    def with_precision(self, precision: Array) -> Self | None:
        """Member with the same mean and this precision; None where it is not positive definite."""

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
    def score_whitened(self, z: Array) -> Array:
        """Gradient of log q at the draws `unwhiten(z)`: the rows -L z, (n, d)."""

    @abstractmethod
    def kl(self, other: Self) -> float:
        """Kullback-Leibler divergence KL(self, other), in nats."""

    @abstractmethod
    def fisher_product(self, direction: Natural) -> Expectation:
        r"""Fisher information times a direction, :math:`\nabla^2 A(\theta)[\Delta\theta]`.

        The information is the derivative of theta -> omega, so a direction in natural parameters
        becomes one in expectation parameters. Its matrix has d^4 entries for the full family and
        is never formed.
        """

    def displacement(self, direction: Natural) -> tuple[Array, Array, float]:
        r"""Squared distance by which a direction in natural parameters moves q, to first order.

        The Fisher information turns the direction into changes of mean and covariance, and
        :math:`\frac12\Delta\theta' F \Delta\theta` is its Bregman distance.

        Parameters
        ----------
        direction : Natural
            Seen from the mean of q, where its first part is the gradient alone.

        Returns
        -------
        mean : array, (d,)
            Squared changes of the means, in variances.
        log_sd : array, (d,)
            Squared changes of the log standard deviations.
        nats : float
        """
        moved = self.with_mean(np.zeros(self.dim)).fisher_product(direction)
        variance = self.diagonal(moved.second)
        with np.errstate(over="ignore"):  # far from the solution overflow is harmless
            mean = np.square(moved.first) / self.variance if self.has_mean else np.zeros(self.dim)
            log_sd = np.square(variance / (2 * self.variance))
            return mean, log_sd, direction.inner(moved) / 2

    def dual(self, direction: Natural) -> Expectation:
        """Return what measures directions seen from the mean of q: their scalar products with it.

        This is the Fisher information times the direction, or, for a family that cannot afford it,
        a positive definite stand-in.
        """
        return self.with_mean(np.zeros(self.dim)).fisher_product(direction)

    def whiten_gradients(self, gradients: Array) -> Array:
        """Gradients (n, d) with respect to the standard normal coordinates of `whiten`."""
        return np.asarray(gradients @ (self.unwhiten(np.eye(self.dim)) - self.mean).T)

    def relative_trace(self, hessians: Array) -> Array:
        """Trace (n,) of the covariance times Hessians (n, ...) in the family's representation."""
        return np.asarray(np.einsum("nij,ij->n", hessians, self.covariance))

    def flat_direction(self, hessian: Array, least: float) -> Array | None:
        """Direction in which a mean Hessian has less curvature than `least` times the precision.

        Parameters
        ----------
        hessian : array
            In the family's representation.
        least : float

        Returns
        -------
        array, (d,), or None
            The flattest direction, with the length of a standard deviation; None where there is
            curvature enough in all.
        """
        root = self.unwhiten(np.eye(self.dim)) - self.mean
        values, vectors = np.linalg.eigh(-root @ hessian @ root.T)
        return np.asarray(vectors[:, 0] @ root) if values[0] < least else None

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
    def corrected_precision(self, hessian: Array, step_size: float, margin: float) -> Array:
        r"""Precision after an update with the correction of Lin, Schmidt and Khan (2020).

        .. math:: P_+ = P + \eta G + \tfrac{\eta^2}{2} G P^{-1} G, \quad G = -H - P

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
    def clip_precision(self, lowest: float, highest: float) -> Self:
        """Clip the precision's eigenvalues to [lowest, highest]; `self` if they lie inside."""

    # Matrices in the family's representation.

    @classmethod
    def symmetrise(cls, matrix: Array) -> Array:
        """Nearest matrix that the family can represent: a full one becomes symmetric."""
        return linalg.symmetrise(matrix)

    @classmethod
    def outer(cls, vector: Array) -> Array:
        """Second moment of a point: the outer product of a vector with itself."""
        return np.outer(vector, vector)

    @classmethod
    def product(cls, matrix: Array, vector: Array) -> Array:
        """Matrix times vector (d,)."""
        return np.asarray(matrix @ vector)

    @classmethod
    def diagonal(cls, matrix: Array) -> Array:
        """Diagonal (d,) of a matrix."""
        return matrix.diagonal()

    @classmethod
    def plus_diagonal(cls, matrix: Array, diagonal: Array) -> Array:
        """Matrix with a diagonal (d,) added."""
        return matrix + np.diag(diagonal)

    @classmethod
    def smallest_eigenvalue(cls, matrix: Array) -> float:
        """Smallest eigenvalue of a matrix, for messages."""
        return float(scipy.linalg.eigvalsh(matrix, subset_by_index=[0, 0])[0])

    # Other ways to build members.

    @classmethod
    def from_mean_variance(cls, mean: ArrayLike, variance: ArrayLike) -> Self:
        """Build with independent components, from means (d,) and variances (d,).

        A family without a mean ignores `mean`.
        """
        return cls.from_mean_covariance(mean, np.diag(as_vector(variance, "variance")))

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
        precision = np.eye(mean.size)
        if hessian is not None and np.isfinite(hessian).all():
            values, vectors = np.linalg.eigh(cls.symmetrise(hessian))
            precision = (vectors * np.maximum(np.abs(values), 1.0)) @ vectors.T
        if deviations is not None:
            given = np.isfinite(deviations)
            precision[given, :] = precision[:, given] = 0.0
            precision[given, given] = deviations[given] ** -2.0
        return cls.from_mean_precision(mean, precision)

    def with_mean(self, mean: ArrayLike) -> Self:
        """Member with this mean and the same precision."""
        moved = copy.copy(self)
        moved.mean = self.as_mean(mean, self.dim)
        moved.mean.setflags(write=False)
        return moved

    @classmethod
    def as_mean(cls, mean: ArrayLike, dim: int | None = None) -> Array:
        """Check and return a mean; that of a family without a mean must be zero."""
        vector = as_vector(mean, "mean", dim)
        if not cls.has_mean and vector.any():
            raise ValueError(
                "the mean of a centred family is zero: "
                f"got {vector[vector != 0][0]:.3g} at index {int(np.argmax(vector != 0))}"
            )
        return vector

    def conditional(self, split: Split, values: Array) -> Gaussian:
        """Distribution of the rest given the values (k,) of the held components."""
        held, rest = split.held, split.rest
        precision = self.precision[np.ix_(rest, rest)]
        pull = self.precision[np.ix_(rest, held)] @ (values - self.mean[held])
        member = type(self).from_mean_precision(self.mean[rest], precision)
        return member.with_mean(member.mean - member.solve(pull))

    def continued(self, before: Self, share: float) -> Self:
        """Go on from an earlier member through this one, by a share of the way between them.

        Means go on in a straight line. A family that can also lets scales go on, on the log scale,
        and the coefficients by which components follow from each other.
        """
        return self.with_mean(self.mean + share * (self.mean - before.mean))

    @staticmethod
    def _scaling(before: Array, after: Array, share: float) -> Array:
        """Factors by which scales change, that have changed from `before` to `after`."""
        return np.clip((after / before) ** share, 1 / _MOST_SCALING, _MOST_SCALING)

    # Both parameters, both ways.

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """Build from the natural parameter theta."""
        member = cls.from_mean_precision(np.zeros(len(natural.second)), -2 * natural.second)
        return member.with_mean(member.solve(natural.first)) if cls.has_mean else member

    @classmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        """Build from the expectation parameter omega."""
        mean = expectation.first if cls.has_mean else np.zeros(len(expectation.second))
        return cls.from_mean_covariance(mean, expectation.second - cls.outer(mean))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by which a file keeps the member.

        `from_arrays` builds the member from them. A family overrides both where mean and precision
        do not give every bit back, or where its precision is not an array.
        """
        return {"mean": self.mean, "precision": self.precision}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build the member whose `arrays` these are; there may be others among them."""
        return cls.from_mean_precision(arrays["mean"], arrays["precision"])

    @property
    def natural(self) -> Natural:
        """Natural parameter theta = (P mu, -P / 2)."""
        first = self.product(self.precision, self.mean) if self.has_mean else np.empty(0)
        return Natural(first, -self.precision / 2)

    @property
    def expectation(self) -> Expectation:
        """Expectation parameter omega = (mu, Sigma + mu mu')."""
        first = self.mean if self.has_mean else np.empty(0)
        return Expectation(first, self.covariance + self.outer(self.mean))

    @property
    def variance(self) -> Array:
        """Marginal variances, (d,)."""
        return self.diagonal(self.covariance)

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

    # The distribution.

    def entropy(self) -> float:
        """Differential entropy, in nats."""
        return 0.5 * (self.dim * (1 + LOG_TWO_PI) - self.log_det_precision)

    @property
    def root_diagonal(self) -> Array:
        """Diagonal (d,) of the root that `unwhiten` multiplies by.

        The root is triangular, in some order of the components that the family always takes.
        """
        return np.asarray((self.unwhiten(np.eye(self.dim)) - self.mean).diagonal())

    def log_density_whitened(self, z: Array) -> Array:
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
            Mean Hessian H, of the representation named by `curvature`, as `symmetrise` gives it.
        step_size : float
            Step size eta in (0, 1].
        margin : float
            Ask for more than the domain: the new precision is to exceed `margin` times the old.
        """
        precision = self.mixed_precision(hessian, step_size)
        if margin > 0 and self.with_precision(precision - margin * self.precision) is None:
            return None
        return self._updated(precision, step_size * gradient)

    def mix_corrected(
        self, gradient: Array, hessian: Array, step_size: float, *, margin: float = 0.0
    ) -> Self | None:
        """Update with the `corrected_precision`.

        Positive definite for every symmetric H; None only where rounding or overflow spoils it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            precision = self.corrected_precision(hessian, step_size, margin)
            return self._updated(precision, step_size * gradient)

    def mixed_precision(self, hessian: Array, step_size: float) -> Array:
        """Precision after a plain update, positive definite or not: (1 - eta) P - eta H."""
        return (1 - step_size) * self.precision - step_size * hessian

    def interpolate(self, other: Self, weight: float) -> Self:
        """Member with natural parameter (1 - weight) theta + weight theta_other."""
        precision = (1 - weight) * self.precision + weight * other.precision
        # In differences of the mean: the mean may be far larger than its own uncertainty.
        pull = self.product(other.precision, other.mean - self.mean)
        mixed = self._updated(precision, weight * pull)
        if mixed is None:
            raise domain_error("interpolated precision", self.smallest_eigenvalue(precision))
        return mixed

    def _updated(self, precision: Array, pull: Array) -> Self | None:
        """Member with this precision and its mean moved by the new covariance times `pull`."""
        member = self.with_precision(precision)
        if member is None or not self.has_mean:
            return member
        mean = self.mean + member.solve(pull)
        return member.with_mean(mean) if np.isfinite(mean).all() else None
