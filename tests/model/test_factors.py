"""Gradients of factors in a batch: those of PyTensor's own, which takes one matrix at a time."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_ngvi.interpreted.mode import interpreted_mode
from pymc_ngvi.model.factors import BatchedFactors, with_batched_factors

RNG = np.random.default_rng(1)
SIZE = 4
FACTORS = np.tril(RNG.normal(size=(3, SIZE, SIZE))) + 4 * np.eye(SIZE)
MATRICES = FACTORS @ FACTORS.swapaxes(-1, -2)
VECTORS = RNG.normal(size=(3, SIZE))
SHARED = RNG.normal(size=(1, SIZE))

CASES = {
    "cholesky": lambda m, v: cholesky(m),
    "cholesky of half a matrix": lambda m, v: cholesky(pt.tril(m)),
    "lower, a vector": lambda m, v: solve_triangular(m, v, lower=True, b_ndim=1),
    "upper, a vector": lambda m, v: solve_triangular(m, v, lower=False, b_ndim=1),
    "a vector that all share": lambda m, v: solve_triangular(m, SHARED, lower=True, b_ndim=1),
    "a matrix that all share": lambda m, v: solve_triangular(m[:1], v, lower=True, b_ndim=1),
    "a matrix": lambda m, v: solve_triangular(m, m.swapaxes(-1, -2), lower=True, b_ndim=2),
    "unit diagonal": lambda m, v: solve_triangular(m, v, lower=True, unit_diagonal=True, b_ndim=1),
    "of a factor": lambda m, v: solve_triangular(cholesky(m), v, lower=True, b_ndim=1),
}


def derivatives(output, matrices, vectors):
    """Gradients, and their products with fixed directions, differentiated again."""
    gradients = pt.grad(output, [matrices, vectors], disconnected_inputs="ignore")
    directions = [np.cos(np.arange(g.size).reshape(g.shape)) for g in (MATRICES, VECTORS)]
    slope = sum((g * way).sum() for g, way in zip(gradients, directions, strict=True))
    return [output, *gradients, pt.grad(slope, matrices, disconnected_inputs="ignore")]


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_pytensor(name):
    matrices = pt.tensor3("matrices", shape=MATRICES.shape)
    vectors = pt.matrix("vectors", shape=VECTORS.shape)
    weights = pt.as_tensor(np.sin(np.arange(SIZE)))
    own = (CASES[name](matrices, vectors) * weights).sum()
    ours = with_batched_factors(own)
    assert any(v.owner and isinstance(v.owner.op, BatchedFactors) for v in ancestors([ours]))
    values = [
        pytensor.function(
            [matrices, vectors],
            derivatives(output, matrices, vectors),
            mode=interpreted_mode(),
            on_unused_input="ignore",
        )(MATRICES, VECTORS)
        for output in (ours, own)
    ]
    for mine, theirs in zip(*values, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-13)


def test_matrices_of_unknown_size_are_left_alone():
    output = with_batched_factors(cholesky(pt.tensor3("matrices")))
    assert type(output.owner.op) is Blockwise
