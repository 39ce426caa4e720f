"""A log density that is a sum over rows of data, evaluated by linear algebra.

What is no such sum, as the prior of a Cholesky factor, is evaluated by a graph of many draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.evaluators.base import Data, Evaluator, UnknownStructureError
from pymc_ngvi.model.evaluators.graphs import Batched, Looped
from pymc_ngvi.model.graph import Graph, with_checks
from pymc_ngvi.model.hessian import check_first_order
from pymc_ngvi.model.separable import RowEvaluator, TooLargeError, block_size, separate
from pymc_ngvi.model.variables import value_of

# Each number that a row depends on takes a gradient of its own to build: with more than this many,
# as in mixtures and ordered models, the graph of many draws is there sooner. With many parameters
# the rows are faster by so much that it pays nevertheless; and so with many rows, as a batched
# Hessian goes through them once for each parameter. A second of building is a hundred Hessians of
# so many numbers.
_MANY_ELEMENTS, _MANY_PARAMETERS, _MANY_NUMBERS = 5, 30, 50_000

# Numbers of a batch, times parameters, up to which Hessians of many batches are evaluated together.
_FEW_NUMBERS = 2**13


class RowSums(Evaluator):
    """Evaluates sums over rows by their matrices, and what is left by a batched graph.

    Raises `NotImplementedError` where the log density has no such sums.
    """

    name = "rows"
    description = "sums over rows"

    def __init__(self, graph: Graph, compiler: Compiler) -> None:
        super().__init__(graph, compiler)
        if compiler.on_jax:
            raise NotImplementedError("JAX would compile anew for each number of draws and rows")
        found = separate(graph.x, graph.log_density, graph.data)
        if not found.terms:
            reasons = "; ".join(found.reasons)
            raise NotImplementedError(f"the log density is no sum over rows: {reasons}")
        elements = max(sum(block_size(leaf) for leaf in term.leaves) for term in found.terms)
        few = self._dim < _MANY_PARAMETERS and self._dim * _longest(graph) < _MANY_NUMBERS
        if elements > _MANY_ELEMENTS and few:
            raise NotImplementedError(f"a row depends on {elements} of the {self._dim} parameters")
        self._rows = found.compile(compiler.function)
        self._rest: Batched | None = None
        self._rest_reads = ""  # why what reads rows is no sum over them; empty where it reads none
        if found.remainder is not None:
            rest = with_checks(graph.x, found.remainder, graph.data, graph.check_bounds)
            self._rest = Batched(rest, compiler)
            # The weight of what reads no rows comes first.
            read = {*ancestors([found.remainder])}.intersection(graph.data[1:])
            self._rest_reads = "; ".join(found.reasons) if read else ""
        self._shared = [
            variable
            for variable in ancestors([graph.log_density])
            if isinstance(variable, SharedVariable)
        ]
        self._reference = Looped(graph, compiler)
        self._together: Batched | None = None
        self._bound: tuple[Sequence[Any], RowEvaluator] | None = None

    def check(self, x: Array, data: Data, order: int) -> None:
        """Raise where the sums are not the log density that PyMC wrote, or not its gradient."""
        if order == 2:
            self._evaluator(data).prepare()
        check_first_order(self, self._reference, x, data)

    def _evaluator(self, data: Data) -> RowEvaluator:
        """Return the sums with the data that the model holds now, and with these rows."""
        now = [*data, *(variable.get_value(borrow=True) for variable in self._shared)]
        if self._bound is not None:
            known, evaluator = self._bound
            if all(mine is other for mine, other in zip(known, now, strict=True)):
                return evaluator
        evaluator = self._rows.bind(*data)
        self._bound = now, evaluator
        return evaluator

    @property
    def hessian_price(self) -> float:
        """What an evaluation with its Hessian costs, in log densities, roughly."""
        return 4.0 if self._rest is None else 4.0 + self._rest.hessian_price

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that the log density of one draw goes through, roughly."""
        rest = 0 if self._rest is None else self._rest.numbers(data)
        return self._evaluator(data).n_rows + rest

    def density(self, draws: Array, data: Data = ()) -> Array:
        """Log density (n,)."""
        total = self._evaluator(data).log_density(draws)
        return total if self._rest is None else total + self._rest.density(draws, data)

    def gradient(self, draws: Array, data: Data = ()) -> Evaluation:
        """Log density and gradient."""
        found = Evaluation(*self._evaluator(data).gradients(draws), None)
        return found if self._rest is None else _sum(found, self._rest.gradient(draws, data))

    def products(self, draws: Array, vectors: Array, data: Data = ()) -> Evaluation:
        """Log density, gradient, and the products (n, d) of each Hessian with a vector."""
        rows = self._evaluator(data)
        found = Evaluation(*rows.gradients(draws), rows.products(draws, vectors))
        if self._rest is None:
            return found
        return _sum(found, self._rest.products(draws, vectors, data))

    def evaluate_each(self, draws: Array, data: Sequence[Data], *, hessian: bool) -> Evaluation:
        """Log density, gradient and perhaps Hessian (n, d, d) of each draw on rows of its own.

        Building the matrices of a batch takes longer than a gradient, and than a small Hessian.
        """
        numbers = sum(map(np.size, data[0])) * draws.shape[1]
        if hessian and numbers > _FEW_NUMBERS:
            return super().evaluate_each(draws, data, hessian=hessian)
        if self._together is None:
            self._together = Batched(self._graph, self._compiler)
        return self._together.evaluate_each(draws, data, hessian=hessian)

    def find_structure(self, points: Array, data: Data = ()) -> None:
        """Read off where the Hessian has entries; only those of what is no sum are looked for."""
        structure: Structure | None = self._evaluator(data).structure
        if self._rest is not None:
            self._rest.find_structure(points, data)
            of_rest = self._rest.structure
            structure = None if of_rest is None else self._evaluator(data).structure.union(of_rest)
        self.structure = None if structure is None or structure.is_full else structure

    def sparse_each(self, draws: Array, data: Sequence[Data]) -> Evaluation:
        """Log density, gradient and Hessian (n, nnz) of each draw on rows of its own.

        What reads no rows, as priors, is evaluated at all draws together.
        """
        whole = self.structure
        assert whole is not None
        found = Evaluation(*self._evaluator(data[0]).common.hessians(draws, whole))
        if self._rest is not None:
            found = _sum(found, self._rest_on(whole, draws, data[0], None))
        assert found.hessian is not None
        start = 0
        for _, group in itertools.groupby(data, id):
            rows, *others = group
            part = slice(start, start + 1 + len(others))
            density, gradient, hessian = self._evaluator(rows).own.hessians(draws[part], whole)
            found.log_density[part] += density
            found.gradient[part] += gradient
            found.hessian[part] += hessian
            start = part.stop
        return found

    def _rest_on(
        self, whole: Structure | None, draws: Array, data: Data, sets: int | None
    ) -> Evaluation:
        """Evaluate Hessians of what is no sum, dense or on the whole structure, or their means."""
        assert self._rest is not None
        sparse = whole is not None
        if sets is None:
            found = self._rest.hessians(draws, data, sparse=sparse)
        else:
            found = self._rest.mean_hessians(draws, data, sets=sets, sparse=sparse)
        if whole is None or self._rest.structure is None:
            return found
        return replace(found, hessian=_spread(found.hessian, self._rest.structure, whole))

    def entries_of(self, data: Data) -> Structure:
        """Read off where the Hessian of these rows may have entries."""
        if self._rest_reads:
            raise UnknownStructureError(f"its log density is no sum over rows: {self._rest_reads}")
        try:
            return self._evaluator(data).entries
        except TooLargeError as reason:
            raise UnknownStructureError(str(reason)) from None

    def take_entries(self, entries: Structure, points: Array, data: Data) -> None:
        """Add the entries of what is no sum to those of all rows."""
        structure: Structure | None = entries
        of_rest = None
        if self._rest is not None:
            self._rest.find_structure(points, data)
            of_rest = self._rest.structure
            structure = None if of_rest is None else entries.union(of_rest)
        self.structures = (None if structure is None or structure.is_full else structure, of_rest)

    @property
    def structures(self) -> tuple[Structure | None, ...]:
        """The structure, and that of what is no sum over rows."""
        return self.structure, None if self._rest is None else self._rest.structure

    @structures.setter
    def structures(self, known: tuple[Structure | None, ...]) -> None:
        self.structure, of_rest = known
        if self._rest is not None:
            self._rest.structures = (of_rest,)

    def hessians(self, draws: Array, data: Data = (), *, sparse: bool = False) -> Evaluation:
        """Log density, gradient and Hessian: (n, d, d), or (n, nnz) for `sparse`."""
        return self._second_order(draws, data, sparse, None)

    def mean_hessians(
        self, draws: Array, data: Data = (), *, sets: int = 1, sparse: bool = False
    ) -> Evaluation:
        """Log density, gradient and the mean Hessian of each set, (sets, d, d) or (sets, nnz)."""
        return self._second_order(draws, data, sparse, sets)

    def _second_order(self, draws: Array, data: Data, sparse: bool, sets: int | None) -> Evaluation:
        """Evaluate Hessians, or the means of so many sets of them."""
        rows, whole = self._evaluator(data), self.structure if sparse else None
        # A part of the rows has a structure of its own, and may be of low rank where all are not.
        on = whole if data else None
        values = rows.hessians(draws, on) if sets is None else rows.mean_hessians(draws, sets, on)
        found = Evaluation(*values)
        if on is None:
            found = replace(found, hessian=_spread(found.hessian, rows.structure, whole))
        if self._rest is None:
            return found
        return _sum(found, self._rest_on(whole, draws, data, sets))


def _longest(graph: Graph) -> int:
    """Return the length of the longest array that a log density holds."""
    held = (v for v in ancestors([graph.log_density]) if isinstance(v, SharedVariable | Constant))
    return max((max(np.shape(value_of(v)), default=1) for v in held), default=1)


def _spread(values: Any, structure: Structure, whole: Structure | None) -> Array:
    """Return values (..., nnz) as those on a whole structure, or as dense matrices without it."""
    if whole is None:
        return structure.dense(values)
    if whole.has_places_of(structure):
        return np.asarray(values)
    spread = np.zeros((*values.shape[:-1], whole.nnz))
    spread[..., whole.places(structure)] = values
    return spread


def _sum(first: Evaluation, second: Evaluation) -> Evaluation:
    """Add two log densities with their derivatives."""
    hessian = None
    if first.hessian is not None and second.hessian is not None:
        hessian = first.hessian + second.hessian
    return Evaluation(
        first.log_density + second.log_density, first.gradient + second.gradient, hessian
    )
