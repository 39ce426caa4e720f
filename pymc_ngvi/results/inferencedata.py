"""Draws of an approximation in the containers of ArviZ and of PyMC."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pymc
import xarray
from pymc.backends.arviz import (
    coords_and_dims_for_inferencedata,
    find_constants,
    find_observations,
)
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray as NDArrayTrace
from pymc.util import get_default_varnames
from pytensor.graph.traversal import ancestors

from pymc_ngvi._compat import collect_groups
from pymc_ngvi._version import __version__
from pymc_ngvi.model.densities import Values
from pymc_ngvi.results.draws import DrawTransform


def to_inference_data(
    values: Values,
    transform: DrawTransform,
    *,
    sample_stats: Values,
    log_likelihood: Values | None,
    others: Mapping[str, xarray.Dataset],
    attrs: Mapping[str, Mapping[str, Any]],
    include_transformed: bool,
    coords: Mapping[str, Any] | None,
    dims: Mapping[str, Sequence[str]] | None,
) -> Any:
    """Put draws and the data of the model into ``InferenceData`` (ArviZ 0) or ``DataTree``.

    Parameters
    ----------
    values : dict of str to array, (n, ...)
        Values of the variables by name, as `transform` returns them.
    transform : DrawTransform
        Its model gives coordinates, dimensions, observed and constant data.
    sample_stats : dict of str to array, (n, ...)
        What is known about each draw.
    log_likelihood : dict of str to array, (n, ...), or None
        Log-likelihood of each observation, by observed variable.
    others : mapping of str to xarray.Dataset
        Groups that do not hold draws, such as the fitted Gaussian.
    attrs : mapping of str to mapping
        Attributes by group.
    include_transformed : bool
        Add the unconstrained variables to the posterior, in addition to their own group.
    coords, dims : mapping or None
        Additions to the coordinates and dimensions of the model.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups `posterior`, `unconstrained_posterior`, `log_likelihood`, `sample_stats`, the
        `others`, `observed_data` and `constant_data`, without those that would be empty.
    """
    model = transform.model
    model_coords, model_dims = coords_and_dims_for_inferencedata(model)
    labels = _Labels(model_coords | dict(coords or {}), model_dims | dict(dims or {}))
    kept = get_default_varnames(values, include_transformed)
    groups = {"posterior": _draws_dataset({name: values[name] for name in kept}, labels)}
    slots = transform.layout.slots
    unconstrained_dims = {slot.name: [axis and axis[0] for axis in slot.axes] for slot in slots}
    groups["unconstrained_posterior"] = _draws_dataset(
        {slot.name: values[slot.name] for slot in slots},
        _Labels(labels.coords, {**labels.dims, **unconstrained_dims}),
    )
    if log_likelihood:
        groups["log_likelihood"] = _draws_dataset(log_likelihood, labels)
    groups["sample_stats"] = _draws_dataset(sample_stats, labels)
    groups |= others
    for name, data in _data_of(model, transform.loaded).items():
        groups[name] = _dataset(data, labels, sample_dims=())
    for name, group in attrs.items():
        groups[name].attrs.update(group)
    return collect_groups(groups)


def _data_of(model: pymc.Model, loaded: Collection[str]) -> dict[str, Values]:
    """Return observed and constant data, without the few rows in containers of a loader."""
    filled = {model[name] for name in loaded}
    aside = set(loaded) | {
        variable.name
        for variable in model.observed_RVs
        if filled.intersection(ancestors([model.rvs_to_values[variable]]))
    }
    found = {"observed_data": find_observations(model), "constant_data": find_constants(model)}
    kept = {
        group: {name: value for name, value in data.items() if name not in aside}
        for group, data in found.items()
    }
    return {group: data for group, data in kept.items() if data}


class _Labels(NamedTuple):
    coords: Mapping[str, Any]
    dims: Mapping[str, Sequence[str | None]]


def _draws_dataset(values: Values, labels: _Labels) -> xarray.Dataset:
    one_chain = {name: value[None] for name, value in values.items()}
    return _dataset(one_chain, labels, sample_dims=("chain", "draw"))


def _dataset(data: Values, labels: _Labels, sample_dims: tuple[str, ...]) -> xarray.Dataset:
    """Name the axes of arrays by ArviZ's conventions.

    ArviZ's own converter makes an indexed array of each variable and then merges them, which takes
    about a millisecond a variable. This makes one dataset of all.
    """
    coords: dict[str, Any] = {}
    variables = {}
    for name, value in data.items():
        array = np.asarray(value)
        named = iter(labels.dims.get(name, ()))
        dims = list(sample_dims)
        for axis, size in enumerate(array.shape[len(sample_dims) :]):
            dim = next(named, None)
            # A deterministic may name a dimension of the model and be shorter than it.
            if dim is None or len(coords.get(dim, labels.coords.get(dim, range(size)))) != size:
                dim = f"{name}_dim_{axis}"
            dims.append(dim)
        for dim, size in zip(dims, array.shape, strict=True):
            coords.setdefault(dim, labels.coords.get(dim, np.arange(size)))
        variables[name] = (dims, array)
    return xarray.Dataset(variables, coords, _attributes(sample_dims))


def _attributes(sample_dims: tuple[str, ...]) -> dict[str, Any]:
    library, version = "pymc_ngvi", __version__
    # ArviZ 1 reads the sample dimensions here; not all file formats can hold an empty list.
    return ({"sample_dims": list(sample_dims)} if sample_dims else {}) | {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": library,
        "creation_library_version": version,
        "creation_library_language": "Python",
        "inference_library": library,
        "inference_library_version": version,
    }


def to_multitrace(values: Values, transform: DrawTransform) -> MultiTrace:
    """Put draws into PyMC's own container, as one chain, with the unconstrained variables."""
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
