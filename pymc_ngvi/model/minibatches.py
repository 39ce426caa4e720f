"""Finding where batches enter a model, by ``pm.Minibatch`` or from a loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.data import MinibatchOp
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.model.data import Feed, ModelData
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.relaxing import relax
from pymc_ngvi.model.variables import value_of

#: What is wrong with a variable whose components are those of the rows.
PER_ROW = (
    "has a component for each row of the data, and a variable for each row cannot be fitted in "
    "batches: fit all the data at once, or integrate it out of the model"
)


def find_data(model: pymc.Model, loader: Loader | None = None) -> ModelData:
    """Find where batches enter a model: by ``pm.Minibatch``, or from a loader.

    Parameters
    ----------
    model : pymc.Model
    loader : Loader, optional
        What some containers of the model are fed from.
    """
    if not isinstance(loader, Loader | None):
        raise TypeError(f"loader must be a pymc_ngvi.Loader, got {type(loader).__name__}")
    feeds: list[Feed] = []
    if any(isinstance(v.owner.op, MinibatchOp) for v in _computed(model)):
        model, feeds = _with_containers(model)
    if loader is not None:
        feeds.append(_loaded(model, loader))
    data = ModelData(model, tuple(feeds))
    _check_free_variables(data)
    return data


def _check_free_variables(data: ModelData) -> None:
    """Raise where the shape of a free variable follows the number of rows of a batch."""
    for variable in data.model.free_RVs:
        above = set(ancestors([variable]))
        feeds = [feed for feed in data.feeds if above.intersection(feed.containers)]
        if not feeds:
            continue
        shapes = set()
        with data.restoring():
            for n in (2, 3):
                for feed in feeds:
                    feed.fill(feed.loader.read(0, n))
                shapes.add(tuple(map(int, variable.shape.eval(mode=interpreted_mode()))))
        if len(shapes) > 1:
            raise ValueError(f"{variable.name} {PER_ROW}")


def full_data(model: pymc.Model) -> pymc.Model:
    """Return the model of all the data of a model of minibatches.

    For what needs all the data, such as posterior predictions of each row:
    ``pm.sample_posterior_predictive(idata, model=pymc_ngvi.full_data(model))``.

    Parameters
    ----------
    model : pymc.Model
        A model with ``pm.Minibatch``. Any other model is returned as it is.
    """
    return find_data(model).model


def _computed(model: pymc.Model) -> Iterator[Variable]:
    """Every variable of the model's graph that is the output of an operation."""
    outputs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    return (v for v in ancestors([*outputs, *observed]) if v.owner is not None)


def _loaded(model: pymc.Model, loader: Loader) -> Feed:
    """Match the arrays of a loader with the containers of a model."""
    names = [variable.name for variable in model.data_vars]
    containers = []
    for name, array in loader.sources.items():
        if name not in names:
            raise ValueError(
                f"the loader has an array {name!r}, but the model has no such pm.Data container"
                f"{did_you_mean(name, names, '; it has ' + (', '.join(names) or 'none'))}"
            )
        container = model[name]
        held = container.get_value(borrow=True)
        if held.shape[1:] != array.shape[1:] or held.ndim != len(array.shape):
            raise ValueError(
                f"rows of the container {name} have the shape {held.shape[1:]}, those of the "
                f"loader's array {array.shape[1:]}"
            )
        if not np.can_cast(array.dtype, container.type.dtype, "same_kind"):
            raise ValueError(
                f"the container {name} holds {container.type.dtype}, the loader's array has "
                f"{array.dtype}, whose fractions would be lost: make the container from rows of "
                f"that type"
            )
        containers.append(container)
    return Feed(loader, tuple(containers))


def _with_containers(model: pymc.Model) -> tuple[pymc.Model, list[Feed]]:
    """Rebuild a model with a container in place of each output of ``pm.Minibatch``.

    This is done to the model and not to its log density, into which PyMC writes the batch size.
    """
    with _without_initial_values(model) as initial_values:
        fgraph, _ = fgraph_from_model(model)
    nodes = [node for node in fgraph.apply_nodes if isinstance(node.op, MinibatchOp)]
    observed = {
        node.inputs[1]: node.outputs[0].name
        for node in fgraph.apply_nodes
        if isinstance(node.op, ModelObservedRV)
    }
    # One pm.Minibatch may appear in the graph several times, each time with the same generator.
    copies: dict[Variable, list[Apply]] = {}
    for node in nodes:
        copies.setdefault(node.inputs[-1], []).append(node)
    feeds = {generator: _feed(model, same, observed) for generator, same in copies.items()}
    replacements = {
        output: container
        for node in nodes
        for output, container in zip(node.outputs, feeds[node.inputs[-1]].containers, strict=False)
    }
    rebuilt = FunctionGraph(outputs=relax(fgraph.outputs, replacements), clone=False)
    rebuilt._coords, rebuilt._dim_lengths = fgraph._coords, fgraph._dim_lengths
    new_model = model_from_fgraph(rebuilt, mutate_fgraph=True)
    for name, value in initial_values.items():
        new_model.rvs_to_initial_values[new_model[name]] = value
    return new_model, list(feeds.values())


def _feed(model: pymc.Model, copies: Sequence[Apply], observed: Mapping[Variable, str]) -> Feed:
    """Make the feed that replaces one ``pm.Minibatch``.

    Parameters
    ----------
    model : pymc.Model
    copies : sequence of Apply
        Where it appears in the graph.
    observed : mapping of Variable to str
        Names of the observed variables, by their data.
    """
    inputs = copies[0].inputs[:-1]
    names = [
        next(filter(None, (observed.get(copy.outputs[i]) for copy in copies)), None)
        for i in range(len(inputs))
    ]
    sources = [_container(model, data) for data in inputs]
    arrays = {
        name or f"array {i} of pm.Minibatch": value_of(data if source is None else source)
        for i, (name, data, source) in enumerate(zip(names, inputs, sources, strict=True))
    }
    containers = [
        pytensor.shared(array, name=name, shape=(None, *array.shape[1:]), borrow=True)
        for name, array in arrays.items()
    ]
    loader = Loader(arrays, batch_size=copies[0].outputs[0].type.shape[0])
    return Feed(loader, tuple(containers), tuple(sources))


@contextmanager
def _without_initial_values(model: pymc.Model) -> Iterator[dict[str, Any]]:
    """Remove the initial values, which PyMC refuses to copy, for the time of the context."""
    values = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(values))
    try:
        yield {variable.name: value for variable, value in values.items()}
    finally:
        model.rvs_to_initial_values.update(values)


def _container(model: pymc.Model, data: Variable) -> SharedVariable | None:
    """Return the container of the model with the name of `data`, a variable of the model's copy."""
    return next((held for held in model.data_vars if held.name == data.name), None)
