"""Passes over the data by the workers of a dask cluster.

The rows of a partition are a future of the task that reads them, and stay with the worker that has
done so; the work on a partition is a task that takes this future. When a worker dies, the scheduler
repeats on others what is lost with it. Data that are scattered, and actors, would be lost.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.comm import CommClosedError

from pymc_ngvi.arguments import told
from pymc_ngvi.errors import ClusterLostError, first_line
from pymc_ngvi.model.partitions import Loaded, Partition
from pymc_ngvi.model.passes import WORKSHOP, Executor, OwnFunctions, Packed, Result, Work

# Seconds without any worker after which a cluster is lost: new ones may come until then.
_PATIENCE = 120.0
# Seconds between two looks at whether there are workers.
_LOOK = 1.0
# Share of the workers' memory that rows may take to stay there between passes: dask writes to disk
# what is beyond 60%.
_SHARE = 0.4


class Cluster(Executor):
    """The workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {told(client)}")
        self._client = client
        self._name = uuid.uuid4().hex[:8]
        self._passes = itertools.count()
        self._kept: dict[Any, Future] = {}  # rows that stay on workers, by what they are
        self._models: dict[str, Future] = {}  # by key
        # Importing PyMC takes each worker seconds, in which the fit has its warm-up to do.
        self._waking = [
            client.submit(
                _wake,
                key=f"ngvi-wake-{self._name}-{i}",
                workers=[worker],
                allow_other_workers=True,
            )
            for i, worker in enumerate(client.nthreads())
        ]

    def prepare(self, groups: Sequence[Sequence[Partition]]) -> None:
        """Let workers read the rows that they will keep."""
        partitions = list(itertools.chain(*groups))
        new = [p for p in partitions if p.shares not in self._kept]
        if new and self._have_room_for(partitions):
            self._kept |= zip((p.shares for p in new), self._read(new), strict=True)

    def run(
        self, work: Work[Result], groups: Sequence[Sequence[Partition]], functions: OwnFunctions
    ) -> Iterator[Result]:
        """Yield the combined result of each group of partitions, in their order.

        Raises
        ------
        ClusterLostError
            Where the client was closed, the scheduler or all workers are gone, or workers die of
            a task.
        """
        sums: list[Future] = []
        try:
            sums += self._submit(work, groups, functions.packed)
            for future in sums:
                yield self._wait_for(future)
        except Exception as error:
            lost = isinstance(
                error, CancelledError | CommClosedError | KilledWorker | NoWorkersError
            )
            if not lost and self._client.status == "running":
                raise
            raise ClusterLostError(
                f"the cluster was lost in a pass over the data ({first_line(error)}). What was "
                "fitted so far is in `approximation` of this error"
            ) from error
        finally:  # also where the caller was interrupted
            with contextlib.suppress(Exception):
                self._client.cancel(sums)

    def _wait_for(self, future: Future) -> Any:
        """Return the result of a future, for which dask would wait as long as no worker comes."""
        seen = time.monotonic()
        while True:
            try:
                return future.result(timeout=_LOOK)
            except TimeoutError:
                if future.done():  # just now, or with an error of this name
                    return future.result()
            if self._client.nthreads():
                seen = time.monotonic()
            elif time.monotonic() - seen > _PATIENCE:
                raise NoWorkersError(f"no worker for {_PATIENCE:g} s")

    def _submit(
        self, work: Work[Any], groups: Sequence[Sequence[Partition]], packed: Packed
    ) -> Iterator[Future]:
        """Submit all tasks of a pass, and yield the futures of the sums of groups."""
        client, name = self._client, f"{self._name}-{next(self._passes)}"
        if packed.key not in self._models:
            key = f"ngvi-model-{self._name}-{packed.key}"
            self._models[packed.key] = client.submit(_same, packed, key=key)
        model = self._models[packed.key]
        what = client.submit(_same, work, key=f"ngvi-what-{name}")
        self.prepare(groups)
        for i, group in enumerate(groups):
            parts = []
            for partition in group:
                kept = self._kept.get(partition.shares)
                # What is not kept is read by the task that works on it, and never travels.
                do, rows = (_work, kept) if kept else (_read_and_work, self._values(partition))
                key = f"ngvi-{work.name}-{name}-{partition.number}"
                bare = replace(partition, pieces=())
                parts.append(client.submit(do, model, what, bare, rows, key=key))
            yield client.submit(_combine, what, parts, key=f"ngvi-sum-{name}-{i}")

    def _read(self, partitions: Sequence[Partition]) -> list[Future]:
        """Return futures of the rows of partitions."""
        return self._client.map(
            _read,
            [replace(partition, pieces=()) for partition in partitions],
            [self._values(partition) for partition in partitions],
            key=[f"ngvi-read-{self._name}-{partition.number}" for partition in partitions],
        )

    def _values(self, partition: Partition) -> list[list[Any]]:
        """Return what a task reads the rows of a partition from, for each feed."""
        return [[piece.on_workers(self._client) for piece in feed] for feed in partition.pieces]

    def _have_room_for(self, partitions: Sequence[Partition]) -> bool:
        """Whether the workers can keep all rows in memory between passes."""
        # Other feeds are in the memory of this process, where they may be replaced.
        if any(len(partition.shares) > 1 for partition in partitions):
            return False
        try:
            about = self._client.scheduler_info(n_workers=-1)
        except TypeError:  # before 2025 it told of all workers
            about = self._client.scheduler_info()
        limits = [worker["memory_limit"] for worker in about["workers"].values()]
        size = sum(partition.nbytes for partition in partitions)
        return not all(limits) or size < _SHARE * sum(limits)


class NoWorkersError(Exception):
    """All workers are gone."""


def _wake() -> None:
    """Do nothing: importing this module is what takes time."""


def _same(value: Any) -> Any:
    """Return what was sent, which is a task: what it gives is sent again if its worker dies."""
    return value


def _read(partition: Partition, values: list[list[Any]]) -> Loaded:
    """Read the rows of a partition, where dask has not made them already."""
    arrays = [[v.read() if hasattr(v, "read") else v for v in feed] for feed in values]
    return partition.check(arrays)


def _work(packed: Packed, work: Work[Result], partition: Partition, rows: Loaded) -> Result:
    """Do a piece of work on the rows of a partition."""
    return WORKSHOP.run(packed, work, partition, partition.cast(rows))


def _read_and_work(
    packed: Packed, work: Work[Result], partition: Partition, values: list[list[Any]]
) -> Result:
    """Read the rows of a partition, and do a piece of work on them."""
    return WORKSHOP.run(packed, work, partition, _read(partition, values))


def _combine(work: Work[Result], parts: list[Result]) -> Result:
    """Put the results of partitions together."""
    return work.combine(parts)
