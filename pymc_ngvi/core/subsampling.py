r"""Subsampling of a log density that is a large sum (section 5.2 of the paper).

.. math:: f(x) = f_0(x) + \sum_{m=1}^M f_m(x), \qquad
    g^N(\omega) = \nabla_\omega E_q[f_0] + \frac{M}{N}\sum_{n=1}^N \nabla_\omega E_q[f_{U_n}]

Here the expectations of each term under q are known in closed form, so the only randomness is the
batch of indices U.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.distribution import LOG_TWO_PI
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.families.parameters import as_vector
from pymc_ngvi.core.linalg import Array, cholesky
from pymc_ngvi.errors import NonFiniteError

Member = TypeVar("Member", bound=Gaussian)


@dataclass(frozen=True)
class Moments:
    """Expectations under q of a function, its gradient (d,) and its Hessian.

    The Hessian is of the representation named by the family's `curvature`.
    """

    value: float
    gradient: Array
    hessian: Array


class FiniteSum(ABC):
    """A log density made of a prior term and `n_terms` others, with expectations in closed form.

    Attributes
    ----------
    dim : int
        Number of components d.
    n_terms : int
        Number of terms M.
    """

    dim: int
    n_terms: int
    #: Zero: passes are counted for targets that read batches; here, terms count as evaluations.
    passes: float = 0.0

    @abstractmethod
    def prior(self, q: Gaussian) -> Moments:
        """Moments of the prior term under q."""

    @abstractmethod
    def terms(self, q: Gaussian, indices: NDArray[np.intp]) -> Moments:
        """Moments under q of the sum of the terms with these indices."""


class Subsampling:
    """Estimator from the prior term and M/N times a uniformly drawn batch of N terms.

    Parameters
    ----------
    replace : bool
        Draw indices with replacement, as in the paper (default), or without. Without, the batch
        contains all terms once N reaches M, and the estimate is exact.
    """

    def __init__(self, *, replace: bool = True) -> None:
        self.replace = replace

    def __repr__(self) -> str:
        return f"Subsampling(replace={self.replace})"

    def __call__(
        self, target: FiniteSum, q: Gaussian, n_samples: int, rng: np.random.Generator
    ) -> Estimate:
        """Estimate from a fresh batch of `n_samples` terms."""
        total = target.n_terms
        size = n_samples if self.replace else min(n_samples, total)
        if self.replace:
            indices = rng.integers(total, size=size)
        else:
            indices = rng.choice(total, size=size, replace=False, shuffle=False)
        prior, batch = target.prior(q), target.terms(q, indices)
        scale = total / size
        estimate = Estimate(
            gradient=prior.gradient + scale * batch.gradient,
            hessian=prior.hessian + scale * batch.hessian,
            elbo=prior.value + scale * batch.value + q.entropy(),
            elbo_se=float("nan"),
            evaluations=size,
        )
        parts: dict[str, ArrayLike] = {
            "value": estimate.elbo,
            "gradient": estimate.gradient,
            "Hessian": estimate.hessian,
        }
        bad = [what for what, part in parts.items() if not np.isfinite(part).all()]
        if bad:
            message = f"the {', '.join(bad)} of a batch of {size} terms is not finite"
            raise NonFiniteError(message, q.mean[np.newaxis], size)
        return estimate


@final
class LinearRegression(FiniteSum):
    r"""Bayesian linear regression with known noise and a centred Gaussian prior.

    .. math:: y_m \sim N(z_m' x, \sigma^2), \qquad x \sim N(0, P_0^{-1})

    Parameters
    ----------
    design : array, (M, d)
        Rows z_m.
    response : array, (M,)
        Responses y_m.
    noise_variance : float
        Variance sigma^2 of the noise.
    prior_precision : array, (d, d), or float
        Precision P_0 of the prior; a number means that multiple of the identity.

    Examples
    --------
    >>> from pymc_ngvi.core.families import FullGaussian
    >>> model = LinearRegression([[1.0], [2.0]], [1.0, 3.0], noise_variance=1, prior_precision=2)
    >>> model.posterior(FullGaussian).mean
    array([1.])
    """

    def __init__(
        self,
        design: ArrayLike,
        response: ArrayLike,
        *,
        noise_variance: float,
        prior_precision: ArrayLike,
    ) -> None:
        self.design = np.array(design, dtype=float)
        self.response = as_vector(response, "response")
        if self.design.ndim != 2 or len(self.design) != len(self.response):
            raise ValueError(
                f"design has shape {self.design.shape}, response has {self.response.shape}: "
                "design needs one row for each response"
            )
        self.n_terms, self.dim = self.design.shape
        finite = np.isfinite(self.design).all(axis=1)
        if not finite.all():
            raise ValueError(f"design is not finite in row {int(np.argmin(finite))}")
        if not 0 < noise_variance < np.inf:
            raise ValueError(f"noise_variance must be positive, got {noise_variance}")
        self.noise_variance = float(noise_variance)
        precision = np.asarray(prior_precision, dtype=float)
        dim = self.dim
        self.prior_precision = precision * np.eye(dim) if precision.ndim == 0 else precision
        if self.prior_precision.shape != (dim, dim):
            raise ValueError(f"prior_precision has shape {precision.shape}, expected {(dim, dim)}")
        root = cholesky(self.prior_precision)
        if root is None:
            raise ValueError("prior_precision must be positive definite")
        self._prior_log_det = 2 * float(np.log(root.diagonal()).sum())

    def prior(self, q: Gaussian) -> Moments:
        """Moments of the log prior under q."""
        precision = self.prior_precision
        quadratic = q.mean @ precision @ q.mean + _trace(precision, q)
        value = 0.5 * (self._prior_log_det - self.dim * LOG_TWO_PI - quadratic)
        return Moments(float(value), -precision @ q.mean, _as_curvature(-precision, q))

    def terms(self, q: Gaussian, indices: NDArray[np.intp]) -> Moments:
        """Moments under q of the log likelihood of these observations."""
        design, residual = self.design[indices], self.response[indices]
        residual = residual - design @ q.mean
        gram = design.T @ design
        squares = residual @ residual + _trace(gram, q)
        constant = len(residual) * (LOG_TWO_PI + np.log(self.noise_variance))
        value = -0.5 * (constant + squares / self.noise_variance)
        gradient = design.T @ residual / self.noise_variance
        return Moments(float(value), gradient, _as_curvature(-gram / self.noise_variance, q))

    def posterior(self, family: type[Member]) -> Member:
        """Exact posterior, or for a diagonal family the optimum of the variational problem."""
        precision = self.prior_precision + self.design.T @ self.design / self.noise_variance
        mean = np.linalg.solve(precision, self.design.T @ self.response / self.noise_variance)
        if family.curvature == "full":
            return family.from_mean_precision(mean, precision)
        # A centred family has no mean to fit: its optimum keeps the diagonal of the precision.
        mean = mean if family.has_mean else np.zeros(self.dim)
        return family.from_mean_precision(mean, precision.diagonal())


def _as_curvature(matrix: Array, q: Gaussian) -> Array:
    return matrix if q.curvature == "full" else matrix.diagonal().copy()


def _trace(matrix: Array, q: Gaussian) -> float:
    if q.curvature == "full":
        return float(np.vdot(matrix, q.covariance))
    return float(matrix.diagonal() @ q.variance)
