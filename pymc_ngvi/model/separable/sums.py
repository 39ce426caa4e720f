"""A log density as sums over the elements of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer, dfs_rewriter, in2out, node_rewriter
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import GE, LE, Add, Cast, Identity, Mul, Neg, Sub, TrueDiv
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Sum
from pytensor.tensor.rewriting.basic import constant_folding
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax

from pymc_ngvi.model.separable.affine import moved_inputs
from pymc_ngvi.model.separable.cancelling import cancel_data


@dataclass(frozen=True)
class RowSum:
    """A part of the log density: the sum of a tensor's elements, times scalars.

    Attributes
    ----------
    tensor : Variable
    factors : tuple of (Variable, bool)
        Scalars by which the sum is multiplied, or divided where True.
    sign : int
    """

    tensor: Variable
    factors: tuple[tuple[Variable, bool], ...] = ()
    sign: int = 1

    def scale(self, value: Variable, of: Any = lambda factor: factor) -> Variable:
        """Multiply a value by the sign and by what `of` makes of the factors."""
        for factor, divides in self.factors:
            value = value / of(factor) if divides else value * of(factor)
        return -value if self.sign < 0 else value

    @property
    def total(self) -> Variable:
        """The part itself, a scalar."""
        return self.scale(pt.sum(self.tensor))


class Sums:
    """The sums of a log density, and the conditions met above them.

    Parameters
    ----------
    log_density : Variable, ()
    """

    def __init__(self, log_density: Variable) -> None:
        self.conditions: list[Variable] = []
        self.parts = list(self._split(RowSum(log_density)))

    def _split(self, part: RowSum) -> Iterator[RowSum]:
        node = part.tensor.owner
        if node is None:
            yield part
            return
        scalar = getattr(node.op, "scalar_op", None) if isinstance(node.op, Elemwise) else None
        single = part.tensor.type.ndim == 0
        if isinstance(node.op, Sum | Reshape | DimShuffle | SpecifyShape) or _is_idle(node):
            yield from self._deeper(part, node.inputs[0])
        elif single and isinstance(node.op, CheckAndRaise) and _leads_to_sum(part.tensor):
            self.conditions.extend(node.inputs[1:])
            yield from self._deeper(part, node.inputs[0])
        elif isinstance(node.op, Join):
            for i in moved_inputs(node):
                yield from self._deeper(part, node.inputs[i])
        elif isinstance(scalar, Neg):
            yield from self._deeper(part, node.inputs[0], sign=-1)
        elif isinstance(scalar, Identity | Cast):
            yield from self._deeper(part, node.inputs[0])
        elif single and isinstance(scalar, Add):
            for term in node.inputs:
                yield from self._deeper(part, term)
        elif single and isinstance(scalar, Sub):
            yield from self._deeper(part, node.inputs[0])
            yield from self._deeper(part, node.inputs[1], sign=-1)
        elif single and isinstance(scalar, Mul | TrueDiv):
            yield from self._split_product(part, node)
        else:
            yield part

    def _deeper(
        self, part: RowSum, tensor: Variable, sign: int = 1, factors: Any = ()
    ) -> Iterator[RowSum]:
        yield from self._split(RowSum(tensor, (*part.factors, *factors), part.sign * sign))

    def _split_product(self, part: RowSum, node: Apply) -> Iterator[RowSum]:
        divides = isinstance(node.op.scalar_op, TrueDiv)
        sums = [i for i, v in enumerate(node.inputs) if _leads_to_sum(v)]
        if len(sums) != 1 or (divides and sums != [0]):
            yield part
            return
        others = [(v, divides) for i, v in enumerate(node.inputs) if i != sums[0]]
        yield from self._deeper(part, node.inputs[sums[0]], factors=others)


def _is_idle(node: Apply) -> bool:
    """Whether an array is repeated to the shape that it has."""
    if not isinstance(node.op, Alloc):
        return False
    shape = node.inputs[0].type.shape
    return len(shape) == node.outputs[0].type.ndim and not {None, 1}.intersection(shape)


def _leads_to_sum(variable: Variable) -> bool:
    node = variable.owner
    if node is None:
        return False
    passes = isinstance(node.op, CheckAndRaise) or (
        isinstance(node.op, Elemwise)
        and isinstance(node.op.scalar_op, Add | Sub | Neg | Mul | TrueDiv | Identity | Cast)
    )
    return isinstance(node.op, Sum) or (passes and any(map(_leads_to_sum, node.inputs)))


def conditions_in(condition: Variable) -> Iterator[Variable]:
    """Yield the tensors all of whose elements must be true, without those that always are."""
    node = condition.owner
    if node is None:
        yield condition
    elif isinstance(node.op, ScalarFromTensor | All | MakeVector | DimShuffle):
        for inner in node.inputs:
            yield from conditions_in(inner)
    elif not _always_true(node):
        yield condition


def _always_true(node: Apply) -> bool:
    """Whether it is said of a sigmoid that it lies between 0 and 1."""
    if not (isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, GE | LE)):
        return False
    left, right = node.inputs
    sigmoid = left.owner is not None and isinstance(left.owner.op, Elemwise)
    if not (sigmoid and isinstance(left.owner.op.scalar_op, Sigmoid)):
        return False
    bound = 0.0 if isinstance(node.op.scalar_op, GE) else 1.0
    try:
        return bool(pt.get_underlying_scalar_constant_value(right) == bound)
    except pt.exceptions.NotScalarConstantError:
        return False


def _inline(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    if isinstance(node.op, ViewOp):
        return node.inputs
    return None if isinstance(node.op, Softmax | LogSoftmax) else inline_ofg_node(node)


def _fix_shape(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    shape = node.inputs[0].type.shape
    if isinstance(node.op, Shape):
        return None if None in shape else [pt.constant(np.array(shape, dtype="int64"))]
    size = shape[node.op.i]
    return None if size is None else [pt.constant(np.array(size, dtype="int64"))]


_inline_everywhere = dfs_rewriter(node_rewriter([OpFromGraph, ViewOp])(_inline))
_fix_shapes = in2out(node_rewriter([Shape, Shape_i])(_fix_shape))
_fold = in2out(constant_folding)


def opened(log_density: Variable, x: Variable) -> Variable:
    """Bring a log density into the form in which its sums are found.

    Operations that are graphs are replaced by these graphs, except softmax, which has its own rule;
    known shapes and what follows from constants are computed, and equal operations merged. Data
    that are added and taken away again are left out.
    """
    graph = FunctionGraph(outputs=[log_density], clone=True, copy_inputs=False)
    with pytensor.config.change_flags(cxx="", traceback__limit=0):
        for rewrite in (_inline_everywhere, _fix_shapes, _fold, MergeOptimizer()):
            rewrite.rewrite(graph)
        cancel_data(graph, x)
    return graph.outputs[0]
