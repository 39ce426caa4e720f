"""The compiled target: derivatives, layout, routes to the Hessian, and what bad input gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pymc.variational.approximations import FullRank
from pymc.variational.opvi import ParametrizationError
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node

from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.compilation import (
    HessianFallbackWarning,
    HessianUnavailableError,
    ModelTarget,
    compile_target,
)
from pymc_ngvi.model.evaluators import Data
from tests.models import MODELS

# PyTensor 2 gets the second derivative of a recurrent Scan wrong; the target must refuse it.
WRONG_HESSIAN = set() if PYMC_6 else {"scan_time_series"}
RIGHT_HESSIAN = [name for name in MODELS if name not in WRONG_HESSIAN]


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], ModelTarget]:
    """Targets of the model collection, each compiled once for the session."""
    targets: dict[str, ModelTarget] = {}

    def get(name: str) -> ModelTarget:
        if name not in targets:
            targets[name] = compile_target(MODELS[name](), backend="interpreted")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HessianFallbackWarning)
                assert targets[name].hessian_route
        return targets[name]

    return get


def generic_point(target: ModelTarget) -> np.ndarray:
    return target.initial_point + 0.3 * np.random.default_rng(1).standard_normal(target.dim)


def differences(function: Callable, x: np.ndarray, step: float, components: range) -> np.ndarray:
    """Central differences of a function of rows along the first components."""
    shifts = step * np.eye(len(x))[components]
    return (function(x + shifts) - function(x - shifts)) / (2 * step)


# Derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_gradient_agrees_with_differences(interpreted, name):
    target = interpreted(name)
    x, first = generic_point(target), range(min(target.dim, 12))
    # Single precision leaves seven digits, so its differences need a long step.
    step, tolerance = (1e-2, 1e-3) if name == "float32" else (1e-5, 1e-6)
    expected = differences(target.log_density, x, step, first)
    gradient = target.evaluate(x[np.newaxis], "none").gradient[0, first]
    np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", RIGHT_HESSIAN)
def test_hessian_agrees_with_differences(interpreted, name):
    target = interpreted(name)
    x, first = generic_point(target), range(min(target.dim, 12))
    step, tolerance = (1e-2, 5e-3) if name == "float32" else (1e-5, 1e-6)
    expected = differences(lambda xs: target.evaluate(xs, "full").gradient, x, step, first)
    hessian = target.evaluate(x[np.newaxis], "full").hessian[0]
    np.testing.assert_allclose(hessian[first], expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-3 if name == "float32" else 1e-8)


@pytest.mark.parametrize("name", sorted(WRONG_HESSIAN))
def test_a_wrong_second_derivative_is_refused(name):
    target = compile_target(MODELS[name](), backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match="contradicts the gradient"):
        assert target.hessian_route == "none"


@pytest.mark.parametrize("name", ["linear_regression", "coords_and_dims"])
def test_diagonal_and_products_are_those_of_the_hessian(interpreted, name):
    target = interpreted(name)
    draws = generic_point(target) + np.linspace(0, 0.1, 3)[:, np.newaxis]
    full, diagonal = target.evaluate(draws, "full"), target.evaluate(draws, "diagonal")
    np.testing.assert_array_equal(diagonal.hessian, np.diagonal(full.hessian, axis1=1, axis2=2))
    vector = np.arange(1.0, target.dim + 1)
    product = target.hessian_vector_product(draws[0], vector)
    np.testing.assert_allclose(product, full.hessian[0] @ vector, rtol=1e-9)


def test_log_density_is_that_of_pymc(interpreted):
    target = interpreted("hierarchical")
    x = generic_point(target)
    logp = target.model.compile_logp(mode="FAST_COMPILE")
    np.testing.assert_allclose(target.log_density(x[np.newaxis]), logp(target.unflatten(x)))


def test_results_are_double_precision(interpreted):
    target = interpreted("float32")
    evaluation = target.evaluate(generic_point(target)[np.newaxis].astype("float32"), "full")
    for array in (evaluation.log_density, evaluation.gradient, evaluation.hessian):
        assert array.dtype == np.float64
    assert target.unflatten(target.initial_point)["mu"].dtype == np.float32


# Layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hierarchical", "coords_and_dims", "observe_model", "nested"])
def test_order_is_that_of_pymcs_groups(interpreted, name):
    target = interpreted(name)
    ordering = FullRank(model=target.model).groups[0].ordering
    expected = [(key, entry[1], entry[2]) for key, entry in ordering.items()]
    blocks = [(b.name, slice(b.start, b.stop), b.shape) for b in target.layout]
    assert blocks == expected


@pytest.mark.parametrize("name", MODELS)
def test_flatten_inverts_unflatten(interpreted, name):
    target = interpreted(name)
    np.testing.assert_allclose(
        target.flatten(target.unflatten(target.initial_point)), target.initial_point
    )
    assert len(set(target.names)) == target.dim


def test_labels_name_variable_and_coordinate(interpreted):
    target = interpreted("coords_and_dims")
    assert target.label(1) == "beta[school=Harrow]"
    assert target.label(4) == "scale_log__[school=Eton, term=2]"
    assert interpreted("linear_regression").label(2) == "slopes[1]"
    assert interpreted("hierarchical").label(1) == "tau_log__"
    assert interpreted("nested").label(1) == "inner::scale_log__"
    # A simplex of three has two free components, which are not the first two parties.
    assert interpreted("dirichlet").label(1) == "share_simplex__[1]"
    with pytest.raises(IndexError, match="component 9"):
        target.label(9)


def test_flatten_names_what_is_wrong(interpreted):
    target = interpreted("linear_regression")
    point = target.unflatten(target.initial_point)
    with pytest.raises(KeyError, match=r"unknown variables \['slope'\] and lacks \['slopes'\]"):
        target.flatten({**{k: v for k, v in point.items() if k != "slopes"}, "slope": 1.0})
    with pytest.raises(ValueError, match=r"slopes has shape \(3,\).*shape \(2,\)"):
        target.flatten({**point, "slopes": np.zeros(2)})


@pytest.mark.parametrize("shape", [(4,), (2, 4), (1, 1, 5)])
def test_draws_of_the_wrong_shape_are_refused(interpreted, shape):
    with pytest.raises(ValueError, match=r"shape \(n, 5\)"):
        interpreted("linear_regression").evaluate(np.zeros(shape), "full")


# Compiling -----------------------------------------------------------------------------------


def test_functions_are_compiled_lazily_and_once(monkeypatch):
    target = compile_target(MODELS["linear_regression"](), backend="interpreted")
    compiled = []
    compile_fn = type(target.model).compile_fn
    monkeypatch.setattr(
        type(target.model),
        "compile_fn",
        lambda self, *args, **kwargs: compiled.append(1) or compile_fn(self, *args, **kwargs),
    )
    draws = target.initial_point[np.newaxis]
    for _ in range(2):
        target.evaluate(draws, "full")
        target.evaluate(draws, "diagonal")
        target.log_density(draws)
        target.check_start(target.initial_point)
    assert len(compiled) == 2  # of the Hessian, and interpreted a cheap one of the log density


def test_set_data_takes_effect_after_compiling():
    model = MODELS["mutable_data"]()
    target = compile_target(model, backend="interpreted")
    draws = np.array([[0.4]])
    before = target.evaluate(draws, "full")
    with model:
        pm.set_data({"x": np.ones(4), "y_data": np.full(4, 0.5)})
    after = target.evaluate(draws, "full")
    assert before.log_density != after.log_density
    np.testing.assert_allclose(after.hessian, [[[-5.0]]])


def test_another_evaluator_can_take_over(interpreted):
    class Twice:
        def __init__(self, target: ModelTarget) -> None:
            self.target = target

        def __call__(self, draws: np.ndarray, curvature: str, data: Data) -> Evaluation:
            one = self.target.evaluate(draws, "full")
            return Evaluation(2 * one.log_density, 2 * one.gradient, 2 * one.hessian)

    draws = np.zeros((2, 1))
    target = compile_target(MODELS["conjugate_normal"](), backend="interpreted")
    target.use(Twice(interpreted("conjugate_normal")))
    expected = interpreted("conjugate_normal").evaluate(draws, "full")
    np.testing.assert_array_equal(target.evaluate(draws, "full").hessian, 2 * expected.hessian)
    np.testing.assert_array_equal(target.log_density(draws), 2 * expected.log_density)


@pytest.mark.parametrize(("rows", "own_function"), [(10, False), (1_000_000, True)])
def test_densities_of_many_data_have_a_function_of_their_own(rows, own_function):
    """Derivatives that nobody asked for cost more than compiling, the more data there are."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=np.ones(rows))
    target = compile_target(model, compile_kwargs={"mode": "FAST_COMPILE"})
    target._wasted = 1_999_000
    target.evaluate(np.zeros((1, 1)), "none")
    target.log_density(np.zeros((10, 1)))
    assert ("density" in target._evaluators) == own_function


