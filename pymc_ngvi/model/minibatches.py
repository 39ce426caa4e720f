"""The data of a model: what it holds itself, and what it reads in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.data import MinibatchOp
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.relaxing import relax
from pymc_ngvi.model.variables import value_of


@dataclass(frozen=True)
class Feed:
    """Arrays whose rows belong together, and the data containers that batches of them go to.

    Attributes
    ----------
    loader : Loader
        Reads the arrays.
    containers : tuple of shared variables
        One for each array of the loader, in the same order.
    sources : tuple of shared variables or None
        For each array, the container of the user's model that holds it, if one does.
    """

    loader: Loader
    containers: tuple[SharedVariable, ...]
    sources: tuple[SharedVariable | None, ...] = ()

    @property
    def current(self) -> bool:
        """Whether the sources still hold the arrays that the loader reads."""
        return all(
            source is None or source.get_value(borrow=True) is array
            for source, array in zip(self.sources, self.loader.arrays.values(), strict=False)
        )

    def fill(self, arrays: Sequence[np.ndarray]) -> None:
        """Set each container to its array of rows."""
        for container, array in zip(self.containers, self.cast(arrays), strict=True):
            container.set_value(array, borrow=True)

    def cast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return contiguous, writable arrays of the containers' types, for compiled functions."""
        made = [
            np.require(array, dtype=container.type.dtype, requirements=["C", "W"])
            for array, container in zip(arrays, self.containers, strict=True)
        ]
        for old, new, name in zip(arrays, made, self.loader.arrays, strict=True):
            if new.dtype.kind in "iu" and old.dtype != new.dtype and (old != new).any():
                raise OverflowError(f"{name} has integers too large for its container: {new.dtype}")
        return made


@dataclass(frozen=True)
class Rows:
    """Rows of every feed that are evaluated together: a batch, or a chunk of all the data.

    Attributes
    ----------
    count : int
        Number of rows, of all feeds together.
    outside : float
        Weight of the terms of the log density that read no feed.
    weights : tuple of float
        For each feed, the weight of the terms that read it: 1 for a batch, which stands for all
        the data, and for a chunk its share of all rows.
    arrays : tuple of list of array
        For each feed, the rows of each of its arrays.
    """

    count: int
    outside: float
    weights: tuple[float, ...]
    arrays: tuple[list[np.ndarray], ...]

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        """The rows as arguments of a compiled function; see :attr:`.graph.Graph.data`."""
        if not self.weights:
            return ()
        arguments = [np.array(self.outside)]
        for weight, arrays in zip(self.weights, self.arrays, strict=True):
            arguments += [np.array(weight), *arrays]
        return tuple(arguments)


@dataclass(frozen=True)
class ModelData:
    """A model and its feeds; a model that holds all its data has none.

    Attributes
    ----------
    model : pymc.Model
        Equivalent to the user's model, with a data container in place of each output of
        ``pm.Minibatch``. These containers hold all the data.
    feeds : tuple of Feed
    """

    model: pymc.Model
    feeds: tuple[Feed, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows of all feeds together."""
        return sum(feed.loader.n_rows for feed in self.feeds)

    @property
    def batch_size(self) -> int:
        """Number of rows in one batch of each feed together."""
        return sum(feed.loader.batch_size for feed in self.feeds)

    @property
    def row_size(self) -> int:
        """Largest number of numbers in one row of a feed."""
        return max((feed.loader.row_size for feed in self.feeds), default=0)

    @property
    def current(self) -> bool:
        """Whether the data are still those in the containers of the user's model."""
        return all(feed.current for feed in self.feeds)

    def reseed(self, seed: int) -> None:
        """Restart the sequence of batches of every feed from `seed`."""
        for i, feed in enumerate(self.feeds):
            feed.loader.reseed(seed + i)

    def draw(self) -> Rows:
        """Read the next batch of every feed."""
        arrays = tuple(feed.cast(feed.loader.draw()) for feed in self.feeds)
        return Rows(self.batch_size, 1.0, (1.0,) * len(self.feeds), arrays)

    def chunks(self, size: int) -> Iterator[Rows]:
        """Read all the data, at most `size` rows of each feed at a time.

        Every feed is divided into the same number of chunks. Where a feed has fewer rows than there
        are chunks, some chunks hold one row of it with a weight of zero.
        """
        n_chunks = max((-(-feed.loader.n_rows // size) for feed in self.feeds), default=1)
        for i in range(n_chunks):
            count, weights, arrays = 0, [], []
            for feed in self.feeds:
                n = feed.loader.n_rows
                start, stop = i * n // n_chunks, (i + 1) * n // n_chunks
                arrays.append(feed.cast(feed.loader.read(start, max(stop, start + 1))))
                weights.append((stop - start) / n)
                count += stop - start
            yield Rows(count, 1.0 if i == 0 else 0.0, tuple(weights), tuple(arrays))

    def fill(self, rows: Rows) -> None:
        """Set the containers of every feed to its rows."""
        for feed, arrays in zip(self.feeds, rows.arrays, strict=True):
            feed.fill(arrays)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Give the containers back, at the end, what they held at the beginning."""
        before = [[c.get_value(borrow=True) for c in feed.containers] for feed in self.feeds]
        try:
            yield
        finally:
            for feed, arrays in zip(self.feeds, before, strict=True):
                feed.fill(arrays)


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
    return ModelData(model, tuple(feeds))


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
    for name, array in loader.arrays.items():
        if name not in names:
            raise ValueError(
                f"the loader has an array {name!r}, but the model has no such pm.Data container"
                f"{did_you_mean(name, names, '; it has ' + (', '.join(names) or 'none'))}"
            )
        container = model[name]
        held = container.get_value(borrow=True)
        if held.shape[1:] != tuple(array.shape[1:]) or held.ndim != len(array.shape):
            raise ValueError(
                f"rows of the container {name} have the shape {held.shape[1:]}, those of the "
                f"loader's array {tuple(array.shape[1:])}"
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
    groups: dict[Variable, Feed] = {}
    for generator in dict.fromkeys(node.inputs[-1] for node in nodes):
        copies = [node for node in nodes if node.inputs[-1] is generator]
        names = [
            next(filter(None, (observed.get(copy.outputs[i]) for copy in copies)), None)
            for i in range(len(copies[0].inputs) - 1)
        ]
        inputs = copies[0].inputs[:-1]
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
        groups[generator] = Feed(loader, tuple(containers), tuple(sources))
    replacements = {
        output: container
        for node in nodes
        for output, container in zip(node.outputs, groups[node.inputs[-1]].containers, strict=False)
    }
    rebuilt = FunctionGraph(outputs=relax(fgraph.outputs, replacements), clone=False)
    rebuilt._coords, rebuilt._dim_lengths = fgraph._coords, fgraph._dim_lengths
    new_model = model_from_fgraph(rebuilt, mutate_fgraph=True)
    for name, value in initial_values.items():
        new_model.rvs_to_initial_values[new_model[name]] = value
    return new_model, list(groups.values())


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
