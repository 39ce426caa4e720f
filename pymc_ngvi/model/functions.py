"""The functions of a target: how it evaluates draws, and whether it has Hessians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytensor

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.evaluators import (
    Batched,
    Data,
    Evaluator,
    Looped,
    LoopOverDrawsError,
    RowSums,
)
from pymc_ngvi.model.garbage import collected_later
from pymc_ngvi.model.graph import Graph
from pymc_ngvi.model.hessian import (
    Evaluate,
    HessianFallbackWarning,
    HessianUnavailableError,
    Products,
    too_large_to_differentiate,
    verify,
)
from pymc_ngvi.model.layout import Layout

#: Structures are looked for from this many parameters on: dense Hessians of fewer cost little.
FEWEST_SPARSE = 50

# Dense Hessians of more parameters are not formed only to be verified.
_MOST_FORMED = 1000

# The ways to evaluate draws, the fastest first.
_KINDS: tuple[type[Evaluator], ...] = (RowSums, Batched, Looped)


@dataclass(frozen=True)
class Route:
    """A way to Hessians that works for a model.

    Attributes
    ----------
    name : str
        "rows", "batched", "looped", or "none" where no way works.
    verified : bool
        Whether the Hessian was compared with the gradient, which takes a point where both are
        finite.
    """

    name: str
    verified: bool = False


class Functions:
    """Log density, gradient and Hessian, by functions that are compiled at their first use.

    All draws of a call see the same rows of data. A log density that is a sum over rows of data is
    evaluated by linear algebra, any other by a graph of many draws. Where an operation of the model
    does not allow that, draws are evaluated one after the other.

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
        self._evaluators: dict[str, Evaluator] = {}
        self._first_order: Evaluator | None = None  # what works for first derivatives
        self.route: Route | None = None
        self.looped_because = ""

    @property
    def blueprint(self) -> FunctionsBlueprint:
        """What the same functions are built from in another process."""
        first = None if self._first_order is None else type(self._first_order)
        known = None if self.structure is None else self._second.structures
        return FunctionsBlueprint(self.graph, self.compiler, self._layout, self.route, first, known)

    @collected_later()
    def find_hessian(self, x: Array, data: Data) -> Route:
        """Find the fastest way to Hessians, and compare them with the gradient at x (d,).

        Warns
        -----
        HessianFallbackWarning
            Where draws are evaluated one after the other, or no Hessian can be had.
        """
        self.route, reason = Route("none"), ""
        if too_large_to_differentiate(self.graph):
            return self.route
        for kind in _KINDS:
            try:
                evaluator = self._evaluator(kind)
                evaluator.check(x, data, order=2)
                if len(x) >= FEWEST_SPARSE and not data:
                    evaluator.find_structure(_points_around(x), data)
                verified = verify(_evaluate_with(evaluator, data), x, self._layout)
            # An operation that does not vectorise, or has no second derivative, may raise anything.
            except Exception as error:
                reason = first_line(error)
                # That there are no sums over rows, or that a loop is a loop, is no news.
                if kind is not RowSums and not isinstance(error, LoopOverDrawsError):
                    _tell(kind, reason)
            else:
                self.route = Route(kind.name, verified)
                self._use(evaluator, reason)
                break
        return self.route

    def require_finite_hessians(self, x: Array, data: Data) -> None:
        """Do without Hessians where none is finite, at x (d,) or around it.

        Warns
        -----
        HessianFallbackWarning
            Where there is no finite one.
        """
        if self.route is None or self.route.name == "none" or self.route.verified:
            return
        points = np.stack([x, *_points_around(x)])
        vectors = np.random.default_rng(0).standard_normal(points.shape)
        with np.errstate(all="ignore"):
            products = self._second.products(points, vectors, data).hessian
        if np.isfinite(np.asarray(products)).all(axis=1).any():
            return
        kind = next(kind for kind in _KINDS if kind.name == self.route.name)
        self.route = Route("none")
        _tell(kind, "it is not finite at the start", last=True)

    def _evaluator(self, kind: type[Evaluator]) -> Evaluator:
        if kind.name not in self._evaluators:
            self._evaluators[kind.name] = kind(self.graph, self.compiler)
        return self._evaluators[kind.name]

    def _use(self, evaluator: Evaluator, reason: str) -> Evaluator:
        """Evaluate first derivatives in this way; for that reason in no faster one."""
        self._first_order = evaluator
        self.looped_because = reason if evaluator.name == Looped.name else ""
        return evaluator

    def find_structure(self, x: Array) -> Structure | None:
        """Look for the structure near x (d,) where that was not done, as for few parameters."""
        if self.structure is None and self.route is not None and self.route.name != "none":
            self._second.find_structure(_points_around(x))
        return self.structure

    @property
    def structure(self) -> Structure | None:
        """Where the Hessian has entries, if it is sparse and that was looked for."""
        known = self.route is not None and self.route.name != "none"
        return self._second.structure if known else None

    def entries_of(self, data: Data) -> Structure:
        """Return where the Hessian may have entries with these rows.

        Raises
        ------
        UnknownStructureError
            Where rows do not tell.
        HessianUnavailableError
            Where there is no Hessian.
        """
        return self._second.entries_of(data)

    def take_entries(self, entries: Structure, x: Array, data: Data) -> None:
        """Take the entries of all rows, found in parts, for the structure near x (d,)."""
        self._second.take_entries(entries, _points_around(x), data)

    def evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate at draws (n, d), with the part of each Hessian that is asked for."""
        if curvature == "none":
            return self._first(data).gradient(draws, data)
        found = self._second.hessians(draws, data, sparse=self._is_sparse(curvature))
        return _part(found, curvature, self.structure)

    def evaluate_each(self, draws: Array, curvature: str, data: Sequence[Data]) -> Evaluation:
        """Evaluate each draw on rows of its own."""
        if curvature == "none":
            return self._first(data[0]).evaluate_each(draws, data, hessian=False)
        if self._is_sparse(curvature):
            return _part(self._second.sparse_each(draws, data), curvature, self.structure)
        return _part(self._second.evaluate_each(draws, data, hessian=True), curvature, None)

    def average(self, draws: Array, curvature: str, data: Data, sets: int = 1) -> Evaluation:
        """Evaluate at draws (n, d), and return the mean Hessian of each set of them."""
        sparse = self._is_sparse(curvature)
        found = self._second.mean_hessians(draws, data, sets=sets, sparse=sparse)
        return _part(found, curvature, self.structure)

    def density(self, draws: Array, data: Data) -> Array:
        """Evaluate the log density (n,) only."""
        return self._first(data).density(draws, data)

    @property
    def hessian_price(self) -> float:
        """What an evaluation with its Hessian costs, in log densities, roughly."""
        has = self.route is not None and self.route.name != "none"
        return self._second.hessian_price if has else 3.0

    def numbers(self, data: Data) -> int:
        """Return the numbers that the log density of one draw goes through, roughly."""
        return self._first(data).numbers(data)

    def _is_sparse(self, curvature: str) -> bool:
        """Whether the values on the structure are enough."""
        return curvature == "sparse" or (curvature == "diagonal" and self.structure is not None)

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
        if self._first_order is not None:
            return self._first_order
        x, reason = np.zeros(self._layout.dim), ""
        for kind in (RowSums, Batched):
            try:
                evaluator = self._evaluator(kind)
                evaluator.check(x, data, order=1)
            except Exception as error:
                reason = first_line(error)
            else:
                return self._use(evaluator, "")
        return self._use(self._evaluator(Looped), reason)


def _tell(kind: type[Evaluator], reason: str, *, last: bool = False) -> None:
    """Warn of Hessians that are not available in this way, and say what follows."""
    following = "one draw at a time" if kind is Batched and not last else "gradients only"
    warn(
        f"the Hessian of {kind.description} is not available for this model "
        f"({reason}); falling back on {following}",
        HessianFallbackWarning,
    )


@dataclass(frozen=True)
class FunctionsBlueprint:
    """What :class:`Functions` are built from: graphs and words, nothing that is compiled.

    How draws are evaluated was found where it was made, and is not looked for again.
    """

    graph: Graph
    compiler: Compiler
    layout: Layout
    route: Route | None
    first: type[Evaluator] | None
    structures: tuple[Structure | None, ...] | None = None
    float_type: str = field(default_factory=lambda: pytensor.config.floatX)

    def build(self) -> Functions:
        """Build the functions, each compiled at its first use."""
        pytensor.config.floatX = self.float_type
        functions = Functions(self.graph, self.compiler, self.layout)
        functions.route = self.route
        for kind in _KINDS:
            if kind is self.first or (self.route is not None and kind.name == self.route.name):
                functions._evaluator(kind)
        if self.structures is not None:
            functions._second.structures = self.structures
        if self.first is not None:
            functions._first_order = functions._evaluator(self.first)
        return functions


def _points_around(x: Array) -> Array:
    """Two points near x (d,), at which no entry of the Hessian should vanish by chance."""
    return x + 0.1 * np.random.default_rng(1).standard_normal((2, len(x)))


def _evaluate_with(evaluator: Evaluator, data: Data) -> Evaluate:
    def evaluate(points: Array, curvature: str) -> Evaluation:
        if curvature == "none":
            return evaluator.gradient(points, data)
        matrices: Any
        if evaluator.structure is None and points.shape[1] > _MOST_FORMED:
            matrices = [Products(evaluator, point, data) for point in points]
            return replace(evaluator.gradient(points, data), hessian=matrices)
        if evaluator.structure is None:
            return evaluator.hessians(points, data)
        found = evaluator.hessians(points, data, sparse=True)
        assert found.hessian is not None
        matrices = [evaluator.structure.matrix(values) for values in found.hessian]
        return replace(found, hessian=matrices)

    return evaluate


def _part(found: Evaluation, curvature: str, structure: Structure | None) -> Evaluation:
    """Return the evaluation with the part of its Hessians that was asked for."""
    assert found.hessian is not None
    if curvature != "diagonal":
        return found
    if structure is not None:
        return replace(found, hessian=structure.diagonal_of(found.hessian))
    return replace(found, hessian=np.einsum("...ii->...i", found.hessian).copy())
