"""Passes over all the data: a piece of work on every partition, and the sum of what it gives.

The work is done by an executor (:mod:`~pymc_ngvi.model.executors`), in this process or in others.
Whoever does it, sums are taken in the same order: of the chunks of a partition, of a few partitions
that follow each other, and of these sums.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.data import Rows
from pymc_ngvi.model.partitions import Loaded, Partition

# Partitions whose results are added up where they are, before anything travels.
_GROUP = 16
# Models whose functions a process keeps: a fit that chooses a centring has a few.
_MOST_MODELS = 4

Result = TypeVar("Result")
Places = NDArray[np.int64]


class Blueprint(Protocol):
    """What functions are built from in another process or thread; it can be pickled."""

    def build(self) -> Any:
        """Build the functions."""


class Work(ABC, Generic[Result]):
    """What is computed on every partition; it can be pickled.

    Attributes
    ----------
    name : str
        What a dashboard calls it.
    chunk : int
        Number of rows of a feed that are evaluated together, at most.
    """

    name: ClassVar[str]
    chunk: int

    def on(self, partition: Partition, loaded: Loaded, functions: Any) -> Result:
        """Compute it on one partition."""
        return self(functions, partition.chunks(loaded, self.chunk))

    @abstractmethod
    def __call__(self, functions: Any, chunks: Iterator[Rows]) -> Result:
        """Compute it on the chunks of one partition."""

    @abstractmethod
    def combine(self, results: Iterable[Result]) -> Result:
        """Put the results of partitions, in their order, together."""


@dataclass(frozen=True)
class Evaluate(Work[Evaluation]):
    """Log density, gradient and Hessian at draws (n, d).

    Attributes
    ----------
    draws : array, (n, d)
    curvature : str
    chunk : int
    sets : int or None
        Number of sets of draws of which the mean Hessian is asked for; None for each Hessian.
    """

    name = "derivatives"
    draws: Array
    curvature: str
    chunk: int
    sets: int | None = None

    def __call__(self, functions: Any, chunks: Iterator[Rows]) -> Evaluation:
        """Sum over chunks."""
        evaluate = functions.evaluate
        if self.sets is not None:
            evaluate = partial(functions.average, sets=self.sets)
        return self.combine(evaluate(self.draws, self.curvature, r.arguments) for r in chunks)

    def combine(self, results: Iterable[Evaluation]) -> Evaluation:
        """Sum."""
        parts = iter(results)
        first = next(parts)
        log_density, gradient = first.log_density.copy(), first.gradient.copy()
        hessian = None if first.hessian is None else first.hessian.copy()
        for part in parts:
            log_density += part.log_density
            gradient += part.gradient
            if hessian is not None and part.hessian is not None:
                hessian += part.hessian
        return Evaluation(log_density, gradient, hessian)


@dataclass(frozen=True)
class LogDensity(Work[Array]):
    """Log density (n,) at draws (n, d)."""

    name = "log-densities"
    draws: Array
    chunk: int

    def __call__(self, functions: Any, chunks: Iterator[Rows]) -> Array:
        """Sum over chunks."""
        return self.combine(functions.density(self.draws, rows.arguments) for rows in chunks)

    def combine(self, results: Iterable[Array]) -> Array:
        """Sum."""
        return sum_in_order(results)


@dataclass(frozen=True)
class Finite(Work[list[bool]]):
    """Whether the log density of each partition is finite at x (d,)."""

    name = "bad-rows"
    x: Array
    chunk: int

    def __call__(self, functions: Any, chunks: Iterator[Rows]) -> list[bool]:
        """Evaluate all chunks."""
        value = LogDensity(self.x[np.newaxis], self.chunk)(functions, chunks)
        return [bool(np.isfinite(value).all())]

    def combine(self, results: Iterable[list[bool]]) -> list[bool]:
        """List the partitions."""
        return [finite for part in results for finite in part]


@dataclass(frozen=True)
class Entries(Work[Places]):
    """Where the Hessian may have entries: places in the lower triangle, column by column."""

    name = "entries"
    dim: int
    chunk: int

    def __call__(self, functions: Any, chunks: Iterator[Rows]) -> Places:
        """Find those of each chunk."""
        found = (functions.entries_of(rows.arguments) for rows in chunks)
        return self.combine(entries.columns * self.dim + entries.rows for entries in found)

    def combine(self, results: Iterable[Places]) -> Places:
        """Put the places together."""
        return reduce(np.union1d, results)


def sum_in_order(parts: Iterable[Array]) -> Array:
    """Add up arrays one by one, as rounding depends on the order."""
    rest = iter(parts)
    total = next(rest).copy()
    for part in rest:
        total += part
    return total


@dataclass(frozen=True)
class Packed:
    """A blueprint as bytes, and the name under which processes keep what they have built of it."""

    key: str
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, blueprint: Blueprint) -> Packed:
        """Pickle a blueprint."""
        content = pickle.dumps(blueprint)
        return cls(hashlib.sha256(content).hexdigest()[:16], content)


class Workshop:
    """The functions that were built in this process, each used by one thread at a time.

    Compiled functions keep their intermediate results, and so cannot be shared by threads; nor can
    PyTensor build two at a time.
    """

    def __init__(self) -> None:
        self._free: dict[str, list[tuple[Any, set[str]]]] = {}
        self._lock = threading.RLock()

    def run(
        self, packed: Packed, work: Work[Result], partition: Partition, loaded: Loaded
    ) -> Result:
        """Do a piece of work with functions that no other thread uses."""
        functions, known = self._take(packed)
        try:
            if work.name in known:
                return work.on(partition, loaded, functions)
            with self._lock:  # the first time builds what it needs
                result = work.on(partition, loaded, functions)
            known.add(work.name)
            return result
        finally:
            self._free.setdefault(packed.key, []).append((functions, known))

    def _take(self, packed: Packed) -> tuple[Any, set[str]]:
        with self._lock:
            if self._free.get(packed.key):
                return self._free[packed.key].pop()
            while len(self._free) >= _MOST_MODELS:
                del self._free[next(iter(self._free))]
            return pickle.loads(packed.content).build(), set()


#: That of this process.
WORKSHOP = Workshop()


class Executor(ABC):
    """Does a piece of work on every partition, somewhere."""

    @abstractmethod
    def run(
        self, work: Work[Result], groups: Sequence[Sequence[Partition]], functions: OwnFunctions
    ) -> Iterator[Result]:
        """Yield the combined result of each group of partitions, in their order.

        Parameters
        ----------
        work : Work
        groups : sequence of sequence of Partition
        functions : OwnFunctions
            Those of this process, and what others build theirs from.
        """

    def prepare(self, groups: Sequence[Sequence[Partition]]) -> None:  # noqa: B027  most need not
        """Begin with what all passes over these partitions need, without waiting for it."""


@dataclass(frozen=True)
class OwnFunctions:
    """The functions of this process, and what others build theirs from.

    Attributes
    ----------
    own : object
        What a :class:`Work` takes.
    blueprint : callable
        Returns what it is built from, with the data that the model holds now.
    """

    own: Any
    blueprint: Callable[[], Blueprint]

    @property
    def packed(self) -> Packed:
        """The blueprint, pickled: the same if nothing has changed."""
        return Packed.of(self.blueprint())


class Passes:
    """Passes over all the data of a model.

    Parameters
    ----------
    partitions : sequence of Partition
    executor : Executor
    functions : OwnFunctions

    Attributes
    ----------
    watch : callable
        Called as ``watch(name, rows, all_rows)`` while a pass goes on.
    """

    def __init__(
        self, partitions: Sequence[Partition], executor: Executor, functions: OwnFunctions
    ) -> None:
        self.partitions = partitions
        self._executor = executor
        self._functions = functions
        self._groups = [
            partitions[start : start + _GROUP] for start in range(0, len(partitions), _GROUP)
        ]
        self.watch: Callable[[str, int, int], None] = lambda name, rows, of: None

    def prepare(self) -> None:
        """Let the executor begin with what all passes need."""
        self._executor.prepare(self._groups)

    def run(self, work: Work[Result]) -> Result:
        """Do a piece of work on all partitions, and return the combined result."""
        return work.combine(self._watched(work))

    def _watched(self, work: Work[Result]) -> Iterator[Result]:
        done, rows = 0, sum(partition.count for partition in self.partitions)
        self.watch(work.name, done, rows)
        results = self._executor.run(work, self._groups, self._functions)
        for group, result in zip(self._groups, results, strict=True):
            done += sum(partition.count for partition in group)
            self.watch(work.name, done, rows)
            yield result
