"""Operations with kinks are found where they switch sides, and named with their variables."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

from pymc_ngvi.model.compilation import compile_target
from tests.models import MODELS

DRAWS = np.random.default_rng(1).normal(size=(32, 1))


def kinks(build, draws=DRAWS):
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("term", build(x))
    target = compile_target(model, backend="interpreted", curvature="none")
    return target.kinks(draws) if target.may_have_kinks else None


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda x: -pt.abs(x), "abs"),
        (lambda x: pt.minimum(x, 0.0), "minimum"),
        (lambda x: -pt.maximum(0.0, 1 - x), "maximum"),
        (lambda x: pt.clip(x, -9.0, 0.1), "clip"),
        (lambda x: pt.clip(x, 0.1, 9.0), "clip"),
        (lambda x: pt.floor(x), "floor"),
        (lambda x: pt.round(x), "round"),
        (lambda x: pt.sign(x), "sign"),
        (lambda x: x % 1.0, "mod"),
        (lambda x: pt.switch(x > 0, x, 2 * x), "comparison"),
        (lambda x: pt.constant([0.0, 1.0])[(x > 0).astype("int64")], "comparison"),
        (lambda x: pt.max(pt.stack([x, -x])), "max"),
        (lambda x: pt.sort(pt.stack([x, -x]))[0], "sort"),
    ],
)
def test_what_switches_sides_is_named_with_its_variable(build, name):
    (found,) = {kink for kink in kinks(build) if name in kink}
    assert found.endswith(" in term")


@pytest.mark.parametrize(
    "build",
    [lambda x: pt.abs(x + 100), lambda x: pt.maximum(x, -50), lambda x: pt.clip(x, -9, 9)],
    ids=["abs", "maximum", "clip"],
)
def test_what_stays_on_one_side_is_not(build):
    assert kinks(build) == []


def test_rounding_is_no_switch():
    """The squared distance of a point to itself is zero but for rounding, and PyMC clips it."""
    points = np.random.default_rng(2).uniform(0, 10, (50, 3))
    assert kinks(lambda x: pm.gp.cov.Matern52(3, ls=pt.exp(x))(points).sum()) == []


def test_a_comparison_of_data_is_none():
    data = pt.as_tensor(np.array([1.0, -2.0]))
    assert kinks(lambda x: pt.switch(data > 0, x, -(x**2)).sum()) is None


def test_a_kink_inside_a_loop_is_seen():
    def loop(x):
        steps = pytensor.scan(
            lambda s: pt.abs(s + 0.1), outputs_info=[x], n_steps=3, return_updates=False
        )
        return -steps[-1]

    assert any("abs" in kink for kink in kinks(loop))


@pytest.mark.parametrize("name", ["hierarchical", "coords_and_dims", "linear_regression"])
def test_bounds_of_scales_never_switch(name):
    target = compile_target(MODELS[name](), backend="interpreted", curvature="none")
    draws = np.random.default_rng(2).normal(size=(16, target.dim))
    assert list(target.kinks(draws)) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda x: pt.log(pt.special.softmax(pt.stack([x, -x]))[0]),
        lambda x: pt.special.log_softmax(pt.stack([x, -x]))[0],
        lambda x: pm.math.logsumexp(pt.stack([x, -x])).sum(),
    ],
    ids=["softmax", "log softmax", "log sum of exponentials"],
)
def test_a_maximum_that_cancels_is_none(build):
    assert not kinks(build)


def test_what_is_only_compared_counts_by_the_comparison():
    # As where PyMC asks whether probabilities add up to one: the distance itself changes nothing.
    assert kinks(lambda x: pt.switch(pt.abs(x - 0.1) < 100, -(x**2), -np.inf)) == []
    found = kinks(lambda x: pt.switch(pt.abs(x) < 1, -(x**2), -2 * x**2))
    assert found == ["comparison in term"]


@pytest.mark.parametrize("kind", ["ordered", "categorical"])
def test_checks_of_probabilities_are_none(kind):
    with pm.Model() as model:
        effect = pm.Normal("effect", shape=(6, 2))
        if kind == "ordered":
            cutpoints = np.array([-1.0, 0.5])
            pm.OrderedLogistic("y", effect[:, 0], cutpoints, observed=[0, 1, 2, 0, 1, 2])
        else:
            logit = pt.concatenate([pt.zeros((6, 1)), effect], axis=1)
            pm.Categorical("y", logit_p=logit, observed=[0, 1, 2, 0, 1, 2])
    target = compile_target(model, backend="interpreted", curvature="none")
    assert not target.kinks(np.random.default_rng(2).normal(size=(16, target.dim)))


def test_what_a_check_computes_is_none():
    """That probabilities add up to one is asked by an absolute value which rounding switches."""
    rng = np.random.default_rng(5)
    with pm.Model() as model:
        cutpoints = pm.Normal("cutpoints", 0.0, 1.0, shape=2, transform=ordered, initval=[-1, 1])
        slope = pm.Normal("slope")
        rating = rng.integers(3, size=50)
        pm.OrderedLogistic("rating", slope * rng.normal(size=50), cutpoints, observed=rating)
    target = compile_target(model, backend="interpreted", curvature="none")
    assert list(target.kinks(rng.normal(size=(16, target.dim)))) == []


def test_a_check_that_fails_at_some_draws_is_one():
    assert kinks(lambda x: pm.logp(pm.Normal.dist(0.0, x), 1.0)) == ["comparison in term"]
