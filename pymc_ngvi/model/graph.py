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
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.random.type import RandomType

from pymc_ngvi._compat import split_wide_operations
from pymc_ngvi.errors import first_line
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.minibatches import Batched, as_tensor


@dataclass(frozen=True)
class Graph:
    """The symbolic log density of a flat vector.

    Attributes
    ----------
    x, log_density, gradient
    data : tuple of variables
        What a batch is fed through, if the model reads batches: the weight of the terms outside
        them, then for each feed the weight of its terms and its arrays.
    """

    x: Any
    log_density: Any
    gradient: Any
    data: tuple[Any, ...] = ()


def build_graph(model: pymc.Model, layout: Layout, batched: Batched | None = None) -> Graph:
    """Build log density (Jacobian included) and gradient as functions of the flat vector.

    Parameters
    ----------
    model : pymc.Model
    layout : Layout
    batched : Batched, optional
        Where the batches enter, of a model that reads any.
    """
    x = pt.vector("x", shape=(layout.dim,), dtype="float64")
    # Split, whose gradient is one Join: slices would add up as many padded vectors as variables.
    sizes = [slot.size for slot in layout]
    parts = pt.split(x, splits_size=sizes, n_splits=len(sizes)) if len(sizes) > 1 else [x]
    flat = {
        slot.name: part.reshape(slot.shape).astype(slot.dtype)
        for slot, part in zip(layout, parts, strict=True)
    }
    data: tuple[Any, ...] = ()
    if batched is None:
        log_density = model.logp()
    else:
        model = batched.model
        log_density, data = _weighted(batched)
    values = {value: flat[value.name] for value in model.value_vars}
    log_density = graph_replace([log_density], values, strict=False)[0].astype("float64")
    _check_deterministic(log_density)
    log_density = split_wide_operations(log_density)
    try:
        gradient = pytensor.grad(log_density, x, disconnected_inputs="ignore")
    except Exception as error:
        ops = ", ".join(_ops_without_gradient(x, log_density)) or first_line(error)
        raise NotImplementedError(
            f"the log density has no gradient: {ops}. Give the Op a `pullback` (`grad` or `L_op` "
            "before PyTensor 3), or write the model without it."
        ) from error
    return Graph(x, log_density, gradient, data)


def _weighted(batched: Batched) -> tuple[Any, tuple[Any, ...]]:
    """Add up the terms of a log density, with weights for those of each feed."""
    outside = pt.scalar("outside", dtype="float64")
    weights = [pt.scalar(dtype="float64") for _ in batched.feeds]
    total, inputs = [], [outside]
    containers: dict[Any, Any] = {}
    for feed, weight in zip(batched.feeds, weights, strict=True):
        arrays = [container.type(container.name) for container in feed.containers]
        containers.update(zip(feed.containers, arrays, strict=True))
        inputs += [weight, *arrays]
    for term in batched.terms:
        logp = as_tensor(term.logp).sum()
        if term.feed is None:
            total.append(outside * logp)
            continue
        feed = batched.feeds[term.feed]
        if term.total is None and not term.averages:  # as if all the data were worth one batch
            logp = logp * feed.loader.batch_size / feed.containers[0].shape[0]
        total.append(weights[term.feed] * logp)
    (log_density,) = graph_replace([pt.add(*total)], containers, strict=False)
    return log_density, tuple(inputs)


def _check_deterministic(log_density: Any) -> None:
    random = [v.owner for v in ancestors([log_density]) if v.owner and _draws(v.owner)]
    if random:
        raise NotImplementedError(
            f"the log density draws at random ({random[0].op}), and so is no function of the "
            "parameters: the only draws it may take are batches, by pm.Minibatch"
        )


def _draws(node: Any) -> bool:
    return any(isinstance(variable.type, RandomType) for variable in node.inputs)


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
    return [graph.x, *graph.data], hessian


def hessian_product(graph: Graph) -> tuple[list[Any], Any]:
    """Return the inputs (x, vector, data), and the Hessian at x times the vector."""
    vector = pt.vector("vector", shape=graph.x.type.shape, dtype="float64")
    slope = (graph.gradient * vector).sum()
    inputs = [graph.x, vector, *graph.data]
    return inputs, pytensor.grad(slope, graph.x, disconnected_inputs="ignore")


def _scan_hessian(graph: Graph) -> tuple[list[Any], Any]:
    def row(index: Any, gradient: Any, x: Any, *_data: Any) -> Any:
        return pytensor.grad(gradient[index], x, disconnected_inputs="ignore")

    hessian = pytensor.scan(
        row,
        sequences=[pt.arange(graph.x.type.shape[0])],
        non_sequences=[graph.gradient, graph.x, *graph.data],
        return_updates=False,
    )
    return [graph.x, *graph.data], hessian


#: Ways to a Hessian, the fastest first: name, builder, and what a message calls it.
ROUTES: tuple[tuple[str, Callable[[Graph], tuple[list[Any], Any]], str], ...] = (
    ("vectorized", _vectorized_hessian, "the vectorised Hessian"),
    ("products", hessian_product, "d Hessian-vector products"),
    ("scan", _scan_hessian, "the Hessian row by row in a Scan"),
)
