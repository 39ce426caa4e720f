"""The groups of an approximation: PyMC's own, whose parameters are written from what was fitted.

PyMC keeps the parameters of a Gaussian in shared variables: a mean, and a scale whose diagonal
passes through a softplus. Its graphs (`mean`, `cov`, `sample_node`) read them there, and its
optimisers change them there. A group therefore remembers the Gaussian that it wrote for as long as
the shared variables hold what was written, and reads them otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.approximations import FullRankGroup, MeanFieldGroup
from pymc.variational.opvi import Group, node_property
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_ngvi._compat import initial_point
from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, Gaussian
from pymc_ngvi.core.linalg import Array, inverse_lower, lower_factor_of_gram
from pymc_ngvi.model.layout import Layout


class Held(NamedTuple):
    """What a group holds: a distribution, the factor of its covariance, and PyMC's variables.

    The distribution is in double precision; `values` have that of the shared variables. One that is
    sparse or nested has no such factor, but its standard deviations in its place.
    """

    distribution: Any
    factor: Array
    values: dict[str, Array]


class _GaussianGroup(Group):
    """A group that holds a distribution, and has the layout of the flat vector given to it.

    PyMC's groups compile the initial point of the model twice, for its shapes and as their start.
    This class compiles it once, and not at all where the layout is given. It stands behind PyMC's
    own group in the bases of the classes below, which is where their ``super().__init_group__``
    arrives.
    """

    layout: Layout
    _held: Held

    def __init_group__(self, group: list[Any]) -> None:
        self.layout = self._kwargs.get("layout") or Layout(self.model, initial_point(self.model))
        self.group = group
        self.input = self._input_type("flat_unconstrained")
        for variable, slot in zip(group, self.layout, strict=True):
            place = self.input[slot.where].reshape(slot.shape).astype(slot.dtype)
            place.name = f"{slot.name}_in_flat"
            self.replacements[self.model.rvs_to_values[variable]] = place
            # Only PyMC reads this.
            self.ordering[slot.name] = (slot.name, slot.where, slot.shape, np.dtype(slot.dtype))
        # From PyMC 6.4 on, its type has the number of columns, which is that of the ordering.
        self.symbolic_initial = self._initial_type("standard_normal_draws")

    def write(self, distribution: Distribution) -> None:
        """Hold a distribution, and copy it into the shared variables."""
        factor, values = self._factor(distribution), {}
        for name, value in self._pack(distribution.mean, factor).items():
            shared = self.shared_params[name]
            values[name] = np.asarray(value, shared.dtype)
            shared.set_value(values[name])
        self._held = Held(distribution, factor, values)

    def _factor(self, distribution: Any) -> Array:
        return covariance_factor(distribution)

    def draw(self, z: Array) -> Array:
        """Map standard normal rows (n, d) to draws of the distribution."""
        gaussian, factor, _ = self.held
        # Multiplying by the factor of the covariance is three times faster than solving with that
        # of the precision.
        draws = z * factor if gaussian.factorised else z @ factor.T
        draws += gaussian.mean
        return draws

    @property
    def held(self) -> Held:
        """What the shared variables hold now."""
        written = self._held.values
        if not all(
            np.array_equal(self.shared_params[name].get_value(borrow=True), value)
            for name, value in written.items()
        ):
            self._held = self._read()
        return self._held

    def _read(self) -> Held:
        values = {name: shared.get_value() for name, shared in self.shared_params.items()}
        for name, value in values.items():
            if not np.isfinite(value).all():
                raise _not_a_gaussian(name, "has values that are not finite")
        return Held(*self._unpack({k: v.astype(np.float64) for k, v in values.items()}), values)

    @abstractmethod
    def _pack(self, mean: Array, factor: Array) -> dict[str, Array]:
        """Return the values of the shared variables, by name."""

    @abstractmethod
    def _unpack(self, values: dict[str, Array]) -> tuple[Distribution, Array]:
        """Inverse of `_pack`, for finite values: the distribution and its factor."""


class NGVIMeanFieldGroup(MeanFieldGroup, _GaussianGroup):
    """PyMC's mean-field group, whose shared variables are written from a diagonal Gaussian."""

    def create_shared_params(self, *_: Any) -> dict[str, SharedVariable]:
        """Create the shared variables, which `write` fills."""
        return _shared(mu=self.ddim, rho=self.ddim)

    def _pack(self, mean: Array, factor: Array) -> dict[str, Array]:
        return {"mu": mean, "rho": _inverse_softplus(factor)}

    def _unpack(self, values: dict[str, Array]) -> tuple[Gaussian, Array]:
        deviations = _softplus("rho", values["rho"])
        return DiagonalGaussian.from_mean_covariance(values["mu"], deviations**2), deviations


