r"""Affine functions of the flat vector: found in a graph, and computed as matrices.

Operations that only move numbers about (reshape, index, transpose, join, repeat) are run once on
positions instead of values, which tells where each number comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import Add, Cast, Identity, Mul, Neg, Second, Sub, TrueDiv
from pytensor.tensor.basic import Alloc, Join, MakeVector, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from pymc_ngvi.model.separable.linear import LinearMap

#: How a variable depends on the flat vector.
CONSTANT, AFFINE, NONLINEAR = 0, 1, 2

_MOVES = (Reshape, DimShuffle, Subtensor, AdvancedSubtensor, Split, Alloc, SpecifyShape)
_SETS = (IncSubtensor, AdvancedIncSubtensor)


class Dependence:
    """How each variable of a graph depends on the flat vector.

    Parameters
    ----------
    x : Variable, (d,)
    outputs : sequence of Variable
    """

    def __init__(self, x: Variable, outputs: Iterable[Variable]) -> None:
        self._kinds: dict[Variable, int] = {x: AFFINE}
        for node in io_toposort([], list(outputs)):
            kind = self._kind(node)
            self._kinds.update(dict.fromkeys(node.outputs, kind))

    def of(self, variable: Variable) -> int:
        """Return CONSTANT, AFFINE or NONLINEAR; a variable made since then is constant."""
        return self._kinds.get(variable, CONSTANT)

    def _kind(self, node: Any) -> int:
        kinds = [self.of(variable) for variable in node.inputs]
        if isinstance(node.op, Shape | Shape_i) or not any(kinds):
            return CONSTANT
        moved = moved_inputs(node)
        if moved:
            rest = [kind for i, kind in enumerate(kinds) if i not in moved]
            fixed = not any(rest) or _is_fill(node.op)
            return max(kinds[i] for i in moved) if fixed else NONLINEAR
        if is_product(node.op):
            return max(kinds) if sum(kind > 0 for kind in kinds) == 1 else NONLINEAR
        if _scalar(node.op, TrueDiv):
            return NONLINEAR if kinds[1] else kinds[0]
        if _scalar(node.op, Add | Sub | Neg) or isinstance(node.op, Sum) or _is_cumsum(node.op):
            return max(kinds)
        return NONLINEAR


def _scalar(op: Any, kind: Any) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, kind)


def _is_fill(op: Any) -> bool:
    return _scalar(op, Second)


def _is_cumsum(op: Any) -> bool:
    return isinstance(op, CumOp) and op.mode == "add"


def is_matmul(op: Any) -> bool:
    """Whether an operation is a product of matrices or of a matrix and a vector."""
    return isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot))


def is_product(op: Any) -> bool:
    """Whether an operation is linear in each of its inputs apart."""
    return _scalar(op, Mul) or is_matmul(op)


def moved_inputs(node: Any) -> tuple[int, ...]:
    """Return the inputs whose numbers reappear unchanged in the outputs, if any."""
    op = node.op
    if isinstance(op, _MOVES) or type(op).__name__ == "AdvancedSubtensor1":
        return (0,)
    if isinstance(op, _SETS) and op.set_instead_of_inc:
        return (0, 1)
    if isinstance(op, Join):
        # The axis is an input of its own before PyTensor 3.
        return tuple(range(node.inputs[0].type.ndim == 0, len(node.inputs)))
    if isinstance(op, MakeVector):
        return tuple(range(len(node.inputs)))
    if _is_fill(op):
        return (1,)
    if _scalar(op, Identity | Cast) and node.outputs[0].type.dtype == "float64":
        return (0,)
    return ()


class Matrices:
    """Builds the matrices of affine variables.

    Parameters
    ----------
    x : Variable, (d,)
    dependence : Dependence
    values : mapping
        Values of the constant variables, at least those of `constants_of`.
    """

    def __init__(
        self, x: Variable, dependence: Dependence, values: Mapping[Variable, np.ndarray]
    ) -> None:
        self._dependence = dependence
        self._values = values
        self._maps: dict[Variable, LinearMap] = {x: LinearMap.identity(x.type.shape[0])}
        self._dim = x.type.shape[0]

    def of(self, variable: Variable) -> LinearMap:
        """Return an affine variable as a linear map of the flat vector, and an offset."""
        # Iteratively: sums of hundreds of variables nest deeper than Python's stack.
        stack = [variable]
        while stack:
            node = stack[-1].owner
            if stack[-1] in self._maps:
                stack.pop()
                continue
            needed = [v for v in affine_inputs(node, self._dependence) if v not in self._maps]
            if needed:
                stack.extend(needed)
            else:
                self._maps.update(self._compute(node))
        return self._maps[variable]

    def _map(self, variable: Variable) -> LinearMap:
        known = self._maps.get(variable)
        return known or LinearMap.constant(self._value(variable), self._dim)

    def _value(self, variable: Variable) -> np.ndarray:
        return variable.data if isinstance(variable, Constant) else self._values[variable]

    def _compute(self, node: Any) -> dict[Variable, LinearMap]:
        op = node.op
        if _is_fill(op):
            return {node.outputs[0]: self._map(node.inputs[1]).broadcast(self._fill_shape(node))}
        moved = moved_inputs(node)
        if moved:
            return self._move(node, moved)
        if is_matmul(op):
            return {node.outputs[0]: self._multiply(*node.inputs)}
        terms = [self._map(v) for v in node.inputs if self._is_affine(v) or not is_product(op)]
        if isinstance(op, Sum):
            return {node.outputs[0]: terms[0].sum(op.axis)}
        if _is_cumsum(op):
            return {node.outputs[0]: terms[0].cumsum(op.axis)}
        shape = np.broadcast_shapes(*(self._shape(v) for v in node.inputs))
        if is_product(op):
            factor = np.ones(())
            for other in (v for v in node.inputs if not self._is_affine(v)):
                factor = factor * self._value(other)
            result = terms[0].broadcast(shape).scale(np.broadcast_to(factor, shape))
        elif _scalar(op, TrueDiv):
            factor = np.broadcast_to(1 / self._value(node.inputs[1]), shape)
            result = self._map(node.inputs[0]).broadcast(shape).scale(factor)
        else:
            terms = [term.broadcast(shape) for term in terms]
            if _scalar(op, Add):
                result = LinearMap.add(terms)
            else:
                negative = terms[-1].scale(np.broadcast_to(-1.0, shape))
                result = LinearMap.add([*terms[:-1], negative])
        return {node.outputs[0]: result}

    def _is_affine(self, variable: Variable) -> bool:
        return self._dependence.of(variable) == AFFINE

    def _shape(self, variable: Variable) -> tuple[int, ...]:
        return self._maps[variable].shape if variable in self._maps else self._value(variable).shape

    def _fill_shape(self, node: Any) -> tuple[int, ...]:
        known = node.outputs[0].type.shape
        return self._value(node.inputs[0]).shape if None in known else known

    def _move(self, node: Any, moved: tuple[int, ...]) -> dict[Variable, LinearMap]:
        sources = [self._map(node.inputs[i]) for i in moved]
        starts = np.cumsum([0, *(source.size for source in sources)])
        inputs = [None if i in moved else self._value(v) for i, v in enumerate(node.inputs)]
        for i, start, source in zip(moved, starts, sources, strict=False):
            # As floats, which every operation takes: they are exact up to 2^53.
            positions = np.arange(source.size, dtype="float64") + start
            inputs[i] = positions.reshape(source.shape)
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        if isinstance(node.op, Elemwise):
            storage[0][0] = inputs[moved[0]]
        else:
            node.op.perform(node, inputs, storage)
        source = LinearMap.concatenate(sources)
        return {
            output: source.take(np.asarray(cell[0]).astype(np.int64))
            for output, cell in zip(node.outputs, storage, strict=True)
        }

    def _multiply(self, left: Variable, right: Variable) -> LinearMap:
        if self._is_affine(right):
            return self._map(right).multiplied(np.asarray(self._value(left), dtype="float64"))
        # (v C)' = C' v'
        matrix = np.asarray(self._value(right), dtype="float64")
        return self._map(left).transpose().multiplied(matrix.T).transpose()


def affine_inputs(node: Any, dependence: Dependence) -> list[Variable]:
    """Return the inputs of an affine operation whose dependence on the flat vector matters."""
    skipped = node.inputs[:1] if _is_fill(node.op) else []
    return [v for v in node.inputs if dependence.of(v) == AFFINE and v not in skipped]


def constants_of(variables: Iterable[Variable], dependence: Dependence) -> set[Variable]:
    """Return the variables, not literal constants, whose values affine variables need."""
    found: set[Variable] = set()
    seen: set[Variable] = set()
    stack = list(variables)
    while stack:
        variable = stack.pop()
        if variable in seen or variable.owner is None:
            continue
        seen.add(variable)
        for other in variable.owner.inputs:
            if dependence.of(other) == CONSTANT and not isinstance(other, Constant):
                found.add(other)
        stack.extend(affine_inputs(variable.owner, dependence))
    return found
