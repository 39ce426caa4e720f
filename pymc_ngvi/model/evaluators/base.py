"""What every way to evaluate draws can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.sparse.colouring import Colouring
from pymc_ngvi.core.sparse.pattern import find_pattern
from pymc_ngvi.core.target import Evaluation, averaging
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.graph import Graph

#: Arguments of the compiled functions beside the draws: the rows of data that all draws see.
Data = tuple[Any, ...]


class UnknownStructureError(NotImplementedError):
    """Rows of data do not tell where their Hessian has entries."""


class Evaluator(ABC):
    """Log density and derivatives at draws (n, d), of which all see the same data.

    A subclass gives log densities, gradients, and products of Hessians with vectors. Hessians are
    products with d unit vectors, or with fewer vectors where they are known to be sparse.

    Parameters
    ----------
    graph : Graph
    compiler : Compiler
        Compiles each function at its first use.

    Attributes
    ----------
    name : str
        As in `Route.name`.
    description : str
        What a message calls it.
    structure : Structure or None
        Where the Hessian has entries, if that was looked for and it is sparse.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    def __init__(self, graph: Graph, compiler: Compiler) -> None:
        self._graph = graph
        self._compiler = compiler
        self._dim: int = graph.x.type.shape[0]
        self.structure: Structure | None = None
        self._colouring: Colouring | None = None

    @abstractmethod
    def density(self, draws: Array, data: Data = ()) -> Array:
        """Log density (n,)."""

    @abstractmethod
    def gradient(self, draws: Array, data: Data = ()) -> Evaluation:
        """Log density and gradient."""

    @abstractmethod
    def products(self, draws: Array, vectors: Array, data: Data = ()) -> Evaluation:
        """Log density, gradient, and the products (n, d) of each Hessian with a vector."""

    @abstractmethod
    def check(self, x: Array, data: Data, order: int) -> None:
        """Raise where this does not work for the model near x (d,), up to derivatives of an order.

        What works is built thereby.
        """

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that the log density of one draw goes through, roughly."""
        return 1

    def _draws_per_call(self, data: Data) -> int:
        """Return how many draws are evaluated together."""
        return 1

    # Where Hessians have entries. Of data that are read in parts, each part shows some of them.

    def entries_of(self, data: Data) -> Structure:
        """Return where the Hessian may have entries with these rows, whatever the parameters.

        Raises
        ------
        UnknownStructureError
            Where rows do not tell, with the reason.
        """
        raise UnknownStructureError("its log density is not known to be a sum over rows")

    def take_entries(self, entries: Structure, points: Array, data: Data) -> None:
        """Take the entries of all rows, found in parts, for the structure.

        Parameters
        ----------
        entries : Structure
            The union of what `entries_of` gave.
        points : array, (m, d)
            Where entries are looked for that follow from no rows.
        data : tuple
            Rows that stand for all the data.
        """
        raise NotImplementedError

    @property
    def structures(self) -> tuple[Structure | None, ...]:
        """The structure and those of its parts: what another process needs to know."""
        return (self.structure,)

    @structures.setter
    def structures(self, known: tuple[Structure | None, ...]) -> None:
        (self.structure,) = known
        self._colouring = None if self.structure is None else Colouring(self.structure)

    # Hessians, dense (d, d) or as the values (nnz,) on the structure that was found.

    def find_structure(self, points: Array, data: Data = ()) -> None:
        """Look for the entries of the Hessian that are not zero, at points (m, d), two or more."""
        rng = np.random.default_rng(0)

        def product(at: Array, vectors: Array) -> Array:
            found = self.products(np.ascontiguousarray(at), vectors, data).hessian
            assert found is not None
            return found

        self.structures = (find_pattern(product, points, rng),)

    def hessians(self, draws: Array, data: Data = (), *, sparse: bool = False) -> Evaluation:
        """Log density, gradient and Hessian: (n, d, d), or (n, nnz) for `sparse`."""
        found = joined([*self._columns(draws, data)])
        return replace(found, hessian=self._assembled(found.hessian, sparse))

    def mean_hessians(
        self, draws: Array, data: Data = (), *, sets: int = 1, sparse: bool = False
    ) -> Evaluation:
        """Log density, gradient and the mean Hessian of each set, (sets, d, d) or (sets, nnz)."""
        parts, start, means = [], 0, averaging(len(draws), sets)
        total = np.zeros((sets, *self._seeds.shape))
        for part in self._columns(draws, data):
            assert part.hessian is not None
            stop = start + len(part.hessian)
            with np.errstate(invalid="ignore"):  # a Hessian that is not finite is told later
                total += np.tensordot(means[:, start:stop], part.hessian, axes=1)
            parts.append(replace(part, hessian=None))
            start = stop
        return replace(joined(parts), hessian=self._assembled(total, sparse))

    def evaluate_each(self, draws: Array, data: Sequence[Data], *, hessian: bool) -> Evaluation:
        """Log density, gradient and perhaps Hessian (n, d, d) of each draw on rows of its own."""
        call = self.hessians if hessian else self.gradient
        return joined([call(draws[i : i + 1], rows) for i, rows in enumerate(data)])

    def sparse_each(self, draws: Array, data: Sequence[Data]) -> Evaluation:
        """Log density, gradient and Hessian (n, nnz) of each draw on rows of its own.

        Draws that follow each other may see the same rows.
        """
        each = enumerate(data)
        return joined([self.hessians(draws[i : i + 1], rows, sparse=True) for i, rows in each])

    @property
    def hessian_price(self) -> float:
        """What an evaluation with its Hessian costs, in log densities, roughly."""
        return 3.0 * len(self._seeds)

    @property
    def _seeds(self) -> Array:
        """Vectors (k, d) whose products with a Hessian tell all of it."""
        return np.eye(self._dim) if self._colouring is None else self._colouring.seeds

    def _columns(self, draws: Array, data: Data) -> Iterator[Evaluation]:
        """Evaluate the products (m, k, d) of Hessians with all seeds, a few draws at a time."""
        seeds = self._seeds
        k = len(seeds)
        step = max(self._draws_per_call(data) // k, 1)
        for start in range(0, len(draws), step):
            part = draws[start : start + step]
            repeated, vectors = np.repeat(part, k, axis=0), np.tile(seeds, (len(part), 1))
            yield first_of_each(self.products(repeated, vectors, data), k)

    def _assembled(self, products: Any, sparse: bool) -> Array:
        """Make Hessians, dense or sparse, of their products (n, k, d) with the seeds."""
        if self.structure is None or self._colouring is None:
            return np.asarray(products)
        values = self._colouring.recover(products)
        return values if sparse else self.structure.dense(values)


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return evaluations of different draws as one."""
    hessians = [part.hessian for part in parts if part.hessian is not None]
    return Evaluation(
        np.concatenate([part.log_density for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate(hessians) if hessians else None,
    )


def every_second(found: Evaluation, start: int) -> Evaluation:
    """Return the evaluation of every second draw."""
    hessian = None if found.hessian is None else found.hessian[start::2].copy()
    return Evaluation(found.log_density[start::2], found.gradient[start::2], hessian)


def first_of_each(found: Evaluation, k: int) -> Evaluation:
    """Return the evaluation of draws of which each was repeated for k products (m k, d)."""
    assert found.hessian is not None
    products = found.hessian.reshape(-1, k, found.hessian.shape[-1])
    return Evaluation(found.log_density[::k], found.gradient[::k], products)
