"""The interpreted mode on the derivatives of likelihoods."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.elemwise import Elemwise

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode

COUNTS = np.array([0, 1, 4, 2, 0, 3])
LIKELIHOODS = {
    "Bernoulli": lambda x: pm.logp(pm.Bernoulli.dist(logit_p=x), COUNTS > 0),
    "Poisson": lambda x: pm.logp(pm.Poisson.dist(pt.exp(x)), COUNTS),
    "negative binomial": lambda x: pm.logp(
        pm.NegativeBinomial.dist(mu=pt.exp(x), alpha=pt.exp(x[0])), COUNTS
    ),
    "beta-binomial": lambda x: pm.logp(
        pm.BetaBinomial.dist(n=9, alpha=pt.exp(x), beta=pt.exp(x[0])), COUNTS
    ),
    "zero-inflated": lambda x: pm.logp(
        pm.ZeroInflatedPoisson.dist(psi=pm.math.sigmoid(x[0]), mu=pt.exp(x)), COUNTS
    ),
    "Student": lambda x: pm.logp(pm.StudentT.dist(nu=pt.exp(x[0]), mu=x, sigma=2.0), COUNTS / 2),
    "gamma": lambda x: pm.logp(pm.Gamma.dist(alpha=pt.exp(x), beta=2.0), COUNTS + 0.5),
    "Weibull": lambda x: pm.logp(pm.Weibull.dist(alpha=pt.exp(x[0]), beta=pt.exp(x)), COUNTS + 1.0),
    "censored": lambda x: pm.logp(
        pm.Censored.dist(pm.Normal.dist(x, pt.exp(x[0])), lower=0, upper=3), COUNTS
    ),
    "softmax": lambda x: pt.special.log_softmax(x)[COUNTS],
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_no_derivative_is_run_element_by_element(name):
    x = pt.vector("x", shape=(6,))
    (density,) = inline_inner_graphs([LIKELIHOODS[name](x).sum()])
    many, vectors = pt.matrix("many", shape=(None, 6)), pt.matrix("vectors", shape=(None, 6))
    densities = vectorize_graph(density, {x: many})
    gradient = pytensor.grad(densities.sum(), many)
    product = pytensor.grad((gradient * vectors).sum(), many)
    inputs, outputs = [many, vectors], [densities, gradient, product]
    reference = get_mode("FAST_COMPILE").including("stabilize")
    with pytensor.config.change_flags(cxx="", traceback__limit=0):
        ours = pytensor.function(inputs, outputs, mode=interpreted_mode())
        own = pytensor.function(inputs, outputs, mode=reference)
    assert not [node for node in ours.maker.fgraph.apply_nodes if isinstance(node.op, Elemwise)]
    rng = np.random.default_rng(1)
    values = 0.3 * rng.normal(size=(5, 6)), rng.normal(size=(5, 6))
    for result, expected in zip(ours(*values), own(*values), strict=True):
        # Some constants, such as the root of 2 in a cumulative normal, have single precision in
        # PyTensor's graphs or not, as its rewrites go.
        accuracy = 1e-6 if name == "censored" else 1e-9
        np.testing.assert_allclose(result, expected, rtol=accuracy, atol=accuracy)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 40, 1), (2, 3, 40), (6, 4), (0, 4), (3, 5, 0)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_sums_over_one_axis(shape, dtype):
    values = np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)
    if dtype != "int64" and values.size:
        values[0, 0] = np.inf
    x = pt.tensor(dtype=dtype, shape=(None,) * len(shape))
    with pytensor.config.change_flags(cxx="", traceback__limit=0):
        axes = range(len(shape))
        f = pytensor.function([x], [x.sum(axis) for axis in axes], mode=interpreted_mode())
    for axis, found in zip(axes, f(values), strict=True):
        np.testing.assert_array_equal(found, values.sum(axis))
        assert found.dtype == values.sum(axis).dtype
