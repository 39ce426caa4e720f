"""Bounds that an expression keeps whatever its inputs: scales are positive, chances below one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, isnan
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as scalar
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

#: The smallest and the largest value that any element can have.
Interval = tuple[float, float]

_ANY: Interval = (-inf, inf)

_COMPARISONS = (scalar.EQ, scalar.GE, scalar.GT, scalar.LE, scalar.LT, scalar.NEQ)

# Operations whose result consists of elements of their first input.
_SELECTIONS = (
    AdvancedSubtensor,
    Alloc,
    CheckAndRaise,
    DimShuffle,
    JoinDims,
    Reshape,
    SpecifyShape,
    SplitDims,
    Subtensor,
)


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _multiply(a: Interval, b: Interval) -> Interval:
    # Infinity only says that there is no bound: times zero it is zero.
    products = [0.0 if isnan(x * y) else x * y for x in a for y in b]
    return min(products), max(products)


# Elementwise operations, by what they make of the bounds of their inputs.
_RULES: dict[type, Callable[..., Interval]] = {
    scalar.Abs: lambda *_: (0.0, inf),
    scalar.Add: lambda *inputs: reduce(_add, inputs),
    scalar.Cast: lambda a: a,
    scalar.Exp: lambda *_: (0.0, inf),
    scalar.Identity: lambda a: a,
    scalar.Mul: lambda *inputs: reduce(_multiply, inputs),
    scalar.Neg: lambda a: (-a[1], -a[0]),
    Sigmoid: lambda *_: (0.0, 1.0),
    Softplus: lambda *_: (0.0, inf),
    scalar.Sqr: lambda *_: (0.0, inf),
    scalar.Sqrt: lambda *_: (0.0, inf),
    scalar.Sub: lambda a, b: (a[0] - b[1], a[1] - b[0]),
}


class Bounds:
    """Bounds of the variables of a graph, whatever its inputs.

    They may be wider than need be: bounds are known of a few operations only.
    """

    def __init__(self) -> None:
        self._known: dict[Variable, Interval] = {}

    def add(self, node: Apply) -> None:
        """Find the bounds of what a node computes, after those of its inputs."""
        if isinstance(node.op, _SELECTIONS):
            self._known[node.outputs[0]] = self.of(node.inputs[0])
        elif isinstance(node.op, Elemwise) and type(node.op.scalar_op) in _RULES:
            rule = _RULES[type(node.op.scalar_op)]
            self._known[node.outputs[0]] = rule(*map(self.of, node.inputs))

    def of(self, variable: Variable) -> Interval:
        """Return bounds of all elements of a variable."""
        if isinstance(variable, Constant):
            values: Any = np.asarray(variable.data)
            numbers = values.size and np.issubdtype(values.dtype, np.number)
            if numbers and not np.isnan(values).any():
                return float(values.min()), float(values.max())
        return self._known.get(variable, _ANY)

    def decide(self, node: Apply) -> bool:
        """Whether a node compares two numbers with the same result whatever the inputs.

        A bound is taken for one that is never crossed, though rounding may reach it: exp(x) > 0 is
        decided.
        """
        if not isinstance(getattr(node.op, "scalar_op", None), _COMPARISONS):
            return False
        (low, high), (other_low, other_high) = map(self.of, node.inputs)
        return low >= other_high or high <= other_low
