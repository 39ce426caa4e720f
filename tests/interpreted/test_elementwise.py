"""Scalar operations as functions of arrays: the values of PyTensor's own implementations."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.scalar.basic as scalar_basic
import pytensor.scalar.math as scalar_math
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.scalar.basic import Composite, ScalarOp, float64
from pytensor.tensor.elemwise import Elemwise

from pymc_ngvi.interpreted.elementwise import array_function
from pymc_ngvi.interpreted.mode import interpreted_mode
from pymc_ngvi.interpreted.operations import ArrayElemwise, replace

# Those of complex numbers and of bits are in no log density.
LEFT_OUT = ("Complex", "ComplexFromPolar", "Conj", "Angle", "Imag", "Real")


def scalar_ops():
    ops = {}
    for module in (scalar_basic, scalar_math):
        for value in vars(module).values():
            if isinstance(value, ScalarOp) and type(value).__name__ not in LEFT_OUT:
                ops.setdefault(f"{type(value).__name__} {value}", value)
    return ops


OPS = scalar_ops()


def arguments(op, dtype):
    """Arguments of an operation: all combinations of a few numbers, extreme ones among them."""
    n = op.nin if op.nin > 0 else 3
    if dtype == "bool":
        numbers = np.array([False, True])
    elif dtype.startswith("int"):
        numbers = np.arange(1, 6).astype(dtype)
    else:
        many = [-np.inf, -800.0, -40.0, -2.5, -0.5, -1e-9, 0.0, 1e-9, 0.3, 0.5, 0.9, 1.0, 2.0, 2.5]
        numbers = np.array([*many, 7.0, 30.0, 800.0, np.inf, np.nan] if n < 3 else many[3:14])
    grid = [values.ravel() for values in np.meshgrid(*[numbers] * n)]
    return [values.astype(dtype) for values in grid]


def run(node, values):
    """Run a node and return its outputs."""
    storage = [[None] for _ in node.outputs]
    if hasattr(node.op, "prepare_node"):
        node.op.prepare_node(node, None, None, "py")
    node.op.perform(node, values, storage)
    return [cell[0] for cell in storage]


def assert_same(op, values):
    """Compare the function of arrays with what PyTensor's Elemwise gives."""
    node = Elemwise(op).make_node(*(pt.vector(dtype=value.dtype) for value in values))
    function = array_function(op, node.inputs, node.outputs)
    assert function is not None
    ours = replace(node, function, ArrayElemwise)[0].owner
    before = [value.copy() for value in values]
    results = run(ours, values)
    for value, copy in zip(values, before, strict=True):
        np.testing.assert_array_equal(value, copy)
    for result, expected in zip(results, run(node, values), strict=True):
        assert result.dtype == expected.dtype
        assert not any(np.shares_memory(result, value) for value in values)
        # PyTensor takes booleans to half precision in places.
        accuracy = 1e-3 if values[0].dtype == bool else 1e-12
        np.testing.assert_allclose(result, expected, rtol=accuracy, atol=1e-300)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
@pytest.mark.parametrize("name", OPS)
def test_values_are_those_of_pytensor(name, dtype):
    op = OPS[name]
    values = arguments(op, dtype)
    try:
        node = Elemwise(op).make_node(*(pt.vector(dtype=dtype) for _ in values))
    except (TypeError, NotImplementedError):
        pytest.skip("not for this type")
    if node.outputs[0].type.dtype.startswith("complex"):
        pytest.skip("complex numbers")
    if node.outputs[0].type.dtype.startswith(("int", "uint")):
        small = (np.abs(values) < 100).all(axis=0) & (np.min(values, axis=0) >= 0)
        values = [value[small] for value in values]
    assert_same(op, values)


def test_numbers_of_single_precision():
    for name in ("softplus", "log1mexp", "clip", "second", "tri_gamma"):
        op = getattr(scalar_math, name, None) or getattr(scalar_basic, name)
        values = [np.linspace(-3, -0.1, 7, dtype="float32")] * op.nin
        node = Elemwise(op).make_node(*(pt.vector(dtype="float32") for _ in values))
        function = array_function(op, node.inputs, node.outputs)
        (result,) = run(replace(node, function, ArrayElemwise)[0].owner, values)
        np.testing.assert_allclose(result, run(node, values)[0], rtol=1e-5)
        assert result.dtype == "float32"


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("name", ["add", "mul"])
def test_sums_and_products_of_any_number_of_terms(name, count):
    rng = np.random.default_rng(1)
    shapes = [(), (1, 4), (3, 1), (3, 4)]
    values = [rng.normal(size=shapes[i % 4] if count > 1 else (3, 4)) for i in range(count)]
    inputs = [pt.tensor(shape=value.shape, dtype="float64") for value in values]
    node = Elemwise(getattr(scalar_basic, name)).make_node(*inputs)
    function = array_function(node.op.scalar_op, node.inputs, node.outputs)
    expected = sum(values) if name == "add" else np.prod(np.broadcast_arrays(*values), axis=0)
    np.testing.assert_allclose(function(*values), expected, rtol=1e-13)


def test_composites():
    x, y = float64("x"), float64("y")
    z = scalar_math.softplus(x) * y + scalar_basic.exp(x)
    op = Composite([x, y], [z, scalar_basic.switch(x > y, x, z)])
    rng = np.random.default_rng(1)
    assert_same(op, [rng.normal(size=20), rng.normal(size=20)])


@pytest.mark.parametrize("argument", [0, 1])
def test_derivatives_that_are_loops_of_scalars(argument):
    k, x = pt.vector("k"), pt.vector("x")
    output = pt.gammainc(k, x)
    gradient = pytensor.grad(output.sum(), [k, x][argument])
    rng = np.random.default_rng(1)
    values = rng.gamma(2.0, size=30), rng.gamma(3.0, size=30)
    own = pytensor.function([k, x], gradient, mode=get_mode("FAST_COMPILE"))
    ours = pytensor.function([k, x], gradient, mode=interpreted_mode())
    assert not [node for node in ours.maker.fgraph.apply_nodes if isinstance(node.op, Elemwise)]
    np.testing.assert_allclose(ours(*values), own(*values), rtol=1e-12)


def test_sizes_of_one_broadcast_only_where_the_types_say_so():
    x, y = pt.vector("x"), pt.vector("y")
    function = pytensor.function([x, y], x + y, mode=interpreted_mode())
    with pytest.raises(ValueError, match="broadcastable"):
        function(np.ones(1), np.ones(3))
