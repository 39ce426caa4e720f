"""From flat unconstrained draws to what an analyst reads.

:class:`DrawTransform` computes the values of a model's variables, :func:`to_inference_data` and
:func:`to_multitrace` put them into the containers of ArviZ and of PyMC.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pymc
import pytensor
import xarray
from numpy.typing import NDArray
from pymc.backends.arviz import (
    coords_and_dims_for_inferencedata,
    find_constants,
    find_observations,
)
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray as NDArrayTrace
from pymc.pytensorf import compile as compile_with_updates
from pymc.pytensorf import find_rng_nodes, reseed_rngs
from pymc.util import get_default_varnames
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor import tensor

from pymc_ngvi._compat import collect_groups, inline_inner_graphs, interpreted_mode
from pymc_ngvi._version import __version__

Values = dict[str, np.ndarray]

_log = logging.getLogger(__name__)

# Numbers a vectorised call may return at once. Graphs hold a few intermediate results of the size
# of their outputs, so this keeps a call well below 100 MB, however many draws there are.
_NUMBERS_PER_CALL = 2**20

# Draws of the first call, which tells how large the outputs are.
_FIRST_DRAWS = 16


class Slot(NamedTuple):
    """Where a value variable lies in the flat vector: PyMC's entry of ``Group.ordering``."""

    name: str
    where: slice
    shape: tuple[int, ...]
    dtype: str


