"""The compiled functions of a target."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.evaluators import Compiler, Data, Evaluator
from pymc_ngvi.model.graph import Graph
from pymc_ngvi.model.hessian import (
    Hessian,
    HessianUnavailableError,
    find_hessian,
    operations_in_loops,
)
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.variables import value_of

# Before a function of the log density alone is compiled, a function that gives derivatives too
# serves for so many components of draws; so many numbers of data weigh as much as one component.
# This is counted and not timed: the same calls then use the same functions on every machine, and
# give the same bits.
_WASTE_LIMIT = 2_000_000
_DATA_PER_COMPONENT = 250


class Functions:
    """Log density, gradient and Hessian, by functions that are compiled at their first use.

    Parameters
    ----------
    graph : Graph
    compiler : Compiler
    layout : Layout
        Names the components in messages.

    Attributes
    ----------
    hessian : Hessian or None
        How Hessians are computed; None before `find_hessian`.
    wasted : int
        Cost, in components of draws, of derivatives that were computed and not asked for.
    """

    def __init__(self, graph: Graph, compiler: Compiler, layout: Layout) -> None:
        self._graph = graph
        self._compiler = compiler
        self._layout = layout
        self._density: Evaluator | None = None
        self._gradient: Evaluator | None = None
        self.hessian: Hessian | None = None
        self.wasted = 0

    def find_hessian(self, x: Array, rows: tuple[Any, ...]) -> Hessian:
        """Compile Hessians and compare them with the gradient at x (d,) and these rows of data."""
        known = self.hessian
        self.hessian = find_hessian(self._graph, self._compiler, self._layout, x, rows, known)
        return self.hessian

    def evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate at draws (n, d), each with its own of the `data`."""
        if curvature == "none":
            self._gradient = self._gradient or self._compile("log_density", "gradient")
            return self._gradient(draws, "none", data)
        if self.hessian is None or self.hessian.evaluator is None:
            raise HessianUnavailableError(
                'the model\'s log density has no second derivatives: use estimator="stein", or an '
                'estimator that evaluates the target with curvature="none"'
            )
        return self.hessian.evaluator(draws, curvature, data)

    def density(self, draws: Array, data: Data) -> Array:
        """Evaluate the log density (n,) only, at draws (n, d), each with its own of the `data`."""
        if self._density is None:
            richer = self._gradient or (self.hessian and self.hessian.evaluator)
            self.wasted += len(draws) * self._burden
            if richer and self.wasted <= _WASTE_LIMIT and not self._costly_derivatives:
                return richer(draws, "none", data).log_density
            self._density = self._compile("log_density")
        return self._density(draws, "none", data).log_density

    def _compile(self, *outputs: str) -> Evaluator:
        graph = self._graph
        return self._compiler.evaluator(
            [getattr(graph, output) for output in outputs], [graph.x, *graph.data]
        )

    @cached_property
    def _burden(self) -> int:
        """Cost of derivatives that nobody asked for, at one draw, in components."""
        held = (
            np.size(value_of(variable))
            for variable in ancestors([self._graph.log_density])
            if isinstance(variable, Constant | SharedVariable)
        )
        return max(self._layout.dim, sum(held) // _DATA_PER_COMPONENT)

    @cached_property
    def _costly_derivatives(self) -> bool:
        """Whether to compile a function of the log density alone at once.

        Interpreted, that takes next to no time; and the Hessian of a loop costs a hundred times as
        much as the loop.
        """
        return self._compiler.interpreted or operations_in_loops(self._graph.log_density) > 0