@pytest.mark.parametrize("backend", [None, "numba", "c", "jax"])
def test_backends_agree(interpreted, backend):
    if backend == "jax":
        pytest.importorskip("jax")
    target = compile_target(MODELS["conjugate_normal"](), backend=backend)
    draws = np.linspace(-1, 2, 20)[:, np.newaxis]
    ours = target.evaluate(draws, "full")
    reference = interpreted("conjugate_normal").evaluate(draws, "full")
    np.testing.assert_allclose(ours.log_density, reference.log_density, rtol=1e-10)
    np.testing.assert_allclose(ours.gradient, reference.gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.hessian, reference.hessian, rtol=1e-10)


def test_set_data_takes_effect_on_jax():
    pytest.importorskip("jax")
    model = MODELS["mutable_data"]()
    target = compile_target(model, backend="jax")
    target.evaluate(np.array([[0.4]]), "full")
    with model:
        pm.set_data({"x": np.ones(10), "y_data": np.full(10, 0.5)})
    np.testing.assert_allclose(target.evaluate(np.array([[0.4]]), "full").hessian, [[[-11.0]]])


# Routes to the Hessian -----------------------------------------------------------------------


class Cube(Op):
    """x**3 of a vector, in as many derivatives as `order` allows."""

    __props__ = ("order", "wrong")

    def __init__(self, order: int, wrong: float = 1.0) -> None:
        self.order, self.wrong = order, wrong

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 3

    def pullback(self, inputs, outputs, cotangents):
        if self.order == 0:
            raise NotImplementedError("no gradient")
        slope = CubeSlope(self.order - 1, self.wrong)(inputs[0])
        return [cotangents[0] * slope]

    L_op = pullback


