r"""A PyMC model as a compiled log density on its flat unconstrained vector.

With T the transform from the unconstrained vector x to the model's variables,

.. math:: f(x) = \log p(T(x), \text{data}) + \log |\det \nabla T(x)|,

and :math:`\nabla f`, :math:`\nabla^2 f` come from PyTensor's automatic differentiation. One
function of one draw gives all three and is called in a loop over the draws; it is compiled at its
first use.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc
import pytensor
from numpy.typing import NDArray
from pymc.exceptions import SamplingError
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.link.jax import JAXLinker
from pytensor.scan.op import Scan

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.model.evaluators import Data, Evaluator, JaxBatches, Loop, Products
from pymc_ngvi.model.graph import ROUTES, build_graph, hessian_product
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.minibatches import Batched, value_of

CURVATURES = ("full", "diagonal", "none")

# A function of the log density alone is compiled once this many components of draws have gone
# through a function that gives derivatives nobody asked for. A count, not a clock: the same calls
# take the same functions on every machine, and so give the same bits. So many numbers of data weigh
# as much as one component.
_WASTE_LIMIT = 2_000_000
_DATA_PER_COMPONENT = 250


class HessianFallbackWarning(UserWarning):
    """The fastest way to a Hessian does not work for this model, and a slower one is taken."""


class HessianUnavailableError(NotImplementedError):
    """The model's log density has no second derivatives; the Stein estimator needs none."""


@dataclass(frozen=True)
class Reading:
    """What a target has read of its data; zeros for a target that holds all its data.

    Attributes
    ----------
    n_rows, batch_size : int
        Rows of all the data, and of a batch.
    rows : int
        Rows read so far, those of anchors included.
    anchors : int
        Anchors of control variates placed so far; each reads all rows once.
    """

    n_rows: int = 0
    batch_size: int = 0
    rows: int = 0
    anchors: int = 0


@dataclass(frozen=True)
class FullDensity:
    """The log density of all the data, perhaps estimated from batches of them.

    Attributes
    ----------
    log_density : callable
        Maps draws (n, d) to log densities (n,).
    noise : float
        Standard deviation, in nats, of the error that batches leave in a log density.
    shared : int
        Number of draws that have this error in common, because they see the same batch.
    """

    log_density: Callable[[Array], Array]
    noise: float = 0.0
    shared: int = 1


