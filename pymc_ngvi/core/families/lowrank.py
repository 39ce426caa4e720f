"""Gaussians whose precision is sparse but for a few rows, as those of wide regressions are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families.base import Gaussian
from pymc_ngvi.core.families.parameters import Expectation, Natural, domain_error
from pymc_ngvi.core.families.sparse import SparseGaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import LowRankStructure, Structure
from pymc_ngvi.core.sparse.factor import Factor, raised_diagonal
from pymc_ngvi.core.sparse.low_rank_factor import LowRankFactor, factorise_low_rank

_MOST_STEPS = 100


class LowRankGaussian(SparseGaussian):
    r"""Gaussian with precision :math:`P = S + A' \mathrm{diag}(w) A`: S sparse, A fixed.

    A matrix is the vector (nnz,) of the values of S and of the weights w, which are at least 0; S
    is positive definite by itself. The sufficient statistic has :math:`(a_r' x)^2` for each row of
    A beside that of the sparse family. It is an exponential family like any other, and it contains
    the mean Hessian of a log density that depends on x by sparse terms and by A x: natural-gradient
    steps are those of the full family, and so is their end.

    With r rows a member costs about r^2 d operations instead of d^3, and r d numbers instead of
    d^2.

    Examples
    --------
    >>> structure = LowRankStructure(Structure(3, [], []), np.ones((1, 3)))
    >>> q = LowRankGaussian.on(structure).from_mean_precision(np.zeros(3), [1.0, 1.0, 1.0, 2.0])
    >>> q.variance.round(4)
    array([0.7143, 0.7143, 0.7143])
    """

    name: ClassVar[str] = "lowrank"
    has_triangular_root: ClassVar[bool] = False

    structure: ClassVar[LowRankStructure]
    factor: LowRankFactor

    @classmethod
    def on(cls, structure: Structure) -> type[Self]:
        if not isinstance(structure, LowRankStructure):
            raise TypeError(f"{structure!r} has no rows of low rank: use family='sparse'")
        return super().on(structure)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.structure,), self.__dict__

    @classmethod
    def suits(cls, structure: Structure) -> bool:
        return structure.rank > 0

    @classmethod
    def min_draws(cls, dim: int) -> int:
        return Gaussian.min_draws(dim)

    # What depends on the kind of structure.

    @classmethod
    def _factorise(cls, values: Array) -> Factor | None:
        return factorise_low_rank(cls._low_rank(), values)

    @classmethod
    def _low_rank(cls) -> LowRankStructure:
        cls._bound()
        return cls.structure

    @classmethod
    def _raise(cls, values: Array, reference: Array, **rule: float) -> Array | None:
        structure = cls._low_rank()
        sparse, weights = structure.split(values)
        raised = raised_diagonal(structure.base, sparse, reference, **rule)
        return None if raised is None else np.concatenate([raised, np.maximum(weights, 0.0)])

    def _inverse_derivative(self, change: Array) -> Array:
        return self.factor.inverse_derivative(self.precision, change)

    # Matrices are the values of S, and weights.

    @classmethod
    def outer(cls, vector: Array) -> Array:
        structure = cls._low_rank()
        pairs = vector[structure.rows] * vector[structure.columns]
        return np.concatenate([pairs, np.square(structure.factor @ vector)])

    @classmethod
    def diagonal(cls, matrix: Array) -> Array:
        return cls._bound().diagonal_of(matrix)

    @classmethod
    def smallest_eigenvalue(cls, matrix: Array) -> float:
        structure = cls._low_rank()
        if structure.dim <= 64:
            return float(np.linalg.eigvalsh(structure.dense(matrix))[0])
        operator = scipy.sparse.linalg.LinearOperator(
            (structure.dim,) * 2, matvec=lambda v: structure.product(matrix, v), dtype=float
        )
        found = scipy.sparse.linalg.eigsh(
            operator,
            k=1,
            which="SA",
            tol=1e-3,
            return_eigenvectors=False,
            v0=np.ones(structure.dim),
        )
        return float(found[0])

    # Members.

    @classmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        """Build from mean, covariances on the structure and those in the rows of A.

        Newton's method for the convex problem whose solution has them; for theory and tests.
        """
        mean, wanted = cls._checked(mean, covariance, "covariance")
        structure = cls._low_rank()
        twice = structure.multiplicity
        variance = wanted[structure.diagonal]
        if not np.all(variance > 0):
            raise domain_error("covariance", float(variance.min()))
        start = cls._from_diagonal(0.5 / variance)
        start[structure.base.nnz :] = 0.1 / wanted[structure.base.nnz :]
        q = cls.from_mean_precision(mean, start)
        for _ in range(_MOST_STEPS):
            gap = twice * (q.covariance - wanted)
            if np.abs(gap).max() < 1e-12 * np.abs(wanted).max():
                return q
            way = _solve(q, gap)
            fall, size = float(gap @ way), 1.0
            loss = float(twice * wanted @ q.precision) - q.log_det_precision
            while size > 1e-10:
                ahead = q.with_precision(q.precision + size * way)
                if ahead is not None:
                    value = float(twice * wanted @ ahead.precision) - ahead.log_det_precision
                    if fall < 1e-8 or value <= loss - 1e-4 * size * fall:
                        break
                size /= 2
            if size <= 1e-10 or ahead is None or fall < 1e-22:
                break
            q = ahead
        if np.abs(gap).max() > 1e-8 * np.abs(wanted).max():
            raise domain_error("covariance", cls.smallest_eigenvalue(wanted))
        return q

    def arrays(self) -> dict[str, NDArray[Any]]:
        return super().arrays() | {"low_rank": self.structure.factor}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        base = Structure(len(arrays["mean"]), arrays["rows"], arrays["columns"], arrays["order"])
        structure = LowRankStructure(base, np.asarray(arrays["low_rank"]))
        return cls.on(structure).from_mean_precision(arrays["mean"], arrays["precision"])

    # The distribution.

    @cached_property
    def variance(self) -> Array:
        return np.asarray(self.covariance[self.structure.diagonal])

    @property
    def root_diagonal(self) -> Array:
        raise NotImplementedError("the root of this family is not triangular")

    def conditional(self, split: Split, values: Array) -> Gaussian:
        moved = np.zeros(self.dim)
        moved[split.held] = values - self.mean[split.held]
        pull = self.product(self.precision, moved)[split.rest]
        inner, kept = split.structure(self.structure.base)
        structure = LowRankStructure(inner, self.structure.factor[:, split.rest])
        sparse, weights = self.structure.split(self.precision)
        precision = np.concatenate([sparse[kept], weights])
        member = LowRankGaussian.on(structure).from_mean_precision(self.mean[split.rest], precision)
        return member.with_mean(member.mean - member.solve(pull))

    def displacement(self, direction: Natural) -> tuple[Array, Array, float]:
        moved = self.with_mean(np.zeros(self.dim)).fisher_product(direction)
        variance = moved.second[self.structure.diagonal]
        with np.errstate(over="ignore"):
            mean = np.square(moved.first) / self.variance
            log_sd = np.square(variance / (2 * self.variance))
            return mean, log_sd, direction.inner(moved) / 2

    def dual(self, direction: Natural) -> Expectation:
        structure = self.structure
        scale = np.sqrt(self.variance)
        pairs = scale[structure.rows] * scale[structure.columns]
        covariance, of_rows = structure.split(self.covariance)
        spread = np.concatenate([np.square(pairs) + np.square(covariance), 2 * of_rows**2])
        weight = np.square(structure.multiplicity)
        return Expectation(self.solve(direction.first), weight * spread * direction.second)

    def stein_hessian(self, z: Array, residual: Array) -> Array:
        raise NotImplementedError(
            "family='lowrank' needs Hessians: gradients do not tell its sparse part from its rows. "
            "Use family='meanfield' or 'fullrank' with this estimator"
        )


def _solve(q: LowRankGaussian, gap: Array) -> Array:
    """Change of the precision (nnz,) whose change of the covariances removes a gap."""

    def information(change: Array) -> Array:
        return q.structure.multiplicity * -q._inverse_derivative(change)

    n = gap.size
    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=information, dtype=float)
    way, _ = scipy.sparse.linalg.cg(operator, gap, rtol=1e-12, maxiter=4 * n + 20)
    return np.asarray(way)


def _rebuild(structure: LowRankStructure) -> LowRankGaussian:
    family = LowRankGaussian.on(structure)
    return family.__new__(family)
