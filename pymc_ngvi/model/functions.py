"""The functions of a target: how it evaluates draws, and whether it has Hessians."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.evaluators import Batched, Data, Evaluator, Looped
from pymc_ngvi.model.graph import Graph
from pymc_ngvi.model.hessian import (
    Evaluate,
    HessianFallbackWarning,
    HessianUnavailableError,
    too_large_to_differentiate,
    verify,
)
from pymc_ngvi.model.layout import Layout


@dataclass(frozen=True)
class Route:
    """A way to Hessians that works for a model.

    Attributes
    ----------
    name : str
        "batched", "looped", or "none" where no way works.
    verified : bool
        Whether the Hessian was compared with the gradient, which takes a point where both are
        finite.
    """

    name: str
    verified: bool = False


class Functions:
    """Log density, gradient and Hessian, by functions that are compiled at their first use.

    All draws of a call see the same rows of data, and are evaluated together. Where an operation of
    the model does not allow that, they are evaluated one after the other.

    Parameters
    ----------
    graph : Graph
    compiler : Compiler
    layout : Layout
        Names the components in messages.

    Attributes
    ----------
    route : Route or None
        How Hessians are computed; None before `find_hessian`.
    looped_because : str
        Why draws are evaluated one after the other; empty where they are evaluated together.
    """

    def __init__(self, graph: Graph, compiler: Compiler, layout: Layout) -> None:
        self.graph = graph
        self.compiler = compiler
        self._layout = layout
        self._evaluators: dict[str, Evaluator] = {
            "batched": Batched(graph, compiler),
            "looped": Looped(graph, compiler),
        }
        self._name: str | None = None  # of the evaluator that works for first derivatives
        self.route: Route | None = None
        self.looped_because = ""

    def find_hessian(self, x: Array, data: Data) -> Route:
        """Compile Hessians, and compare them with the gradient at x (d,) and these data.

        Warns
        -----
        HessianFallbackWarning
            Where draws are evaluated one after the other, or no Hessian can be had.
        """
        self.route = Route("none")
        if too_large_to_differentiate(self.graph):
            return self.route
        for name, what, following in (
            ("batched", "the Hessian of many draws at a time", "one draw at a time"),
            ("looped", "the Hessian of one draw at a time", "gradients only"),
        ):
            evaluator = self._evaluators[name]
            try:
                if name == "batched":
                    evaluator.check_independence(x, data, order=2)
                verified = verify(_evaluate_with(evaluator, data), x, self._layout)
            # An operation that does not vectorise, or has no second derivative, may raise anything.
            except Exception as error:
                self.looped_because = first_line(error)
                warn(
                    f"{what} is not available for this model ({first_line(error)}); falling back "
                    f"on {following}",
                    HessianFallbackWarning,
                )
            else:
                self.route, self._name = Route(name, verified), name
                break
        if self.route.name != "looped":
            self.looped_because = ""
        return self.route

    def evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate at draws (n, d); the Hessian of each is (d, d), or its diagonal (d,)."""
        if curvature == "none":
            return self._first(data).gradient(draws, data)
        return _part(self._second.hessians(draws, data), curvature)

    def average(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate at draws (n, d), and return the mean of their Hessians."""
        return _part(self._second.mean_hessian(draws, data), curvature)

    def density(self, draws: Array, data: Data) -> Array:
        """Evaluate the log density (n,) only."""
        return self._first(data).density(draws, data)

    @property
    def _second(self) -> Evaluator:
        """What evaluates second derivatives."""
        if self.route is None or self.route.name == "none":
            raise HessianUnavailableError(
                'the model\'s log density has no second derivatives: use estimator="stein", or an '
                'estimator that evaluates the target with curvature="none"'
            )
        return self._evaluators[self.route.name]

    def _first(self, data: Data) -> Evaluator:
        """Return what evaluates log densities and first derivatives, found by trying."""
        if self._name is None:
            self._name = next(self._working(data))
        return self._evaluators[self._name]

    def _working(self, data: Data) -> Iterator[str]:
        x = np.zeros(self._layout.dim)
        try:
            self._evaluators["batched"].check_independence(x, data, order=1)
        except Exception as error:
            self.looped_because = first_line(error)
        else:
            yield "batched"
        yield "looped"


def _evaluate_with(evaluator: Evaluator, data: Data) -> Evaluate:
    def evaluate(points: Array, curvature: str) -> Evaluation:
        call = evaluator.gradient if curvature == "none" else evaluator.hessians
        return call(points, data)

    return evaluate


def _part(found: Evaluation, curvature: str) -> Evaluation:
    """Return the evaluation with the part of its Hessians (..., d, d) that was asked for."""
    assert found.hessian is not None
    if curvature == "full":
        return found
    return replace(found, hessian=np.einsum("...ii->...i", found.hessian).copy())