class NGVIFullRankGroup(FullRankGroup, _GaussianGroup):
    """PyMC's full-rank group, whose shared variables are written from a full Gaussian."""

    def create_shared_params(self, *_: Any) -> dict[str, SharedVariable]:
        """Create the shared variables, which `write` fills."""
        return _shared(mu=self.ddim, L_tril=self.num_tril_entries)

    def _pack(self, mean: Array, factor: Array) -> dict[str, Array]:
        packed = factor[np.tri(self.ddim, dtype=bool)]
        packed[self._diagonal] = _inverse_softplus(packed[self._diagonal])
        return {"mu": mean, "L_tril": packed}

    def _unpack(self, values: dict[str, Array]) -> tuple[Gaussian, Array]:
        packed = values["L_tril"]
        packed[self._diagonal] = _softplus("L_tril", packed[self._diagonal])
        factor = np.zeros((self.ddim, self.ddim))
        factor[np.tri(self.ddim, dtype=bool)] = packed
        # The covariance is not formed: its condition number is the square of that of the factor.
        root = lower_factor_of_gram(inverse_lower(factor))
        return FullGaussian.from_arrays({"mean": values["mu"], "factor": root}), factor

    @property
    def _diagonal(self) -> Array:
        """Where the diagonal is in a packed triangle: row i ends with entry i of the diagonal."""
        return np.cumsum(np.arange(1, self.ddim + 1)) - 1


class HeldDraws(Op):
    """Draws of the distribution that a group holds, and their log densities."""

    __props__ = ("group",)

    def __init__(self, group: _DrawnGroup) -> None:
        self.group = group

    def make_node(self, rows: Any, mean: Any) -> Apply:
        """Apply to standard normal rows (n, d) and the mean (d,)."""
        rows, mean = pt.as_tensor(rows), pt.as_tensor(mean)
        draws = pt.matrix(shape=rows.type.shape, dtype="float64")
        return Apply(self, [rows, mean], [draws, pt.vector(dtype="float64")])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Draw, and move the draws to the mean."""
        rows, mean = (np.asarray(array, dtype=np.float64) for array in inputs)
        held = self.group.held.distribution
        outputs[0][0] = held.unwhiten(rows) + (mean - held.mean)
        outputs[1][0] = held.log_density_whitened(rows)


class HeldCovariance(Op):
    """Covariance of the distribution that a group holds."""

    __props__ = ("group",)

    def __init__(self, group: _DrawnGroup) -> None:
        self.group = group

    def make_node(self, mean: Any) -> Apply:
        """Apply to the mean (d,), which says when the distribution has changed."""
        return Apply(self, [pt.as_tensor(mean)], [pt.matrix(dtype="float64")])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Compute the covariance."""
        outputs[0][0] = np.asarray(self.group.held.distribution.covariance)


