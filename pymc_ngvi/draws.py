"""What a model computes at flat unconstrained draws: its variables and its log densities.

:class:`DrawTransform` knows the model, :class:`DrawFunction` evaluates a graph at many draws.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc
import pytensor
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_with_updates
from pymc.pytensorf import find_rng_nodes, reseed_rngs
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor import tensor

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.minibatches import as_tensor

Array = NDArray[np.float64]
Values = dict[str, np.ndarray]
Reduction = Callable[[list[np.ndarray]], list[np.ndarray]]

_log = logging.getLogger(__name__)

# Numbers a vectorised call may return at once. Graphs hold a few intermediate results of the size
# of their outputs, so this keeps a call well below 100 MB, however many draws there are.
_NUMBERS_PER_CALL = 2**20

# Draws of the first call, which tells how large the outputs are.
_FIRST_DRAWS = 16


class Slot(NamedTuple):
    """Where a value variable lies in the flat vector: PyMC's entry of ``Group.ordering``."""

    name: str
    where: slice
    shape: tuple[int, ...]
    dtype: str


class DrawTransform:
    """Map flat unconstrained draws to the variables and the log densities of a model.

    Variables without a transform are read off the draws; everything else is computed by
    functions of many draws. Data containers are read when these are called, so that
    deterministics and densities follow ``pm.set_data``.

    Parameters
    ----------
    model : pymc.Model
        The model. Its free variables have to be those of `ordering`.
    ordering : mapping of str to tuple
        For each value variable its name, slice of the flat vector, shape and dtype.
    """

    def __init__(self, model: pymc.Model, ordering: Mapping[str, tuple[Any, ...]]) -> None:
        self.model = model
        self.slots = [Slot(*entry) for entry in ordering.values()]
        self._unobserved = list(model.unobserved_RVs)
        # PyMC 5.28 lists an observed variable twice once its predictions were sampled.
        self._observed = list(dict.fromkeys(model.observed_RVs))
        _check_free_variables(model, self.slots)

        #: Value variables, then constrained free variables, then deterministics, as PyMC has them.
        self.variables: list[Variable] = model.unobserved_value_vars
        value_vars = {variable.name: variable for variable in model.continuous_value_vars}
        self._inputs = [value_vars[slot.name] for slot in self.slots]
        computed = [variable for variable in self.variables if variable not in set(self._inputs)]
        self._computed_names = [variable.name for variable in computed]
        self._compute = DrawFunction("deterministics", self._inputs, computed)

    def matches(self, model: pymc.Model) -> bool:
        """Tell whether this is still the transform of `model`, which may have been extended."""
        unobserved = model.unobserved_RVs
        return model is self.model and [*map(id, unobserved)] == [*map(id, self._unobserved)]

    def __call__(self, draws: Array, rng: np.random.Generator) -> Values:
        """Return the values of each variable, with the draws along the first axis.

        Parameters
        ----------
        draws : array, (n, d)
            Flat unconstrained draws.
        rng : numpy.random.Generator
            Seeds deterministics that are themselves random; left alone where there are none.
        """
        values = self.unflatten(draws)
        computed = self._compute(list(values.values()), rng) if self._computed_names else []
        values |= zip(self._computed_names, computed, strict=True)
        return {variable.name: values[variable.name] for variable in self.variables}

    def unflatten(self, draws: Array) -> Values:
        """Return the unconstrained values (n, ...) by the names PyMC has for them."""
        return {
            slot.name: np.ascontiguousarray(draws[:, slot.where], dtype=slot.dtype).reshape(
                len(draws), *slot.shape
            )
            for slot in self.slots
        }

    @property
    def stochastic(self) -> bool:
        """Whether the model's log density draws a minibatch each time it is evaluated."""
        return self._densities.stochastic

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) of the joint model at draws (n, d), Jacobian included.

        Raises
        ------
        TypeError
            The model is one of minibatches, of which each evaluation would see another.
        """
        (density,) = self._evaluate(draws, lambda terms: [_total(terms)])
        return density

    def log_likelihood(self, draws: Array) -> Values:
        """Log-likelihood (n, ...) of each observation at draws (n, d), by observed variable.

        Raises
        ------
        TypeError
            The model is one of minibatches, and a batch is not the data.
        """
        names = [variable.name for variable in self._observed]
        terms = self._evaluate(draws, lambda terms: terms[: len(names)])
        return dict(zip(names, terms, strict=True))

    def _evaluate(self, draws: Array, keep: Reduction) -> list[np.ndarray]:
        if self.stochastic:
            raise TypeError(
                "the model's log density sees a minibatch at a time, so it is no one number and "
                "there are neither importance weights nor a log-likelihood of all the data: sample "
                "with the same model on its full data, by sample(model=...)"
            )
        return self._densities(list(self.unflatten(draws).values()), reduce=keep)

    @cached_property
    def _densities(self) -> DrawFunction:
        """Every term of the log density, those of the observed variables first."""
        model = self.model
        variables = [*self._observed, *model.free_RVs, *model.potentials]
        # PyTensor keeps with each node the stack traces of all the nodes it replaced.
        with pytensor.config.change_flags(traceback__limit=0):
            terms = model.logp(vars=variables, sum=False)
        ordered = [
            _in_order_of_dims(term, model.named_vars_to_dims.get(variable.name, ()))
            for term, variable in zip(terms, variables, strict=True)
        ]
        return DrawFunction("log densities", self._inputs, ordered)


class DrawFunction:
    """A graph of one draw, evaluated at many.

    The graph is vectorised over draws and run in NumPy: it takes a fraction of a second to build
    and each operation then handles all draws at once. Where an operation cannot be vectorised, or
    is random itself, a function of one draw is called draw by draw instead.

    Parameters
    ----------
    what : str
        What is computed, for messages.
    inputs, outputs : sequence of pytensor variables
        Of one draw.
    """

    def __init__(self, what: str, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._what = what
        self._inputs = list(inputs)
        self._outputs = [as_tensor(variable) for variable in outputs]
        self._random_generators = find_rng_nodes(self._outputs)
        # Vectorised, a random operation would give one value to all draws; inlined, it would not
        # be updated from one draw to the next.
        self._vectorises = not self._random_generators
        if self._vectorises:
            self._outputs = inline_inner_graphs(self._outputs)

    @property
    def stochastic(self) -> bool:
        """Whether the graph itself draws at random."""
        return bool(self._random_generators)

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        rng: np.random.Generator | None = None,
        *,
        reduce: Reduction = lambda block: block,
    ) -> list[np.ndarray]:
        """Return each output with the draws along the first axis.

        Parameters
        ----------
        inputs : sequence of array, (n, ...)
            Values of the inputs at n draws.
        rng : numpy.random.Generator, optional
            Seeds what is random in the graph; left alone where nothing is.
        reduce : callable
            Applied to the outputs of each block of draws, to keep less than all of them.
        """
        reason: Exception | None = None
        if self._vectorises:
            try:
                return _call_in_blocks(self._vectorised, inputs, reduce)
            # An operation that does not vectorise may fail in any way, when built or when run.
            except Exception as error:
                reason = error
        function = self._single
        if self._random_generators and rng is not None:
            # After compiling, which seeds them too.
            reseed_rngs(self._random_generators, int(rng.integers(2**63)))
        values = reduce(_call_one_by_one(function, inputs))
        # Only now is it the vectorisation that failed, and not the model's own computation.
        if reason is not None:
            self._vectorises = False
            _log.info("The %s do not vectorise (%s); going draw by draw", self._what, reason)
        return values

    @cached_property
    def _vectorised(self) -> Callable[..., list[np.ndarray]]:
        batched = [
            tensor(variable.name, shape=(None, *variable.type.shape), dtype=variable.type.dtype)
            for variable in self._inputs
        ]
        with _quick_compilation():
            outputs = vectorize_graph(self._outputs, dict(zip(self._inputs, batched, strict=True)))
            function = pytensor.function(
                batched,
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
                self._inputs,
                self._outputs,
                mode=interpreted_mode(),
                on_unused_input="ignore",
                trust_input=True,
            )


def _quick_compilation() -> Any:
    """Compile nothing in C and keep no stack traces, which took longer than all else."""
    return pytensor.config.change_flags(cxx="", traceback__limit=0, traceback__compile_limit=0)


def _total(terms: list[np.ndarray]) -> np.ndarray:
    """Add up the terms of a log density, each (n, ...)."""
    sums = [term.reshape(len(term), -1).sum(1, dtype=np.float64) for term in terms]
    return np.asarray(np.sum(sums, axis=0))


def _in_order_of_dims(term: Variable, dims: Sequence[str]) -> Variable:
    """Order the named axes of a term, if it has such, like those of its variable."""
    if not hasattr(term.type, "dims"):
        return term
    return term.transpose(*(dim for dim in dims if dim in term.type.dims), ...)


def _call_in_blocks(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    reduce: Reduction,
) -> list[np.ndarray]:
    """Call a vectorised function on as many draws at a time as memory allows."""
    n = len(inputs[0])
    outputs = function(*(values[:_FIRST_DRAWS] for values in inputs))
    numbers_per_draw = sum(block[0].size for block in outputs)
    first = reduce(outputs)
    results = [np.empty((n, *block.shape[1:]), block.dtype) for block in first]
    for result, block in zip(results, first, strict=True):
        result[:_FIRST_DRAWS] = block
    size = max(_NUMBERS_PER_CALL // max(numbers_per_draw, 1), 1)
    for start in range(_FIRST_DRAWS, n, size):
        part = slice(start, start + size)
        blocks = reduce(function(*(values[part] for values in inputs)))
        for result, block in zip(results, blocks, strict=True):
            result[part] = block
    return results


def _call_one_by_one(
    function: Callable[..., list[np.ndarray]], inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Call a function of one draw on each draw."""
    # The ellipsis keeps the values of scalar variables arrays, which PyTensor asks for.
    rows = [function(*(values[i, ...] for values in inputs)) for i in range(len(inputs[0]))]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _check_free_variables(model: pymc.Model, slots: Sequence[Slot]) -> None:
    present = {variable.name: variable.type.shape for variable in model.continuous_value_vars}
    fitted = {slot.name: slot.shape for slot in slots}
    problems = [f"lacks {name}" for name in fitted if name not in present]
    problems += [f"adds {name}" for name in present if name not in fitted]
    problems += [
        f"has {name} of shape {present[name]}, fitted was {shape}"
        for name, shape in fitted.items()
        if name in present and not _fits(shape, present[name])
    ]
    if problems:
        raise ValueError(
            "the model does not have the free variables this approximation was fitted to: it "
            f"{'; it '.join(problems)}. Fit again, or pass the fitted model as `model`"
        )


def _fits(shape: Sequence[int], static: Sequence[int | None]) -> bool:
    """Tell whether a shape is one of a type, whose unknown lengths are None."""
    return len(shape) == len(static) and all(
        known in (size, None) for size, known in zip(shape, static, strict=True)
    )
