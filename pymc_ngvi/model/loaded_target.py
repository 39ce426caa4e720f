"""A model whose data are read in partitions, as a target: what passes over them gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from operator import not_
from typing import Any

import numpy as np

from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.data import Rows
from pymc_ngvi.model.evaluators import Data, UnknownStructureError
from pymc_ngvi.model.executors import executor_for
from pymc_ngvi.model.functions import FEWEST_SPARSE
from pymc_ngvi.model.partitions import Partition, divide
from pymc_ngvi.model.passes import (
    Entries,
    Evaluate,
    Finite,
    LogDensity,
    OwnFunctions,
    Passes,
    Result,
    Work,
)
from pymc_ngvi.model.rows import RowTerms
from pymc_ngvi.model.target import CURVATURES, ModelTarget

# Numbers in the rows of a chunk, and in their derivatives with respect to each parameter: 30 MB.
_CHUNK_NUMBERS = 2**22
_LARGEST_CHUNK = 2**16
# Up to so many rows in memory, each is looked at before the fit begins, which takes a moment.
_ROWS_CHECKED = 2**16
# From this share of entries on a few rows show that a sparse factor would not pay.
_TOO_FULL = 0.6
# Rows on which the way to evaluate a model is found that reads all its data at each evaluation.
_SAMPLE = 1000


class LoadedTarget(ModelTarget):
    """A compiled model that does not hold its data.

    Parameters
    ----------
    *args
        As for :class:`~pymc_ngvi.model.target.ModelTarget`.

    Attributes
    ----------
    passes_over_data : Passes
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        _, terms, *_ = args
        self._row_terms = RowTerms(terms, self.layout)
        self._checked = False
        self._looked = False  # for the structure

    @cached_property
    def passes_over_data(self) -> Passes:
        """Whoever passes over the data."""
        functions = OwnFunctions(self._functions, lambda: self._functions.blueprint)
        return Passes(divide(self._data), executor_for(self._data), functions)

    def watch(self, progress: Callable[[str, int, int], None]) -> None:
        """Call ``progress(what, rows, all_rows)`` while a pass over the data goes on."""
        self.passes_over_data.watch = progress

    def _pass(self, work: Work[Result]) -> Result:
        """Do a piece of work on all the data."""
        return self.passes_over_data.run(work)

    def evaluate_fully(self, draws: Array, curvature: str, sets: int | None = None) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d), of all the data; or means of sets."""
        check_choice("curvature", curvature, CURVATURES)
        if curvature != "none":
            self._ensure_hessian()
        return self._pass(Evaluate(self._as_draws(draws), curvature, self._chunk_size, sets))

    @property
    def structure(self) -> Structure | None:
        """Where the Hessian has entries; None where it is dense, or small, or rows do not tell.

        The first use passes over the data, unless a few rows show that it is dense.
        """
        return None if self.dim < FEWEST_SPARSE else self._look_for_structure(_TOO_FULL)

    def find_structure(self) -> Structure | None:
        """Look for the structure of the Hessian, also of one with few parameters."""
        return self._look_for_structure()

    def _look_for_structure(self, too_full: float = 1.0) -> Structure | None:
        """Put together where the Hessians of all rows have entries, which do not depend on x."""
        functions = self._functions
        if not self._looked and self.hessian_route != "none":
            self._check_data()
            data = self._draw_rows()
            try:
                few = functions.entries_of(data)
            except UnknownStructureError as reason:
                self.no_structure = f"a part of its data does not show its structure: {reason}"
                self._looked = True
                return None
            if few.nnz >= too_full * (self.dim * (self.dim + 1) // 2):
                return None
            found = self._pass(Entries(self.dim, self._most_rows(self._data.row_size)))
            entries = Structure(self.dim, found % self.dim, found // self.dim)
            functions.take_entries(entries, self.initial_point, data)
            self._looked = True
        return functions.structure

    def _check_data(self) -> None:
        """Raise, once, where the model does not fit its data; and begin to read them."""
        if not self._checked:
            self._row_terms.check_shapes(self.initial_point)
            if self._data.in_memory and self._data.n_rows <= _ROWS_CHECKED:
                self._check_rows(self.initial_point, self.passes_over_data.partitions)
            self._checked = True
        self.passes_over_data.prepare()

    def _look_for_bad_rows(self, x: Array) -> None:
        """Raise where a row is impossible, at x (d,) and around it.

        The log densities of partitions say in which of them to look.
        """
        finite = self._pass(Finite(x, self._chunk_size))
        self._check_rows(x, list(compress(self.passes_over_data.partitions, map(not_, finite))))

    def _check_rows(self, x: Array, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            for rows in partition.chunks(partition.read(), self._chunk_size):
                self._row_terms.check(x, rows, partition.where)

    @property
    def _chunk_size(self) -> int:
        """Number of rows of a chunk, at most."""
        sparse = self._functions.structure is not None
        return self._most_rows(max(1 if sparse else self.dim, self._data.row_size))

    def _most_rows(self, numbers: int) -> int:
        """Most rows of so many numbers that are held together."""
        return min(max(_CHUNK_NUMBERS // numbers, 1), _LARGEST_CHUNK)


class PassTarget(LoadedTarget):
    """A compiled model of which every evaluation passes over all the data.

    It is for loaders without batches: the fit is that of a model that holds all its data.
    """

    @property
    def numbers(self) -> int:
        """Numbers that the log density of one draw goes through: a row has one at least."""
        return self._data.n_rows

    def begin(self, rng: np.random.Generator, *, controlled: bool) -> None:
        """Prepare for a new fit: raise where the model does not fit its data."""
        self._check_data()

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""
        return self._pass(LogDensity(self._as_draws(draws), self._chunk_size))

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set."""
        return self.evaluate_fully(draws, curvature, sets)

    def _evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        found = self.evaluate_fully(draws, curvature)
        if len(draws) == 1 and not np.isfinite(found.log_density).all():
            self._look_for_bad_rows(draws[0])
        return found

    def _draw_rows(self) -> Data:
        """Return the first rows, which show how the model is evaluated."""
        arrays = tuple(
            feed.cast(feed.loader.read(0, min(_SAMPLE, feed.loader.n_rows)))
            for feed in self._data.feeds
        )
        return Rows(0, 1.0, (1.0,) * len(arrays), arrays).arguments
