"""Compiling the graph of one draw, and evaluating the function at many draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np
import pymc
import pytensor
from pytensor.compile.mode import get_mode
from pytensor.graph.traversal import io_toposort
from pytensor.link.jax import JAXLinker

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.errors import warn

# JAX compiles once per shape, so draws are evaluated in chunks of one size, the last one padded.
_JAX_CHUNK = 16


# Graphs of more operations than this take a backend minutes to compile. Hessians of regressions
# have 300 to 900, that of an LKJCholeskyCov 1,500.
_MANY_OPERATIONS = 1000


class SlowCompilationWarning(UserWarning):
    """A function is so large that compiling it may take minutes."""


#: For each draw, the rows of data that it sees: arguments of the function beside the draw.
Data: TypeAlias = Iterable[tuple[Any, ...]]


class Compiler:
    """Compiles graphs of a model.

    Parameters
    ----------
    model : pymc.Model
    kwargs : mapping
        Passed on to ``pymc.Model.compile_fn``.
    interpreted : bool
        Whether the mode in `kwargs` is that of NumPy without any compilation.
    chosen : bool
        Whether the user has chosen the mode. Otherwise graphs that would take minutes to compile
        are interpreted.
    """

    def __init__(
        self,
        model: pymc.Model,
        kwargs: Mapping[str, Any],
        *,
        interpreted: bool = False,
        chosen: bool = True,
    ) -> None:
        self._model = model
        self._kwargs = dict(kwargs)
        self.interpreted = interpreted
        self._chosen = chosen
        self._announced = False

    def evaluator(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Evaluator:
        """Compile a function of a draw, and of data if `inputs` has more than the draw."""
        function = self.function(outputs, inputs)
        on_jax = isinstance(get_mode(self._kwargs.get("mode")).linker, JAXLinker)
        return JaxChunks(function) if on_jax and len(inputs) == 1 else Loop(function)

    def function(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Compile a function that takes contiguous arrays of the right types."""
        # PyTensor would keep with each node the stack traces of all the nodes that it replaced,
        # which took most of the time of compiling a Cholesky factor's Hessian.
        flags: dict[str, Any] = {"traceback__limit": 0, "traceback__compile_limit": 0}
        self._spare_the_compiler(len(io_toposort([], list(outputs))))
        if self.interpreted:
            outputs = inline_inner_graphs(outputs)
            # Inner functions (of Scan, of logsumexp) would go to the C compiler all the same.
            flags["cxx"] = ""
        with pytensor.config.change_flags(**flags):
            function = self._model.compile_fn(
                list(outputs),
                inputs=list(inputs),
                point_fn=False,
                on_unused_input="ignore",
                **self._kwargs,
            )
        function.trust_input = True  # PyTensor need not check the inputs of each call
        return function

    def _spare_the_compiler(self, operations: int) -> None:
        """Interpret a large graph unless the user has chosen what compiles it; say so once."""
        if self.interpreted or self._announced or operations <= _MANY_OPERATIONS:
            return
        self._announced = True
        why = f"the log density and its derivatives have {operations:,} operations"
        if self._chosen:
            what = 'compiling them may take minutes; backend="interpreted" starts sooner'
        else:
            self.interpreted, self._kwargs["mode"] = True, interpreted_mode()
            what = "they are not compiled, which could take minutes; backend= names a compiler"
        warn(f"{why}: {what}", SlowCompilationWarning)


class Evaluator(Protocol):
    """Evaluates a log density and its derivatives at draws (n, d)."""

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate log density, gradient and the Hessian that `curvature` asks for."""


class Loop:
    """Calls the function once for each draw."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate one draw after the other."""
        rows = map(lambda draw, seen: self._function(draw, *seen), draws, data)
        return _collect(rows, draws, curvature)


class Products:
    """Calls a function that multiplies the Hessian by a vector, with every unit vector."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate one draw after the other, and of each the rows of its Hessian."""
        return _collect(map(self._one, draws, data), draws, curvature)

    def _one(self, draw: Array, seen: tuple[Any, ...]) -> tuple[Any, Any, Array]:
        calls = [self._function(draw, unit, *seen) for unit in np.eye(len(draw))]
        return calls[0][0], calls[0][1], np.stack([call[2] for call in calls])


class JaxChunks:
    """Applies ``jax.vmap`` to the function of one draw, for chunks of draws of a fixed size."""

    def __init__(self, function: Any) -> None:
        jax: Any = import_module("jax")  # an optional extra
        from pytensor.link.jax.dispatch import jax_funcify

        self._shared = function.get_shared()
        axes = (0, *(None for _ in self._shared))
        self._call = jax.jit(jax.vmap(jax_funcify(function.maker.fgraph), in_axes=axes))

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate chunk by chunk; the function takes no data."""
        return _collect(self._rows(draws), draws, curvature)

    def _rows(self, draws: Array) -> Iterator[tuple[Any, ...]]:
        shared = [variable.get_value(borrow=True) for variable in self._shared]
        for start in range(0, len(draws), _JAX_CHUNK):
            chunk = draws[start : start + _JAX_CHUNK]
            padded = np.concatenate([chunk, np.repeat(chunk[:1], _JAX_CHUNK - len(chunk), axis=0)])
            outputs = [np.asarray(output) for output in self._call(padded, *shared)]
            yield from zip(*(output[: len(chunk)] for output in outputs), strict=True)


def _collect(rows: Iterable[Sequence[Any]], draws: Array, curvature: str) -> Evaluation:
    n, dim = draws.shape
    log_density, gradient = np.empty(n), np.empty((n, dim))
    hessian = None
    if curvature != "none":
        hessian = np.empty((n, dim, dim) if curvature == "full" else (n, dim))
    for i, row in enumerate(rows):
        log_density[i] = row[0]
        if len(row) > 1:
            gradient[i] = row[1]
        if hessian is not None:
            hessian[i] = row[2] if curvature == "full" else np.diagonal(row[2])
    return Evaluation(log_density, gradient, hessian)
