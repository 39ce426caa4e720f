"""The data of a model: what it holds itself, and what it reads in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pymc
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant

from pymc_ngvi.model.loader import Loader
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

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in the containers."""
        return sum(
            source.row_size * np.dtype(container.type.dtype).itemsize
            for source, container in zip(self.loader.sources.values(), self.containers, strict=True)
        )

    def fill(self, arrays: Sequence[np.ndarray]) -> None:
        """Set each container to its array of rows."""
        for container, array in zip(self.containers, self.cast(arrays), strict=True):
            container.set_value(array, borrow=True)

    def cast(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return contiguous, writable arrays of the containers' types, for compiled functions."""
        types = [container.type.dtype for container in self.containers]
        return cast(arrays, list(self.loader.arrays), types)


def cast(
    arrays: Sequence[np.ndarray], names: Sequence[str], dtypes: Sequence[str]
) -> list[np.ndarray]:
    """Return contiguous, aligned, writable arrays of given types, for compiled functions.

    Raises
    ------
    OverflowError
        Where an integer is too large for its type.
    """
    made = []
    for array, name, dtype in zip(arrays, names, dtypes, strict=True):
        new = np.require(array, dtype=dtype, requirements=["C", "W", "A"])
        if new.dtype.kind in "iu" and array.dtype != new.dtype and (array != new).any():
            raise OverflowError(f"{name} has integers too large for its container: {dtype}")
        made.append(new)
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
    numbers : tuple of sequence of int
        For each feed, the numbers of its rows.
    """

    count: int
    outside: float
    weights: tuple[float, ...]
    arrays: tuple[list[np.ndarray], ...]
    numbers: tuple[Sequence[int] | NDArray[np.intp], ...] = ()

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
    def in_memory(self) -> bool:
        """Whether all rows of all feeds are in memory."""
        return all(feed.loader.in_memory for feed in self.feeds)

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
        numbers = tuple(feed.loader.drawn for feed in self.feeds)
        return Rows(self.batch_size, 1.0, (1.0,) * len(self.feeds), arrays, numbers)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Give the containers back, at the end, what they held at the beginning."""
        before = [[c.get_value(borrow=True) for c in feed.containers] for feed in self.feeds]
        try:
            yield
        finally:
            for feed, arrays in zip(self.feeds, before, strict=True):
                feed.fill(arrays)


@contextmanager
def shapes_noted(model: pymc.Model) -> Iterator[None]:
    """Add the shapes of the data to an error, which data of other lengths cause anywhere."""
    try:
        yield
    except Exception as error:
        error.add_note(told_shapes(model))
        raise


def told_shapes(model: pymc.Model) -> str:
    """Say which shapes the data of a model have, where an error may come from their lengths."""
    values = [model.rvs_to_values[variable] for variable in model.observed_RVs]
    names = [str(variable.name) for variable in model.observed_RVs]
    held = {
        name: np.shape(value_of(value))
        for name, value in zip(names, values, strict=True)
        if isinstance(value, SharedVariable | Constant)
    }
    held |= {str(data.name): np.shape(value_of(data)) for data in model.data_vars}
    shapes = ", ".join(f"{name} {shape}" for name, shape in held.items())
    return f"The data that the model holds have these shapes: {shapes or 'none'}"
