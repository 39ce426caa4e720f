"""Routes to the Hessian: the fastest that works is taken, and a wrong one is refused."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node

from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model import functions, hessian
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.graph import operations_in_loops
from pymc_ngvi.model.hessian import HessianFallbackWarning, HessianUnavailableError
from pymc_ngvi.model.layout import Layout
from tests.models import MODELS


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


def test_the_fastest_route_is_silent(interpreted):
    assert interpreted("linear_regression").hessian_route == "rows"
    assert interpreted("lkj_cholesky_cov").hessian_route != "looped"


def test_one_draw_at_a_time_where_an_op_does_not_vectorise():
    target = compile_target(cubic(), backend="interpreted")
    x = np.array([0.5, -1.0, 2.0])
    with pytest.warns(HessianFallbackWarning, match="CubeCurvature does not vectorise") as caught:
        evaluation = target.evaluate(x[np.newaxis], "full")
    assert target.hessian_route == "looped"
    assert len(caught) == 1
    np.testing.assert_allclose(evaluation.hessian[0], np.diag(0.6 * x - 1), atol=1e-12)
    assert "CubeCurvature does not vectorise" in target.backend


def test_products_see_one_minibatch():
    target = compile_target(cubic(minibatch=True), backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match="does not vectorise") as caught:
        evaluation = target.evaluate(np.array([[0.5, -1.0, 2.0]]), "full")
    assert target.hessian_route == "looped"
    assert len(caught) == 1
    np.testing.assert_allclose(np.diagonal(evaluation.hessian[0]), [-50.7, -1.6, 0.2])


def test_gradients_only_where_there_is_no_second_derivative():
    target = compile_target(cubic(order=1), backend="interpreted")
    x = np.array([[0.5, -1.0, 2.0]])
    with pytest.warns(HessianFallbackWarning, match="gradients only") as caught:
        assert target.hessian_route == "none"
    assert len(caught) == 2
    with pytest.raises(HessianUnavailableError, match='curvature="none"'):
        target.evaluate(x, "full")
    np.testing.assert_allclose(target.evaluate(x, "none").gradient, 0.3 * x**2 - x)
    target.check_start(target.initial_point)


def test_a_hessian_that_contradicts_the_gradient_is_not_used():
    target = compile_target(cubic(wrong=1.5), backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match=r"contradicts the gradient, for a\[0\]"):
        assert target.hessian_route == "none"


def test_an_op_without_gradient_is_named():
    with pytest.raises(NotImplementedError, match="Cube"):
        compile_target(cubic(order=0))


def test_a_hessian_is_verified_where_the_density_is_finite(monkeypatch):
    """At an initial point of no density there is nothing to compare it with."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, initval=50.0)
        pm.Potential("wall", pt.sqrt(10 - x))
    target = compile_target(model, backend="interpreted")
    assert target.hessian_route == "rows"
    calls = []
    verify = functions.verify

    def refuse_the_first(*args):
        calls.append(args)
        if len(calls) <= 2:  # by rows, and of many draws
            raise ArithmeticError("it contradicts the gradient")
        return verify(*args)

    monkeypatch.setattr(functions, "verify", refuse_the_first)
    with pytest.warns(HessianFallbackWarning, match="contradicts the gradient"):
        target.check_start(np.zeros(1))
    assert target.hessian_route == "looped"
    curvature = -1 - 10**-1.5 / 4
    np.testing.assert_allclose(target.evaluate(np.zeros((1, 1)), "full").hessian, curvature)


# Verification, in any units -------------------------------------------------------------------

SCALES = [1e-30, 1e-12, 1.0, 1e12, 1e30]


class Analytic:
    """-u'Ru/2 + sum(u**3)/10 - exp(-u[0]) with u = x / scale, and a Hessian times `factor`."""

    layout = Layout(
        MODELS["linear_regression"](), {"intercept": 0.0, "slopes": np.zeros(3), "sigma_log__": 0.0}
    )
    coupling = np.eye(5) + 0.3

    def __init__(self, scale: float, factor: float = 1.0) -> None:
        # One component is always of order 1.
        self.scale = np.array([scale, scale, 1.0, 1.0, 1 / scale])
        self.factor = factor

    def gradient(self, points):
        u = points / self.scale
        rows = -u @ self.coupling + 0.3 * u**2
        with np.errstate(over="ignore"):
            rows[:, 0] += np.exp(-u[:, 0])
        return rows / self.scale

    def hessian(self, point):
        u = point / self.scale
        curvature = -self.coupling + np.diag(0.6 * u)
        curvature[0, 0] -= np.exp(-u[0])
        return curvature / np.outer(self.scale, self.scale)

    def __call__(self, points, curvature):
        hessians = np.array([self.factor * self.hessian(point) for point in points])
        return Evaluation(np.zeros(len(points)), self.gradient(points), hessians)


@pytest.mark.parametrize("start", [0.0, 3.0, -30.0])
@pytest.mark.parametrize("scale", SCALES)
def test_units_do_not_matter_to_verification(scale, start):
    target = Analytic(scale)
    assert hessian.verify(target, start * target.scale, target.layout)
    for factor in (0.95, 1.05, -1.0, 0.0):
        with pytest.raises(ArithmeticError, match="contradicts the gradient"):
            hessian.verify(Analytic(scale, factor), start * target.scale, target.layout)


@pytest.mark.parametrize("start", [0.0, 3.0])
@pytest.mark.parametrize("scale", SCALES[1:-1])
def test_units_do_not_matter_to_differences(scale, start):
    target = Analytic(scale)
    x = start * target.scale
    units = np.outer(target.scale, target.scale)
    differences = hessian.difference_hessian(target.gradient, x) * units
    np.testing.assert_allclose(differences, target.hessian(x) * units, rtol=1e-4, atol=1e-5)


def test_verification_of_what_is_not_finite():
    target = Analytic(1.0, factor=np.nan)
    assert not hessian.verify(target, np.zeros(5), target.layout)


def test_large_loops_have_gradients_only(monkeypatch):
    """The Hessian of a Kalman filter is not built in minutes, and none is tried."""
    model = MODELS["scan_time_series"]()
    graph = compile_target(model, backend="interpreted")._functions.graph
    looped = operations_in_loops(graph.gradient)
    assert 0 < looped < hessian._MOST_OPERATIONS_IN_LOOPS
    monkeypatch.setattr(hessian, "_MOST_OPERATIONS_IN_LOOPS", looped - 1)
    target = compile_target(model, backend="interpreted")
    with pytest.warns(HessianFallbackWarning, match="loops of .* falling back on gradients only"):
        assert target.hessian_route == "none"


def test_warnings_name_the_line_that_called():
    with pytest.warns(HessianFallbackWarning) as caught:
        compile_target(cubic(), backend="interpreted").check_start(np.zeros(3))
    assert {warning.filename for warning in caught} == {__file__}
