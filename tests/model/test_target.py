"""The compiled target: derivatives, layout, routes to the Hessian, and what bad input gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc import initial_point as initial
from pymc.exceptions import SamplingError
from pymc.logprob.abstract import _logprob
from pymc.variational.approximations import FullRank
from pymc.variational.opvi import ParametrizationError
from pytensor.tensor.random.op import RandomVariable

from pymc_ngvi._compat import PYMC_6, initial_point
from pymc_ngvi.model import compiler
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.evaluators import Batched, graphs
from pymc_ngvi.model.target import ModelTarget
from tests.models import MODELS

# PyTensor 2 gets the second derivative of a recurrent Scan wrong; the target must refuse it.
WRONG_HESSIAN = set() if PYMC_6 else {"scan_time_series"}


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


@pytest.mark.parametrize("name", MODELS)
def test_hessian_agrees_with_differences(interpreted, name):
    target = interpreted(name)
    assert (target.hessian_route == "none") == (name in WRONG_HESSIAN)
    if name in WRONG_HESSIAN:
        return
    x, first = generic_point(target), range(min(target.dim, 12))
    step, tolerance = (1e-2, 5e-3) if name == "float32" else (1e-5, 1e-6)
    expected = differences(lambda xs: target.evaluate(xs, "full").gradient, x, step, first)
    hessian = target.evaluate(x[np.newaxis], "full").hessian[0]
    np.testing.assert_allclose(hessian[first], expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-3 if name == "float32" else 1e-8)


@pytest.mark.parametrize("name", ["linear_regression", "coords_and_dims"])
def test_diagonal_is_that_of_the_hessian(interpreted, name):
    target = interpreted(name)
    draws = generic_point(target) + np.linspace(0, 0.1, 3)[:, np.newaxis]
    full, diagonal = target.evaluate(draws, "full"), target.evaluate(draws, "diagonal")
    np.testing.assert_array_equal(diagonal.hessian, np.diagonal(full.hessian, axis1=1, axis2=2))


def test_models_with_named_dims_have_hessians():
    with warnings.catch_warnings():  # PyTensor 2 says that they are experimental
        warnings.simplefilter("ignore")
        dims = pytest.importorskip("pymc.dims")
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        scale = dims.HalfNormal("scale", 2, dims="group")
        dims.Potential("together", -3 * (scale**2).sum() / 100**2)
    target = compile_target(model, backend="interpreted")
    assert target.hessian_route == "rows"
    x = np.array([[0.2, -0.4]])
    squares = np.exp(2 * x) * (1 / 8 + 3e-4)
    np.testing.assert_allclose(target.evaluate(x, "full").hessian[0], np.diag(-4 * squares[0]))


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
    slots = [(slot.name, slice(slot.start, slot.stop), slot.shape) for slot in target.layout]
    assert slots == expected


@pytest.mark.parametrize("name", MODELS)
def test_flatten_inverts_unflatten(interpreted, name):
    target = interpreted(name)
    np.testing.assert_allclose(
        target.layout.flatten(target.unflatten(target.initial_point)), target.initial_point
    )
    assert len(set(target.layout.names)) == target.dim


def test_labels_name_variable_and_coordinate(interpreted):
    target = interpreted("coords_and_dims")
    assert target.layout.label(1) == "beta[school=Harrow]"
    assert target.layout.label(4) == "scale_log__[school=Eton, term=2]"
    assert interpreted("linear_regression").layout.label(2) == "slopes[1]"
    assert interpreted("hierarchical").layout.label(1) == "tau_log__"
    assert interpreted("nested").layout.label(1) == "inner::scale_log__"
    # A simplex of three has two free components, which are not the first two parties.
    assert interpreted("dirichlet").layout.label(1) == "share_simplex__[1]"
    with pytest.raises(IndexError, match="component 9"):
        target.layout.label(9)


def test_flatten_names_what_is_wrong(interpreted):
    target = interpreted("linear_regression")
    point = target.unflatten(target.initial_point)
    with pytest.raises(KeyError, match=r"unknown variables \['slope'\] and lacks \['slopes'\]"):
        target.layout.flatten({**{k: v for k, v in point.items() if k != "slopes"}, "slope": 1.0})
    with pytest.raises(ValueError, match=r"slopes has shape \(3,\).*shape \(2,\)"):
        target.layout.flatten({**point, "slopes": np.zeros(2)})


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
    first = len(compiled)
    target.evaluate(draws + 1, "full")
    target.log_density(draws + 1)
    assert len(compiled) == first


def test_a_long_compilation_is_announced_once(monkeypatch):
    monkeypatch.setattr(compiler, "_MANY_OPERATIONS", 5)
    target = compile_target(MODELS["conjugate_normal"](), compile_kwargs={"mode": "FAST_COMPILE"})
    with pytest.warns(compiler.SlowCompilationWarning, match="interpreted"):
        target.evaluate(np.zeros((1, 1)), "full")
    with warnings.catch_warnings():
        warnings.simplefilter("error", compiler.SlowCompilationWarning)
        target.evaluate(np.zeros((1, 1)), "none")
        for backend in ("interpreted", "auto"):
            target = compile_target(MODELS["conjugate_normal"](), backend=backend)
            target.evaluate(np.zeros((1, 1)), "full")


def test_a_function_is_compiled_when_that_has_paid(monkeypatch, tmp_path):
    """It is interpreted at first; what compiling took is remembered for the next model."""
    memory = tmp_path / "seconds.json"
    monkeypatch.setattr(compiler.Compiler, "_memory", memory)
    target = compile_target(MODELS["conjugate_normal"]())
    draws = np.linspace(-1, 2, 5)[:, np.newaxis]
    before = target.evaluate(draws, "full")
    assert target.backend == "interpreted"
    assert not memory.exists()
    monkeypatch.setattr(compiler, "_SECONDS_PER_OPERATION", 0.0)
    target = compile_target(MODELS["conjugate_normal"]())
    for _ in range(3):
        after = target.evaluate(draws, "full")
    assert target.backend.startswith("interpreted, then")
    assert compiler._expected_seconds(memory) > 0
    np.testing.assert_allclose(after.hessian, before.hessian, rtol=1e-12)
    np.testing.assert_allclose(after.log_density, before.log_density, rtol=1e-12)


def test_a_large_graph_stays_interpreted(monkeypatch):
    monkeypatch.setattr(compiler, "_MANY_OPERATIONS", 5)
    monkeypatch.setattr(compiler, "_SECONDS_PER_OPERATION", 0.0)
    target = compile_target(MODELS["conjugate_normal"]())
    for _ in range(3):
        target.evaluate(np.zeros((1, 1)), "full")
    assert target.backend == "interpreted"


def test_a_backend_that_fails_is_not_asked_again():
    calls = []

    def refuse():
        calls.append(1)
        raise NotImplementedError("no such operation")

    function = compiler.Adaptive(lambda x: x + 1, refuse, expected=0.0)
    assert [function(1) for _ in range(4)] == [2] * 4
    assert len(calls) == 1


def test_the_initial_point_is_pymcs_without_the_c_compiler(monkeypatch):
    model = MODELS["lkj_cholesky_cov"]()
    expected = model.initial_point(0)
    compilers = []
    compile_function = initial.compile

    def record(*args, **kwargs):
        compilers.append(pytensor.config.cxx)
        return compile_function(*args, **kwargs)

    monkeypatch.setattr(initial, "compile", record)
    found = initial_point(model)
    assert compilers == [""]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


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


@pytest.mark.parametrize(("rows", "own_function"), [(10, False), (1_000_000, True)])
def test_densities_of_many_data_have_a_function_of_their_own(rows, own_function):
    """Derivatives that nobody asked for cost more, the more data there are."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=np.ones(rows))
    functions = compile_target(model, backend="interpreted")._functions
    evaluator = Batched(functions.graph, functions.compiler)
    evaluator.gradient(np.zeros((1, 1)))
    evaluator.density(np.zeros((10, 1)))
    assert (0 in evaluator._functions) == own_function


