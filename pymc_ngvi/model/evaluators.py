"""What evaluates a compiled function at many draws: a loop, products, or batches on JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation

# JAX compiles once per shape, so draws go through in batches of one size, the last one padded.
_JAX_BATCH = 16


#: What each draw sees of the data, for a function that takes them as arguments.
Data: TypeAlias = Iterable[tuple[Any, ...]]


class Evaluator(Protocol):
    """What evaluates the target at draws (n, d): the part that may be swapped during a fit."""

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Log density, gradient and the Hessian as `curvature` asks for it."""


class Loop:
    """One call of the compiled function per draw."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate one draw after the other."""
        rows = map(lambda draw, seen: self._function(draw, *seen), draws, data)
        return _collect(rows, draws, curvature)


class Products:
    """One call per draw and component, with the component's unit vector."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate the rows of the Hessian of one draw after the other."""
        return _collect(map(self._one, draws, data), draws, curvature)

    def _one(self, draw: Array, seen: tuple[Any, ...]) -> tuple[Any, Any, Array]:
        calls = [self._function(draw, unit, *seen) for unit in np.eye(len(draw))]
        return calls[0][0], calls[0][1], np.stack([call[2] for call in calls])


class JaxBatches:
    """``jax.vmap`` over the function of one draw, in batches of a fixed size."""

    def __init__(self, function: Any) -> None:
        jax: Any = import_module("jax")  # an optional extra
        from pytensor.link.jax.dispatch import jax_funcify

        self._shared = function.get_shared()
        axes = (0, *(None for _ in self._shared))
        self._batch = jax.jit(jax.vmap(jax_funcify(function.maker.fgraph), in_axes=axes))

    def __call__(self, draws: Array, curvature: str, data: Data) -> Evaluation:
        """Evaluate batch by batch; there are no data to see but those of the function."""
        return _collect(self._rows(draws), draws, curvature)

    def _rows(self, draws: Array) -> Iterator[tuple[Any, ...]]:
        shared = [variable.get_value(borrow=True) for variable in self._shared]
        for start in range(0, len(draws), _JAX_BATCH):
            batch = draws[start : start + _JAX_BATCH]
            padded = np.concatenate([batch, np.repeat(batch[:1], _JAX_BATCH - len(batch), axis=0)])
            outputs = [np.asarray(output) for output in self._batch(padded, *shared)]
            yield from zip(*(output[: len(batch)] for output in outputs), strict=True)


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
