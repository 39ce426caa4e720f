"""Elementwise operations as functions of whole arrays.

PyTensor runs a scalar operation for which it names no NumPy function on one element after the
other, at 0.2 to 20 microseconds each: softplus, clip, polygamma, the incomplete gamma and beta
functions and their derivatives among others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.scalar.basic as scalar_basic
import pytensor.scalar.math as scalar_math
import scipy
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Add, Cast, Composite, Mul, ScalarOp
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.utils import import_func_from_string

Array = NDArray[Any]

#: A function of whole arrays. It returns one new array, or a tuple of them.
ArrayFunction = Callable[..., Any]


def array_function(
    op: ScalarOp, inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> ArrayFunction | None:
    """Find the function of whole arrays that an operation on scalars is; None if none is known.

    Parameters
    ----------
    op : ScalarOp
    inputs, outputs : sequence of Variable
        Tensors or scalars, whose dtypes are looked at.
    """
    dtypes = [np.dtype(output.type.dtype) for output in outputs]
    if isinstance(op, Cast):
        return partial(_cast, dtype=dtypes[0])
    if isinstance(op, Add | Mul):
        return partial(_fold, np.add if isinstance(op, Add) else np.multiply, dtypes[0])
    if isinstance(op, ScalarLoop):
        step = _graph_function(op.fgraph)
        return step and partial(_loop, step, is_while=op.is_while)
    if isinstance(op, Composite):
        return _graph_function(op.fgraph)
    function: Any = _FUNCTIONS.get(type(op))
    if isinstance(function, str):
        function = getattr(scipy.special, function)
    spec = getattr(op, "nfunc_spec", None)
    if function is None and spec and spec[1] == len(inputs):
        function = import_func_from_string(spec[0])
    if function is None or len(dtypes) > 1:
        return function
    if _rises(inputs, dtypes[0]):
        # NumPy would take small integers to half precision.
        return partial(_in_precision, function, dtypes[0])
    return function


def _rises(inputs: Sequence[Variable], dtype: np.dtype[Any]) -> bool:
    """Whether a floating-point result is made of integers alone."""
    return dtype.kind == "f" and all(np.dtype(x.type.dtype).kind in "biu" for x in inputs)


def _in_precision(function: ArrayFunction, dtype: np.dtype[Any], *arrays: Array) -> Any:
    return function(*(np.asarray(array, dtype) for array in arrays))


def _cast(x: Array, dtype: np.dtype[Any]) -> Array:
    return np.asarray(x).astype(dtype)


def _fold(operation: np.ufunc, dtype: np.dtype[Any], *terms: Array) -> Array:
    """Add or multiply any number of terms."""
    if len(terms) == 1:
        return np.array(terms[0], dtype)
    if len(terms) > 2:
        # Small arrays first: fewest passes then have the size of the result.
        terms = tuple(sorted(terms, key=np.size))
    value = operation(terms[0], terms[1], dtype=dtype)
    for term in terms[2:]:
        in_place = np.ndim(term) > 0 and np.shape(term) == np.shape(value)
        value = operation(value, term, dtype=dtype, out=value if in_place else None)
    return value


def _graph_function(graph: Any) -> ArrayFunction | None:
    """Run an inner graph of scalar operations on arrays."""
    steps = []
    for node in graph.toposort():
        function = array_function(node.op, node.inputs, node.outputs)
        if function is None:
            return None
        steps.append((function, node.inputs, node.outputs))
    constants = {
        variable: variable.data
        for variables in [*(inputs for _, inputs, _ in steps), graph.outputs]
        for variable in variables
        if isinstance(variable, Constant)
    }

    def run(*arrays: Array) -> Any:
        values = {**constants, **dict(zip(graph.inputs, arrays, strict=True))}
        for function, inputs, outputs in steps:
            result = function(*(values[variable] for variable in inputs))
            results = result if len(outputs) > 1 else (result,)
            for output, value in zip(outputs, results, strict=True):
                values[output] = np.asarray(value, output.type.dtype)
        final = tuple(values[variable] for variable in graph.outputs)
        # A result may be one of the arguments, which stay untouched.
        return tuple(np.array(value) for value in final) if len(final) > 1 else np.array(final[0])

    return run


def _loop(step: ArrayFunction, n_steps: Array, *inputs: Array, is_while: bool) -> Any:
    """Iterate on all elements at once, each until its own end."""
    limits, *arrays = (np.ravel(array) for array in np.broadcast_arrays(n_steps, *inputs))
    shape = np.broadcast_shapes(np.shape(n_steps), *(np.shape(array) for array in inputs))
    active = np.flatnonzero(limits > 0)
    carry: list[Array] | None = None
    done = np.zeros(len(limits), bool)
    count = 0
    while carry is None or active.size:
        out = step(*(array[active] for array in arrays))
        results = list(out) if isinstance(out, tuple) else [out]
        ends = results.pop() if is_while else np.zeros(active.size, bool)
        if carry is None:
            carry = [np.array(array) for array in arrays[: len(results)]]
            arrays = [*carry, *arrays[len(results) :]]
        for kept, new in zip(carry, results, strict=True):
            kept[active] = new
        done[active] = ends
        count += 1
        active = active[~ends & (limits[active] > count)]
    values = [*carry, done] if is_while else carry
    shaped = [value.reshape(shape) for value in values]
    return tuple(shaped) if len(shaped) > 1 else shaped[0]


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _log1mexp(x: Array) -> Array:
    near = x > -np.log(2.0)
    # Each branch gets arguments at which it is finite and cheap.
    value = np.log1p(-np.exp(np.where(near, -1, x)))
    return np.where(near, np.log(-np.expm1(np.where(near, x, -1))), value)


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.where(x < low, low, np.where(x > high, high, x))


def _second(like: Array, x: Array) -> Array:
    return np.array(np.broadcast_to(x, np.broadcast_shapes(np.shape(like), np.shape(x))))


def _real(x: Array) -> Array:
    return np.array(np.real(x))


def _round_half_away_from_zero(x: Array) -> Array:
    return np.where(x > 0, np.floor(x + 0.5), np.ceil(x - 0.5))


def _trigamma(x: Array) -> Array:
    return scipy.special.zeta(2.0, x)


def _polygamma(order: Array, x: Array) -> Array:
    order, x = np.asarray(order, float), np.asarray(x, float)
    sign = np.where(order % 2 == 0, -1.0, 1.0)
    value = sign * scipy.special.gamma(order + 1.0) * scipy.special.zeta(order + 1.0, x)
    return np.where(order == 0, scipy.special.psi(x), value) if (order == 0).any() else value


def _gammau(k: Array, x: Array) -> Array:
    return scipy.special.gammaincc(k, x) * scipy.special.gamma(k)


def _gammal(k: Array, x: Array) -> Array:
    return scipy.special.gammainc(k, x) * scipy.special.gamma(k)


# A name is that of a function of `scipy.special`, which takes long to import.
_NAMES: dict[str, ArrayFunction | str] = {
    "BetaInc": "betainc",
    "BetaIncInv": "betaincinv",
    "Clip": _clip,
    "GammaInc": "gammainc",
    "GammaIncC": "gammaincc",
    "GammaIncCInv": "gammainccinv",
    "GammaIncInv": "gammaincinv",
    "GammaL": _gammal,
    "GammaU": _gammau,
    "Hyp2F1": "hyp2f1",
    "I0": "i0",
    "I1": "i1",
    "Identity": np.array,
    "Iv": "iv",
    "Ive": "ive",
    "Jv": "jv",
    "Kv": "kv",
    "Kve": "kve",
    "Log1mexp": _log1mexp,
    "Owens_t": "owens_t",
    "PolyGamma": _polygamma,
    "Real": _real,
    "RoundHalfAwayFromZero": _round_half_away_from_zero,
    "Second": _second,
    "Softplus": _softplus,
    "TriGamma": _trigamma,
}

# Not every version of PyTensor has each of them.
_FUNCTIONS: dict[type, ArrayFunction | str] = {
    getattr(module, name): function
    for name, function in _NAMES.items()
    for module in (scalar_basic, scalar_math)
    if hasattr(module, name)
}