def test_draws_are_evaluated_in_as_many_calls_as_memory_asks_for(monkeypatch, interpreted):
    target = interpreted("linear_regression")
    draws = generic_point(target) + np.linspace(0, 0.1, 20)[:, np.newaxis]
    whole = target.evaluate(draws, "full")
    monkeypatch.setattr(graphs, "_NUMBERS_PER_CALL", 300)
    parts = target.evaluate(draws, "full")
    np.testing.assert_allclose(parts.hessian, whole.hessian, rtol=1e-12)
    np.testing.assert_allclose(parts.gradient, whole.gradient, rtol=1e-12)
    mean = target.average(draws, "full", sets=4)
    of_sets = whole.hessian.reshape(4, 5, target.dim, target.dim).mean(axis=1)
    np.testing.assert_allclose(mean.hessian, of_sets, rtol=1e-12)
    np.testing.assert_allclose(mean.log_density, whole.log_density, rtol=1e-12)
    (diagonal,) = target.average(draws, "diagonal").hessian
    np.testing.assert_allclose(diagonal, whole.hessian.mean(axis=0).diagonal(), rtol=1e-12)


def test_a_draw_out_of_bounds_spoils_no_other():
    """PyMC's checks of parameters see one draw each, though draws are evaluated together."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 1.0, 1.0)
        pm.Normal("y", 0.0, scale, observed=[0.3, 0.5])
    target = compile_target(model, backend="interpreted")
    density = target.log_density(np.array([[1.0], [-1.0], [2.0]]))
    assert density[1] == -np.inf
    assert np.isfinite(density[[0, 2]]).all()
    np.testing.assert_allclose(density[0], target.log_density(np.array([[1.0]]))[0])


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


# Bad input -----------------------------------------------------------------------------------


def test_discrete_variables_are_named():
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        z = pm.Bernoulli("z", 0.5)
        pm.Normal("y", k + z, 1.0, observed=1.0)
    with pytest.raises(ParametrizationError, match=r"VI: k, z\. They have.*marginalize") as ours:
        compile_target(model)
    with pytest.raises(ParametrizationError) as pymcs, model:
        pm.fit(1, method="advi", progressbar=False)
    assert str(ours.value).startswith(str(pymcs.value))


def test_variables_of_size_zero():
    with pm.Model() as model:
        pm.Normal("nothing", shape=0)
        pm.HalfNormal("none", shape=(2, 0))
    with pytest.raises(TypeError, match=r"nothing has shape \(0,\), none has shape \(2, 0\)"):
        compile_target(model)


def test_simulators_are_refused():
    def simulate(rng, mu, size=None):
        return rng.normal(mu, 1.0, size=size)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Simulator("flight", simulate, mu, epsilon=1.0, observed=np.ones(5))
    with pytest.raises(NotImplementedError, match=r"flight is a pm\.Simulator.*sample_smc"):
        compile_target(model)


def test_trees_are_refused():
    pmb = pytest.importorskip("pymc_bart", reason="pymc-bart is not installed")
    X = np.random.default_rng(1).normal(size=(20, 2))
    with pm.Model() as model:
        trees = pmb.BART("trees", X, X[:, 0], m=5)
        pm.Normal("y", trees, 1.0, observed=X[:, 0])
    with pytest.raises(NotImplementedError, match=r"density of trees .*BART.*PGBART"):
        compile_target(model)


def test_a_log_density_that_ignores_its_variable_is_refused():
    """Whatever its name, its prior would be lost; flat priors are flat on purpose."""

    class Forest(RandomVariable):
        name, signature, dtype = "forest", "()->()", "floatX"

        @classmethod
        def rng_fn(cls, rng, mu, size):
            return rng.normal(mu, size=size)

    @_logprob.register(Forest)
    def _(op, values, *inputs, **kwargs):
        return pt.zeros(3)

    with pm.Model() as model:
        model.register_rv(Forest()(0.0, size=3), name="forest")
        pm.Flat("flat")
        pm.CustomDist("custom", logp=lambda value: pt.zeros(()), initval=0.0)
    with pytest.raises(
        NotImplementedError, match=r"density of forest .* does not depend on forest"
    ):
        compile_target(model)
    with pm.Model() as model:
        pm.Flat("flat")
        pm.HalfFlat("half_flat")
        pm.Uniform("uniform", default_transform=None)
        pm.CustomDist("custom", logp=lambda value: pt.zeros(()), initval=0.0)
    assert compile_target(model, backend="interpreted").dim == 4


def test_no_free_variables():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    with pytest.raises(TypeError, match="no free variables"):
        compile_target(model)


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


def test_works_inside_another_models_context(interpreted):
    """The context's model has no part in it: neither its variables nor its missing bounds."""
    expected = interpreted("scalar_parameter")
    draws = expected.initial_point[np.newaxis] + 0.5
    with pm.Model(check_bounds=False):
        pm.Normal("other")
        target = compile_target(MODELS["scalar_parameter"](), backend="interpreted")
        got = target.log_density(draws)
    assert target.dim == expected.dim
    np.testing.assert_array_equal(got, expected.log_density(draws))