class CubeSlope(Cube):
    """3 x**2."""

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 3 * inputs[0] ** 2

    def pullback(self, inputs, outputs, cotangents):
        if self.order == 0:
            raise NotImplementedError("no second derivative")
        return [cotangents[0] * CubeCurvature(self.wrong)(inputs[0], cotangents[0])]

    L_op = pullback


class CubeCurvature(Op):
    """6 x, with the cotangent as an input, so that a batch of cotangents must vectorise it."""

    __props__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def make_node(self, x, cotangent):
        return Apply(self, [x, cotangent], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = self.factor * 6 * inputs[0]


@_vectorize_node.register(CubeCurvature)
def _refuse(op, node, *batched_inputs):
    raise NotImplementedError("CubeCurvature does not vectorise")


def cubic(order: int = 2, *, wrong: float = 1.0, minibatch: bool = False) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0, shape=3, initval=[0.2, 0.4, 0.6])
        pm.Potential("cube", 0.1 * Cube(order, wrong)(a).sum())
        if minibatch:
            data = pm.Minibatch(np.arange(50.0), batch_size=4)
            pm.Normal("y", a[0], 1.0, observed=data, total_size=50)
    return model


def test_vectorised_route_is_silent(interpreted):
    assert interpreted("linear_regression").hessian_route == "vectorized"


