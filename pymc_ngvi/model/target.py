r"""A PyMC model as a compiled log density on its flat unconstrained vector.

With T the transform from the unconstrained vector x to the model's variables,

.. math:: f(x) = \log p(T(x), \text{data}) + \log |\det \nabla T(x)|,

and :math:`\nabla f` and :math:`\nabla^2 f` come from PyTensor's automatic differentiation, in
functions of many draws that are built at their first use.
"""

from __future__ import annotations

import contextlib
import io
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc
import pytensor
from numpy.typing import NDArray
from pymc.exceptions import SamplingError

from pymc_ngvi._compat import initial_point, interpreted_mode
from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.data import told_shapes
from pymc_ngvi.model.evaluators import Data
from pymc_ngvi.model.functions import Functions, Route
from pymc_ngvi.model.graph import build_graph, simplified
from pymc_ngvi.model.hessian import difference_hessian
from pymc_ngvi.model.kinks import Kinks
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.terms import Terms

CURVATURES = ("full", "diagonal", "sparse", "none")


#: Standard deviation, in nats, that batches may add to the logarithm of an importance ratio.
MOST_NOISE = 0.1


@dataclass(frozen=True)
class Reading:
    """How much a target has read of its data: zeros for a target that holds all its data."""

    n_rows: int = 0  # of all the data
    batch_size: int = 0
    rows: int = 0  # read so far, those for anchors included
    anchors: int = 0  # placed so far; each reads all rows once


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
        Number of draws that see the same batch, and so have this error in common.
    """

    log_density: Callable[[Array], Array]
    noise: float = 0.0
    shared: int = 1

    @property
    def is_noisy(self) -> bool:
        """Whether importance ratios would be those of the batches, not of the posterior."""
        return self.noise > MOST_NOISE


class ModelTarget(Target):
    """A compiled model that holds all its data.

    :func:`~pymc_ngvi.model.compilation.compile_target` makes it, or a
    :class:`~pymc_ngvi.model.batch_target.BatchTarget` for a model that reads batches.

    Parameters
    ----------
    model : pymc.Model
    terms : Terms
        The log density of the model.
    compiler : Compiler
    curvature : {"full", "diagonal", "none"}
        The part of the Hessian that the fit will ask for.

    Attributes
    ----------
    layout : Layout
        Order, shapes and names of the flat vector.
    initial_point : array, (d,)
        PyMC's initial point of the model, inside the support.
    """

    def __init__(self, model: pymc.Model, terms: Terms, compiler: Compiler, curvature: str) -> None:
        point = initial_point(model)
        self.model = model
        self._variables = _variables_of(model)
        self.curvature = curvature
        self.layout = Layout(model, point)
        self.dim = self.layout.dim
        if not self.dim:
            empty = ", ".join(f"{slot.variable} has shape {slot.shape}" for slot in self.layout)
            raise TypeError(f"the model has no parameters, so there is nothing to fit: {empty}")
        self.initial_point = _inside(self.layout, self.layout.flatten(point))
        self._data = terms.data
        with pytensor.config.change_flags(traceback__limit=0):
            graph = build_graph(terms, self.layout)
        self._functions = Functions(graph, compiler, self.layout)
        self._simplified = False
        self._kinks = Kinks(graph, terms)
        #: Why there is no structure, where there is none.
        self.no_structure = "the Hessian is dense"

    def unflatten(self, vector: Array) -> dict[str, NDArray[Any]]:
        """Return the vector (d,) as a point on the unconstrained scale."""
        return self.layout.unflatten(vector)

    # The data. Where the model holds all of them, there is no batch, no anchor and no count.

    @property
    def reading(self) -> Reading:
        """What was read of the data since `begin`."""
        return Reading()

    @property
    def price(self) -> float:
        """Cost of reading all the data once, as a number of evaluations."""
        return 1.0

    @property
    def hessian_price(self) -> float:
        """What an evaluation with its Hessian costs, in log densities, roughly."""
        return self._functions.hessian_price

    @property
    def numbers(self) -> int:
        """Numbers that the log density of one draw goes through, roughly."""
        return self._functions.numbers(())

    @property
    def building_seconds(self) -> float:
        """Time spent so far on building functions: each is built when it is first needed."""
        return self._functions.compiler.building

    @property
    def current(self) -> bool:
        """Whether the data are still those in the model's containers."""
        return self._data.current

    def is_of(self, model: pymc.Model) -> bool:
        """Whether this is still the target of a model: its variables and data are the same."""
        mine, now = self._variables, _variables_of(model)
        same = len(mine) == len(now) and all(map(operator.is_, mine, now))
        return model is self.model and same and self.current

    def begin(self, rng: np.random.Generator, *, controlled: bool) -> None:
        """Prepare for a new fit.

        Parameters
        ----------
        rng : numpy.random.Generator
            Gives the seed of the batches.
        controlled : bool
            Whether the fit uses control variates.
        """

    def watch(self, progress: Callable[[str, int, int], None]) -> None:
        """Call ``progress(what, rows, all_rows)`` while a pass over data that are read goes on."""

    def of_all_data(self, q: Gaussian, rng: np.random.Generator) -> FullDensity:
        """Return the log density of all the data, for draws from `q`."""
        return FullDensity(self.log_density)

    def _draw_rows(self) -> tuple[Any, ...]:
        """Return the rows of data for one evaluation, as arguments of a compiled function."""
        return ()

    # Evaluation.

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""
        return self._functions.density(self._as_draws(draws), ())

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d).

        Raises
        ------
        HessianUnavailableError
            Where a Hessian is asked for and the model's operations have no second derivative.
        """
        return self._evaluate(self._as_draws(draws), curvature, ())

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set."""
        check_choice("curvature", curvature, CURVATURES)
        self._ensure_hessian()
        return self._functions.average(self._as_draws(draws), curvature, (), sets)

    def _evaluate(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        check_choice("curvature", curvature, CURVATURES)
        if curvature != "none":
            self._ensure_hessian()
        return self._functions.evaluate(draws, curvature, data)

    @property
    def may_have_kinks(self) -> bool:
        """Whether an operation of the log density may give it a kink or a jump."""
        return bool(self._kinks)

    def kinks(self, draws: Array) -> list[str]:
        """Name the operations that switch sides between draws (n, d), and their variables."""
        return self._kinks.crossed(self._as_draws(draws), self._draw_rows())

    def _as_draws(self, draws: Array) -> Array:
        # Writable too: Numba compiles anew for read-only arrays.
        draws = np.require(draws, dtype=np.float64, requirements=["C", "W"])
        if draws.ndim != 2 or draws.shape[1] != self.dim:
            raise ValueError(f"draws must have shape (n, {self.dim}), not {draws.shape}")
        return draws

    # Hessians.

    @property
    def hessian_route(self) -> str:
        """How Hessians are computed: "rows", "batched", "looped", or "none" without any.

        By sums over rows of data, by products of many draws at a time, or of one draw at a time.

        The first use compiles the function and compares its Hessian with differences of the
        gradient; where that fails, the next route is tried, with a
        :class:`~pymc_ngvi.model.hessian.HessianFallbackWarning`.
        """
        return self._ensure_hessian().name

    @property
    def structure(self) -> Structure | None:
        """Where the Hessian has entries; None where it is dense, or small, or not available."""
        self._ensure_hessian()
        return self._functions.structure

    def find_structure(self) -> Structure | None:
        """Look for the structure of the Hessian, also of one with few parameters."""
        self._ensure_hessian()
        return self._functions.find_structure(self.initial_point)

    @property
    def backend(self) -> str:
        """What evaluates the log density, and how where draws are evaluated one by one."""
        because = self._functions.looped_because
        name = self._functions.compiler.name
        return f"{name}, draw by draw ({because})" if because else name

    def _ensure_hessian(self) -> Route:
        functions = self._functions
        return functions.route or functions.find_hessian(self.initial_point, self._draw_rows())

    @property
    def _richest_curvature(self) -> str:
        """Full, unless the model has no Hessians or the fit does not use them."""
        return "none" if self.curvature == "none" or self.hessian_route == "none" else "full"

    def difference_hessian(self, x: Array) -> Array:
        """Hessian (d, d) at x (d,) from differences of the gradient, accurate to a few digits."""
        data = self._draw_rows()
        return difference_hessian(
            lambda points: self._evaluate(self._as_draws(points), "none", data).gradient, x
        )

    # Starts.

    def check_start(self, x: Array, *, explain: bool = True) -> None:
        """Raise where the log density or its gradient is not finite at x (d,).

        Parameters
        ----------
        x : array, (d,)
        explain : bool
            List the terms of the log density in the error, which takes a moment.

        Raises
        ------
        pymc.exceptions.SamplingError
            With the terms of the log density at x, and what PyMC says of them.
        """
        x = np.asarray(x)
        try:
            evaluation = self.evaluate(x[np.newaxis], "none")
        # Data of other shapes may fail in any operation.
        except (ValueError, TypeError, IndexError, AssertionError) as error:
            raise ValueError(
                f"the log density cannot be computed at the start: {first_line(error)}. "
                f"{told_shapes(self.model)}"
            ) from error
        if self._problem(evaluation):
            evaluation = self._evaluate_simplified(x) or evaluation
        problem = self._problem(evaluation)
        if problem:
            terms = f"\n\n{self.describe(x)}" if explain else ""
            raise SamplingError(f"{problem} at the start.{terms}")
        # The Hessian could not be verified at an initial point where it is not finite.
        if self._richest_curvature == "full" and not self._ensure_hessian().verified:
            self._functions.find_hessian(x, self._draw_rows())
            self._functions.require_finite_hessians(x, self._draw_rows())

    def _evaluate_simplified(self, x: Array) -> Evaluation | None:
        """Evaluate a simplified graph at x (d,), and keep it if all is finite; tried once."""
        if self.reads_batches or self._simplified:
            return None
        self._simplified = True
        known = self._functions
        functions = Functions(simplified(known.graph), known.compiler, self.layout)
        found = functions.evaluate(x[np.newaxis], "none", ())
        if self._problem(found):
            return None
        if known.structure is not None:  # which the family has taken already
            functions.find_hessian(x, ())
            structure = functions.structure
            if structure is None or not structure.has_places_of(known.structure):
                return None
        self._functions = functions
        return found

    def _problem(self, evaluation: Evaluation) -> str:
        """Say what is not finite in the evaluation of one draw; empty if all is finite."""
        if not np.isfinite(evaluation.log_density[0]):
            return f"The log density is {evaluation.log_density[0]}"
        bad = np.flatnonzero(~np.isfinite(evaluation.gradient[0]))
        if bad.size:
            labels = ", ".join(self.layout.label(int(i)) for i in bad[:5])
            return f"The gradient is not finite for {labels}{' and more' if bad.size > 5 else ''}"
        return ""

    def describe(self, x: Array) -> str:
        """List the terms of the log density at x (d,), with what ``model.debug`` says of them."""
        point = self.unflatten(np.asarray(x, dtype=np.float64))
        terms = self.model.point_logps(point, mode=interpreted_mode())
        width = max(map(len, terms))
        lines = [f"{'term':<{width}}  log density"]
        lines += [
            f"{name:<{width}}  {value}{'' if np.isfinite(value) else '   <- not finite'}"
            for name, value in terms.items()
        ]
        report = io.StringIO()
        # model.debug fails for some models; the list of terms is given all the same.
        with (
            contextlib.suppress(Exception),
            contextlib.redirect_stdout(report),
            pytensor.config.change_flags(mode="FAST_COMPILE"),
        ):
            self.model.debug(point)
        return "\n".join([*lines, "", report.getvalue()]).rstrip()


def _variables_of(model: pymc.Model) -> list[Any]:
    """Return what defines the log density of a model: variables, values, transforms, terms."""
    values = [model.rvs_to_values[variable] for variable in model.basic_RVs]
    transforms = [model.rvs_to_transforms.get(variable) for variable in model.basic_RVs]
    return [*model.basic_RVs, *values, *transforms, *model.potentials]


def _inside(layout: Layout, point: Array) -> Array:
    """Move what is not finite on the unconstrained scale to 0 there, and say so."""
    finite = np.isfinite(point)
    if finite.all():
        return point
    i = int(np.argmin(finite))
    warn(
        f"ngvi: the initial value of {layout.label(i)} is {point[i]} on the unconstrained scale, "
        "as that on the boundary of a support is; the fit starts at 0 there. Give an initval"
    )
    return np.where(finite, point, 0.0)
