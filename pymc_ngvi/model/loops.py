"""Loops (Scans) that run for many draws at a time.

PyTensor vectorises a graph by running its loops for one draw after the other. A loop whose steps
depend on draws by its inputs alone can take them all along instead: each step is then vectorised,
and what one step hands to the next has an axis of draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise

from pymc_ngvi._compat import inner_graph
from pymc_ngvi.model.graph import with_known_shapes


def with_draws_in_loops(outputs: Sequence[Variable]) -> list[Variable]:
    """Let the loops of a vectorised graph take all draws along, where they can.

    Parameters
    ----------
    outputs : sequence of Variable
        What `vectorize_graph` has returned; it is not changed.
    """
    if not loops_over_draws(outputs):
        return list(outputs)
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False)
    _with_draws.rewrite(graph)
    return list(graph.outputs)


def loops_over_draws(outputs: Sequence[Variable]) -> list[Apply]:
    """Return the loops that run for one draw after the other."""
    return [node for node in io_toposort([], list(outputs)) if _is_loop_over_draws(node)]


def _is_loop_over_draws(node: Apply) -> bool:
    return isinstance(node.op, Blockwise) and isinstance(node.op.core_op, Scan)


def _take_draws_along(_graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a loop over draws by one loop in which each step is vectorised."""
    if not _is_loop_over_draws(node) or node.op.batch_ndim(node) != 1:
        return None
    loop, inputs = node.op.core_op, node.inputs
    n_steps, sequences = inputs[0], loop.outer_seqs(inputs)
    states = [*loop.outer_mitsot(inputs), *loop.outer_sitsot(inputs)]
    lengths, constants = loop.outer_nitsot(inputs), loop.outer_non_seqs(inputs)
    known = 1 + len(sequences) + len(states) + len(lengths) + len(constants)
    # How often a loop runs must not depend on the draw.
    if loop.info.as_while or known != len(inputs) or any(map(_has_draws, (n_steps, *lengths))):
        return None
    like = next(filter(_has_draws, inputs), None)
    if like is None:
        return None
    # A state of several steps back is one array outside the step, and several variables inside.
    inner = loop.fgraph.inputs
    n_states = len(loop.inner_mitsot(inner)) + len(loop.inner_sitsot(inner))
    outer = [
        *[x.swapaxes(0, 1) if _has_draws(x) else x[0] for x in sequences],
        *[_for_all(like, x).swapaxes(0, 1) for x in states],
        *[n[0] for n in lengths],
        *[x if _has_draws(x) else x[0] for x in constants],
    ]
    with_draws = [*map(_has_draws, sequences), *[True] * n_states]
    with_draws += map(_has_draws, constants)
    found = _vectorised(loop, with_draws, like.type.shape[0])(n_steps[0], *outer, return_list=True)
    return [
        new.swapaxes(0, 1).astype(old.type.dtype)
        for new, old in zip(found, node.outputs, strict=True)
    ]


_with_draws = dfs_rewriter(node_rewriter([Blockwise])(_take_draws_along))


def _has_draws(batched: Variable) -> bool:
    """Whether an input of a vectorised operation differs between draws."""
    return not batched.type.broadcastable[0]


def _for_all(like: Variable, values: Variable) -> Variable:
    """Repeat what is the same for all draws along the first axis, as long as that of another."""
    if _has_draws(values):
        return values
    lengths = [values.shape[i] for i in range(1, values.ndim)]
    return pt.broadcast_to(values, (like.shape[0], *lengths))


def _vectorised(loop: Scan, with_draws: Sequence[bool], draws: int | None) -> Scan:
    """Vectorise the step of a loop, whose inputs have an axis of draws or have none.

    All that it returns has one; otherwise the loop is the same.
    """
    step = inner_graph(loop)
    inputs = [
        x.type.clone(shape=(draws, *x.type.shape))(name=x.name) if many else x.type(name=x.name)
        for x, many in zip(step.inputs, with_draws, strict=True)
    ]
    known = with_known_shapes(step.outputs)
    outputs = vectorize_graph(known, dict(zip(step.inputs, inputs, strict=True)))
    like = next(x for x, many in zip(inputs, with_draws, strict=True) if many)
    outputs = [
        new if new.ndim > old.ndim else _for_all(like, new[np.newaxis])
        for new, old in zip(outputs, step.outputs, strict=True)
    ]
    return Scan(
        inputs,
        with_draws_in_loops(outputs),
        loop.info,
        mode=loop.mode,
        truncate_gradient=loop.truncate_gradient,
        name=loop.name,
        allow_gc=loop.allow_gc,
        strict=loop.strict,
    )
