"""The batches a model reads: where they enter it, and what they are fed from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.model.fgraph import ModelObservedRV, fgraph_from_model, model_from_fgraph
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.errors import warn
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.relaxing import relax


@dataclass(frozen=True)
class Feed:
    """Rows that belong together, and the containers of a model that a batch of them goes to.

    Attributes
    ----------
    loader : Loader
    containers : tuple of shared variables
        In the order of the loader's arrays.
    sources : tuple of shared variables or None
        Where the arrays are the contents of other containers, those.
    """

    loader: Loader
    containers: tuple[SharedVariable, ...]
    sources: tuple[SharedVariable | None, ...] = ()

    @property
    def current(self) -> bool:
        """Whether the sources still hold what the loader has of them."""
        return all(
            source is None or source.get_value(borrow=True) is array
            for source, array in zip(self.sources, self.loader.arrays.values(), strict=False)
        )

    def fill(self, arrays: Sequence[np.ndarray]) -> None:
        """Put rows of each array into its container."""
        for container, array in zip(self.containers, self.cast(arrays), strict=True):
            container.set_value(array, borrow=True)

    def cast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Contiguous and writable arrays of the containers' types, as compiled functions want."""
        made = [
            np.require(array, dtype=container.type.dtype, requirements=["C", "W"])
            for array, container in zip(arrays, self.containers, strict=True)
        ]
        for old, new, name in zip(arrays, made, self.loader.arrays, strict=True):
            if new.dtype.kind in "iu" and old.dtype != new.dtype and (old != new).any():
                raise OverflowError(f"{name} has integers too large for its container: {new.dtype}")
        return made


@dataclass(frozen=True)
class Term:
    """One term of a log density.

    Attributes
    ----------
    variable : Variable
        The variable or potential it belongs to.
    logp : Variable
        Elementwise, and scaled by PyMC to the total size.
    feed : int or None
        Number of the feed it reads its data from, if from any.
    total : Variable or None
        Total size it is scaled to.
    averages : bool
        Whether, without a total size, it is scaled by the length of its batch itself.
    """

    variable: Variable
    logp: Variable
    feed: int | None
    total: Variable | None
    averages: bool = False


