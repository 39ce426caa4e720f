"""Evaluating by the graph of a log density: many draws at a time, or one after the other.

The log density is vectorised over draws first and differentiated then: with X of shape (n, d),

.. code-block:: python

    lp = vectorize_graph(log_density, {x: X})
    G = grad(lp.sum(), X)
    HV = grad((G * V).sum(), X)

give log densities, gradients, and products of Hessians with vectors, of all draws in one call, from
graphs as small as those of one draw. A Hessian is the product of one draw, repeated, with d unit
vectors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pymc_ngvi._compat import inline_inner_graphs
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.evaluators.base import Data, Evaluator, first_of_each, joined
from pymc_ngvi.model.graph import Graph, calls, operations_in_loops, with_known_shapes
from pymc_ngvi.model.loops import loops_over_draws, with_draws_in_loops
from pymc_ngvi.model.variables import value_of

# Numbers in the largest array of one call. Beyond a few hundred kilobytes arrays leave the cache,
# and below it the time goes into calling the operations.
_NUMBERS_PER_CALL = 2**17
# Numbers for which derivatives are computed and not used before a function without them is built:
# interpreted, this takes about a tenth of a second, as building does.
_WASTE_LIMIT = 2**20
# JAX compiles once for each shape; and PyTensor rewrites graphs with matrix factorisations in half
# the time where it knows all shapes. Their calls always take as many draws, the last ones padded.
_FIXED_DRAWS = 32
# Calling an operation for one draw takes as long as so many numbers of many draws: interpreted four
# times as long, but a function that takes long is compiled.
_NUMBERS_PER_OPERATION = 32
# Steps of a factorisation in the time of one number in all other operations.
_STEPS_PER_NUMBER = 256
# Draws that share the calls in a loop, mostly.
_DRAWS_IN_LOOPS = 16


def _is_of_matrices(node: Apply) -> bool:
    """Whether a node factorises matrices, solves with them, or the like."""
    return isinstance(node.op, Blockwise) and not isinstance(node.op.core_op, Dot)


class _Compiled(Evaluator):
    """Evaluates by compiled functions, one for each order of derivatives."""

    def __init__(self, graph: Graph, compiler: Compiler) -> None:
        super().__init__(graph, compiler)
        self._functions: dict[int, Any] = {}
        self._wasted = 0.0

    @abstractmethod
    def _build(self, order: int) -> Any:
        """Compile log density, gradient (order 1) and products with vectors (order 2)."""

    @abstractmethod
    def _call(self, order: int, inputs: Sequence[Array], data: Data) -> list[Array]:
        """Evaluate the outputs of this order at inputs (n, d): draws, and vectors for order 2."""

    def _burden(self, data: Data) -> float:
        """Return the numbers that derivatives nobody asked for add to the work on one draw."""
        return np.inf

    def _function(self, order: int) -> Any:
        if order not in self._functions:
            self._functions[order] = self._build(order)
        return self._functions[order]

    def _compile(
        self, order: int, at: Variable, outputs: Sequence[Variable], data: Sequence[Variable]
    ) -> Any:
        """Compile a function of draws; outputs are log density and gradient at them."""
        inputs, outputs = [at], [*outputs[: order + 1]]
        if order == 2:
            inputs.append(at.type("vectors"))
            with pytensor.config.change_flags(traceback__limit=0):
                slope = (outputs[1] * inputs[1]).sum()
                outputs.append(pytensor.grad(slope, at, disconnected_inputs="ignore"))
        return self._compiler.function(outputs, [*inputs, *data])

    def _evaluate(self, order: int, draws: Array, data: Data) -> list[Array]:
        """Evaluate by the function of this order, or by one that gives more and is there already.

        The time spent on what was not asked for is limited by that of building another function. It
        is counted and not timed: the same calls then use the same functions on every machine, and
        give the same bits.
        """
        richer = min((known for known in self._functions if known > order), default=None)
        if order not in self._functions and richer is not None:
            self._wasted += len(draws) * self._burden(data)
            order = richer if self._wasted <= _WASTE_LIMIT else order
        return self._call(order, [draws, np.zeros_like(draws)][: max(order, 1)], data)

    def density(self, draws: Array, data: Data = ()) -> Array:
        """Log density (n,)."""
        return self._evaluate(0, draws, data)[0]

    def gradient(self, draws: Array, data: Data = ()) -> Evaluation:
        """Log density and gradient."""
        log_density, gradient, *_ = self._evaluate(1, draws, data)
        return Evaluation(log_density, gradient, None)

    def products(self, draws: Array, vectors: Array, data: Data = ()) -> Evaluation:
        """Log density, gradient, and the products (n, d) of each Hessian with a vector."""
        return Evaluation(*self._call(2, [draws, vectors], data))


class Batched(_Compiled):
    """Evaluates all draws in one call, or in as few as memory allows."""

    name = "batched"
    description = "many draws at a time"

    def __init__(self, graph: Graph, compiler: Compiler) -> None:
        super().__init__(graph, compiler)
        self._own_functions: dict[int, Any] = {}  # of draws that see rows of their own

    def check(self, x: Array, data: Data, order: int) -> None:
        """Raise where the log density of a draw near x (d,) depends on those evaluated with it."""
        self._function(order)
        draws = x + 0.01 * np.random.default_rng(0).standard_normal((2, len(x)))
        with np.errstate(all="ignore"):
            together = self.density(draws, data)
            alone = np.concatenate([self.density(draw[np.newaxis], data) for draw in draws])
        if not np.allclose(together, alone, rtol=1e-4, atol=1e-8, equal_nan=True):
            raise ArithmeticError("an operation mixes draws that are evaluated together")

    @cached_property
    def _symbols(self) -> tuple[Variable, list[Variable]]:
        """Draws that see the same data, and their log densities and gradients."""
        return self._vectorised({})

    def _vectorised(self, data: dict[Variable, Variable]) -> tuple[Variable, list[Variable]]:
        """Return draws that see their own of these data, their log densities and gradients."""
        graph = self._graph
        with pytensor.config.change_flags(traceback__limit=0):
            single = with_known_shapes(inline_inner_graphs([graph.checked, graph.smooth]))
            draws = _FIXED_DRAWS if self._is_fixed else None
            many = pt.matrix("draws", shape=(draws, self._dim), dtype="float64")
            replaced = {graph.x: many} | _pieces(graph.x, many, single) | data
            together = with_draws_in_loops(vectorize_graph(single, replaced))
            if loops_over_draws(together):
                raise LoopOverDrawsError("a loop runs for one draw after the other")
            density, smooth = together
            if not density.type.ndim:  # it does not depend on the draw
                density = density + pt.zeros(many.shape[0])
            gradient = pytensor.grad(smooth.sum(), many, disconnected_inputs="ignore")
        return many, [density, gradient]

    @cached_property
    def _is_fixed(self) -> bool:
        """Whether all calls take the same number of draws."""
        return self._compiler.on_jax or any(
            _is_of_matrices(node) for node in io_toposort([], [self._graph.checked])
        )

    def _build(self, order: int) -> Any:
        return self._compile(order, *self._symbols, self._graph.data)

    def evaluate_each(self, draws: Array, data: Sequence[Data], *, hessian: bool) -> Evaluation:
        """Log density, gradient and perhaps Hessian (n, d, d) of each draw on rows of its own."""
        k = draws.shape[1] if hessian else 1
        size = _NUMBERS_PER_CALL // (k * sum(np.size(values) for values in data[0]))
        if size < 2 or self._is_fixed or len({*map(_shapes, data)}) > 1:
            return super().evaluate_each(draws, data, hessian=hessian)
        parts = []
        for start in range(0, len(draws), size):
            batches = zip(*data[start : start + size], strict=True)
            rows = [np.repeat(np.stack(values), k, axis=0) for values in batches]
            part = np.repeat(draws[start : start + size], k, axis=0)
            if hessian:
                vectors = np.tile(np.eye(k), (len(part) // k, 1))
                found = Evaluation(*self._own_function(2)(part, vectors, *rows))
                parts.append(first_of_each(found, k))
            else:
                density, gradient = self._own_function(1)(part, *rows)
                parts.append(Evaluation(density, gradient, None))
        return joined(parts)

    def _own_function(self, order: int) -> Any:
        """Return the function of draws that see rows of their own."""
        if order not in self._own_functions:
            stacked = [
                pt.tensor(shape=(None, *v.type.shape), dtype=v.type.dtype) for v in self._graph.data
            ]
            symbols = self._vectorised(dict(zip(self._graph.data, stacked, strict=True)))
            self._own_functions[order] = self._compile(order, *symbols, stacked)
        return self._own_functions[order]

    def _call(self, order: int, inputs: Sequence[Array], data: Data) -> list[Array]:
        function, n, size = self._function(order), len(inputs[0]), self._draws_per_call(data)
        if n <= size and not self._is_fixed:
            return [*function(*inputs, *data)]
        parts = []
        for start in range(0, n, size):
            part = [array[start : start + size] for array in inputs]
            short = size - len(part[0]) if self._is_fixed else 0
            if short:
                part = [np.concatenate([a, np.repeat(a[:1], short, axis=0)]) for a in part]
            found = function(*part, *data)
            parts.append([np.asarray(values)[: size - short] for values in found])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _draws_per_call(self, data: Data) -> int:
        if self._is_fixed:
            return _FIXED_DRAWS
        return max(_NUMBERS_PER_CALL // self._largest(data), 1)

    def _burden(self, data: Data) -> float:
        if self._has_loops:  # whose derivatives cost a hundred times as much as they do
            return np.inf
        return self._largest(data)

    @cached_property
    def _has_loops(self) -> bool:
        return operations_in_loops(self._graph.log_density) > 0

    @cached_property
    def _calls(self) -> int:
        return calls([self._graph.log_density]) if self._has_loops else 0

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that one draw adds to a call, or that its calls in loops cost.

        A factorisation takes n steps for each entry of a matrix of n rows.
        """
        in_loops = self._calls * _NUMBERS_PER_OPERATION // _DRAWS_IN_LOOPS
        return max(self._largest(data), in_loops) + self._rows_of_matrices**3 // _STEPS_PER_NUMBER

    def _largest(self, data: Data) -> int:
        """Return the numbers of the largest array that one draw adds to a call, roughly.

        Where a length is not known, as that of data which may be replaced, it is taken to be the
        longest of any array that the model holds, or that is given; but not beside a known length
        that is as long, which are rows of few columns.
        """
        given = max((max(np.shape(value), default=1) for value in data), default=1)
        longest = max(given, self._longest_held)
        sizes = [1]
        for shape in self._shapes:
            known = prod(n for n in shape if n is not None)
            unknown = min(sum(n is None for n in shape), 2)
            sizes.append(known if known >= longest else known * longest**unknown)
        return max(sizes)

    @cached_property
    def _variables(self) -> list[Variable]:
        return [*ancestors(self._symbols[1])]

    @cached_property
    def _held(self) -> list[Variable]:
        # Found once: a graph has hundreds of variables, and this is asked at every evaluation.
        return [v for v in self._variables if isinstance(v, SharedVariable | Constant)]

    @property
    def _longest_held(self) -> int:
        return max((max(np.shape(value_of(v)), default=1) for v in self._held), default=1)

    @cached_property
    def _shapes(self) -> set[tuple[int | None, ...]]:
        """Shapes of what depends on the draws, without their number, which comes first."""
        draws = _FIXED_DRAWS if self._is_fixed else None
        shapes = (getattr(v.type, "shape", ()) for v in self._variables if v.owner)
        return {shape[1:] for shape in shapes if shape and shape[0] == draws}

    @cached_property
    def _rows_of_matrices(self) -> int:
        """Rows of the largest matrix that is factorised, or solved with; 0 where none is."""
        nodes = [v.owner for v in self._variables if v.owner and _is_of_matrices(v.owner)]
        sizes = [node.inputs[0].type.shape[-1] for node in nodes if node.inputs[0].type.ndim]
        return max((size or self._longest_held for size in sizes), default=0)


