"""The symbolic log density of a model on its flat vector, and the ways to its Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymc
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import jacobian
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.random.type import RandomType

from pymc_ngvi._compat import split_wide_operations
from pymc_ngvi.layout import Layout


@dataclass(frozen=True)
class Graph:
    """The symbolic log density of a flat vector."""

    x: Any
    log_density: Any
    gradient: Any

    @property
    def random_draws(self) -> list[Any]:
        """What is drawn anew at each call: the minibatches."""
        # Told by the generator they take: PyMC hides the random index inside an Op of its own.
        return [
            output
            for node in io_toposort([], [self.log_density])
            if any(isinstance(i.type, RandomType) for i in node.inputs)
            for output in node.outputs
            if not isinstance(output.type, RandomType)
        ]


def build_graph(model: pymc.Model, layout: Layout) -> Graph:
    """Build log density (Jacobian included) and gradient as functions of the flat vector."""
    x = pt.vector("x", shape=(layout.dim,), dtype="float64")
    # Split, whose gradient is one Join: slices would add up as many padded vectors as variables.
    sizes = [block.size for block in layout]
    parts = pt.split(x, splits_size=sizes, n_splits=len(sizes)) if len(sizes) > 1 else [x]
    values = {
        value: part.reshape(block.shape).astype(block.dtype)
        for value, block, part in zip(model.value_vars, layout, parts, strict=True)
    }
    log_density = graph_replace([model.logp()], values, strict=False)[0].astype("float64")
    log_density = split_wide_operations(log_density)
    try:
        gradient = pytensor.grad(log_density, x, disconnected_inputs="ignore")
    except Exception as error:
        ops = ", ".join(_ops_without_gradient(x, log_density)) or first_line(error)
        raise NotImplementedError(
            f"the log density has no gradient: {ops}. Give the Op a `pullback` (`grad` or `L_op` "
            "before PyTensor 3), or write the model without it."
        ) from error
    return Graph(x, log_density, gradient)


def _ops_without_gradient(x: Any, output: Any) -> list[str]:
    """Names of the Ops on the way from x to the output that cannot be differentiated."""
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


def _vectorized_hessian(graph: Graph) -> tuple[list[Any], Any]:
    hessian = jacobian(graph.gradient, graph.x, vectorize=True, disconnected_inputs="ignore")
    return [graph.x], hessian


def hessian_product(graph: Graph) -> tuple[list[Any], Any]:
    """Return the inputs (x, vector), and the Hessian at x times the vector."""
    vector = pt.vector("vector", shape=graph.x.type.shape, dtype="float64")
    slope = (graph.gradient * vector).sum()
    return [graph.x, vector], pytensor.grad(slope, graph.x, disconnected_inputs="ignore")


def _scan_hessian(graph: Graph) -> tuple[list[Any], Any]:
    # Draws handed in from outside stay the same for all rows: one minibatch for the whole Hessian.
    def row(index: Any, gradient: Any, x: Any, *_draws: Any) -> Any:
        return pytensor.grad(gradient[index], x, disconnected_inputs="ignore")

    hessian = pytensor.scan(
        row,
        sequences=[pt.arange(graph.x.type.shape[0])],
        non_sequences=[graph.gradient, graph.x, *graph.random_draws],
        return_updates=False,
    )
    return [graph.x], hessian


#: Ways to a Hessian, the fastest first: name, builder, and what a message calls it.
ROUTES: tuple[tuple[str, Callable[[Graph], tuple[list[Any], Any]], str], ...] = (
    ("vectorized", _vectorized_hessian, "the vectorised Hessian"),
    ("products", hessian_product, "d Hessian-vector products"),
    ("scan", _scan_hessian, "the Hessian row by row in a Scan"),
)


def first_line(error: Exception) -> str:
    """Shorten an error to its type and the first line of its message."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
