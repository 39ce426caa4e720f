"""Operations that are run by functions of whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pymc_ngvi.interpreted.elementwise import Array, ArrayFunction

# Axes up to this length are short.
_SHORT = 16


class ArrayOp(Op):
    """An operation that is run by a function of whole arrays.

    It is put into a graph in place of another one when all rewriting is done, so that it knows
    nothing of gradients and shapes.

    Parameters
    ----------
    original : Op
        The operation it stands for.
    function : callable
        Takes the arrays of the inputs and returns one new array, or a tuple of them.
    """

    def __init__(self, original: Op, function: ArrayFunction) -> None:
        self.original = original
        self.function = function

    def __str__(self) -> str:
        return f"{self.original} of arrays"

    def make_node(self, *inputs: Variable) -> Apply:
        """Make a node with outputs of the types that those of the original have."""
        outputs = self.original.make_node(*inputs).outputs
        return Apply(self, list(inputs), [output.type() for output in outputs])

    def perform(
        self, node: Apply, inputs: Sequence[Array], output_storage: Sequence[list[Any]]
    ) -> None:
        """Call the function."""
        with np.errstate(all="ignore"):
            result = self.function(*inputs)
        results = result if len(output_storage) > 1 else (result,)
        # This is called for every node at every evaluation: nothing is checked twice.
        for output, storage, value in zip(node.outputs, output_storage, results):  # noqa: B905
            storage[0] = np.asarray(value, dtype=output.type.dtype)


class ArrayElemwise(ArrayOp):
    """An elementwise operation. As in PyTensor, sizes of 1 broadcast only where types say so."""

    def perform(
        self, node: Apply, inputs: Sequence[Array], output_storage: Sequence[list[Any]]
    ) -> None:
        """Call the function, if the shapes fit."""
        axes = getattr(node.tag, "open_axes", None)
        if axes is None:
            axes = node.tag.open_axes = _open_axes(node.inputs)
        for axis, which in axes:
            lengths = {inputs[i].shape[axis] for i in which}
            if len(lengths) > 1 and 1 in lengths:
                raise ValueError(
                    f"{self.original}: axis {axis} has lengths {sorted(lengths)}, and what has "
                    "length 1 is not marked as broadcastable (`specify_broadcastable`)"
                )
        super().perform(node, inputs, output_storage)


def _open_axes(inputs: Sequence[Variable]) -> list[tuple[int, list[int]]]:
    """List the axes whose lengths must be looked at, with the inputs that may not broadcast."""
    axes = []
    for axis in range(inputs[0].type.ndim):
        which = [i for i, x in enumerate(inputs) if not x.type.broadcastable[axis]]
        if len(which) > 1 and any(inputs[i].type.shape[axis] is None for i in which):
            axes.append((axis, which))
    return axes


def replace(node: Apply, function: ArrayFunction, kind: type[ArrayOp] = ArrayOp) -> list[Variable]:
    """Return outputs of a node that computes the same by a function of whole arrays."""
    outputs = [output.type() for output in node.outputs]
    return Apply(kind(node.op, function), list(node.inputs), outputs).outputs


def reduction(node: Apply) -> ArrayFunction:
    """Return the sum, product, maximum, ... over axes as a function of the array.

    PyTensor's own copies the array first.
    """
    op = node.op
    axis = op.axis if op.axis is None else tuple(np.atleast_1d(op.axis))
    dtype = getattr(op, "acc_dtype", None) or node.outputs[0].type.dtype
    whole = partial(op.ufunc.reduce, axis=axis, dtype=dtype)
    ndim = node.inputs[0].type.ndim
    floats = node.inputs[0].type.dtype == dtype == "float64"
    if op.ufunc is np.add and floats and axis in ((ndim - 1,), (ndim - 2,)):
        return partial(_sum, last=axis == (ndim - 1,), otherwise=whole)
    return whole


def _sum(array: Array, *, last: bool, otherwise: ArrayFunction) -> Array:
    """Sum over the last axis of an array, or over the one before.

    NumPy's own loops over a short last axis one row at a time: as products with ones, such sums
    take a tenth of its time.
    """
    if array.ndim < 2 or array.shape[-1] > _SHORT:
        return np.asarray(otherwise(array))
    rows, columns = (np.ones(length) for length in array.shape[-2:])
    return np.asarray(array @ columns if last else rows @ array)
