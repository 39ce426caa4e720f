"""Who does the work of a pass over the data: this process, its threads, or a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pymc_ngvi.model.data import ModelData
from pymc_ngvi.model.partitions import Partition
from pymc_ngvi.model.passes import WORKSHOP, Executor, OwnFunctions, Result, Work

# Threads are tried where a pass has as many seconds to go: functions have to be built for each.
_LONG = 3.0
# Each thread holds a chunk and intermediate results of its size: 200 MB or so.
_MOST_THREADS = 8


class OneMachine(Executor):
    """The threads of this process: as many as there are cores where that is faster, otherwise one.

    Whether it is faster is measured: by the rows that one thread does in a second, and where the
    rest of the pass takes long, by those that several do.
    """

    def __init__(self) -> None:
        self._cores = min(_cores(), _MOST_THREADS)
        self._rates: dict[int, float] = {}  # rows a second, by the number of threads
        self._warm: set[tuple[str, int]] = set()  # work that has been done, by as many threads

    def run(
        self, work: Work[Result], groups: Sequence[Sequence[Partition]], functions: OwnFunctions
    ) -> Iterator[Result]:
        """Yield the combined result of each group of partitions, in their order."""
        left = sum(partition.count for group in groups for partition in group)
        for group in groups:
            rows, threads = sum(partition.count for partition in group), self._threads(left)
            begin = time.perf_counter()
            yield self._run_group(work, group, functions, threads)
            # The first time builds functions, which says nothing about the others.
            if rows and (work.name, threads) in self._warm:
                self._rates[threads] = rows / max(time.perf_counter() - begin, 1e-9)
            self._warm.add((work.name, threads))
            left -= rows

    def _threads(self, left: int) -> int:
        """Choose the number of threads for the next of `left` rows."""
        if self._cores == 1 or 1 not in self._rates:
            return 1
        if self._cores in self._rates:
            return max(self._rates, key=lambda threads: self._rates[threads])
        return self._cores if left / self._rates[1] > _LONG else 1

    def _run_group(
        self,
        work: Work[Result],
        group: Sequence[Partition],
        functions: OwnFunctions,
        threads: int,
    ) -> Result:
        if threads == 1:
            return work.combine(work.on(p, p.read(), functions.own) for p in group)
        packed = functions.packed
        with ThreadPoolExecutor(threads, thread_name_prefix=f"ngvi-{work.name}") as pool:
            return work.combine(pool.map(lambda p: WORKSHOP.run(packed, work, p, p.read()), group))


def executor_for(data: ModelData) -> Executor:
    """Return who passes over the data of a model: the cluster of a loader, or this machine."""
    named = (feed.loader.executor for feed in data.feeds)
    return next(filter(None, named), None) or OneMachine()


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
