"""Gaussians whose precision is sparse, as the Hessians of hierarchical and spatial models are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families.base import Gaussian
from pymc_ngvi.core.families.parameters import Expectation, Natural, as_vector, domain_error
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Factor, Structure, factorise
from pymc_ngvi.core.sparse.completion import complete
from pymc_ngvi.core.sparse.factor import inverse_derivative, raised_diagonal

# Up to this many rows dense eigenvalues are cheaper than iterations.
_SMALL = 64
# A chain of so many links is eliminated by compiled loops.
_DEEP = 100
# Pivots that `from_curvature` finds smaller than this, beyond the precision of 1, are rounding.
_SMALLEST_PIVOT = 1e-6


class SparseGaussian(Gaussian):
    r"""Gaussian with a precision P that has entries on a structure only, kept as mean and values.

    A matrix, be it a precision, a covariance or a Hessian, is the vector (nnz,) of its values on
    the lower triangle of the structure. Of the covariance these are all that the family needs: the
    sufficient statistic is x with :math:`x_i^2`, and :math:`2 x_i x_j` wherever P may have an
    entry. The `second` of an expectation parameter has that factor 2 off the diagonal, so that
    scalar products with natural parameters are sums over all entries of the matrices.

    The class itself has no structure; :meth:`on` gives the family of one.

    Examples
    --------
    >>> chain = SparseGaussian.on(Structure(3, [1, 2], [0, 1]))
    >>> q = chain.from_mean_precision(np.zeros(3), [2.0, -1.0, 2.0, -1.0, 2.0])
    >>> q.variance
    array([0.75, 1.  , 0.75])
    >>> q.covariance_between([0, 0], [1, 2])
    array([0.5 , 0.25])
    """

    name: ClassVar[str] = "sparse"
    curvature: ClassVar[str] = "sparse"
    factorised: ClassVar[bool] = False

    structure: ClassVar[Structure]

    def __init__(self, mean: Array, precision: Array, factor: Factor) -> None:
        for array in (mean, precision):
            array.setflags(write=False)  # a member is a value, and what it caches stays true
        self.mean = mean
        self._precision = precision
        self.factor = factor

    @classmethod
    def on(cls, structure: Structure) -> type[Self]:
        return type(cls.__name__, (cls,), {"structure": structure, "__doc__": cls.__doc__})

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of a structure has no name by which it could be found again.
        return _rebuild, (self.structure,), self.__dict__

    @classmethod
    def load(cls) -> None:
        if cls.is_bound() and not cls.structure.elimination.compiled:
            return
        links = np.arange(_DEEP)
        chain = SparseGaussian.on(Structure(_DEEP + 1, links + 1, links))
        q = chain.from_mean_variance(np.zeros(_DEEP + 1), np.ones(_DEEP + 1))
        q.kl(q)
        q.fisher_product(Natural(q.unwhiten(np.zeros((1, _DEEP + 1)))[0], q.precision))

    @classmethod
    def hubs(cls) -> NDArray[np.int64]:
        return cls._bound().hubs

    @classmethod
    def min_draws(cls, dim: int) -> int:
        # As for a full family of as many components as are eliminated together.
        return 4 * min(dim, int(np.ceil(cls._bound().height)))

    @classmethod
    def _bound(cls) -> Structure:
        if not cls.is_bound():
            raise TypeError(
                "a sparse family needs the structure of its precision: SparseGaussian.on(structure)"
            )
        return cls.structure

    @classmethod
    def is_bound(cls) -> bool:
        """Whether the class has a structure: the one that a user names has none."""
        return cls.structure is not None

    @classmethod
    def suits(cls, structure: Structure) -> bool:
        """Whether the family is one for matrices on this kind of structure."""
        return not structure.rank

    # What depends on the kind of structure.

    @classmethod
    def _factorise(cls, values: Array) -> Factor | None:
        """Factorise a matrix of values (nnz,); None where it is not positive definite."""
        return factorise(cls._bound(), values)

    @classmethod
    def _raise(cls, values: Array, reference: Array, **rule: float) -> Array | None:
        """Raise the diagonal where pivots are too small; see :func:`raised_diagonal`."""
        return raised_diagonal(cls._bound(), values, reference, **rule)

    def _inverse_derivative(self, change: Array) -> Array:
        """Return the derivative of the covariance (nnz,) as the precision changes."""
        return inverse_derivative(self.structure, self.precision, change)

    # Matrices are values (nnz,) here.

    @classmethod
    def symmetrise(cls, matrix: Array) -> Array:
        return matrix

    @classmethod
    def outer(cls, vector: Array) -> Array:
        structure = cls._bound()
        return np.asarray(vector[structure.rows] * vector[structure.columns])

    @classmethod
    def product(cls, matrix: Array, vector: Array) -> Array:
        return cls._bound().product(matrix, vector)

    @classmethod
    def diagonal(cls, matrix: Array) -> Array:
        return np.asarray(matrix[cls._bound().diagonal])

    @classmethod
    def plus_diagonal(cls, matrix: Array, diagonal: Array) -> Array:
        return matrix + cls._from_diagonal(diagonal)

    @classmethod
    def smallest_eigenvalue(cls, matrix: Array) -> float:
        whole = cls._bound().matrix(matrix)
        if whole.shape[0] <= _SMALL:
            return float(np.linalg.eigvalsh(whole.toarray())[0])
        return float(
            scipy.sparse.linalg.eigsh(
                whole,
                k=1,
                which="SA",
                tol=1e-3,
                return_eigenvectors=False,
                v0=np.ones(whole.shape[0]),
            )[0]
        )

    # Members.

    @classmethod
    def from_mean_precision(cls, mean: ArrayLike, precision: ArrayLike) -> Self:
        mean, values = cls._checked(mean, precision, "precision")
        factor = cls._factorise(values)
        if factor is None:
            raise domain_error("precision", cls.smallest_eigenvalue(values))
        return cls(mean, values, factor)

    @classmethod
    def from_mean_covariance(cls, mean: ArrayLike, covariance: ArrayLike) -> Self:
        """Build from mean and the covariances on the structure; the others follow from them."""
        mean, values = cls._checked(mean, covariance, "covariance")
        precision = complete(cls._bound(), values)
        if precision is None:
            raise domain_error("covariance", cls.smallest_eigenvalue(values))
        return cls.from_mean_precision(mean, precision)

    @classmethod
    def from_mean_variance(cls, mean: ArrayLike, variance: ArrayLike) -> Self:
        variance = as_vector(variance, "variance")
        if variance.min() <= 0:
            raise domain_error("covariance", float(variance.min()))
        return cls.from_mean_precision(mean, cls._from_diagonal(1 / variance))

    @classmethod
    def from_curvature(
        cls, mean: ArrayLike, hessian: Array | None, *, deviations: Array | None = None
    ) -> Self:
        """Build the member to start a fit from, by the curvature of the target at `mean`.

        The precision exceeds 1 in every direction, and is the curvature with its diagonal raised
        where that takes it: to the absolute curvature where components are independent.
        """
        structure = cls._bound()
        ones, precision = np.ones(structure.dim), cls._from_diagonal(np.ones(structure.dim))
        if hessian is not None and np.isfinite(hessian).all():
            beyond = cls._raise(
                -hessian - precision,
                ones,
                margin=_SMALLEST_PIVOT,
                least=_SMALLEST_PIVOT,
                shift=1.0,
            )
            if beyond is not None and cls._factorise(beyond + precision) is not None:
                precision = beyond + precision
        if deviations is not None:
            given = np.isfinite(deviations)
            precision[given[structure.rows] | given[structure.columns]] = 0.0
            precision[structure.diagonal[given]] = deviations[given] ** -2.0
        return cls.from_mean_precision(mean, precision)

    @classmethod
    def _from_diagonal(cls, diagonal: Array) -> Array:
        structure = cls._bound()
        values = np.zeros(structure.nnz)
        values[structure.diagonal] = diagonal
        return values

    @classmethod
    def _checked(cls, mean: ArrayLike, values: ArrayLike, what: str) -> tuple[Array, Array]:
        structure = cls._bound()
        vector, checked = as_vector(mean, "mean", structure.dim), np.array(values, dtype=float)
        if checked.shape != (structure.nnz,):
            raise ValueError(
                f"{what} has shape {checked.shape}, its structure asks for ({structure.nnz},)"
            )
        if not np.isfinite(checked).all():
            raise ValueError(f"{what} has entries that are not finite")
        return vector, checked

    def with_precision(self, precision: Array) -> Self | None:
        factor = self._factorise(precision)
        return None if factor is None else type(self)(self.mean, precision, factor)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        member = cls.from_mean_precision(np.zeros(cls._bound().dim), -2 * natural.second)
        return member.with_mean(member.solve(natural.first))

    @classmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        moments = expectation.second / cls._bound().multiplicity
        return cls.from_mean_covariance(
            expectation.first, moments - cls.outer(np.asarray(expectation.first))
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        structure = self.structure
        return {
            "mean": self.mean,
            "precision": self.precision,
            "rows": structure.rows,
            "columns": structure.columns,
            "order": structure.order,  # another one would change the last bits of the factor
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        structure = Structure(
            len(arrays["mean"]), arrays["rows"], arrays["columns"], arrays["order"]
        )
        return cls.on(structure).from_mean_precision(arrays["mean"], arrays["precision"])

    # The distribution.

    @property
    def precision(self) -> Array:
        return self._precision

    @property
    def covariance(self) -> Array:
        """Covariances on the structure, (nnz,)."""
        return self.factor.inverse

    def covariance_between(self, first: ArrayLike, second: ArrayLike) -> Array:
        """Covariances (k,) of pairs of components, on the structure or not."""
        pairs = (np.atleast_1d(np.asarray(which, np.int64)) for which in (first, second))
        return self.factor.inverse_at(*pairs)

    @property
    def expectation(self) -> Expectation:
        moments = self.covariance + self.outer(self.mean)
        return Expectation(self.mean, self.structure.multiplicity * moments)

    @property
    def log_det_precision(self) -> float:
        return self.factor.log_det

    @cached_property
    def variance(self) -> Array:
        return self.diagonal(self.covariance)

    def solve(self, vector: Array) -> Array:
        return self.factor.solve(vector)

    def unwhiten(self, z: Array) -> Array:
        draws = self.factor.solve_transposed(z)
        draws += self.mean  # in place: there may be a thousand draws of many components
        return draws

    def whiten(self, draws: Array) -> Array:
        return self.factor.multiply_transposed(draws - self.mean)

    @property
    def root_diagonal(self) -> Array:
        diagonal = np.empty(self.dim)
        diagonal[self.structure.order] = 1 / np.sqrt(self.factor.pivots)
        return diagonal

    def conditional(self, split: Split, values: Array) -> Gaussian:
        moved = np.zeros(self.dim)
        moved[split.held] = values - self.mean[split.held]
        pull = self.product(self.precision, moved)[split.rest]
        inner, kept = split.structure(self.structure)
        family = SparseGaussian.on(inner)
        member = family.from_mean_precision(self.mean[split.rest], self.precision[kept])
        return member.with_mean(member.mean - member.solve(pull))

    def score_whitened(self, z: Array) -> Array:
        return -self.factor.multiply(z)

    def kl(self, other: Self) -> float:
        shift = self.factor.divergence(other.factor)
        distance = other.factor.multiply_transposed((other.mean - self.mean)[np.newaxis])
        return shift + 0.5 * float(np.square(distance).sum())

    def fisher_product(self, direction: Natural) -> Expectation:
        """Fisher information times a direction, as the derivative of the inverse on the structure.

        It costs about twice what factor and inverse cost, and needs no other entries of them.
        """
        change = direction.second
        mean = self.solve(direction.first + 2 * self.product(change, self.mean))
        moved = np.zeros_like(change)
        if change.any():
            moved = -2 * self._inverse_derivative(change)
        cross = (self.outer(self.mean + mean) - self.outer(self.mean - mean)) / 2
        return Expectation(mean, self.structure.multiplicity * (moved + cross))

    def dual(self, direction: Natural) -> Expectation:
        r"""Return what measures directions seen from the mean of q, by a stand-in.

        The Fisher information of the mean is taken as it is, that of the precision only on its
        diagonal, :math:`\mathrm{Var}(x_i x_j) = \Sigma_{ii}\Sigma_{jj} + \Sigma_{ij}^2`.
        """
        structure = self.structure
        scale = self.outer(np.sqrt(self.variance))
        spread = np.square(scale) + np.square(self.covariance)
        # x_i^2 is counted once, x_i x_j twice: both the statistic and its coefficient.
        weight = np.square(structure.multiplicity)
        return Expectation(self.solve(direction.first), weight * spread * direction.second)

    def flat_direction(self, hessian: Array, least: float) -> Array | None:
        if self._factorise(-hessian - least * self.precision) is not None:
            return None
        if self.dim <= _SMALL:
            root = self.unwhiten(np.eye(self.dim)) - self.mean
            dense = root @ self.structure.matrix(-hessian) @ root.T
            return np.asarray(np.linalg.eigh(dense)[1][:, 0] @ root)

        def curvature(z: Array) -> Array:
            step = self.factor.solve_transposed(z.reshape(1, -1))[0]
            return np.asarray(self.factor.solve_root(-self.product(hessian, step)[np.newaxis])[0])

        shape = (self.dim, self.dim)
        operator = scipy.sparse.linalg.LinearOperator(shape, matvec=curvature, dtype=float)
        try:
            _, vectors = scipy.sparse.linalg.eigsh(
                operator, k=1, which="SA", tol=1e-2, v0=np.ones(self.dim)
            )
        except scipy.sparse.linalg.ArpackNoConvergence:
            return None  # no single direction stands out
        return np.asarray(self.factor.solve_transposed(vectors.T)[0])

    def whiten_gradients(self, gradients: Array) -> Array:
        return self.factor.solve_root(gradients)

    def relative_trace(self, hessians: Array) -> Array:
        return np.asarray(hessians @ (self.structure.multiplicity * self.covariance))

    def stein_hessian(self, z: Array, residual: Array) -> Array:
        structure = self.structure
        pull, total = self.factor.multiply(z), np.zeros(structure.nnz)
        for left, right in zip(pull, residual, strict=True):
            total += left[structure.rows] * right[structure.columns]
            total += left[structure.columns] * right[structure.rows]
        return np.asarray(total / (2 * len(z)) - self.precision)

    # The update.

    def corrected_precision(self, hessian: Array, step_size: float, margin: float) -> Array:
        r"""Precision after an update whose diagonal is raised where it leaves the domain.

        The correction of Lin, Schmidt and Khan has entries beyond the structure. Here it is made
        for the pivots one after the other: a pivot b of the plain update that lacks the margin
        against the old one, :math:`D_j`, becomes :math:`(D_j + b^2 / D_j) / 2`.
        """
        bare = self.mixed_precision(hessian, step_size)
        pivots = self.factor.pivots
        raised = self._raise(bare, pivots, margin=margin, least=0.5, growth=0.5)
        return np.full_like(bare, np.nan) if raised is None else raised

    def mix_clipped(
        self, gradient: Array, hessian: Array, step_size: float, lowest: float, highest: float
    ) -> NoReturn:
        raise _no_eigenvalues()

    def clip_precision(self, lowest: float, highest: float) -> Self:
        """Return the member itself where its eigenvalues lie in [lowest, highest]; else refuse."""
        within = self._from_diagonal(np.ones(self.dim))
        if lowest > 0 and self._factorise(self.precision - lowest * within) is None:
            raise _no_eigenvalues()
        if np.isfinite(highest) and self._factorise(highest * within - self.precision) is None:
            raise _no_eigenvalues()
        return self


def _no_eigenvalues() -> ValueError:
    return ValueError(
        "family 'sparse' cannot clip eigenvalues: the precision would lose its structure. Use "
        "family='fullrank' with EigenvalueBounds, or the guard 'lin' without them"
    )


def _rebuild(structure: Structure) -> SparseGaussian:
    family = SparseGaussian.on(structure)
    return family.__new__(family)
