"""What a model computes at flat unconstrained draws: its variables and its log densities.

The densities are those of all the data, also for a model that reads batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pymc
from pytensor.graph.basic import Variable

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.data import ModelData, shapes_noted
from pymc_ngvi.model.densities import Densities, LeftOut, Values
from pymc_ngvi.model.layout import Layout, Outline, Slot, named_axes
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.minibatches import find_data
from pymc_ngvi.model.terms import Terms
from pymc_ngvi.model.vectorised import DrawFunction

#: Numbers that may go through the log density of draws that nobody asked weights for.
_CHEAP = 2**27


class DrawTransform:
    """Map flat unconstrained draws to the variables and the log densities of a model.

    Variables without a transform are parts of the draws; everything else is computed by functions
    of many draws. The functions read data containers when they are called, so that deterministics
    and densities follow ``pm.set_data``.

    Parameters
    ----------
    model : pymc.Model
        The model. Its free variables have to be those of `layout`, in any order.
    layout : Layout
        The flat vector.
    loader : Loader, optional
        What fills data containers of the model with batches.
    loaded : sequence of str
        Names of these containers, which are needed even where the loader is not available.
    log_density : callable, optional
        The log density of the model at draws (n, d), where something computes it already.
    numbers : callable, optional
        Numbers that this goes through for one draw.

    Attributes
    ----------
    variables : list of pytensor.graph.Variable
        Value variables, then free variables on their own scale, then deterministics, in PyMC's
        order.
    """

    def __init__(
        self,
        model: pymc.Model,
        layout: Layout,
        loader: Loader | None = None,
        *,
        loaded: Sequence[str] = (),
        log_density: Callable[[Array], Array] | None = None,
        numbers: Callable[[], int] | None = None,
    ) -> None:
        self.model = model
        self._numbers = numbers
        self._log_density = log_density
        self.loaded = tuple(loaded)
        self._loader = loader
        self.layout = layout
        self._unobserved = list(model.unobserved_RVs)
        value_vars = {variable.name: variable for variable in model.value_vars}
        _check_free_variables(value_vars, layout)
        self.variables: list[Variable] = model.unobserved_value_vars
        inputs = [value_vars[slot.name] for slot in layout]
        computed = [variable for variable in self.variables if variable not in set(inputs)]
        self._computed_names = [variable.name for variable in computed]
        self._compute = DrawFunction("deterministics", inputs, computed)

    def matches(self, model: pymc.Model, loader: Loader | None = None) -> bool:
        """Whether this is still the transform of `model`.

        It no longer is when variables were added to the model, or when the data that batches are
        taken from were replaced.
        """
        unobserved = model.unobserved_RVs
        same = model is self.model and [*map(id, unobserved)] == [*map(id, self._unobserved)]
        return same and self._data.current and loader is self._loader

    def __call__(self, draws: Array, rng: np.random.Generator) -> Values:
        """Return the values (n, ...) of each of the `variables`, by name.

        Parameters
        ----------
        draws : array, (n, d)
            Flat unconstrained draws.
        rng : numpy.random.Generator
            Seeds deterministics that are random themselves; not used where there are none.
        """
        values = self.layout.unflatten(draws)
        computed = self._compute(list(values.values()), rng) if self._computed_names else []
        values |= zip(self._computed_names, computed, strict=True)
        return {variable.name: values[variable.name] for variable in self.variables}

    @property
    def reads_batches(self) -> bool:
        """Whether the model holds a batch of its data at a time."""
        return bool(self.loaded or self._data.feeds)

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) of the joint model at draws (n, d), including the Jacobian."""
        with shapes_noted(self.model):
            if self._log_density is not None:
                return self._log_density(draws)
            return self._densities.total(self.layout.unflatten(draws))

    def is_costly(self, n: int) -> bool:
        """Whether the log density of n draws takes many seconds: to be computed when asked for."""
        numbers = 1 if self._numbers is None else self._numbers()
        return self.reads_batches or n * numbers > _CHEAP

    def log_likelihood(self, draws: Array) -> Values:
        """Log-likelihood (n, ...) of each observation at draws (n, d), by observed variable."""
        with shapes_noted(self.model):
            return self._densities.by_observation(self.layout.unflatten(draws))

    def without_each(self, draws: Array, log_ratios: Array, variable: str) -> LeftOut:
        """Predict each observation of a variable from all the others, at draws (n, d)."""
        return self._densities.without_each(self.layout.unflatten(draws), log_ratios, variable)

    @cached_property
    def _data(self) -> ModelData:
        return find_data(self.model, self._loader)

    @cached_property
    def _densities(self) -> Densities:
        if self.loaded and self._loader is None:
            raise ValueError(
                f"the fit read {', '.join(self.loaded)} from a loader, which is not available: "
                "give it to load(..., loader=), or set `loader` of the approximation"
            )
        return Densities(Terms(self._data), [slot.name for slot in self.layout])


class OwnScale:
    """Transformed free variables on their own scale, at flat unconstrained draws.

    Parameters
    ----------
    model : pymc.Model
    layout : Layout
        The flat vector of the model.
    """

    def __init__(self, model: pymc.Model, layout: Layout) -> None:
        self._model = model
        self._layout = layout
        inputs = [model.rvs_to_values[model[slot.variable]] for slot in layout]
        self._variables = [v for v in model.free_RVs if model.rvs_to_transforms[v] is not None]
        outputs = model.replace_rvs_by_values(self._variables) if self._variables else []
        self._compute = DrawFunction("free variables", inputs, outputs)

    def __call__(self, draws: Array) -> Array:
        """Return the components (n, p) of all these variables at draws (n, d)."""
        if not self._variables:
            return np.empty((len(draws), 0))
        values = self._compute(list(self._layout.unflatten(draws).values()))
        return np.concatenate([value.reshape(len(draws), -1) for value in values], axis=1)

    def slots(self) -> list[Slot]:
        """Return the places of the variables among the components."""
        if not self._variables:
            return []
        point = np.zeros((1, self._layout.dim))
        values = self._compute(list(self._layout.unflatten(point).values()))
        slots: list[Slot] = []
        for variable, value in zip(self._variables, values, strict=True):
            start, shape = slots[-1].stop if slots else 0, value.shape[1:]
            axes = named_axes(self._model, variable.name, shape)
            slots.append(Slot(variable.name, variable.name, start, shape, value.dtype.name, axes))
        return slots


def _check_free_variables(value_vars: Mapping[str, Variable], layout: Layout) -> None:
    model = Outline({name: variable.type.shape for name, variable in value_vars.items()})
    differences = model.differences(Outline(layout.shapes), ordered=False)
    if differences:
        raise ValueError(
            "the model does not have the free variables this approximation was fitted to: "
            f"{differences}. Fit again, or pass the fitted model as `model`"
        )