class _DrawnGroup(FullRankGroup, _GaussianGroup):
    """A group with the interface of PyMC's full-rank one whose draws are made in NumPy.

    Its shared variables are the mean and the standard deviations; all else is that of the
    distribution that was written last.
    """

    __param_spec__: ClassVar[dict[str, Any]] = {"mu": ("d",), "sd": ("d",)}

    def create_shared_params(self, *_: Any) -> dict[str, SharedVariable]:
        """Create the shared variables, which `write` fills."""
        return _shared(mu=self.ddim, sd=self.ddim)

    def _factor(self, distribution: Any) -> Array:
        return np.sqrt(distribution.variance)

    def draw(self, z: Array) -> Array:
        """Map standard normal rows (n, d) to draws of the distribution."""
        return self.held.distribution.unwhiten(z)

    def _pack(self, mean: Array, factor: Array) -> dict[str, Array]:
        return {"mu": mean, "sd": factor}

    @node_property  # type: ignore[untyped-decorator]
    def std(self) -> Any:
        """Return the standard deviations (d,)."""
        return self.params_dict["sd"]

    @node_property  # type: ignore[untyped-decorator]
    def symbolic_random(self) -> Any:
        """Return draws from standard normal rows."""
        return HeldDraws(self)(self.symbolic_initial, self.mean)[0]

    @node_property  # type: ignore[untyped-decorator]
    def symbolic_logq_not_scaled(self) -> Any:
        """Return the log density of these draws."""
        return HeldDraws(self)(self.symbolic_initial, self.mean)[1]


class NGVISparseGroup(_DrawnGroup):
    """A group with the interface of PyMC's full-rank one that never builds a d x d matrix."""

    short_name = "sparse_full_rank"
    alias_names = frozenset(["sfr"])

    def _unpack(self, values: dict[str, Array]) -> tuple[Distribution, Array]:
        gaussian, factor, before = self._held
        if not np.array_equal(values["sd"], before["sd"]):
            raise _not_a_gaussian("sd", "cannot be changed apart from the correlations")
        return gaussian.with_mean(values["mu"]), factor

    @node_property  # type: ignore[untyped-decorator]
    def cov(self) -> Any:
        """Raise: the covariance would be dense."""
        raise NotImplementedError(
            f"the covariance of {self.ddim:,} parameters is not built: take approx.std, or "
            "approx.gaussian.covariance_between(i, j) for chosen pairs"
        )


class NGVINestedGroup(_DrawnGroup):
    """A group whose draws are those of a nested distribution."""

    short_name = "nested"
    alias_names = frozenset(["nst"])

    def _unpack(self, values: dict[str, Array]) -> tuple[Distribution, Array]:
        raise TypeError(
            "the shared parameters of a nested approximation show its mean and its standard "
            "deviations, and cannot be changed: fit again"
        )

    @node_property  # type: ignore[untyped-decorator]
    def cov(self) -> Any:
        """Return the covariance (d, d)."""
        return HeldCovariance(self)(self.mean)


def covariance_factor(gaussian: Gaussian) -> Array:
    r"""Lower triangular factor S of the covariance, :math:`S S' = \Sigma`, with positive diagonal.

    For independent components S is diagonal, and is returned as the vector of standard deviations.
    Otherwise the rows of ``unwhiten(I)`` form a root R with R'R the covariance. The QR
    decomposition of R gives the factor without forming the covariance, whose condition number is
    the square of that of R.
    """
    if gaussian.factorised:
        return np.sqrt(gaussian.variance)
    centred = gaussian.with_mean(np.zeros(gaussian.dim))
    return lower_factor_of_gram(centred.unwhiten(np.eye(gaussian.dim)))


def _softplus(name: str, value: Array) -> Array:
    """Return log(1 + exp(value)), the scales that shared variable `name` stands for."""
    scales = np.logaddexp(0.0, value)
    if not scales.all():
        raise _not_a_gaussian(name, "has scales of zero")
    return scales


def _inverse_softplus(value: Array) -> Array:
    """Solve log(1 + exp(x)) = value for x, accurately for very small and very large values."""
    return value + np.log(-np.expm1(-value))


def _not_a_gaussian(name: str, problem: str) -> ValueError:
    return ValueError(
        f"the shared parameters hold no Gaussian: {name} {problem}; set other values, or call "
        "set_gaussian"
    )


def _shared(**sizes: int) -> dict[str, SharedVariable]:
    dtype = pytensor.config.floatX
    return {
        name: pytensor.shared(np.zeros(size, dtype), name, shape=(size,))
        for name, size in sizes.items()
    }