def test_products_where_an_op_does_not_vectorise():
    target = compile_target(cubic(), backend="interpreted")
    x = np.array([0.5, -1.0, 2.0])
    with pytest.warns(HessianFallbackWarning, match="CubeCurvature does not vectorise") as caught:
        evaluation = target.evaluate(x[np.newaxis], "full")
    assert target.hessian_route == "products"
    assert len(caught) == 1
    np.testing.assert_allclose(evaluation.hessian[0], np.diag(0.6 * x - 1), atol=1e-12)


def test_products_see_one_minibatch():
    target = compile_target(cubic(minibatch=True), backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match="does not vectorise") as caught:
        evaluation = target.evaluate(np.array([[0.5, -1.0, 2.0]]), "full")
    assert target.hessian_route == "products"
    assert len(caught) == 1
    np.testing.assert_allclose(np.diagonal(evaluation.hessian[0]), [-50.7, -1.6, 0.2])


def test_gradients_only_where_there_is_no_second_derivative():
    target = compile_target(cubic(order=1), backend="interpreted")
    x = np.array([[0.5, -1.0, 2.0]])
    with pytest.warns(HessianFallbackWarning, match="gradients only") as caught:
        assert target.hessian_route == "none"
    assert len(caught) == 3
    with pytest.raises(HessianUnavailableError, match="stein"):
        target.evaluate(x, "full")
    np.testing.assert_allclose(target.evaluate(x, "none").gradient, 0.3 * x**2 - x)
    target.check_start(target.initial_point)


def test_a_hessian_that_contradicts_the_gradient_is_not_used():
    target = compile_target(cubic(wrong=1.5), backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match=r"contradicts the gradient, for a\[0\]"):
        assert target.hessian_route == "none"


# Bad input -----------------------------------------------------------------------------------


def test_discrete_variables_are_named():
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        z = pm.Bernoulli("z", 0.5)
        pm.Normal("y", k + z, 1.0, observed=1.0)
    with pytest.raises(ParametrizationError, match=r"k, z: discrete.*marginalize"):
        compile_target(model)


def test_no_free_variables():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    with pytest.raises(TypeError, match="no free variables"):
        compile_target(model)


def test_an_op_without_gradient_is_named():
    with pytest.raises(NotImplementedError, match="Cube"):
        compile_target(cubic(order=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nunba"}, "backend 'nunba' is none of.*did you mean 'numba'"),
        ({"curvature": "diag"}, "curvature 'diag' is none of"),
        ({"backend": "c", "compile_kwargs": {"mode": "NUMBA"}}, "not both"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        compile_target(MODELS["conjugate_normal"](), **options)


def test_a_non_finite_start_names_the_term():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Exponential("fine", 1.0, observed=2.0)
        pm.Exponential("wait", pt.exp(mu), observed=[1.0, -3.0])
    target = compile_target(model, backend="interpreted")
    with pytest.raises(SamplingError, match="log density is -inf at the start") as caught:
        target.check_start(target.initial_point)
    message = str(caught.value)
    assert "-3.0" in message
    assert next(line for line in message.splitlines() if "not finite" in line).startswith("wait")


def test_a_non_finite_gradient_names_the_component():
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0, shape=2, initval=[1.0, 0.0])
        pm.Potential("root", pt.sqrt(a).sum())
    target = compile_target(model, backend="interpreted")
    with pytest.raises(SamplingError, match=r"gradient is not finite for a\[1\] at the start"):
        target.check_start(target.initial_point)


def test_works_inside_another_models_context():
    with pm.Model(check_bounds=False):
        pm.Normal("other")
        target = compile_target(MODELS["linear_regression"](), backend="interpreted")
        assert np.isfinite(target.log_density(target.initial_point[np.newaxis])).all()
    assert pytensor.config.cxx is not None
