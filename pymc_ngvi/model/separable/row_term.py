"""One sum over rows: its row function, for many draws and rows at once, with derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_ngvi.model.separable.affine import CONSTANT, Dependence
from pymc_ngvi.model.separable.one_row import Leaf, NotSeparableError, OneRow
from pymc_ngvi.model.separable.picks import DROP, KEEP, Composer, Picks, is_by_row
from pymc_ngvi.model.separable.sums import RowSum, conditions_in

# Numbers of the row vectors and scalars that a row function depends on. Each takes a gradient.
_MOST_ELEMENTS = 40

#: A row vector, or a scalar that all rows see: number of the leaf, and number in its block.
Element = tuple[int, int]


@dataclass(frozen=True)
class RowTerm:
    """A sum over rows of a function of a few numbers for each row.

    Attributes
    ----------
    row : Variable, ()
        The function of one row.
    conditions : tuple of Variable
        Of one row: the sum is minus infinity unless all hold.
    requirements : tuple of Variable
        Conditions that do not depend on the flat vector, on whole tensors.
    picks : tuple
        How rows see the axes of the tensor that is summed.
    leaves, constants : tuple of Leaf
        What the function depends on: affine functions of the flat vector, and data.
    """

    row: Variable
    conditions: tuple[Variable, ...]
    requirements: tuple[Variable, ...]
    picks: Picks
    leaves: tuple[Leaf, ...]
    constants: tuple[Leaf, ...]

    @classmethod
    def find(cls, part: RowSum, dependence: Dependence) -> RowTerm:
        """Find the row function of a sum.

        Raises
        ------
        NotSeparableError
            With the operation that stands in the way.
        """
        rows = OneRow(dependence)
        picks = own_picks(part.tensor, rows.composer)
        row = part.scale(rows.of(part.tensor, picks), lambda factor: rows.of(factor, ()))
        conditions: list[Variable] = []
        requirements: list[Variable] = []
        while rows.conditions:
            for condition in conditions_in(rows.conditions.pop()):
                if dependence.of(condition) == CONSTANT:
                    requirements.append(condition)
                else:
                    aligned = _align(condition, part.tensor, picks)
                    conditions.append(rows.of(condition, aligned))
        return cls._of(rows, row, conditions, requirements, picks)

    @classmethod
    def find_condition(cls, condition: Variable, dependence: Dependence) -> RowTerm:
        """Find what a condition asks of each row; the sum itself is zero."""
        rows = OneRow(dependence)
        picks = own_picks(condition, rows.composer)
        return cls._of(rows, pt.constant(0.0), [rows.of(condition, picks)], [], picks)

    @classmethod
    def _of(
        cls,
        rows: OneRow,
        row: Variable,
        conditions: list[Variable],
        requirements: list[Variable],
        picks: Picks,
    ) -> RowTerm:
        leaves, constants = tuple(rows.leaves), tuple(rows.constants)
        term = cls(row, tuple(conditions), tuple(requirements), picks, leaves, constants)
        if len(term.elements) > _MOST_ELEMENTS:
            raise NotSeparableError(f"each row depends on {len(term.elements)} numbers")
        return term

    @property
    def by_row(self) -> bool:
        """Whether there are several rows."""
        return is_by_row(self.picks)

    @property
    def elements(self) -> list[Element]:
        """All row vectors and scalars, by leaf."""
        return [(i, j) for i, leaf in enumerate(self.leaves) for j in range(block_size(leaf))]


def block_size(leaf: Leaf) -> int:
    """Return the number of elements that one row sees."""
    return int(np.prod(leaf.symbol.type.shape, dtype=int))


def own_picks(tensor: Variable, composer: Composer) -> Picks:
    """Return the picks by which each element of a tensor is a row of its own."""
    if all(n == 1 for n in tensor.type.shape):
        return (DROP,) * tensor.type.ndim
    shape = [tensor.shape[i] if n is None else n for i, n in enumerate(tensor.type.shape)]
    picks: list[Any] = []
    for axis, size in enumerate(tensor.type.shape):

        def own(np: Any, *sizes: Any, axis: int = axis) -> Any:
            return np.arange(_product(sizes)) // _product(sizes[axis + 1 :]) % sizes[axis]

        picks.append(DROP if size == 1 else composer.of(own, *shape))
    return tuple(picks)


def _product(sizes: Sequence[Any]) -> Any:
    product = 1
    for size in sizes:
        product = product * size
    return product


def _align(condition: Variable, tensor: Variable, picks: Picks) -> Picks:
    """Return the picks of a condition, whose first axes or last axes may be those of the rows."""
    shape, rows = condition.type.shape, tensor.type.shape
    if all(n == 1 for n in shape):
        return (DROP,) * len(shape)
    first = shape[: len(rows)]
    if len(first) == len(rows) and all(
        None in (n, m) or n == m for n, m in zip(first, rows, strict=True)
    ):
        return (*picks, *(KEEP,) * (len(shape) - len(rows)))
    if len(shape) <= len(rows):
        last = rows[len(rows) - len(shape) :]
        if all(n in (1, m) for n, m in zip(shape, last, strict=True)):
            return picks[len(rows) - len(shape) :]
    return (KEEP,) * len(shape)


class RowGraph:
    """The row function of a term at n draws and r rows, symbolically.

    Attributes
    ----------
    inputs : list of Variable
        The leaves, (n, r, ...) or (n, 1, ...), then the constants, (r, ...) or (...).
    log_density, valid : Variable, (n,)
    gradients : list of Variable
        With respect to the leaves.
    """

    def __init__(self, term: RowTerm) -> None:
        self._term = term
        replace = {}
        for leaf in term.leaves:
            replace[leaf.symbol] = _batched(leaf, (None, None if leaf.by_row else 1))
        for leaf in term.constants:
            replace[leaf.symbol] = _batched(leaf, (None,) if leaf.by_row else ())
        self.inputs = list(replace.values())
        self._leaves = self.inputs[: len(term.leaves)]
        row, *conditions = vectorize_graph([term.row, *term.conditions], replace)
        if term.by_row and not _has_rows(row):
            ones = pt.vector("ones", dtype="float64")
            self.inputs.append(ones)
            row = row * ones
        self.counts_rows = len(self.inputs) > len(replace)
        row = pt.atleast_2d(row)
        self.log_density = row.sum(axis=-1)
        self.valid: Variable = pt.ones((1,), dtype=bool)
        for single, condition in zip(term.conditions, conditions, strict=True):
            kept = range(-single.type.ndim - 1, 0) if condition.type.ndim > 1 else None
            whole = condition.all(axis=tuple(kept) if kept else None)
            self.valid = self.valid & whole
        self.gradients = self._differentiate(self.log_density.sum(), self._leaves)

    @staticmethod
    def _differentiate(cost: Variable, leaves: Sequence[Variable]) -> list[Variable | None]:
        if not leaves:
            return []
        with pytensor.config.change_flags(traceback__limit=0):
            return pytensor.grad(
                cost, list(leaves), disconnected_inputs="ignore", return_disconnected="none"
            )

    def curvatures(self) -> dict[tuple[Element, Element], Variable]:
        """Second derivatives by pairs of elements, (n, r), or (n, 1) of two scalars."""
        found: dict[tuple[Element, Element], Variable] = {}
        leaves = self._term.leaves
        for i, j in self._term.elements:
            gradient = self.gradients[i]
            if gradient is None:
                continue
            wanted = [
                k
                for k, leaf in enumerate(leaves)
                if (leaf.by_row and not leaves[i].by_row)
                or (leaf.by_row == leaves[i].by_row and k >= i)
            ]
            cost = _of_block(gradient, leaves[i], j).sum()
            seconds = self._differentiate(cost, [self._leaves[k] for k in wanted])
            for k, second in zip(wanted, seconds, strict=True):
                for m in range(block_size(leaves[k])):
                    if second is not None and (k != i or m >= j):
                        found[(i, j), (k, m)] = _of_block(second, leaves[k], m)
        return found


def _batched(leaf: Leaf, batch: tuple[int | None, ...]) -> Variable:
    return pt.tensor(dtype=leaf.symbol.type.dtype, shape=(*batch, *leaf.symbol.type.shape))


def _has_rows(row: Variable) -> bool:
    return row.type.ndim > 0 and row.type.shape[-1] != 1


def _of_block(variable: Variable, leaf: Leaf, number: int) -> Variable:
    """Return one element of the block, (n, r)."""
    shape = leaf.symbol.type.shape
    if shape == ():
        return variable
    index = list(itertools.product(*map(range, shape)))[number]
    return variable[(slice(None), slice(None), *index)]
