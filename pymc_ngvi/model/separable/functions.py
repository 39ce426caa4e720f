"""Compiled row functions, called chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.separable.row_term import Element, RowGraph, RowTerm

#: Compiles outputs and inputs into a function.
Compile = Callable[[Sequence[Any], Sequence[Any]], Any]

# Numbers (draws times rows) in one call: arrays of this size stay in the cache, and the work on
# them takes longer than calling the operations of a graph one after the other.
_NUMBERS = 2**15

# Operations on numbers that compute derivatives which are not used, before a function without them
# is built: interpreted, these take about a tenth of a second, as building does.
_WASTE_LIMIT = 2**25

#: Derivatives that a call computes.
VALUES, GRADIENTS, CURVATURES = range(3)


@dataclass
class Sheet:
    """What the row functions of one term give at n draws.

    Attributes
    ----------
    log_density, valid : array, (n,)
    gradients : dict
        By element: (n, r), or (n, 1) of a number that all rows see.
    curvatures : dict
        By pair of elements: (n, r), or (n, 1) of two such numbers.
    """

    log_density: Array
    valid: np.ndarray
    gradients: dict[Element, Array] = field(default_factory=dict)
    curvatures: dict[tuple[Element, Element], Array] = field(default_factory=dict)


class RowFunction:
    """The row function of one term and its derivatives, compiled at their first use.

    Parameters
    ----------
    term : RowTerm
    compiler : callable
    """

    def __init__(self, term: RowTerm, compiler: Compile) -> None:
        self._term = term
        self._compile = compiler
        self._graph = RowGraph(term)
        self._functions: dict[int, Any] = {}
        self._pairs: list[tuple[Element, Element]] | None = None
        self._wasted = 0
        self._known = [i for i, g in enumerate(self._graph.gradients) if g is not None]

    @property
    def pairs(self) -> list[tuple[Element, Element]]:
        """Pairs of elements whose second derivative is not zero everywhere."""
        self._function(CURVATURES)
        assert self._pairs is not None
        return self._pairs

    def _function(self, order: int) -> Any:
        if order not in self._functions:
            graph = self._graph
            outputs = [graph.log_density, graph.valid]
            if order >= GRADIENTS:
                outputs += [graph.gradients[i] for i in self._known]
            if order == CURVATURES:
                found = graph.curvatures()
                function = self._compile([*outputs, *found.values()], graph.inputs)
                computed = function.maker.fgraph.outputs[len(outputs) :]
                zero = [_is_zero(output) for output in computed]
                self._pairs = [p for p, none in zip(found, zero, strict=True) if not none]
                self._nonzero = [i for i, none in enumerate(zero) if not none]
            else:
                function = self._compile(outputs, graph.inputs)
            self._functions[order] = function
        return self._functions[order]

    def _sufficient(self, order: int, numbers: int) -> Any:
        """Return the function of this order, or one that gives more and is there already.

        What is computed and not used is counted, and not timed: the same calls then use the same
        functions on every machine.
        """
        richer = min((known for known in self._functions if known > order), default=None)
        if order not in self._functions and richer is not None:
            operations = len(self._functions[richer].maker.fgraph.apply_nodes)
            self._wasted += numbers * operations
            order = richer if self._wasted <= _WASTE_LIMIT else order
        return self._function(order)

    def __call__(
        self,
        leaves: list[Array],
        constants: list[Array],
        n_rows: int,
        order: int,
        means: Array | None,
    ) -> Sheet:
        """Evaluate at leaves (n, r, ...) or (n, 1, ...), all rows of the term.

        Parameters
        ----------
        leaves, constants : list of array
        n_rows : int
        order : int
        means : array, (m, n), or None
            Matrix by which second derivatives are multiplied: they then have m rows.
        """
        term = self._term
        n = max((len(leaf) for leaf in leaves), default=1)
        function = self._sufficient(order, n * n_rows)
        step = n_rows if n * n_rows <= 2 * _NUMBERS else max(_NUMBERS // n, 64)
        sheet = Sheet(np.zeros(n), np.ones(n, dtype=bool))
        for start in range(0, n_rows, step):
            part = slice(start, min(start + step, n_rows))
            inputs = [
                np.ascontiguousarray(value[:, part]) if leaf.by_row else value
                for leaf, value in zip(term.leaves, leaves, strict=True)
            ]
            inputs += [
                np.ascontiguousarray(value[part]) if leaf.by_row else value
                for leaf, value in zip(term.constants, constants, strict=True)
            ]
            if self._graph.counts_rows:
                inputs.append(np.ones(part.stop - part.start))
            with np.errstate(all="ignore"):
                outputs = function(*inputs)
                self._collect(sheet, outputs, part, n_rows, order, means)
        return sheet

    def _collect(
        self,
        sheet: Sheet,
        outputs: list[Any],
        part: slice,
        n_rows: int,
        order: int,
        means: Array | None,
    ) -> None:
        sheet.log_density += outputs[0]
        sheet.valid &= outputs[1]
        if order >= GRADIENTS:
            for i, output in zip(self._known, outputs[2:], strict=False):
                blocks = output.reshape(*output.shape[:2], -1)
                for j in range(blocks.shape[-1]):
                    _store(sheet.gradients, (i, j), blocks[..., j], part, n_rows, self._by_row(i))
        if order == CURVATURES:
            curvatures = outputs[2 + len(self._known) :]
            for pair, number in zip(self.pairs, self._nonzero, strict=True):
                values = curvatures[number]
                values = values if means is None else means @ values
                by_row = self._by_row(pair[1][0])
                _store(sheet.curvatures, pair, values, part, n_rows, by_row)

    def _by_row(self, leaf: int) -> bool:
        return self._term.leaves[leaf].by_row


def _store(
    to: dict[Any, Array], key: Any, values: Array, part: slice, n_rows: int, by_row: bool
) -> None:
    """Put the values of some rows in their place, or add up those of a number all rows see."""
    if not by_row:
        to[key] = to[key] + values if key in to else np.array(values)
    elif part.stop - part.start == n_rows:
        to[key] = values
    else:
        if key not in to:
            to[key] = np.empty((len(values), n_rows))
        to[key][:, part] = values


def _is_zero(variable: Any) -> bool:
    """Whether a compiled output is zero whatever the inputs."""
    if isinstance(variable, Constant):
        return not np.any(variable.data)
    node = variable.owner
    if node is None:
        return False
    if isinstance(node.op, Alloc | DimShuffle):
        return _is_zero(node.inputs[0])
    fill = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Second)
    return fill and _is_zero(node.inputs[1])
