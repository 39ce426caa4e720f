"""The log density of a model as a symbolic function of the flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import (
    local_check_parameter_to_ninf_switch,
    local_remove_check_parameter,
)
from pymc.pytensorf import constant_fold, rewrite_pregrad
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import infer_shape_db
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.rewriting.math import (
    log1msigm_to_softplus,
    log1p_neg_sigmoid,
    logsigm_to_softplus,
)
from pytensor.tensor.rewriting.shape import ShapeFeature

from pymc_ngvi._compat import lower_named_dims, split_wide_operations
from pymc_ngvi.errors import first_line
from pymc_ngvi.model.factors import with_batched_factors
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.terms import Terms
from pymc_ngvi.model.variables import value_of


@dataclass(frozen=True)
class Graph:
    """The symbolic log density of a flat vector.

    Attributes
    ----------
    x : Variable, (d,)
        The flat vector.
    log_density : Variable, ()
        As PyMC gives it: with checks of parameters, which raise.
    checked : Variable, ()
        The log density, minus infinity where a parameter is not valid.
    smooth : Variable, ()
        The log density without those checks, to be differentiated.
    data : tuple of Variable
        Inputs for the rows of a batch or a chunk, of a model that reads batches: the weight of the
        terms that read no feed, then for each feed the weight of its terms and its arrays.
    check_bounds : bool
        Whether the model asks for the checks.
    """

    x: Any
    log_density: Any
    checked: Any
    smooth: Any
    data: tuple[Any, ...] = ()
    check_bounds: bool = True

    @cached_property
    def gradient(self) -> Any:
        """Gradient (d,) of the log density."""
        return pytensor.grad(self.smooth, self.x, disconnected_inputs="ignore")


def build_graph(terms: Terms, layout: Layout) -> Graph:
    """Build the log density (Jacobian included) as a function of the flat vector."""
    x = pt.vector("x", shape=(layout.dim,), dtype="float64")
    # Split, whose gradient is one Join: slices would add up as many padded vectors as variables.
    sizes = [slot.size for slot in layout]
    parts = pt.split(x, splits_size=sizes, n_splits=len(sizes)) if len(sizes) > 1 else [x]
    flat = {
        slot.name: part.reshape(slot.shape).astype(slot.dtype)
        for slot, part in zip(layout, parts, strict=True)
    }
    log_density, data = terms.add_up()
    values = {value: flat[value.name] for value in terms.data.model.value_vars}
    (log_density,) = lower_named_dims(graph_replace([log_density], values, strict=False))
    log_density = log_density.astype("float64")
    _check_deterministic(log_density)
    # The derivatives of log(sigmoid(x)) are 0 / 0 where the sigmoid is 1 or 0 in floating point.
    for rewrite in (logsigm_to_softplus, log1msigm_to_softplus, log1p_neg_sigmoid):
        log_density = _rewritten(log_density, rewrite)
    log_density = with_batched_factors(split_wide_operations(log_density))
    graph = with_checks(x, log_density, data, terms.data.model.check_bounds)
    try:
        graph.gradient  # noqa: B018  to raise before anything is compiled
    except Exception as error:
        ops = ", ".join(_ops_without_gradient(x, log_density)) or first_line(error)
        raise NotImplementedError(
            f"the log density has no gradient: {ops}. Give the Op a `pullback` (`grad` or `L_op` "
            "before PyTensor 3), or write the model without it."
        ) from error
    return graph


def with_checks(x: Any, log_density: Any, data: tuple[Any, ...], check_bounds: bool) -> Graph:
    """Make the graph of a log density: with checks that make it minus infinity, and without."""
    smooth = checked = _rewritten(log_density, local_remove_check_parameter)
    if check_bounds:
        checked = _rewritten(log_density, local_check_parameter_to_ninf_switch)
    return Graph(x, log_density, checked, smooth, data, check_bounds)


def simplified(graph: Graph) -> Graph:
    """Let PyTensor simplify a log density before it is differentiated.

    This takes as long as all the rest of building, and mends derivatives that are 0 / 0 or 0 times
    infinity as they stand, as of a likelihood of response times that takes powers of times near 0.
    """
    log_density = split_wide_operations(rewrite_pregrad(graph.log_density))
    log_density = with_batched_factors(log_density)
    return with_checks(graph.x, log_density, graph.data, graph.check_bounds)


def _rewritten(output: Any, rewrite: Any) -> Any:
    """Apply a rewrite to all nodes of a graph, which is not changed."""
    graph = FunctionGraph(outputs=[output], clone=True, copy_inputs=False)
    dfs_rewriter(rewrite).rewrite(graph)
    return graph.outputs[0]


def with_known_shapes(outputs: Sequence[Variable]) -> list[Variable]:
    """Replace shapes that types already tell by numbers.

    Vectorising a symbolic shape takes PyTensor 20 ms each, to find that it is the same for all
    draws: 0.7 of the 3 seconds in which an ordered model is built. The given graph is not changed.
    """
    graph = FunctionGraph(
        outputs=list(outputs), clone=True, copy_inputs=False, features=[ShapeFeature()]
    )
    with pytensor.config.change_flags(cxx=""):
        infer_shape_db.default_query.rewrite(graph)
    return list(graph.outputs)


def _check_deterministic(log_density: Any) -> None:
    random = [v.owner for v in ancestors([log_density]) if v.owner and _is_random(v.owner)]
    if random:
        raise NotImplementedError(
            f"the log density draws at random ({random[0].op}), so it is not a function of the "
            "parameters: the only draws it may make are batches of data, by pm.Minibatch"
        )


def _is_random(node: Any) -> bool:
    return any(isinstance(variable.type, RandomType) for variable in node.inputs)


def _ops_without_gradient(x: Any, output: Any) -> list[str]:
    """Names of the Ops between x and the output that have no gradient."""
    downstream, names = {x}, []
    for node in io_toposort([], [output]):
        if not downstream.intersection(node.inputs):
            continue
        downstream.update(node.outputs)
        inputs = [i for i in node.inputs if i in downstream and i.dtype.startswith("float")]
        cost = sum(o.sum() for o in node.outputs if getattr(o, "dtype", "").startswith("float"))
        try:
            pytensor.grad(cost, inputs, disconnected_inputs="ignore")
        except Exception:
            names.append(str(node.op))
    return list(dict.fromkeys(names))


def operations_in_loops(output: Variable) -> int:
    """Count the operations inside the loops (Scans) of a graph, and inside loops within them."""
    loops = (node.op for node in io_toposort([], [output]) if isinstance(node.op, Scan))
    return sum(
        len(op.fgraph.apply_nodes) + sum(map(operations_in_loops, op.fgraph.outputs))
        for op in loops
    )


def calls(outputs: Sequence[Variable], longest: int = 1) -> int:
    """Count how often operations of a graph are called, those in its loops once in each step.

    Where the number of steps is not known, as of data that may be replaced, it is taken to be the
    longest axis of any array that the graph holds, or `longest`.
    """
    held = [v for v in ancestors(outputs) if isinstance(v, SharedVariable | Constant)]
    longest = max([longest, *(max(np.shape(value_of(v)), default=1) for v in held)])
    nodes = io_toposort([], list(outputs))
    loops = [node for node in nodes if isinstance(node.op, Scan)]
    return len(nodes) + sum(
        _steps(node, longest) * calls(node.op.fgraph.outputs, longest) for node in loops
    )


def _steps(loop: Apply, otherwise: int) -> int:
    with pytensor.config.change_flags(cxx=""):
        (steps,) = constant_fold([loop.inputs[0]], raise_not_constant=False)
    return otherwise if isinstance(steps, Variable) else int(steps)
