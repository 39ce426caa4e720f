"""Sums over rows: what is found in a graph, and that its derivatives are PyTensor's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.math import GammaLn

from pymc_ngvi._compat import initial_point, interpreted_mode
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.graph import Graph, build_graph
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.minibatches import find_data
from pymc_ngvi.model.separable import RowEvaluator, Separable, separate
from pymc_ngvi.model.separable.assembly import gram
from pymc_ngvi.model.separable.linear import Design, LinearMap
from pymc_ngvi.model.separable.operators import RowVector
from pymc_ngvi.model.separable.sums import opened
from pymc_ngvi.model.terms import Terms
from tests.models import MODELS

_RNG = np.random.default_rng(20240601)
_N = 70  # enough rows for full columns to be kept dense
_X = _RNG.normal(size=(_N, 3))
_GROUP = _RNG.integers(0, 6, _N)
_ITEM = _RNG.integers(0, 4, _N)
_COUNT = _RNG.poisson(3, _N)
_BINARY = _RNG.integers(0, 2, _N)
_REAL = _RNG.normal(size=_N)


def _logistic() -> None:
    slopes = pm.Normal("slopes", 0.0, 1.0, shape=3)
    scale = pm.HalfNormal("scale", 1.0)
    effect = pm.Normal("effect", 0.0, scale, shape=6)
    pm.Bernoulli("y", logit_p=0.3 + _X @ slopes + effect[_GROUP], observed=_BINARY)


def _negative_binomial() -> None:
    mu = pm.math.exp(_X @ pm.Normal("slopes", 0.0, 1.0, shape=3))
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1.0), observed=_COUNT)


def _student() -> None:
    mu = pt.dot(_X, pm.Normal("slopes", 0.0, 1.0, shape=3))
    nu, sigma = pm.Gamma("nu", 2.0, 0.1), pm.HalfNormal("sigma", 1.0)
    pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=_REAL)


def _slopes_by_group() -> None:
    mu, tau = pm.Normal("mu", 0.0, 1.0, shape=2), pm.HalfNormal("tau", 1.0, shape=2)
    effects = mu + tau * pm.Normal("z", 0.0, 1.0, shape=(6, 2))
    predictor = effects[_GROUP, 0] + effects[_GROUP, 1] * _X[:, 0]
    pm.Normal("y", predictor, pm.HalfNormal("sigma", 1.0), observed=_REAL)


def _items() -> None:
    slope = pm.LogNormal("slope", 0.0, 0.5, shape=4)
    ability, difficulty = pm.Normal("a", 0.0, 1.0, shape=6), pm.Normal("b", 0.0, 1.0, shape=4)
    predictor = slope[_ITEM] * (ability[_GROUP] - difficulty[_ITEM])
    pm.Bernoulli("y", logit_p=predictor, observed=_BINARY)


def _items_in_a_table() -> None:
    slope = pm.LogNormal("slope", 0.0, 0.5, shape=5)
    ability, difficulty = pm.Normal("a", 0.0, 1.0, shape=14), pm.Normal("b", 0.0, 1.0, shape=5)
    predictor = slope * (ability[:, None] - difficulty)
    pm.Bernoulli("y", logit_p=predictor, observed=_BINARY.reshape(14, 5))


def _random_walk() -> None:
    sigma = pm.HalfNormal("sigma", 1.0)
    start = pm.Normal.dist(0.0, 1.0)
    walk = pm.GaussianRandomWalk("walk", mu=0.0, sigma=sigma, init_dist=start, shape=_N)
    pm.Poisson("y", pm.math.exp(walk), observed=_COUNT)


def _neighbours() -> None:
    place = np.arange(9)
    rows, columns = place // 3, place % 3
    steps = abs(rows[:, None] - rows) + abs(columns[:, None] - columns)
    field = pm.ICAR("field", W=(steps == 1).astype(int), sigma=pm.HalfNormal("sigma", 1.0))
    pm.Poisson("y", pm.math.exp(field[_GROUP]), observed=_COUNT)


def _zero_inflated() -> None:
    mu = pm.math.exp(_X @ pm.Normal("slopes", 0.0, 1.0, shape=3))
    psi = pm.Beta("psi", 1.0, 1.0)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=mu, observed=np.where(_BINARY, 0, _COUNT))


def _ordinal() -> None:
    cuts = pm.Normal(
        "cuts", [-1.0, 1.0], 1.0, transform=pm.distributions.transforms.ordered, initval=[-1, 1]
    )
    eta = _X @ pm.Normal("slopes", 0.0, 1.0, shape=3)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=_ITEM % 3)


def _softmax() -> None:
    slopes = pm.Normal("slopes", 0.0, 1.0, shape=(3, 2))
    logits = pt.concatenate([pt.zeros((_N, 1)), pm.Normal("a", 0.0, 1.0) + _X @ slopes], axis=1)
    pm.Categorical("y", p=pm.math.softmax(logits, axis=1), observed=_ITEM % 3)


def _scales_by_group() -> None:
    scale = pm.HalfNormal("scale", 1.0, shape=6)
    pm.Normal(
        "y",
        (_X * pm.Normal("slopes", 0.0, 1.0, shape=3)).sum(axis=1),
        scale[_GROUP],
        observed=_REAL,
    )


_WHOLE = (
    _logistic,
    _negative_binomial,
    _student,
    _slopes_by_group,
    _items,
    _items_in_a_table,
    _random_walk,
    _neighbours,
    _zero_inflated,
    _ordinal,
    _softmax,
    _scales_by_group,
)
_BUILDERS: dict[str, Callable[[], None]] = {build.__name__.strip("_"): build for build in _WHOLE}

# Of the collection: one for each thing that a sum may meet. The others differ in nothing here.
_COLLECTED = (
    "conjugate_normal",
    "linear_regression",
    "coords_and_dims",
    "mutable_data",
    "potential",
    "censored",
    "dirichlet",
    "lkj_cholesky_cov",
    "zero_sum_normal",
    "missing_data",
    "scan_time_series",
)


@functools.cache
def _graph(model: pm.Model) -> Graph:
    return build_graph(Terms(find_data(model, None)), Layout(model, initial_point(model)))


def _compiler(model: pm.Model) -> Compiler:
    return Compiler(model, {"mode": interpreted_mode()}, interpreted=True)


@functools.cache
def _rows(model: pm.Model) -> tuple[Graph, Separable, RowEvaluator]:
    graph = _graph(model)
    found = separate(graph.x, graph.log_density, graph.data)
    return graph, found, found.compile(_compiler(model).function).bind()


@functools.cache
def _built(name: str) -> pm.Model:
    """Return a model that the tests leave alone."""
    if name in MODELS:
        return MODELS[name]()
    with pm.Model() as model:
        _BUILDERS[name]()
    return model


def _reference(model: pm.Model, graph: Graph, log_density: Any) -> Callable[..., Any]:
    """Log density, gradient and a product with the Hessian at one point, by PyTensor alone."""
    vector = pt.vector("vector", shape=graph.x.type.shape)
    # Without this PyTensor 2 collects gigabytes of stack traces of the ordinal model.
    with pytensor.config.change_flags(traceback__limit=0):
        gradient = pytensor.grad(log_density, graph.x, disconnected_inputs="ignore")
        product = pytensor.grad((gradient * vector).sum(), graph.x, disconnected_inputs="ignore")
    return _compiler(model).function([log_density, gradient, product], [graph.x, vector])


@pytest.mark.parametrize("name", [*_BUILDERS, *_COLLECTED])
def test_derivatives_are_those_of_the_graph(name: str) -> None:
    model = _built(name)
    graph, found, rows = _rows(model)
    rng = np.random.default_rng(1)
    draws, vectors = rng.normal(size=(2, 3, rows.dim)) * 0.5
    density, gradient, values = rows.hessians(draws)
    product = (rows.structure.dense(values) @ vectors[..., None])[..., 0]
    if found.remainder is not None:
        rest = _reference(model, graph, found.remainder)
        for i, (draw, vector) in enumerate(zip(draws, vectors, strict=True)):
            for total, value in zip((density, gradient, product), rest(draw, vector), strict=True):
                total[i] += value
    whole = _reference(model, graph, graph.log_density)
    expected = [whole(draw, vector) for draw, vector in zip(draws, vectors, strict=True)]
    for found_values, number in ((density, 0), (gradient, 1), (product, 2)):
        right = np.array([one[number] for one in expected])
        assert_allclose(found_values, right, rtol=1e-9, atol=1e-9 * (1 + abs(right).max()))


@pytest.mark.parametrize("name", _BUILDERS)
def test_regressions_leave_no_remainder(name: str) -> None:
    assert _rows(_built(name))[1].remainder is None


@pytest.mark.parametrize("name", ["logistic", "slopes_by_group", "items_in_a_table", "softmax"])
def test_ways_to_evaluate_agree(name: str) -> None:
    _, _, rows = _rows(_built(name))
    rng = np.random.default_rng(2)
    draws, vectors = rng.normal(size=(2, 5, rows.dim))
    density, gradient, values = rows.hessians(draws)
    full = rows.structure.dense(values)
    assert_allclose(rows.log_density(draws), density)
    for one, other in zip(rows.gradients(draws), (density, gradient), strict=True):
        assert_allclose(one, other)
    assert_allclose(rows.mean_hessians(draws, 1)[2][0], values.mean(axis=0), rtol=1e-9, atol=1e-9)
    products = np.einsum("nij,nj->ni", full, vectors)
    assert_allclose(rows.products(draws, vectors), products, rtol=1e-9, atol=1e-9)
    assert_allclose(values[:, rows.structure.diagonal], np.diagonal(full, axis1=1, axis2=2))


def test_chunks_of_rows_and_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, rows = _rows(_built("slopes_by_group"))
    draws = np.random.default_rng(3).normal(size=(8, rows.dim))
    whole = rows.mean_hessians(draws, 2)
    # 64 rows at a time, and two draws.
    monkeypatch.setattr("pymc_ngvi.model.separable.functions._NUMBERS", 1)
    monkeypatch.setattr("pymc_ngvi.model.separable.evaluator._NUMBERS", 2 * _N)
    for one, other in zip(rows.mean_hessians(draws, 2), whole, strict=True):
        assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_a_predictor_and_its_negative_are_one_row_vector() -> None:
    found = _rows(_built("logistic"))[1]
    (likelihood,) = [term for term in found.terms if len(term.constants) > 0]
    assert len(likelihood.leaves) == 1


def test_pattern_of_varying_intercepts_is_an_arrowhead() -> None:
    _, _, rows = _rows(_built("logistic"))
    pattern = np.zeros((rows.dim, rows.dim), dtype=bool)
    pattern[rows.structure.rows, rows.structure.columns] = True
    effects = pattern[4:, 4:]
    assert (effects == np.eye(6, dtype=bool)).all()
    assert pattern[4:, :4].all()  # slopes and scale touch every effect


def test_data_are_read_when_bound() -> None:
    with pm.Model() as model:
        x, group = pm.Data("x", _X), pm.Data("group", _GROUP)
        slopes, effect = pm.Normal("slopes", shape=3), pm.Normal("effect", shape=6)
        pm.Normal("y", x @ slopes + effect[group], 1.0, observed=_REAL)
    graph = _graph(model)
    compiled = separate(graph.x, graph.log_density).compile(_compiler(model).function)
    reference = _reference(model, graph, graph.log_density)
    draw = np.random.default_rng(4).normal(size=(1, 9))
    for step in range(2):
        rows = compiled.bind()
        density, gradient = rows.gradients(draw)
        expected = reference(draw[0], draw[0])
        assert_allclose(density[0], expected[0])
        assert_allclose(gradient[0], expected[1])
        pm.set_data({"x": _X[::-1] + step, "group": _GROUP[::-1]}, model=model)


def test_inputs_beside_the_flat_vector_are_bound_too() -> None:
    x, matrix, seen = pt.vector("x", shape=(3,)), pt.matrix("matrix"), pt.vector("seen")
    density = -((seen - matrix @ x) ** 2).sum() / 2
    found = separate(x, density, (matrix, seen))
    with pm.Model() as model:
        pm.Normal("a")
    compiled = found.compile(_compiler(model).function)
    draws = np.random.default_rng(5).normal(size=(2, 3))
    for n in (_N, 10):
        rows = compiled.bind(_X[:n], _REAL[:n])
        _, gradient, values = rows.hessians(draws)
        residual = _REAL[:n] - draws @ _X[:n].T
        assert_allclose(gradient, residual @ _X[:n])
        assert_allclose(rows.structure.dense(values)[0], -_X[:n].T @ _X[:n])


def test_log_density_is_minus_infinity_outside_the_support() -> None:
    with pm.Model() as model:
        sigma = pm.Normal("sigma")
        pm.Normal("y", 0.0, sigma, observed=_REAL)
    _, _, rows = _rows(model)
    density = rows.log_density(np.array([[-1.0], [1.0]]))
    assert density[0] == -np.inf
    assert np.isfinite(density[1])


def test_sums_over_no_rows_are_zero() -> None:
    none = np.zeros(_N, dtype=bool)
    with pm.Model() as model:
        scale, effect = pm.HalfNormal("scale"), pm.Normal("effect", shape=6)
        pm.Normal("y", pm.math.exp(effect[_GROUP[none]]), scale, observed=_REAL[none])
    graph, _, rows = _rows(model)
    draws = np.random.default_rng(8).normal(size=(2, rows.dim))
    density, gradient, values = rows.hessians(draws)
    reference = _reference(model, graph, graph.log_density)
    expected = [reference(draw, draw) for draw in draws]
    assert_allclose(density, [one[0] for one in expected])
    assert_allclose(gradient, [one[1] for one in expected])
    product = (rows.structure.dense(values) @ draws[..., None])[..., 0]
    assert_allclose(product, [one[2] for one in expected])


def test_remainder_says_why() -> None:
    _, found, _ = _rows(_built("scan_time_series"))
    assert found.remainder is not None
    assert "Scan" in found.reasons[0]


@pytest.mark.parametrize("signs", ["negative", "mixed"])
def test_weighted_products_of_matrices(signs: str) -> None:
    rng = np.random.default_rng(6)
    left, right = rng.normal(size=(2, 5000, 4))
    weights = rng.normal(size=5000)
    weights = -abs(weights) if signs == "negative" else weights
    assert_allclose(gram(left, weights, left), left.T @ (weights[:, None] * left))
    assert_allclose(gram(left, weights, right), left.T @ (weights[:, None] * right))


def test_row_vectors_are_their_matrices() -> None:
    rng = np.random.default_rng(7)
    identity = LinearMap.identity(8)
    sums = [identity.take(np.arange(3)).multiplied(_X), identity.take(_GROUP + 2)]
    linear = LinearMap.add([*sums, identity.take(np.full(_N, 1))]).scale(rng.normal(size=_N))
    assert isinstance(linear.designs[0], Design)
    matrix, vector = linear.tosparse().toarray(), RowVector.of(linear)
    draws, weights = rng.normal(size=(2, 8)), rng.normal(size=(2, _N))
    assert_allclose(vector(draws), draws @ matrix.T + linear.offset)
    transposed = np.zeros((2, 8))
    vector.add_transposed(weights, transposed)
    assert_allclose(transposed, weights @ matrix)


def test_data_that_cancel_leave_a_number_that_all_rows_see():
    """PyMC writes ``(alpha + y - 1) - y + 1``: alpha alone is not to be computed for each row."""
    with pm.Model() as model:
        _negative_binomial()
    layout = Layout(model, initial_point(model))
    graph = build_graph(Terms(find_data(model, None)), layout)
    found = separate(graph.x, graph.log_density)
    gammas = [
        node
        for term in found.terms
        for node in io_toposort([], [term.row])
        if isinstance(getattr(node.op, "scalar_op", None), GammaLn)
    ]
    data = {leaf.symbol for term in found.terms for leaf in term.constants if leaf.by_row}
    assert sum(data.isdisjoint(ancestors(node.inputs)) for node in gammas) == 1


def test_what_cancels_does_not_change_values():
    x, y = pt.vector("x", shape=(3,)), pt.constant(np.array([1.0, 2.0, 3.0]))
    for output, expected in (
        ((x[0] + y) - 1 - y + 1, x[0] + pt.zeros(3)),
        ((x[0] + y) - y, x[0] + pt.zeros(3)),
        (y - (y - x[0]), x[0] + pt.zeros(3)),
        ((x + y) - x, y),
    ):
        whole = opened((output**2).sum(), x)
        point = np.array([0.3, -2.0, 4.0])
        values = [
            pytensor.function([x], out, on_unused_input="ignore", mode=interpreted_mode())(point)
            for out in (whole, (expected**2).sum())
        ]
        assert_allclose(*values, rtol=1e-14)
