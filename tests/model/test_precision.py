"""Whole numbers and single-precision constants in a model lose nothing."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special, stats

from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.densities import Densities
from pymc_ngvi.model.minibatches import find_data
from pymc_ngvi.model.precision import in_double_precision
from pymc_ngvi.model.terms import Terms
from tests.models import MODELS

VALUES = np.array([0.3, 0.8, 1.7])
COUNTS = np.array([0, 3, 7], dtype="int8")

# In the first five, products of the arguments are above 127, the largest int8.
DISTRIBUTIONS = {
    "half_student": (pm.HalfStudentT, {"nu": 3, "sigma": 10}, stats.t(3, 0, 10), np.log(2)),
    "triangular": (
        pm.Triangular,
        {"lower": -100, "c": 0, "upper": 100},
        stats.triang(0.5, -100, 200),
        0.0,
    ),
    "ex_gaussian": (
        pm.ExGaussian,
        {"mu": 0, "sigma": 20, "nu": 10},
        stats.exponnorm(0.5, 0, 20),
        0.0,
    ),
    "uniform": (pm.Uniform, {"lower": -100, "upper": 100}, stats.uniform(-100, 200), 0.0),
    "half_student_wide": (
        pm.HalfStudentT,
        {"nu": 100, "sigma": 100},
        stats.t(100, 0, 100),
        np.log(2),
    ),
    "student": (pm.StudentT, {"nu": 3, "mu": 8, "sigma": 10}, stats.t(3, 8, 10), 0.0),
    "student_floats": (pm.StudentT, {"nu": 3.0, "mu": 8.0, "sigma": 10.0}, stats.t(3, 8, 10), 0.0),
    "normal": (pm.Normal, {"mu": 100, "sigma": 30}, stats.norm(100, 30), 0.0),
    "half_cauchy": (pm.HalfCauchy, {"beta": 20}, stats.halfcauchy(0, 20), 0.0),
    "beta_binomial": (
        pm.BetaBinomial,
        {"n": 100, "alpha": 2, "beta": 60},
        stats.betabinom(100, 2, 60),
        0.0,
    ),
    "binomial": (pm.Binomial, {"n": 100, "p": 0.5}, stats.binom(100, 0.5), 0.0),
    "poisson": (pm.Poisson, {"mu": 20}, stats.poisson(20), 0.0),
}


def terms_of(model: pm.Model) -> Terms:
    return Terms(find_data(model, None))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_log_densities_are_scipys(name):
    distribution, arguments, reference, constant = DISTRIBUTIONS[name]
    with pm.Model() as model:
        if hasattr(reference, "pmf"):
            distribution("y", **arguments, observed=COUNTS)
            expected = reference.logpmf(COUNTS)
        else:
            distribution("y", **arguments, observed=VALUES)
            expected = reference.logpdf(VALUES) + constant
    (term,) = terms_of(model)
    logp = pytensor.function([], term.logp, mode="FAST_COMPILE")()
    np.testing.assert_allclose(logp, expected, rtol=1e-12)


def scale(kind: type) -> pm.Model:
    """The prior of brms for a standard deviation, as in the diamonds of posteriordb."""
    with pm.Model() as model:
        pm.HalfStudentT("sigma", nu=kind(3), sigma=kind(10))
    return model


def test_whole_numbers_give_what_floats_give():
    draws = np.array([[-2.0], [1.5]])
    whole, floats = (compile_target(scale(kind), backend="interpreted") for kind in (int, float))
    ours, expected = whole.evaluate(draws, "full"), floats.evaluate(draws, "full")
    np.testing.assert_allclose(ours.log_density, expected.log_density, rtol=1e-14)
    np.testing.assert_allclose(ours.gradient, expected.gradient, rtol=1e-12)
    np.testing.assert_allclose(ours.hessian, expected.hessian, rtol=1e-12)
    densities = Densities(terms_of(whole.model), ["sigma_log__"])
    total = densities.total({"sigma_log__": draws[:, 0]})
    np.testing.assert_allclose(total, ours.log_density, rtol=1e-14)


def test_small_integers_in_data_containers():
    """As predictors, counts and indices; new values are seen."""
    with pm.Model() as model:
        group = pytensor.shared(np.array([0, 1, 1], dtype="int8"))
        count = pytensor.shared(np.array([100, 90, 3], dtype="int8"))
        effect = pm.Normal("effect", 0.0, 1.0, shape=2)
        pm.Potential("fit", -pt.gammaln(count * count / 2 + 1) + effect[group] * count)
    (_, term) = terms_of(model)
    function = pytensor.function(model.value_vars, term.logp, mode="FAST_COMPILE")
    effects = np.array([0.5, -0.2])
    for groups, counts in [([0, 1, 1], [100, 90, 3]), ([1, 0, 1], [1, 2, 120])]:
        group.set_value(np.array(groups, dtype="int8"))
        count.set_value(np.array(counts, dtype="int8"))
        numbers = np.array(counts, dtype=float)
        expected = -special.gammaln(numbers**2 / 2 + 1) + effects[groups] * numbers
        np.testing.assert_allclose(function(effects), expected, rtol=1e-12)


def test_integers_stay_integers_and_casts_round():
    x = pt.vector("x", dtype="float64")
    three, tenth = pt.constant(3), pt.constant(0.1, dtype="float64")
    outputs = [x[three], three // 2, pt.arange(three), (x * tenth).astype("float32") * three]
    widened = in_double_precision(outputs)
    assert [new.dtype for new in widened[:3]] == [old.dtype for old in outputs[:3]]
    values = pytensor.function([x], widened, mode="FAST_COMPILE")(np.arange(5.0))
    rounded = (np.arange(5) * 0.1).astype("float32").astype("float64")
    for value, expected in zip(values, [3.0, 1, [0, 1, 2], rounded * 3], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_graph_in_double_precision_is_not_copied():
    x = pt.vector("x", dtype="float64")
    output = (x * pt.constant(0.1)).sum()
    assert in_double_precision([output]) == [output]


def test_single_precision_is_kept_where_the_parameters_have_it():
    with pytensor.config.change_flags(floatX="float32"):
        assert {term.logp.dtype for term in terms_of(MODELS["float32"]())} == {"float32"}
