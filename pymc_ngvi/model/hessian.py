"""Hessians of a log density: the ways to build them, and whether what they give is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import jacobian

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.model.evaluators import Compiler, Evaluator, Products
from pymc_ngvi.model.graph import Graph
from pymc_ngvi.model.layout import Layout


class HessianFallbackWarning(UserWarning):
    """The fastest way to a Hessian does not work for this model, and a slower one is taken."""


class HessianUnavailableError(NotImplementedError):
    """A Hessian was asked for, and the model's log density has no second derivatives."""


@dataclass(frozen=True)
class Hessian:
    """A way to Hessians that works for a model.

    Attributes
    ----------
    route : str
        "vectorized", "products", "scan", or "none" where no way works.
    evaluator : Evaluator or None
        Evaluates log density, gradient and Hessian; None for the route "none".
    verified : bool
        Whether the Hessian was compared with the gradient, which takes a point where both are
        finite.
    """

    route: str
    evaluator: Evaluator | None = None
    verified: bool = False


def find_hessian(
    graph: Graph,
    compiler: Compiler,
    layout: Layout,
    x: Array,
    data: tuple[Any, ...],
    known: Hessian | None = None,
) -> Hessian:
    """Build, compile and verify Hessians, by the fastest route that works.

    Parameters
    ----------
    graph : Graph
    compiler : Compiler
    layout : Layout
        Names the components in messages.
    x : array, (d,)
        Where the Hessian is compared with the gradient.
    data : tuple
        Rows for the inputs ``graph.data``.
    known : Hessian, optional
        What was found before. It is verified again, and only slower routes replace it.

    Warns
    -----
    HessianFallbackWarning
        For each route that does not work.
    """
    names = [route for route, _, _ in _ROUTES]
    first = 0 if known is None else names.index(known.route)
    for i, (route, build, what) in enumerate(_ROUTES[first:], start=first):
        try:
            if known is not None and route == known.route:
                evaluator = known.evaluator
            else:
                evaluator = build(graph, compiler)
            return Hessian(route, evaluator, verify(evaluator, x, data, layout))
        except Exception as error:
            following = _ROUTES[i + 1][2] if i + 1 < len(_ROUTES) else "gradients only"
            warn(
                f"{what} is not available for this model ({first_line(error)}); falling back on "
                f"{following}",
                HessianFallbackWarning,
            )
    return Hessian("none")


def verify(evaluator: Any, x: Array, data: tuple[Any, ...], layout: Layout) -> bool:
    """Raise where a Hessian contradicts the gradient near x (d,).

    The product of the Hessian with a direction is compared with central differences of the
    gradient, whose own error is estimated by halving the step. This is needed because an operation
    may have a second derivative that is wrong: PyTensor 2 differentiates a recurrent Scan twice
    without complaint, and the wrong result is even symmetric.

    Returns
    -------
    bool
        Whether they could be compared: False where they are not finite.
    """
    rng = np.random.default_rng(0)
    x = x + 0.1 * rng.standard_normal(len(x))
    direction = rng.standard_normal(len(x))
    steps = 1e-3 * np.array([0.0, 1.0, -1.0, 0.5, -0.5])
    points = x + steps[:, np.newaxis] * direction
    evaluation = evaluator(points, "full", itertools.repeat(data))
    product = evaluation.hessian[0] @ direction
    gradient = evaluation.gradient
    if not np.isfinite([*gradient, product]).all():
        return False
    coarse, fine = (gradient[1] - gradient[2]) / 2e-3, (gradient[3] - gradient[4]) / 1e-3
    size = np.maximum(abs(fine), abs(product))
    allowed = 20 * abs(coarse - fine) + 0.01 * size + 1e-6 * size.max()
    wrong = np.flatnonzero(abs(fine - product) > allowed)
    if wrong.size:
        i = int(wrong[0])
        raise ArithmeticError(
            f"it contradicts the gradient, for {layout.label(i)} by {product[i]:.3g} against "
            f"{fine[i]:.3g}: an operation's second derivative is wrong"
        )
    return True


def difference_hessian(gradient: Callable[[Array], Array], x: Array) -> Array:
    """Hessian (d, d) at x (d,) by central differences, accurate to a few digits.

    Parameters
    ----------
    gradient : callable
        Maps points (n, d) to gradients (n, d).
    x : array, (d,)
    """
    steps = np.diag(1e-4 * (1 + np.abs(x)))
    above, below = np.split(gradient(np.concatenate([x + steps, x - steps])), 2)
    rows = (above - below) / (2 * steps.diagonal()[:, np.newaxis])
    return np.asarray((rows + rows.T) / 2)


def _vectorized(graph: Graph, compiler: Compiler) -> Evaluator:
    with pytensor.config.change_flags(traceback__limit=0):
        hessian = jacobian(graph.gradient, graph.x, vectorize=True, disconnected_inputs="ignore")
    outputs = [graph.log_density, graph.gradient, hessian]
    return compiler.evaluator(outputs, [graph.x, *graph.data])


def _products(graph: Graph, compiler: Compiler) -> Evaluator:
    vector = pt.vector("vector", shape=graph.x.type.shape, dtype="float64")
    slope = (graph.gradient * vector).sum()
    product = pytensor.grad(slope, graph.x, disconnected_inputs="ignore")
    outputs = [graph.log_density, graph.gradient, product]
    return Products(compiler.function(outputs, [graph.x, vector, *graph.data]))


def _scan(graph: Graph, compiler: Compiler) -> Evaluator:
    def row(index: Any, gradient: Any, x: Any, *_data: Any) -> Any:
        return pytensor.grad(gradient[index], x, disconnected_inputs="ignore")

    with pytensor.config.change_flags(traceback__limit=0):
        hessian = pytensor.scan(
            row,
            sequences=[pt.arange(graph.x.type.shape[0])],
            non_sequences=[graph.gradient, graph.x, *graph.data],
            return_updates=False,
        )
    outputs = [graph.log_density, graph.gradient, hessian]
    return compiler.evaluator(outputs, [graph.x, *graph.data])


# The fastest first: name, what builds it, and what a message calls it.
_ROUTES: tuple[tuple[str, Callable[[Graph, Compiler], Evaluator], str], ...] = (
    ("vectorized", _vectorized, "the vectorised Hessian"),
    ("products", _products, "the Hessian by products with unit vectors"),
    ("scan", _scan, "the Hessian row by row in a Scan"),
)