class Looped(_Compiled):
    """Evaluates one draw after the other, for graphs that do not vectorise."""

    name = "looped"
    description = "one draw at a time"

    def check(self, x: Array, data: Data, order: int) -> None:
        """Build the functions, which raises where the graph has no such derivatives."""
        self._function(order)

    @cached_property
    def _calls(self) -> int:
        return calls([self._graph.log_density])

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that would take as long as the calls of operations for one draw."""
        return self._calls * _NUMBERS_PER_OPERATION

    def _build(self, order: int) -> Any:
        graph = self._graph
        outputs = [graph.checked, *([graph.gradient] if order else [])]
        return self._compile(order, graph.x, outputs, graph.data)

    def _call(self, order: int, inputs: Sequence[Array], data: Data) -> list[Array]:
        function = self._function(order)
        rows = [function(*row, *data) for row in zip(*inputs, strict=True)]
        return [np.array(column) for column in zip(*rows, strict=True)]


class LoopOverDrawsError(NotImplementedError):
    """PyTensor would run a loop of the model for one draw after the other.

    Nothing is then gained by evaluating draws together, and much is lost where their number is
    fixed: a Kalman filter of 60 points would run for 16 draws whenever one is asked for.
    """


def _pieces(x: Variable, draws: Variable, outputs: list[Variable]) -> dict[Variable, Variable]:
    """Return the pieces that a graph splits x (d,) into, with those of draws (n, d).

    PyTensor would split one draw after the other.
    """
    pieces: dict[Variable, Variable] = {}
    for node in io_toposort([], outputs):
        if isinstance(node.op, Split) and node.inputs[0] is x:
            sizes = node.inputs[-1]
            parts = pt.split(draws, sizes, n_splits=len(node.outputs), axis=1)
            pieces |= zip(node.outputs, parts, strict=True)
    return pieces


def _shapes(data: Data) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(values) for values in data)
