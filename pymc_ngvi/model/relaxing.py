"""Rebuilding a graph with inputs of unknown length in place of inputs of known length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import io_toposort


def relax(outputs: Sequence[Variable], replacements: Mapping[Variable, Variable]) -> list[Variable]:
    """Rebuild outputs with some variables replaced by others whose types allow more shapes.

    PyTensor's own replacement keeps the shapes that a graph was built with wherever an operation
    wraps another graph, as in mixtures and censored distributions, and it cannot rebuild PyMC's
    variables with a total size.

    Parameters
    ----------
    outputs : sequence of variables
    replacements : mapping of variable to variable
    """
    new = dict(replacements)
    for node in io_toposort(list(replacements), list(outputs)):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        if all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
            continue
        made = _rebuilt(node, inputs)
        for old, output in zip(node.outputs, made.outputs, strict=True):
            output.name, output.tag = old.name, copy(old.tag)
            new[old] = output
    return [new.get(output, output) for output in outputs]


def _rebuilt(node: Apply, inputs: list[Variable]) -> Apply:
    op: Any = node.op
    if isinstance(op, MinibatchRandomVariable):
        return Apply(op, inputs, [inputs[0].type()])
    if isinstance(op, OpFromGraph):
        fits = [
            own.type.is_super(new.type) for own, new in zip(op.inner_inputs, inputs, strict=True)
        ]
        if not all(fits):
            op = _with_inputs(op, inputs, fits)
    return op.make_node(*inputs)


def _with_inputs(op: Any, inputs: list[Variable], fits: list[bool]) -> Any:
    """Copy an operation that wraps a graph, with inner inputs of the types of `inputs`."""
    frozen = hasattr(op.fgraph, "unfreeze")  # PyTensor 3 freezes inner graphs
    inner = op.fgraph.unfreeze() if frozen else op.fgraph.clone()
    fresh = [
        (own if fit else new).type()
        for own, new, fit in zip(inner.inputs, inputs, fits, strict=True)
    ]
    outputs = relax(inner.outputs, dict(zip(inner.inputs, fresh, strict=True)))
    graph = FunctionGraph(fresh, outputs, clone=False)
    relaxed = copy(op)
    relaxed.fgraph = graph.freeze() if frozen else graph
    relaxed.input_types = [variable.type for variable in fresh]
    relaxed.output_types = [variable.type for variable in outputs]
    return relaxed
