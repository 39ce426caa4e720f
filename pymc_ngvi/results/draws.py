"""What a model computes at flat unconstrained draws: its variables and its log densities.

Densities are always those of all the data, of a model of minibatches too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc
from pytensor.graph.basic import Variable

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.data import ModelData
from pymc_ngvi.model.densities import Densities, Values
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.minibatches import find_data
from pymc_ngvi.model.terms import Terms
from pymc_ngvi.model.vectorised import DrawFunction


class Slot(NamedTuple):
    """Where a value variable lies in the flat vector: PyMC's entry of ``Group.ordering``."""

    name: str
    where: slice
    shape: tuple[int, ...]
    dtype: str


class DrawTransform:
    """Map flat unconstrained draws to the variables and the log densities of a model.

    Variables without a transform are read off the draws; everything else is computed by
    functions of many draws. Data containers are read when these are called, so that
    deterministics and densities follow ``pm.set_data``.

    Parameters
    ----------
    model : pymc.Model
        The model. Its free variables have to be those of `ordering`.
    ordering : mapping of str to tuple
        For each value variable its name, slice of the flat vector, shape and dtype.
    loader : Loader, optional
        What containers of the model are fed from.
    loaded : sequence of str
        Names of these, also where the loader is not at hand.
    """

    def __init__(
        self,
        model: pymc.Model,
        ordering: Mapping[str, tuple[Any, ...]],
        loader: Loader | None = None,
        *,
        loaded: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.loaded = tuple(loaded)
        self._loader = loader
        self.slots = [Slot(*entry) for entry in ordering.values()]
        self._unobserved = list(model.unobserved_RVs)
        _check_free_variables(model, self.slots)

        #: Value variables, then constrained free variables, then deterministics, as PyMC has them.
        self.variables: list[Variable] = model.unobserved_value_vars
        value_vars = {variable.name: variable for variable in model.continuous_value_vars}
        self._inputs = [value_vars[slot.name] for slot in self.slots]
        computed = [variable for variable in self.variables if variable not in set(self._inputs)]
        self._computed_names = [variable.name for variable in computed]
        self._compute = DrawFunction("deterministics", self._inputs, computed)

    def matches(self, model: pymc.Model, loader: Loader | None = None) -> bool:
        """Tell whether this is still the transform of `model`.

        The model may have been extended, and the data its batches are taken from replaced.
        """
        unobserved = model.unobserved_RVs
        same = model is self.model and [*map(id, unobserved)] == [*map(id, self._unobserved)]
        return same and self._data.current and loader is self._loader

    def __call__(self, draws: Array, rng: np.random.Generator) -> Values:
        """Return the values of each variable, with the draws along the first axis.

        Parameters
        ----------
        draws : array, (n, d)
            Flat unconstrained draws.
        rng : numpy.random.Generator
            Seeds deterministics that are themselves random; left alone where there are none.
        """
        values = self.unflatten(draws)
        computed = self._compute(list(values.values()), rng) if self._computed_names else []
        values |= zip(self._computed_names, computed, strict=True)
        return {variable.name: values[variable.name] for variable in self.variables}

    def unflatten(self, draws: Array) -> Values:
        """Return the unconstrained values (n, ...) by the names PyMC has for them."""
        return {
            slot.name: np.ascontiguousarray(draws[:, slot.where], dtype=slot.dtype).reshape(
                len(draws), *slot.shape
            )
            for slot in self.slots
        }

    @property
    def reads_batches(self) -> bool:
        """Whether the model sees a batch of its data at a time."""
        return bool(self.loaded or self._data.feeds)

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) of the joint model at draws (n, d), Jacobian included."""
        return self._densities.total(self.unflatten(draws))

    def log_likelihood(self, draws: Array) -> Values:
        """Log-likelihood (n, ...) of each observation at draws (n, d), by observed variable."""
        return self._densities.by_observation(self.unflatten(draws))

    @cached_property
    def _data(self) -> ModelData:
        return find_data(self.model, self._loader)

    @cached_property
    def _densities(self) -> Densities:
        if self.loaded and self._loader is None:
            raise ValueError(
                f"the fit read {', '.join(self.loaded)} from a loader, which is not at hand: give "
                "it to load(..., loader=), or set `loader` of the approximation"
            )
        return Densities(Terms(self._data), [slot.name for slot in self.slots])


def _check_free_variables(model: pymc.Model, slots: Sequence[Slot]) -> None:
    present = {variable.name: variable.type.shape for variable in model.continuous_value_vars}
    fitted = {slot.name: slot.shape for slot in slots}
    problems = [f"lacks {name}" for name in fitted if name not in present]
    problems += [f"adds {name}" for name in present if name not in fitted]
    problems += [
        f"has {name} of shape {present[name]}, fitted was {shape}"
        for name, shape in fitted.items()
        if name in present and not _fits(shape, present[name])
    ]
    if problems:
        raise ValueError(
            "the model does not have the free variables this approximation was fitted to: it "
            f"{'; it '.join(problems)}. Fit again, or pass the fitted model as `model`"
        )


def _fits(shape: Sequence[int], static: Sequence[int | None]) -> bool:
    """Tell whether a shape is one of a type, whose unknown lengths are None."""
    return len(shape) == len(static) and all(
        known in (size, None) for size, known in zip(shape, static, strict=True)
    )
