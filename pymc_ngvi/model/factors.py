"""Gradients of Cholesky factors and triangular systems in a batch.

PyTensor differentiates the operation on one matrix and vectorises what comes out, with its symbolic
shapes: diagonals, triangles and copies of them, which PyTensor 2 takes seconds to build and to
rewrite for one Gaussian process. Where the size of the matrices is known, the gradient is made of
products, triangular systems and constant masks of the whole batch instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.tensor.blockwise import Blockwise

from pymc_ngvi._compat import Cholesky, SolveTriangular


class BatchedFactors(Blockwise):
    """A Cholesky factor, or a triangular system, of each matrix of a batch.

    The same operation as the `Blockwise` that it is made from, for whoever asks but for a gradient.
    """

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients with respect to the inputs, of those by the outputs."""
        make = _cholesky if isinstance(self.core_op, Cholesky) else _triangular_system
        gradients = make(self.core_op, inputs, outputs[0], cotangents[0])
        return [_of_shape(x, g) for x, g in zip(inputs, gradients, strict=True)]

    # The name of the same in PyTensor 2.
    L_op = pullback


def with_batched_factors(output: Variable) -> Variable:
    """Replace factors of matrices of known sizes by those with gradients of batches.

    The given graph is not changed.
    """
    graph = FunctionGraph(outputs=[output], clone=True, copy_inputs=False)
    _replace_everywhere.rewrite(graph)
    return graph.outputs[0]


def _replace(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    core, size = node.op.core_op, node.inputs[0].type.shape[-1]
    known = isinstance(core, SolveTriangular) or (isinstance(core, Cholesky) and core.lower)
    if not known or size is None or isinstance(node.op, BatchedFactors):
        return None
    outputs: list[Variable] = BatchedFactors(core).make_node(*node.inputs).outputs
    return outputs


_replace_everywhere = dfs_rewriter(node_rewriter([Blockwise])(_replace))


def _cholesky(_core: Any, inputs: Sequence[Any], factor: Any, slope: Any) -> list[Any]:
    r"""Return the gradient by the matrix, of which the lower triangle is read.

    With :math:`A = L L'` and the slope :math:`\bar L`, it is :math:`M \circ (S + S')` with
    :math:`S = L^{-T} (M \circ L' \bar L) L^{-1}`, where M takes the lower triangle and half of the
    diagonal.
    """
    (matrix,) = inputs
    size = matrix.type.shape[-1]
    mask = np.tril(np.ones((size, size)), -1) + np.eye(size) / 2
    solve = BatchedFactors(SolveTriangular(lower=False, b_ndim=2))
    transposed = _transposed(factor)
    half = solve(transposed, _transposed(mask * (transposed @ slope)))
    whole = solve(transposed, _transposed(half))
    return [mask * (whole + _transposed(whole))]


def _triangular_system(core: Any, inputs: Sequence[Any], solution: Any, slope: Any) -> list[Any]:
    r"""Return the gradients by the matrix and by the right side.

    With :math:`A x = b` and the slope :math:`\bar x`, they are :math:`\bar b = A^{-T} \bar x` and
    :math:`-\bar b x'` in the triangle that is read.
    """
    matrix, _ = inputs
    size = matrix.type.shape[-1]
    triangle = (np.tril if core.lower else np.triu)(
        np.ones((size, size)), (-1 if core.lower else 1) * core.unit_diagonal
    )
    of_right = BatchedFactors(
        SolveTriangular(lower=not core.lower, unit_diagonal=core.unit_diagonal, b_ndim=core.b_ndim)
    )(_transposed(matrix), slope)
    if core.b_ndim == 1:
        product = of_right[..., :, np.newaxis] * solution[..., np.newaxis, :]
    else:
        product = of_right @ _transposed(solution)
    return [-triangle * product, of_right]


def _transposed(matrices: Any) -> Any:
    return matrices.swapaxes(-1, -2)


def _of_shape(variable: Any, gradient: Any) -> Any:
    """Add up the gradient over the axes of the batch along which a variable was repeated."""
    lengths = zip(variable.type.shape, gradient.type.shape, strict=True)
    repeated = [axis for axis, (own, other) in enumerate(lengths) if own == 1 != other]
    return gradient.sum(axis=repeated, keepdims=True) if repeated else gradient