@pytest.mark.parametrize("written", ["logarithms", "log1p", "pymc"])
def test_derivatives_are_finite_where_a_probability_rounds_to_one(written):
    """One row far out, as data in other units have: the fit ended with an error."""
    x, y = np.array([0.5, -1.0, 60.0]), np.array([3, 2, 10])
    with pm.Model() as model:
        predictor = pm.Normal("slope") * x
        if written == "pymc":
            pm.Binomial("y", 10, logit_p=predictor, observed=y)
        else:
            p = pm.math.sigmoid(predictor)
            failure = pt.log1p(-p) if written == "log1p" else pt.log(1 - p)
            pm.Potential("y", y * pt.log(p) + (10 - y) * failure)
    target = compile_target(model, backend="interpreted")
    slope = 0.8
    found = target.evaluate(np.array([[slope]]), "full")
    p = 1 / (1 + np.exp(-slope * x))
    np.testing.assert_allclose(found.gradient[0], [x @ (y - 10 * p) - slope], rtol=1e-9)
    np.testing.assert_allclose(found.hessian[0], [[-(x**2) @ (10 * p * (1 - p)) - 1]], rtol=1e-9)


def test_a_derivative_that_is_finite_once_simplified():
    """As it stands it is infinity by infinity where the model starts."""
    with pm.Model() as model:
        x = pm.Normal("x", initval=1.0)
        pm.Potential("steep", -pt.log(pt.exp(800 * x) + pt.exp(-800 * x)))
    target = compile_target(model, backend="interpreted")
    target.check_start(target.initial_point)
    draws = np.array([[1.0], [2.0]])
    found = target.evaluate(draws, "full")
    np.testing.assert_allclose(found.gradient, -draws - 800)
    np.testing.assert_allclose(found.hessian[:, 0, 0], -1.0)


def test_a_derivative_that_is_infinite_is_told():
    with pm.Model() as model:
        x = pm.Normal("x", initval=0.0)
        pm.Potential("root", -pt.sqrt(pt.abs(x)))
    target = compile_target(model, backend="interpreted")
    with pytest.raises(SamplingError, match="gradient is not finite for x"):
        target.check_start(target.initial_point)