@dataclass(frozen=True)
class Batched:
    """A model that reads its batches from containers.

    Attributes
    ----------
    model : pymc.Model
        Equivalent to the user's, with a container in place of each output of ``pm.Minibatch``.
        They hold all the data where the user's arrays are in memory.
    feeds : tuple of Feed
    """

    model: pymc.Model
    feeds: tuple[Feed, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all feeds together: those of one pass over the data."""
        return sum(feed.loader.n_rows for feed in self.feeds)

    @property
    def batch_size(self) -> int:
        """Rows of one batch of each feed together."""
        return sum(feed.loader.batch_size for feed in self.feeds)

    @property
    def row_size(self) -> int:
        """Numbers in a row of a feed, the largest."""
        return max(feed.loader.row_size for feed in self.feeds)

    @property
    def current(self) -> bool:
        """Whether the data are still those of the model's containers."""
        return all(feed.current for feed in self.feeds)

    def chunks(self, size: int) -> Iterator[list[tuple[float, list[np.ndarray]]]]:
        """Read all the data, at most `size` rows of a feed at a time.

        Each chunk has, for every feed, the share of its rows that it holds and these rows. There
        are as many chunks of each feed; of one with fewer rows some are empty, and hold a row with
        a share of zero, so that there is something to evaluate.
        """
        n_chunks = max(-(-feed.loader.n_rows // size) for feed in self.feeds)
        for i in range(n_chunks):
            chunk = []
            for feed in self.feeds:
                n = feed.loader.n_rows
                start, stop = i * n // n_chunks, (i + 1) * n // n_chunks
                arrays = feed.loader.read(start, max(stop, start + 1))
                chunk.append(((stop - start) / n, arrays))
            yield chunk

    @cached_property
    def terms(self) -> list[Term]:
        """The terms of the log density."""
        model = self.model
        variables = [*dict.fromkeys(model.observed_RVs), *model.free_RVs, *model.potentials]
        with pytensor.config.change_flags(traceback__limit=0):
            logps = model.logp(vars=variables, sum=False)
        return [self._term(variable, logp) for variable, logp in zip(variables, logps, strict=True)]

    def _term(self, variable: Variable, logp: Variable) -> Term:
        feed, total = self._feed_of(variable, logp), _total_size(variable)
        averages = False
        if feed is not None and total is None and variable not in self.model.observed_RVs:
            averages = self._averages(variable, logp, self.feeds[feed])
        return Term(variable, logp, feed, total, averages)

    def _averages(self, variable: Variable, logp: Variable, feed: Feed) -> bool:
        """Whether a potential stays the same when each row of its batch is there twice."""
        point = self.model.initial_point(0)
        inputs = self.model.value_vars
        function = pytensor.function(
            inputs, as_tensor(logp).sum(), mode=interpreted_mode(), on_unused_input="ignore"
        )
        values = [np.asarray(point[v.name] + 0.1, dtype=v.dtype) for v in inputs]
        before = [container.get_value(borrow=True) for container in feed.containers]
        rows = feed.loader.read(0, feed.loader.batch_size)
        try:
            feed.fill(rows)
            once = float(function(*values))
            feed.fill([np.concatenate([array, array]) for array in rows])
            twice = float(function(*values))
        finally:
            feed.fill(before)
        if np.isclose(twice, once, rtol=1e-5):
            return True
        if np.isclose(twice, 2 * once, rtol=1e-5):
            return False
        raise NotImplementedError(
            f"{variable.name} is neither a sum over the rows of its batch nor a mean: of each row "
            f"twice it is {twice:.6g}, of each once {once:.6g}. Write it as a sum"
        )

    def _feed_of(self, variable: Variable, logp: Variable) -> int | None:
        above = set(ancestors([logp]))
        found = [i for i, feed in enumerate(self.feeds) if above.intersection(feed.containers)]
        if len(found) > 1:
            raise NotImplementedError(
                f"{variable.name} reads batches of different data, drawn independently of each "
                "other: take all its arrays from one pm.Minibatch or one Loader"
            )
        return found[0] if found else None

    def check(self) -> None:
        """Raise where data in memory are not finite, and warn of terms not scaled to their data.

        PyMC says nothing of the latter. Data on disk are checked as they are read.
        """
        for feed in self.feeds:
            feed.loader.check()
        for term in self.terms:
            if term.feed is None or term.averages:
                continue
            name, rows = term.variable.name, self.feeds[term.feed].loader.n_rows
            size = self.feeds[term.feed].loader.batch_size
            if term.total is None and term.variable in self.model.observed_RVs:
                warn(
                    f"{name} sees batches of {size} of {rows} rows but has no total_size, so that "
                    f"the posterior is one of {size} rows only: add total_size={rows} to it"
                )
            elif term.total is None:
                warn(
                    f"{name} adds up batches of {size} of {rows} rows and has no total_size: "
                    f"unless that is done, multiply it by {rows / size:g}"
                )
            elif isinstance(term.total, Constant) and int(term.total.data) != rows:
                warn(
                    f"{name} has total_size={int(term.total.data)}, but its data have {rows} rows: "
                    "the likelihood is scaled to the former"
                )


def find_batches(model: pymc.Model, loader: Loader | None = None) -> Batched | None:
    """Find where batches enter a model: by ``pm.Minibatch``, or from a loader.

    Parameters
    ----------
    model : pymc.Model
    loader : Loader, optional
        What some containers of the model are fed from.

    Returns
    -------
    Batched or None
        None for a model of all its data.
    """
    if not isinstance(loader, Loader | None):
        raise TypeError(f"loader must be a pymc_ngvi.Loader, got {type(loader).__name__}")
    feeds: list[Feed] = []
    if any(isinstance(v.owner.op, MinibatchOp) for v in _computed(model)):
        model, feeds = _with_containers(model)
    if loader is not None:
        feeds.append(_loaded(model, loader))
    return Batched(model, tuple(feeds)) if feeds else None


def as_tensor(variable: Variable) -> Variable:
    """Drop the named dimensions of a variable of ``pymc.dims``."""
    return variable.values if hasattr(variable.type, "dims") else variable


def full_data(model: pymc.Model) -> pymc.Model:
    """Return the model of all the data of a model of minibatches.

    For what needs all the data, such as posterior predictions of each row:
    ``pm.sample_posterior_predictive(idata, model=pymc_ngvi.full_data(model))``.

    Parameters
    ----------
    model : pymc.Model
        A model with ``pm.Minibatch``. Any other is returned as it is.
    """
    batched = find_batches(model)
    return model if batched is None else batched.model


def _computed(model: pymc.Model) -> Iterator[Variable]:
    outputs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    return (v for v in ancestors([*outputs, *observed]) if v.owner is not None)


def _total_size(variable: Variable) -> Variable | None:
    node = variable.owner
    if node is None or not isinstance(node.op, MinibatchRandomVariable) or len(node.inputs) < 2:
        return None
    total = node.inputs[1]
    return total if isinstance(total.type, pt.TensorType) else None


def _loaded(model: pymc.Model, loader: Loader) -> Feed:
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
                f"{array.dtype}, which would lose what is behind the point: make the container "
                f"with rows of that kind"
            )
        containers.append(container)
    return Feed(loader, tuple(containers))


def _with_containers(model: pymc.Model) -> tuple[pymc.Model, list[Feed]]:
    """Rebuild a model with a container in place of each output of ``pm.Minibatch``.

    The log density itself cannot be changed afterwards: PyMC has written the batch size into it.
    """
    with _without_initial_values(model) as initial_values:
        fgraph, _ = fgraph_from_model(model)
    nodes = [node for node in fgraph.apply_nodes if isinstance(node.op, MinibatchOp)]
    observed = {
        node.inputs[1]: node.outputs[0].name
        for node in fgraph.apply_nodes
        if isinstance(node.op, ModelObservedRV)
    }
    # A batch may stand in the graph several times, each time with the same generator.
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
    """Take away, for a moment, what PyMC refuses to copy."""
    values = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(values))
    try:
        yield {variable.name: value for variable, value in values.items()}
    finally:
        model.rvs_to_initial_values.update(values)


def _container(model: pymc.Model, data: Variable) -> SharedVariable | None:
    """Return the container of the model that a variable of its copy stands for, if it is one."""
    return next((held for held in model.data_vars if held.name == data.name), None)


def value_of(data: Variable) -> np.ndarray:
    """Return the array a variable of data stands for, without a copy where possible."""
    if isinstance(data, Constant):
        return np.asarray(data.data)
    if isinstance(data, SharedVariable):
        return np.asarray(data.get_value(borrow=True))
    return np.asarray(data.eval())
