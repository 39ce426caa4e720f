"""Evaluating a log density and its derivatives at many draws.

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

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from pymc_ngvi._compat import inline_inner_graphs
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.sparse.colouring import Colouring
from pymc_ngvi.core.sparse.pattern import find_pattern
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.graph import Graph, operations_in_loops
from pymc_ngvi.model.variables import value_of

#: Arguments of the compiled functions beside the draws: the rows of data that all draws see.
Data = tuple[Any, ...]

# Numbers in the largest array of one call. Beyond a few hundred kilobytes arrays leave the cache,
# and below it the time goes into calling the operations.
_NUMBERS_PER_CALL = 2**17
# Numbers for which derivatives are computed and not used before a function without them is built:
# interpreted, this takes some tenths of a second, as building does.
_WASTE_LIMIT = 2**22
# JAX compiles once for each shape; and PyTensor rewrites graphs with matrix factorisations in half
# the time where it knows all shapes. Their calls always take as many draws, the last ones padded.
_FIXED_DRAWS = 32


class Evaluator(ABC):
    """Log density and derivatives at draws (n, d), of which all see the same data.

    Parameters
    ----------
    graph : Graph
    compiler : Compiler
        Compiles each function at its first use.

    Attributes
    ----------
    structure : Structure or None
        Where the Hessian has entries, if that was looked for and it is sparse.
    """

    def __init__(self, graph: Graph, compiler: Compiler) -> None:
        self._graph = graph
        self._compiler = compiler
        self._functions: dict[int, Any] = {}
        self._wasted = 0.0
        self.structure: Structure | None = None
        self._colouring: Colouring | None = None

    @abstractmethod
    def _build(self, order: int) -> Any:
        """Compile log density, gradient (order 1) and products with vectors (order 2)."""

    @abstractmethod
    def _call(self, order: int, inputs: Sequence[Array], data: Data) -> list[Array]:
        """Evaluate the outputs of this order at inputs (n, d): draws, and vectors for order 2."""

    def _function(self, order: int) -> Any:
        if order not in self._functions:
            self._functions[order] = self._build(order)
        return self._functions[order]

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

    def check_independence(self, x: Array, data: Data, order: int) -> None:
        """Raise where the log density of a draw near x (d,) depends on those evaluated with it."""
        self._function(order)
        draws = x + 0.01 * np.random.default_rng(0).standard_normal((2, len(x)))
        with np.errstate(all="ignore"):
            together = self.density(draws, data)
            alone = np.concatenate([self.density(draw[np.newaxis], data) for draw in draws])
        if not np.allclose(together, alone, rtol=1e-4, atol=1e-8, equal_nan=True):
            raise ArithmeticError("an operation mixes draws that are evaluated together")

    def columns(self, draws: Array, seeds: Array, data: Data = ()) -> Iterator[Evaluation]:
        """Evaluate the products of each Hessian with all the seeds (k, d), a few draws at a time.

        Yields evaluations whose `hessian` is (m, k, d), of consecutive draws.
        """
        k, size = len(seeds), self._draws_per_call(data)
        for start in range(0, len(draws), max(size // k, 1)):
            part = draws[start : start + max(size // k, 1)]
            repeated, vectors = np.repeat(part, k, axis=0), np.tile(seeds, (len(part), 1))
            found = self.products(repeated, vectors, data)
            yield Evaluation(
                found.log_density[::k],
                found.gradient[::k],
                found.hessian.reshape(len(part), k, -1),  # type: ignore[union-attr]
            )

    # Draws that see rows of their own.

    def evaluate_each(self, draws: Array, data: Sequence[Data], *, hessian: bool) -> Evaluation:
        """Log density, gradient and perhaps Hessian (n, d, d) of each draw on rows of its own."""
        call = self.hessians if hessian else self.gradient
        return joined([call(draws[i : i + 1], rows) for i, rows in enumerate(data)])

    # Hessians, dense (d, d) or as the values (nnz,) on the structure that was found.

    def find_structure(self, points: Array, data: Data = ()) -> None:
        """Look for the entries of the Hessian that are not zero, at points (m, d), two or more."""
        rng = np.random.default_rng(0)

        def product(at: Array, vectors: Array) -> Array:
            found = self.products(np.ascontiguousarray(at), vectors, data).hessian
            assert found is not None
            return found

        self.structure = find_pattern(product, points, rng)
        self._colouring = None if self.structure is None else Colouring(self.structure)

    def hessians(self, draws: Array, data: Data = (), *, sparse: bool = False) -> Evaluation:
        """Log density, gradient and Hessian: (n, d, d), or (n, nnz) for `sparse`."""
        found = joined([*self.columns(draws, self._seeds, data)])
        return replace(found, hessian=self._assembled(found.hessian, sparse))

    def mean_hessian(self, draws: Array, data: Data = (), *, sparse: bool = False) -> Evaluation:
        """Log density, gradient and the mean of the Hessians, (d, d) or (nnz,)."""
        parts, total = [], np.zeros((1, *self._seeds.shape))
        for part in self.columns(draws, self._seeds, data):
            parts.append(replace(part, hessian=None))
            total += part.hessian.sum(axis=0)  # type: ignore[union-attr]
        mean = self._assembled(total / len(draws), sparse)[0]
        return replace(joined(parts), hessian=mean)

    @property
    def _seeds(self) -> Array:
        """Vectors (k, d) whose products with a Hessian tell all of it."""
        if self._colouring is None:
            return np.eye(self._graph.x.type.shape[0])
        return self._colouring.seeds

    def _assembled(self, products: Any, sparse: bool) -> Array:
        """Make Hessians, dense or sparse, of their products (n, k, d) with the seeds."""
        if self.structure is None or self._colouring is None:
            return np.asarray(products)
        values = self._colouring.recover(products)
        return values if sparse else dense(self.structure, values)

    @property
    def hessian_price(self) -> float:
        """What an evaluation with its Hessian costs, in log densities, roughly."""
        return 3.0 * len(self._seeds)

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that the log density of one draw goes through, roughly."""
        return 1

    def _draws_per_call(self, data: Data) -> int:
        """Return how many draws are evaluated together."""
        return 1

    def _burden(self, data: Data) -> float:
        """Return the numbers that derivatives nobody asked for add to the work on one draw."""
        return np.inf