class DrawTransform:
    """Map flat unconstrained draws to the values of all unobserved variables of a model.

    Variables without a transform are read off the draws. The others and the deterministics come
    from one function, vectorised over draws and run in NumPy: it takes a fraction of a second to
    build and each operation then handles all draws at once. Where an operation of the model
    cannot be vectorised, or is random itself, the function is called draw by draw instead.

    Data containers are read when the transform is called, so that deterministics follow
    ``pm.set_data``.

    Parameters
    ----------
    model : pymc.Model
        The model. Its free variables have to be those of `ordering`.
    ordering : mapping of str to tuple
        For each value variable its name, slice of the flat vector, shape and dtype.
    """

    def __init__(self, model: pymc.Model, ordering: Mapping[str, tuple[Any, ...]]) -> None:
        self.model = model
        self.slots = [Slot(*entry) for entry in ordering.values()]
        self._unobserved = list(model.unobserved_RVs)
        _check_free_variables(model, self.slots)

        #: Value variables, then constrained free variables, then deterministics, as PyMC has them.
        self.variables: list[Variable] = model.unobserved_value_vars
        value_vars = {variable.name: variable for variable in model.continuous_value_vars}
        self._inputs = [value_vars[slot.name] for slot in self.slots]
        computed = [variable for variable in self.variables if variable not in set(self._inputs)]
        self._computed_names = [variable.name for variable in computed]
        self._outputs = [_as_tensor(variable) for variable in computed]
        self._random_generators = find_rng_nodes(self._outputs)
        # Vectorised, a random operation would give one value to all draws; inlined, it would not
        # be updated from one draw to the next.
        self._vectorises = not self._random_generators
        if self._vectorises:
            self._outputs = inline_inner_graphs(self._outputs)
        self._functions: dict[str, Callable[..., list[np.ndarray]]] = {}

    def matches(self, model: pymc.Model) -> bool:
        """Tell whether this is still the transform of `model`, which may have been extended."""
        unobserved = model.unobserved_RVs
        return model is self.model and [*map(id, unobserved)] == [*map(id, self._unobserved)]

    def __call__(self, draws: NDArray[np.float64], rng: np.random.Generator) -> Values:
        """Return the values of each variable, with the draws along the first axis.

        Parameters
        ----------
        draws : array, (n, d)
            Flat unconstrained draws.
        rng : numpy.random.Generator
            Seeds deterministics that are themselves random; left alone where there are none.
        """
        values = {
            slot.name: np.ascontiguousarray(draws[:, slot.where], dtype=slot.dtype).reshape(
                len(draws), *slot.shape
            )
            for slot in self.slots
        }
        computed = self._compute(list(values.values()), rng) if self._outputs else []
        values |= zip(self._computed_names, computed, strict=True)
        return {variable.name: values[variable.name] for variable in self.variables}

    def _compute(self, inputs: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        reason: Exception | None = None
        if self._vectorises:
            try:
                return _call_in_blocks(self._function("vectorised", self._vectorised), inputs)
            # An operation that does not vectorise may fail in any way, when built or when run.
            except Exception as error:
                reason = error
        function = self._function("single", self._single)
        if self._random_generators:
            # After compiling, which seeds them too.
            reseed_rngs(self._random_generators, int(rng.integers(2**63)))
        values = _call_one_by_one(function, inputs)
        # Only now is it the vectorisation that failed, and not the model's own computation.
        if reason is not None:
            self._vectorises = False
            _log.info("Deterministics do not vectorise (%s); computing draw by draw", reason)
        return values

    def _function(
        self, kind: str, build: Callable[[], Callable[..., list[np.ndarray]]]
    ) -> Callable[..., list[np.ndarray]]:
        if kind not in self._functions:
            self._functions[kind] = build()
        return self._functions[kind]

    def _vectorised(self) -> Callable[..., list[np.ndarray]]:
        batched = [
            tensor(variable.name, shape=(None, *variable.type.shape), dtype=variable.type.dtype)
            for variable in self._inputs
        ]
        outputs = vectorize_graph(self._outputs, dict(zip(self._inputs, batched, strict=True)))
        function = pytensor.function(
            batched,
            outputs,
            mode=interpreted_mode(),
            on_unused_input="ignore",
            trust_input=True,
        )
        # A deterministic of data alone has no axis of draws yet.
        fixed = [new.ndim == old.ndim for new, old in zip(outputs, self._outputs, strict=True)]

        def call(*inputs: np.ndarray) -> list[np.ndarray]:
            n = len(inputs[0])
            return [
                np.broadcast_to(value, (n, *value.shape)) if same else value
                for value, same in zip(function(*inputs), fixed, strict=True)
            ]

        return call

    def _single(self) -> Callable[..., list[np.ndarray]]:
        return compile_with_updates(
            self._inputs,
            self._outputs,
            mode=interpreted_mode(),
            on_unused_input="ignore",
            trust_input=True,
        )


def _as_tensor(variable: Variable) -> Variable:
    """Drop the named dimensions of a variable of ``pymc.dims``."""
    return variable.values if hasattr(variable.type, "dims") else variable


def _call_in_blocks(
    function: Callable[..., list[np.ndarray]], inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Call a vectorised function on as many draws at a time as memory allows."""
    n = len(inputs[0])
    first = function(*(values[:_FIRST_DRAWS] for values in inputs))
    results = [np.empty((n, *block.shape[1:]), block.dtype) for block in first]
    for result, block in zip(results, first, strict=True):
        result[:_FIRST_DRAWS] = block
    numbers_per_draw = sum(block[0].size for block in first)
    size = max(_NUMBERS_PER_CALL // max(numbers_per_draw, 1), 1)
    for start in range(_FIRST_DRAWS, n, size):
        part = slice(start, start + size)
        blocks = function(*(values[part] for values in inputs))
        for result, block in zip(results, blocks, strict=True):
            result[part] = block
    return results


def _call_one_by_one(
    function: Callable[..., list[np.ndarray]], inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Call a function of one draw on each draw."""
    # The ellipsis keeps the values of scalar variables arrays, which PyTensor asks for.
    rows = [function(*(values[i, ...] for values in inputs)) for i in range(len(inputs[0]))]
    return [np.stack(column) for column in zip(*rows, strict=True)]


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


def to_inference_data(
    values: Values,
    *,
    model: pymc.Model,
    include_transformed: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    sample_stats: Values | None = None,
    fit: xarray.Dataset | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Gather draws and the model's data as ``InferenceData`` (ArviZ 0) or ``DataTree`` (ArviZ 1).

    Parameters
    ----------
    values : dict of str to array, (n, ...)
        Values by name, as :class:`DrawTransform` returns them.
    model : pymc.Model
        Source of coordinates, dimensions, observed and constant data.
    include_transformed : bool
        Keep the unconstrained variables, under PyMC's names for them, in the posterior.
    coords, dims : mapping, optional
        Additions to the coordinates and dimensions of the model.
    sample_stats : dict of str to array, (n, ...), optional
        What is known about each draw.
    fit : xarray.Dataset, optional
        The fitted Gaussian itself.
    attrs : mapping, optional
        Attributes of the posterior group.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups `posterior`, `sample_stats`, `fit`, `observed_data` and `constant_data`, less those
        that would be empty.
    """
    model_coords, model_dims = coords_and_dims_for_inferencedata(model)
    labels = _Labels(model_coords | dict(coords or {}), model_dims | dict(dims or {}))
    kept = get_default_varnames(values, include_transformed)
    groups = {"posterior": _draws_dataset({name: values[name] for name in kept}, labels)}
    groups["posterior"].attrs.update(attrs or {})
    if sample_stats:
        groups["sample_stats"] = _draws_dataset(sample_stats, labels)
    if fit is not None:
        groups["fit"] = fit
    for name, data in (
        ("observed_data", find_observations(model)),
        ("constant_data", find_constants(model)),
    ):
        if data:
            groups[name] = _dataset(data, labels, sample_dims=())
    return collect_groups(groups)


class _Labels(NamedTuple):
    coords: Mapping[str, Any]
    dims: Mapping[str, Sequence[str | None]]


def _draws_dataset(values: Values, labels: _Labels) -> xarray.Dataset:
    one_chain = {name: value[None] for name, value in values.items()}
    return _dataset(one_chain, labels, sample_dims=("chain", "draw"))


def _dataset(data: Values, labels: _Labels, sample_dims: tuple[str, ...]) -> xarray.Dataset:
    """Label arrays by ArviZ's conventions.

    ArviZ's own converter makes an indexed array of each variable before merging them, about a
    millisecond each; this names the axes and leaves the rest to one call.
    """
    coords: dict[str, Any] = {}
    variables = {}
    for name, value in data.items():
        array = np.asarray(value)
        named = iter(labels.dims.get(name, ()))
        dims = list(sample_dims)
        for axis, size in enumerate(array.shape[len(sample_dims) :]):
            dim = next(named, None)
            # A deterministic may carry a dimension of the model and yet be a part of it only.
            if dim is None or len(coords.get(dim, labels.coords.get(dim, range(size)))) != size:
                dim = f"{name}_dim_{axis}"
            dims.append(dim)
        for dim, size in zip(dims, array.shape, strict=True):
            coords.setdefault(dim, labels.coords.get(dim, np.arange(size)))
        variables[name] = (dims, array)
    return xarray.Dataset(variables, coords, _attributes(sample_dims))


def _attributes(sample_dims: tuple[str, ...]) -> dict[str, Any]:
    library, version = "pymc_ngvi", __version__
    # ArviZ 1 looks the sample dimensions up; an empty list could not be written to all formats.
    return ({"sample_dims": list(sample_dims)} if sample_dims else {}) | {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": library,
        "creation_library_version": version,
        "creation_library_language": "Python",
        "inference_library": library,
        "inference_library_version": version,
    }


def to_multitrace(values: Values, transform: DrawTransform) -> MultiTrace:
    """Put draws into PyMC's own container, of one chain, transformed variables included."""
    n = len(next(iter(values.values())))
    trace = NDArrayTrace(
        model=transform.model,
        vars=transform.variables,
        fn=_refuse_more_draws,
        var_shapes={name: value.shape[1:] for name, value in values.items()},
        var_dtypes={name: value.dtype for name, value in values.items()},
    )
    trace.setup(draws=n, chain=0)
    trace.samples = dict(values)
    trace.draw_idx = n
    return MultiTrace([trace])


def _refuse_more_draws(*_: Any) -> None:
    raise TypeError("the trace of an approximation is complete; sample again for more draws")