class ModelTarget(Target):
    """A compiled model; see :func:`compile_target`, which makes it.

    Attributes
    ----------
    model : pymc.Model
    layout : Layout
        Order, shapes and names of the flat vector.
    initial_point : array, (d,)
        PyMC's initial point of the model.
    curvature : str
        What the fit will ask for.
    """

    def __init__(
        self,
        model: pymc.Model,
        compile_kwargs: Mapping[str, Any],
        curvature: str,
        *,
        interpreted: bool = False,
        batched: Batched | None = None,
    ) -> None:
        point = model.initial_point(0)
        self.model = model
        self.curvature = curvature
        self.layout = Layout(model, point)
        self.dim = self.layout.dim
        self.initial_point = self.layout.flatten(point)
        self._compile_kwargs = dict(compile_kwargs)
        self._interpreted = interpreted
        with pytensor.config.change_flags(traceback__limit=0):
            self._graph = build_graph(model, self.layout, batched)
        self._evaluators: dict[str, Evaluator] = {}
        self._route: str | None = None
        self._verified = False
        self._wasted = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every component."""
        return self.layout.names

    def label(self, index: int) -> str:
        """Name of component `index`, such as ``beta[school=Eton]``."""
        return self.layout.label(index)

    def flatten(self, point: Mapping[str, Any]) -> Array:
        """Return a complete point on the unconstrained scale as a vector (d,)."""
        return self.layout.flatten(point)

    def unflatten(self, vector: Array) -> dict[str, NDArray[Any]]:
        """Return the vector (d,) as a point on the unconstrained scale."""
        return self.layout.unflatten(vector)

    # Data: a model that holds all of it has nothing to draw, to anchor or to count.

    @property
    def reading(self) -> Reading:
        """What was read of the data since `begin`."""
        return Reading()

    @property
    def price(self) -> float:
        """Cost of reading all the data once, as a number of evaluations."""
        return 1.0

    @property
    def current(self) -> bool:
        """Whether the data are still those in the model's containers."""
        return True

    def begin(self, rng: np.random.Generator, *, controlled: bool) -> None:
        """Prepare for a new fit.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the seed of the batches.
        controlled : bool
            Whether the fit uses batches as control variates.
        """

    def of_all_data(self, q: Gaussian, rng: np.random.Generator) -> FullDensity:
        """Return the log density of all the data, for draws from `q`."""
        return FullDensity(self.log_density)

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""
        return self._density(self._as_draws(draws), itertools.repeat(()))

    def _density(self, draws: Array, data: Data) -> Array:
        if "density" not in self._evaluators:
            richer = self._evaluators.get("none") or self._evaluators.get("hessian")
            self._wasted += len(draws) * self._burden
            if richer is not None and self._wasted <= _WASTE_LIMIT and not self._costly_derivatives:
                return richer(draws, "none", data).log_density
            self._evaluators["density"] = self._compile([self._graph.log_density])
        return self._evaluators["density"](draws, "none", data).log_density

    @cached_property
    def _burden(self) -> int:
        """What one draw wastes, in components."""
        held = (
            np.size(value_of(variable))
            for variable in ancestors([self._graph.log_density])
            if isinstance(variable, Constant | SharedVariable)
        )
        return max(self.dim, sum(held) // _DATA_PER_COMPONENT)

    @cached_property
    def _costly_derivatives(self) -> bool:
        """Whether a function of the log density alone pays at once.

        Interpreted, it costs next to nothing; the Hessian of a loop costs a hundred times the loop.
        """
        nodes = ancestors([self._graph.log_density])
        return self._interpreted or any(v.owner and isinstance(v.owner.op, Scan) for v in nodes)

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d).

        Parameters
        ----------
        draws : array, (n, d)
        curvature : {"full", "diagonal", "none"}
            The Hessian wanted: (n, d, d), its diagonal (n, d), or none.

        Raises
        ------
        HessianUnavailableError
            Where a Hessian is asked for and the model's operations have no second derivative.
        """
        return self._evaluate(self._as_draws(draws), curvature, itertools.repeat(()))

    def _evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        if curvature == "none":
            if "none" not in self._evaluators:
                outputs = [self._graph.log_density, self._graph.gradient]
                self._evaluators["none"] = self._compile(outputs)
            return self._evaluators["none"](draws, "none", data)
        check_choice("curvature", curvature, CURVATURES)
        if "hessian" not in self._evaluators and self.hessian_route == "none":
            raise HessianUnavailableError(
                "the model's log density has no second derivatives; evaluate it with "
                'curvature="none", as estimator="stein" does'
            )
        return self._evaluators["hessian"](draws, curvature, data)

    def _common_data(self) -> tuple[Any, ...]:
        """Return what several draws are to see where they are compared with each other."""
        return ()

    def difference_hessian(self, x: Array) -> Array:
        """Hessian (d, d) at x (d,) from differences of the gradient, accurate to a few digits."""
        steps = np.diag(1e-4 * (1 + np.abs(x)))
        points = self._as_draws(np.concatenate([x + steps, x - steps]))
        data = itertools.repeat(self._common_data())
        gradient = self._evaluate(points, "none", data).gradient
        rows = (gradient[: self.dim] - gradient[self.dim :]) / (2 * steps.diagonal()[:, np.newaxis])
        return np.asarray((rows + rows.T) / 2)

    def hessian_vector_product(self, x: Array, vector: Array) -> Array:
        """Multiply the Hessian at x (d,) by `vector` (d,), at the cost of about two gradients."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        vector = np.ascontiguousarray(vector, dtype=np.float64)
        return np.asarray(self._product(x, vector, *self._common_data())[-1], dtype=np.float64)

    @property
    def hessian_route(self) -> str:
        """The way to Hessians that works: "vectorized", "products", "scan" or "none".

        Found by building, compiling and calling each in turn, so the first use takes the time of
        the compilation. What a route gives is compared once with differences of the gradient: an
        operation may have a second derivative that is wrong. A fallback is announced once, as a
        :class:`HessianFallbackWarning`.
        """
        if self._route is None:
            self._route = self._find_route(self.initial_point)
        return self._route

    @property
    def _richest_curvature(self) -> str:
        """Full, unless the model has no Hessians or the fit has no use for them."""
        return "none" if self.curvature == "none" or self.hessian_route == "none" else "full"

    def _find_route(self, x: Array) -> str:
        tried = [route for route, _, _ in ROUTES].index(self._route) if self._route else 0
        data = self._common_data()  # out here, as data that cannot be read are no route's fault
        for i, (route, build, what) in enumerate(ROUTES[tried:], start=tried):
            try:
                known = route == self._route
                evaluator = (
                    self._evaluators["hessian"] if known else self._compile_hessian(route, build)
                )
                self._verified = self._verify(evaluator, x, data)
            except Exception as error:
                following = ROUTES[i + 1][2] if i + 1 < len(ROUTES) else "gradients only"
                reason = first_line(error)
                warn(
                    f"{what} cannot be had for this model ({reason}); falling back on {following}",
                    HessianFallbackWarning,
                )
            else:
                self._evaluators["hessian"] = evaluator
                return route
        return "none"

    def _verify(self, evaluator: Evaluator, x: Array, data: tuple[Any, ...]) -> bool:
        """Raise where a Hessian contradicts the gradient near x (d,).

        Returns whether they could be compared, which they cannot where they are not finite. The
        product with a direction is compared with central differences of the gradient, whose
        own error is seen from halving the step. PyTensor 2 differentiates a recurrent Scan twice
        without complaint and wrongly; the result is symmetric, and nothing else gives it away.
        """
        rng = np.random.default_rng(0)
        x = x + 0.1 * rng.standard_normal(self.dim)
        direction = rng.standard_normal(self.dim)
        steps = 1e-3 * np.array([0.0, 1.0, -1.0, 0.5, -0.5])
        points = x + steps[:, np.newaxis] * direction
        evaluation = evaluator(points, "full", itertools.repeat(data))
        assert evaluation.hessian is not None
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
                f"it contradicts the gradient, for {self.label(i)} by {product[i]:.3g} against "
                f"{fine[i]:.3g}: an operation's second derivative is wrong"
            )
        return True

    def use(self, evaluator: Evaluator) -> None:
        """Evaluate with `evaluator` from now on, in place of the functions compiled here."""
        self._evaluators = dict.fromkeys(("density", "none", "hessian"), evaluator)

    def check_start(self, x: Array, *, explain: bool = True) -> None:
        """Raise where the log density or its gradient is not finite at x (d,).

        Parameters
        ----------
        x : array, (d,)
        explain : bool
            Tell the terms of the log density in the error, which takes a moment.

        Raises
        ------
        pymc.exceptions.SamplingError
            With the terms of the log density at x, and PyMC's own account of the term to blame.
        """
        curvature = self._richest_curvature
        evaluation = self.evaluate(np.asarray(x)[np.newaxis], curvature)
        problem = self._blame(evaluation)
        if problem:
            terms = f"\n\n{self.describe(x)}" if explain else ""
            raise SamplingError(f"{problem} at the start.{terms}")
        if curvature == "full" and not self._verified:  # nothing was finite at the initial point
            self._route = self._find_route(np.asarray(x))

    def _blame(self, evaluation: Evaluation) -> str:
        if not np.isfinite(evaluation.log_density[0]):
            return f"The log density is {evaluation.log_density[0]}"
        bad = np.flatnonzero(~np.isfinite(evaluation.gradient[0]))
        if bad.size:
            labels = ", ".join(self.label(int(i)) for i in bad[:5])
            return f"The gradient is not finite for {labels}{' and more' if bad.size > 5 else ''}"
        return ""

    def describe(self, x: Array) -> str:
        """Tell the log density at x (d,) term by term, and what ``model.debug`` says of it."""
        point = self.unflatten(np.asarray(x, dtype=np.float64))
        mode = interpreted_mode()
        terms = self.model.point_logps(point, mode=mode)
        width = max(map(len, terms))
        lines = [f"{'term':<{width}}  log density"]
        lines += [
            f"{name:<{width}}  {value}{'' if np.isfinite(value) else '   <- not finite'}"
            for name, value in terms.items()
        ]
        report = io.StringIO()
        # model.debug stumbles over some models itself; the table above stands without it.
        with (
            contextlib.suppress(Exception),
            contextlib.redirect_stdout(report),
            pytensor.config.change_flags(mode="FAST_COMPILE"),
        ):
            self.model.debug(point)
        return "\n".join([*lines, "", report.getvalue()]).rstrip()

    def _as_draws(self, draws: Array) -> Array:
        # Writable too: Numba compiles anew for read-only arrays.
        draws = np.require(draws, dtype=np.float64, requirements=["C", "W"])
        if draws.ndim != 2 or draws.shape[1] != self.dim:
            raise ValueError(f"draws must have shape (n, {self.dim}), not {draws.shape}")
        return draws

    @cached_property
    def _product(self) -> Any:
        inputs, product = hessian_product(self._graph)
        return self._function([self._graph.log_density, self._graph.gradient, product], inputs)

    def _compile_hessian(self, route: str, build: Callable[..., Any]) -> Evaluator:
        if route == "products":
            return Products(self._product)
        with pytensor.config.change_flags(traceback__limit=0):
            inputs, hessian = build(self._graph)
        return self._compile([self._graph.log_density, self._graph.gradient, hessian], inputs)

    def _compile(self, outputs: list[Any], inputs: list[Any] | None = None) -> Evaluator:
        function = self._function(outputs, inputs or [self._graph.x, *self._graph.data])
        on_jax = isinstance(get_mode(self._compile_kwargs.get("mode")).linker, JAXLinker)
        if on_jax and not self._graph.data:
            return JaxBatches(function)
        return Loop(function)

    def _function(self, outputs: list[Any], inputs: list[Any]) -> Any:
        flags: dict[str, Any] = {"traceback__limit": 0, "traceback__compile_limit": 0}
        if self._interpreted:
            outputs = inline_inner_graphs(outputs)
            # Inner functions (of Scan, of logsumexp) would go to the C compiler all the same.
            flags["cxx"] = ""
        # PyTensor keeps with each node the stack traces of all the nodes it replaced, which took
        # most of the time of compiling a Cholesky factor's Hessian.
        with pytensor.config.change_flags(**flags):
            function = self.model.compile_fn(
                outputs,
                inputs=inputs,
                point_fn=False,
                on_unused_input="ignore",
                **self._compile_kwargs,
            )
        # Our inputs are always contiguous float64 arrays: PyTensor need not look at each.
        function.trust_input = True
        return function