class Batched(Evaluator):
    """Evaluates all draws in one call, or in as few as memory allows."""

    @cached_property
    def _symbols(self) -> dict[str, Any]:
        """The graph of many draws that see the same data, with gradient."""
        return self._vectorised({})

    def _vectorised(self, data: dict[Variable, Variable]) -> dict[str, Any]:
        """Return the graph of many draws, with gradient; each sees its own of these data."""
        graph = self._graph
        (dim,) = graph.x.type.shape
        with pytensor.config.change_flags(traceback__limit=0):
            single = inline_inner_graphs([graph.checked, graph.smooth])
            draws = _FIXED_DRAWS if self._is_fixed else None
            many = pt.matrix("draws", shape=(draws, dim), dtype="float64")
            density, smooth = vectorize_graph(single, {graph.x: many} | data)
            if not density.type.ndim:  # it does not depend on the draw
                density = density + pt.zeros(many.shape[0])
            gradient = pytensor.grad(smooth.sum(), many, disconnected_inputs="ignore")
        return {"draws": many, "density": density, "gradient": gradient}

    @cached_property
    def _is_fixed(self) -> bool:
        """Whether all calls take the same number of draws."""
        return self._compiler.on_jax or any(
            isinstance(node.op, Blockwise) and not isinstance(node.op.core_op, Dot)
            for node in io_toposort([], [self._graph.checked])
        )

    def _build(self, order: int) -> Any:
        return self._compile(order, self._symbols, self._graph.data)

    def _compile(self, order: int, symbols: dict[str, Any], data: Sequence[Variable]) -> Any:
        inputs = [symbols["draws"]]
        outputs = [symbols["density"], symbols["gradient"]][: order + 1]
        if order == 2:
            vectors = symbols["draws"].type("vectors")
            with pytensor.config.change_flags(traceback__limit=0):
                slope = (symbols["gradient"] * vectors).sum()
                outputs.append(pytensor.grad(slope, symbols["draws"], disconnected_inputs="ignore"))
            inputs.append(vectors)
        return self._compiler.function(outputs, [*inputs, *data])

    def evaluate_each(self, draws: Array, data: Sequence[Data], *, hessian: bool) -> Evaluation:
        """Log density, gradient and perhaps Hessian (n, d, d) of each draw on rows of its own."""
        k = draws.shape[1] if hessian else 1
        size = _NUMBERS_PER_CALL // (k * sum(np.size(values) for values in data[0]))
        if size < 2 or self._is_fixed or len({*map(_shapes, data)}) > 1:
            return super().evaluate_each(draws, data, hessian=hessian)
        parts = []
        for start in range(0, len(draws), size):
            part = np.repeat(draws[start : start + size], k, axis=0)
            rows = [
                np.repeat(np.stack(values), k, axis=0)
                for values in zip(*data[start : start + size], strict=True)
            ]
            vectors = [np.tile(np.eye(k), (len(part) // k, 1))] if hessian else []
            found = Evaluation(
                *self._own_function(1 + hessian)(part, *vectors, *rows), *[None] * (not hessian)
            )
            if found.hessian is not None:
                cube = found.hessian.reshape(-1, k, k)
                found = Evaluation(found.log_density[::k], found.gradient[::k], cube)
            parts.append(found)
        return joined(parts)

    def _own_function(self, order: int) -> Any:
        """Return the function of draws that see rows of their own."""
        if order not in self._own:
            stacked = [
                pt.tensor(shape=(None, *v.type.shape), dtype=v.type.dtype) for v in self._graph.data
            ]
            symbols = self._vectorised(dict(zip(self._graph.data, stacked, strict=True)))
            self._own[order] = self._compile(order, symbols, stacked)
        return self._own[order]

    @cached_property
    def _own(self) -> dict[int, Any]:
        return {}

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
        return max(_NUMBERS_PER_CALL // self._numbers_per_draw(data), 1)

    def numbers(self, data: Data = ()) -> int:
        """Return the numbers that the log density of one draw goes through, roughly."""
        return self._numbers_per_draw(data)

    def _burden(self, data: Data) -> float:
        if self._has_loops:  # whose derivatives cost a hundred times as much as they do
            return np.inf
        return self._numbers_per_draw(data)

    @cached_property
    def _has_loops(self) -> bool:
        return operations_in_loops(self._graph.log_density) > 0

    def _numbers_per_draw(self, data: Data) -> int:
        """Numbers of the largest array that one draw adds to a call, roughly.

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
        return [*ancestors([self._symbols["density"], self._symbols["gradient"]])]

    @cached_property
    def _held(self) -> list[Variable]:
        # Found once: a graph has hundreds of variables, and this is asked at every evaluation.
        return [v for v in self._variables if isinstance(v, SharedVariable | Constant)]

    @property
    def _longest_held(self) -> int:
        return max((max(np.shape(value_of(v)), default=1) for v in self._held), default=1)

    @cached_property
    def _shapes(self) -> set[tuple[int | None, ...]]:
        """Shapes of what depends on the draws, without their number, the first and unknown."""
        shapes = (getattr(v.type, "shape", ()) for v in self._variables if v.owner)
        return {shape[1:] for shape in shapes if shape and shape[0] is None}


class Looped(Evaluator):
    """Evaluates one draw after the other, for graphs that do not vectorise."""

    def _build(self, order: int) -> Any:
        graph = self._graph
        inputs, outputs = [graph.x], [graph.checked]
        if order:
            outputs.append(graph.gradient)
        if order == 2:
            vector = graph.x.type("vector")
            with pytensor.config.change_flags(traceback__limit=0):
                slope = (graph.gradient * vector).sum()
                outputs.append(pytensor.grad(slope, graph.x, disconnected_inputs="ignore"))
            inputs.append(vector)
        return self._compiler.function(outputs, [*inputs, *graph.data])

    def _call(self, order: int, inputs: Sequence[Array], data: Data) -> list[Array]:
        function = self._function(order)
        rows = [function(*row, *data) for row in zip(*inputs, strict=True)]
        return [np.array(column) for column in zip(*rows, strict=True)]


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return evaluations of different draws as one."""
    hessians = [part.hessian for part in parts if part.hessian is not None]
    return Evaluation(
        np.concatenate([part.log_density for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate(hessians) if hessians else None,
    )


def dense(structure: Structure, values: Array) -> Array:
    """Return values (n, nnz) on a structure as symmetric matrices (n, d, d)."""
    matrices = np.zeros((len(values), structure.dim, structure.dim))
    matrices[:, structure.rows, structure.columns] = values
    matrices[:, structure.columns, structure.rows] = values
    return matrices


def _shapes(data: Data) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(values) for values in data)
