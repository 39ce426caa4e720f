"""Operations on batches at once: the values of PyTensor's own, one member after the other."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_ngvi.interpreted.mode import interpreted_mode

RNG = np.random.default_rng(1)
FACTORS = np.tril(RNG.normal(size=(5, 4, 4))) + 4 * np.eye(4)
MATRICES = FACTORS @ FACTORS.swapaxes(-1, -2)


def both(one, value, *, replaced=True):
    """Run the function of one member on a batch, in our mode and in PyTensor's."""
    single = pt.tensor(shape=value.shape[1:], dtype=value.dtype)
    many = pt.tensor(shape=(None, *value.shape[1:]), dtype=value.dtype)
    output = vectorize_graph(one(single), {single: many})
    ours = pytensor.function([many], output, mode=interpreted_mode())
    own = pytensor.function([many], output, mode=get_mode("FAST_COMPILE"))
    left = [node for node in ours.maker.fgraph.apply_nodes if isinstance(node.op, Blockwise)]
    assert bool(left) != replaced
    return ours(value), own(value)


CASES = {
    "cholesky": (cholesky, MATRICES),
    "solve a vector": (lambda m: solve_triangular(m, m[0], lower=True), FACTORS),
    "solve a matrix": (lambda m: solve_triangular(m, m, lower=True), MATRICES),
    "solve upper": (lambda m: solve_triangular(m, m.T), MATRICES),
    "diagonal": (lambda m: pt.diag(m[0]), MATRICES),
    "diagonal above": (lambda m: pt.diag(m[0], 2), MATRICES),
    "diagonal below": (lambda m: pt.diag(m[0], -1), MATRICES),
    "common indices": (lambda m: m[np.array([1, 1, 3]), np.array([0, 2, -1])], MATRICES),
    "own indices": (lambda m: m[pt.argsort(m[0]), pt.argsort(m[1])], MATRICES),
    "rows by own indices": (lambda m: m[pt.argsort(m[0])], MATRICES),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_pytensor(name):
    one, value = CASES[name]
    ours, own = both(lambda m: one(m) + 0.0, value, replaced="own" not in name)
    np.testing.assert_allclose(ours, own, rtol=1e-12, atol=1e-16)  # what is 0 up to rounding
    assert ours.dtype == own.dtype


def test_many_vectors_with_one_matrix():
    matrix, vectors = pt.tensor3("matrix"), pt.tensor3("vectors")
    solution = solve_triangular(matrix[:, None], vectors, lower=True, b_ndim=1)
    arguments = FACTORS, RNG.normal(size=(5, 7, 4))
    values = [
        pytensor.function([matrix, vectors], solution, mode=mode)(*arguments)
        for mode in (interpreted_mode(), get_mode("FAST_COMPILE"))
    ]
    np.testing.assert_allclose(*values, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 16, 17])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_systems_of_any_size(k, lower):
    """Small ones are solved by substitution, larger ones by LAPACK."""
    factors = np.tril(RNG.normal(size=(5, k, k))) + 4 * np.eye(k)
    factors = factors if lower else factors.swapaxes(-1, -2)
    ours, own = both(lambda m: solve_triangular(m, m.T + 1.0, lower=lower), factors)
    np.testing.assert_allclose(ours, own, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(factors @ ours, factors.swapaxes(-1, -2) + 1.0, atol=1e-12)


def test_a_singular_triangle_is_nan_in_its_own_member_only():
    broken = FACTORS.copy()
    broken[2, 1, 1] = 0.0
    ours, own = both(lambda m: solve_triangular(m, m[0] + 1.0, lower=True), broken)
    np.testing.assert_array_equal(np.isnan(ours).any(axis=1), np.arange(5) == 2)
    np.testing.assert_allclose(ours, own, rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_matrix_is_joined_to_each_of_many(axis):
    """As in zero-inflated likelihoods; the gradient splits what was joined."""
    single, other, many = pt.matrix("single"), pt.matrix("other"), pt.tensor4("many")
    joined = vectorize_graph(pt.join(axis, other, single), {single: many})
    outputs = [joined, *pytensor.grad((joined**3).sum(), [many, other])]
    ours, own = (
        pytensor.function([many, other], outputs, mode=mode)
        for mode in (interpreted_mode(), get_mode("FAST_COMPILE"))
    )
    assert not any(isinstance(node.op, Blockwise) for node in ours.maker.fgraph.apply_nodes)
    arguments = RNG.normal(size=(3, 2, 4, 4)), RNG.normal(size=(4, 4))
    for mine, expected in zip(ours(*arguments), own(*arguments), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12)


def test_a_matrix_that_has_no_factor():
    """What PyTensor does with it is done: an error on one line, NaN on the other."""
    broken = MATRICES.copy()
    broken[2] *= -1

    def outcome(run):
        try:
            return run()
        except np.linalg.LinAlgError:
            return "error"

    x = pt.tensor3("x")
    y = cholesky(x)
    results = [
        outcome(lambda mode=mode: pytensor.function([x], y, mode=mode)(broken))
        for mode in (interpreted_mode(), get_mode("FAST_COMPILE"))
    ]
    if any(isinstance(result, str) for result in results):
        assert results == ["error", "error"]
    else:
        np.testing.assert_allclose(*results, rtol=1e-12)
