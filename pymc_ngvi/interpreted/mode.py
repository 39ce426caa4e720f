"""The PyTensor mode that runs a graph in NumPy."""

from __future__ import annotations

import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise

from pymc_ngvi.interpreted.batches import batch_function
from pymc_ngvi.interpreted.elementwise import array_function
from pymc_ngvi.interpreted.operations import ArrayElemwise, reduction, replace

# Operands that NumPy allows are 32, outputs included.
_WIDEST = 30

# Rewrites that take a good part of the time of building and make no graph faster to interpret. The
# first two would merge again what is split below, the third looks for common factors. Symbolic
# shapes, by the next five, cost more to derive than arrays cost to be asked for theirs. PyTensor 3
# calls the fourth of these by the name of the fifth.
_LEFT_OUT: tuple[str, ...] = (
    "local_add_canonizer",
    "local_mul_canonizer",
    "local_greedy_distributor",
    "ShapeOpt",
    "local_shape_to_shape_i",
    "local_merge_alloc",
    "local_fill_to_alloc",
    "local_second_to_alloc",
    "local_subtensor_of_alloc",
    "local_useless_inc_subtensor",
)
if int(pytensor.__version__.split(".")[0]) >= 3:
    # These look for special matrices, and for parts of arrays that were allocated.
    _LEFT_OUT += (
        "dot_diag_to_elemwise",
        "selection_dot_to_indexing",
        "useless_symmetric_transpose",
        "local_basic_subtensor_of_alloc",
    )
else:
    # The second asks a quotient for its own shape, which keeps it in the graph, to be found again.
    _LEFT_OUT += ("local_useless_inc_subtensor_alloc", "local_zero_div")


def interpreted_mode() -> Mode:
    """Return the PyTensor mode that runs a graph in NumPy and compiles nothing.

    It is ``FAST_COMPILE`` with the rewrites for numerical stability, without which log(1 + exp(x))
    overflows where the compiled function does not. A model may add up a hundred variables, and
    NumPy allows 32 operands: sums and products of many terms are split before anything else. At
    the very end, what PyTensor would run element by element or matrix by matrix in Python is
    replaced by functions of whole arrays.
    """
    mode = get_mode("FAST_COMPILE").including("stabilize").excluding(*_LEFT_OUT)
    rewrites = mode.provided_optimizer.register((_split_wide, 0), (_run_on_arrays, 200))
    return Mode(mode.linker, rewrites)


def split_wide_operations(output: Variable) -> Variable:
    """Split sums and products of more than 30 terms; to be done before differentiating."""
    graph = FunctionGraph(outputs=[output], clone=True, copy_inputs=False)
    _split_wide.rewrite(graph)
    return graph.outputs[0]


def _split(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Split a sum or product of many terms into pairs."""
    operation = node.op.scalar_op
    if len(node.inputs) <= _WIDEST or not isinstance(operation, Add | Mul):
        return None
    pair = Elemwise(operation)
    # Small arrays first: the fewest pairs then have the size of the result.
    terms = sorted(node.inputs, key=lambda term: sum(size != 1 for size in term.type.shape))
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [pair(*two) if len(two) == 2 else two[0] for two in pairs]
    return terms


def _on_arrays(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an operation by a function of whole arrays, where one is known."""
    if isinstance(node.op, Elemwise):
        function = array_function(node.op.scalar_op, node.inputs, node.outputs)
        return replace(node, function, ArrayElemwise) if function else None
    function = batch_function(node) if isinstance(node.op, Blockwise) else reduction(node)
    return replace(node, function) if function else None


_split_wide = dfs_rewriter(node_rewriter([Elemwise])(_split))
_run_on_arrays = dfs_rewriter(node_rewriter([Elemwise, CAReduce, Blockwise])(_on_arrays))
