"""Evaluating the graph of one draw at many draws."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc.pytensorf import compile as compile_with_updates
from pymc.pytensorf import find_rng_nodes, reseed_rngs
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor import tensor

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.model.loops import with_draws_in_loops
from pymc_ngvi.model.variables import as_tensor

Reduction = Callable[[list[np.ndarray]], list[np.ndarray]]

_log = logging.getLogger(__name__)

# Numbers that one vectorised call may return. Graphs hold a few intermediate results of the size of
# their outputs, so this keeps a call well below 100 MB, however many draws there are.
NUMBERS_PER_CALL = 2**20

# Draws in the first chunk, which shows how large the outputs are.
FIRST_DRAWS = 16


class DrawFunction:
    """The graph of one draw, as a function of many draws.

    The graph is vectorised over the draws and run in NumPy: that takes a fraction of a second to
    build, and each operation then handles all draws at once. Where an operation does not vectorise,
    or is itself random, a function of one draw is called for each draw instead.

    Parameters
    ----------
    what : str
        What is computed, for messages.
    inputs, outputs : sequence of Variable
        The graph of one draw.
    data : sequence of Variable
        Further inputs, which are the same for all draws.
    """

    def __init__(
        self,
        what: str,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        data: Sequence[Variable] = (),
    ) -> None:
        self._what = what
        self._inputs = list(inputs)
        self._data = list(data)
        self._outputs = [as_tensor(variable) for variable in outputs]
        self._random_generators = find_rng_nodes(self._outputs)
        # Vectorised, a random operation would give one value to all draws; inlined, it would not
        # be updated from one draw to the next.
        self._vectorises = not self._random_generators
        if self._vectorises:
            self._outputs = inline_inner_graphs(self._outputs)

    def __getstate__(self) -> dict[str, Any]:
        # What is sent to other processes is built there.
        built = ("_vectorised", "_single")
        return {name: value for name, value in vars(self).items() if name not in built}

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        rng: np.random.Generator | None = None,
        *,
        data: Sequence[np.ndarray] = (),
        reduce: Reduction = lambda outputs: outputs,
    ) -> list[np.ndarray]:
        """Return each output with the draws along the first axis.

        Parameters
        ----------
        inputs : sequence of array, (n, ...)
            Values of the inputs at n draws.
        rng : numpy.random.Generator, optional
            Seeds the random operations of the graph; not used where there are none.
        data : sequence of array
            Values of the inputs that are the same for all draws.
        reduce : callable
            Applied to the outputs of each chunk of draws, to keep less than all of them.
        """
        reason: Exception | None = None
        if self._vectorises:
            try:
                return _call_in_chunks(self._vectorised, inputs, data, reduce)
            # An operation that does not vectorise may raise any error, when built or when run.
            except Exception as error:
                reason = error
        function = self._single
        if self._random_generators and rng is not None:
            # This comes after compiling, which seeds them too.
            reseed_rngs(self._random_generators, int(rng.integers(2**63)))
        values = reduce(_call_one_by_one(function, inputs, data))
        # As this call succeeded, it was the vectorisation that failed and not the model itself.
        if reason is not None:
            self._vectorises = False
            _log.info("The %s do not vectorise (%s); going draw by draw", self._what, reason)
        return values

    @cached_property
    def _vectorised(self) -> Callable[..., list[np.ndarray]]:
        many = [
            tensor(variable.name, shape=(None, *variable.type.shape), dtype=variable.type.dtype)
            for variable in self._inputs
        ]
        with _quick_compilation():
            replaced = dict(zip(self._inputs, many, strict=True))
            outputs = with_draws_in_loops(vectorize_graph(self._outputs, replaced))
            function = pytensor.function(
                [*many, *self._data],
                outputs,
                mode=interpreted_mode(),
                on_unused_input="ignore",
                trust_input=True,
            )
        # An output of data alone has no axis of draws yet.
        fixed = [new.ndim == old.ndim for new, old in zip(outputs, self._outputs, strict=True)]

        def call(*inputs: np.ndarray) -> list[np.ndarray]:
            n = len(inputs[0])
            return [
                np.broadcast_to(value, (n, *np.shape(value))) if same else value
                for value, same in zip(function(*inputs), fixed, strict=True)
            ]

        return call

    @cached_property
    def _single(self) -> Callable[..., list[np.ndarray]]:
        with _quick_compilation():
            return compile_with_updates(
                [*self._inputs, *self._data],
                self._outputs,
                mode=interpreted_mode(),
                on_unused_input="ignore",
                trust_input=True,
            )


def _quick_compilation() -> Any:
    """Compile nothing in C and keep no stack traces, which would take most of the time."""
    return pytensor.config.change_flags(cxx="", traceback__limit=0, traceback__compile_limit=0)


def _call_in_chunks(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    data: Sequence[np.ndarray],
    reduce: Reduction,
) -> list[np.ndarray]:
    """Call a vectorised function on chunks of draws, as large as memory allows."""
    n = len(inputs[0])
    outputs = function(*(values[:FIRST_DRAWS] for values in inputs), *data)
    numbers_per_draw = sum(values[0].size for values in outputs)
    first = reduce(outputs)
    results = [np.empty((n, *values.shape[1:]), values.dtype) for values in first]
    for result, values in zip(results, first, strict=True):
        result[:FIRST_DRAWS] = values
    size = max(NUMBERS_PER_CALL // max(numbers_per_draw, 1), 1)
    for start in range(FIRST_DRAWS, n, size):
        part = slice(start, start + size)
        outputs = reduce(function(*(values[part] for values in inputs), *data))
        for result, values in zip(results, outputs, strict=True):
            result[part] = values
    return results


def _call_one_by_one(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    data: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Call a function of one draw on each draw."""
    # The ellipsis keeps the values of scalar variables arrays, which PyTensor asks for.
    n = len(inputs[0])
    rows = [function(*(values[i, ...] for values in inputs), *data) for i in range(n)]
    return [np.stack(column) for column in zip(*rows, strict=True)]
