"""From values at draws to what an analyst reads.

:func:`to_inference_data` and :func:`to_multitrace` put values into the containers of ArviZ and of
PyMC; :func:`fit_dataset` and :func:`trace_dataset` say what was fitted and how.
"""

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
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.draws import DrawTransform


def to_inference_data(
    values: Values,
    *,
    model: pymc.Model,
    layout: Layout | None = None,
    include_transformed: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    sample_stats: Values | None = None,
    log_likelihood: Values | None = None,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    others: Mapping[str, xarray.Dataset] | None = None,
    loaded: Collection[str] = (),
) -> Any:
    """Gather draws and the model's data as ``InferenceData`` (ArviZ 0) or ``DataTree`` (ArviZ 1).

    Parameters
    ----------
    values : dict of str to array, (n, ...)
        Values by name, as :class:`~pymc_ngvi.results.draws.DrawTransform` returns them.
    model : pymc.Model
        Source of coordinates, dimensions, observed and constant data.
    layout : Layout, optional
        The unconstrained variables, to be given in a group of their own.
    include_transformed : bool
        Keep them, under PyMC's names for them, in the posterior as well.
    coords, dims : mapping, optional
        Additions to the coordinates and dimensions of the model.
    sample_stats : dict of str to array, (n, ...), optional
        What is known about each draw.
    log_likelihood : dict of str to array, (n, ...), optional
        Of each observation, by observed variable.
    attrs : mapping of str to mapping, optional
        Attributes by group.
    others : mapping of str to xarray.Dataset, optional
        Groups that are no draws, such as the fitted Gaussian.
    loaded : collection of str
        Names of the model's containers that a loader feeds: what they hold is left out.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups `posterior`, `unconstrained_posterior`, `log_likelihood`, `sample_stats`, the
        `others`, `observed_data` and `constant_data`, less those that would be empty.
    """
    model_coords, model_dims = coords_and_dims_for_inferencedata(model)
    labels = _Labels(model_coords | dict(coords or {}), model_dims | dict(dims or {}))
    kept = get_default_varnames(values, include_transformed)
    groups = {"posterior": _draws_dataset({name: values[name] for name in kept}, labels)}
    if layout is not None:
        unconstrained = {slot.name: values[slot.name] for slot in layout}
        groups["unconstrained_posterior"] = _draws_dataset(
            unconstrained, _Labels(labels.coords, {**labels.dims, **_unconstrained_dims(layout)})
        )
    if log_likelihood:
        groups["log_likelihood"] = _draws_dataset(log_likelihood, labels)
    if sample_stats:
        groups["sample_stats"] = _draws_dataset(sample_stats, labels)
    groups |= others or {}
    # What a loader feeds holds a few rows that stand for no data.
    fed = {model[name] for name in loaded}
    aside = set(loaded) | {
        variable.name
        for variable in model.observed_RVs
        if fed.intersection(ancestors([model.rvs_to_values[variable]]))
    }
    for name, data in (
        ("observed_data", find_observations(model)),
        ("constant_data", find_constants(model)),
    ):
        kept_data = {label: value for label, value in data.items() if label not in aside}
        if kept_data:
            groups[name] = _dataset(kept_data, labels, sample_dims=())
    for name, group in (attrs or {}).items():
        groups[name].attrs.update(group)
    return collect_groups(groups)


def _unconstrained_dims(layout: Layout) -> dict[str, list[str | None]]:
    return {slot.name: [axis and axis[0] for axis in slot.axes] for slot in layout}


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
