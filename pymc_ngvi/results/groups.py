"""The two groups of an approximation: PyMC's own, whose parameters are written from a Gaussian.

PyMC keeps the parameters of a Gaussian in shared variables: a mean, and a scale whose diagonal
passes through a softplus. Its graphs (`mean`, `cov`, `sample_node`) read them there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
from pymc.variational.approximations import FullRankGroup, MeanFieldGroup
from pymc.variational.opvi import Group
from pytensor.compile.sharedvalue import SharedVariable

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.layout import Layout


class _GroupOfLayout(Group):
    """A group that has the layout of the flat vector given to it.

    PyMC's groups compile the initial point of the model twice, for its shapes and as their start.
    This class compiles it once, and not at all where the layout is given. It stands behind PyMC's
    own group in the bases of the classes below, which is where their ``super().__init_group__``
    arrives.
    """

    layout: Layout

    def __init_group__(self, group: list[Any]) -> None:
        self.layout = self._kwargs.get("layout") or Layout(self.model, self.model.initial_point(0))
        self.group = group
        self.symbolic_initial = self._initial_type("standard_normal_draws")
        self.input = self._input_type("flat_unconstrained")
        for variable, slot in zip(group, self.layout, strict=True):
            place = self.input[slot.where].reshape(slot.shape).astype(slot.dtype)
            place.name = f"{slot.name}_in_flat"
            self.replacements[self.model.rvs_to_values[variable]] = place
            # Only PyMC reads this.
            self.ordering[slot.name] = (slot.name, slot.where, slot.shape, np.dtype(slot.dtype))


class NGVIMeanFieldGroup(MeanFieldGroup, _GroupOfLayout):
    """PyMC's mean-field group, whose shared variables are written from a diagonal Gaussian."""

    def create_shared_params(self, *_: Any) -> dict[str, SharedVariable]:
        """Create the shared variables, which `write` fills."""
        return _shared(mu=self.ddim, rho=self.ddim)

    def write(self, mean: Array, deviations: Array) -> None:
        """Copy mean and standard deviations into the shared variables."""
        _set(self.shared_params, mu=mean, rho=_inverse_softplus(deviations))


class NGVIFullRankGroup(FullRankGroup, _GroupOfLayout):
    """PyMC's full-rank group, whose shared variables are written from a full Gaussian."""

    def create_shared_params(self, *_: Any) -> dict[str, SharedVariable]:
        """Create the shared variables, which `write` fills."""
        return _shared(mu=self.ddim, L_tril=self.num_tril_entries)

    def write(self, mean: Array, factor: Array) -> None:
        """Copy mean and lower triangular factor of the covariance into the shared variables."""
        packed = factor[np.tri(len(mean), dtype=bool)]
        # Row i of a packed triangle ends with entry i of the diagonal.
        diagonal = np.cumsum(np.arange(1, len(mean) + 1)) - 1
        packed[diagonal] = _inverse_softplus(packed[diagonal])
        _set(self.shared_params, mu=mean, L_tril=packed)


def _inverse_softplus(value: Array) -> Array:
    """Solve log(1 + exp(x)) = value for x, accurately for very small and very large values."""
    return value + np.log(-np.expm1(-value))


def _shared(**sizes: int) -> dict[str, SharedVariable]:
    dtype = pytensor.config.floatX
    return {name: pytensor.shared(np.zeros(size, dtype), name) for name, size in sizes.items()}


def _set(parameters: dict[str, SharedVariable], **values: Array) -> None:
    for name, value in values.items():
        parameters[name].set_value(np.asarray(value, parameters[name].dtype))
