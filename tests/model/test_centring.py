"""Recentred models: the same variables and the same density, on other unconstrained values."""

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_ngvi._compat import initial_point
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.model.centring import (
    candidates,
    describe_degrees,
    propose_degrees,
    recentred,
    recentred_draws,
)
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.draws import DrawTransform

LOCATION_SCALE = {
    "normal": lambda m, s: pm.Normal("theta", m, s, shape=3),
    "student": lambda m, s: pm.StudentT("theta", nu=4, mu=m, sigma=s, shape=3),
    "laplace": lambda m, s: pm.Laplace("theta", m, s, shape=3),
    "cauchy": lambda m, s: pm.Cauchy("theta", m, s, shape=3),
    "gumbel": lambda m, s: pm.Gumbel("theta", m, s, shape=3),
    "logistic": lambda m, s: pm.Logistic("theta", m, s, shape=3),
    "lognormal": lambda m, s: pm.LogNormal("theta", m, s, shape=3),
    "exponential": lambda m, s: pm.Exponential("theta", scale=s, shape=3),
    "half_normal": lambda m, s: pm.HalfNormal("theta", s, shape=3),
    "half_student": lambda m, s: pm.HalfStudentT("theta", nu=4, sigma=s, shape=3),
    "half_cauchy": lambda m, s: pm.HalfCauchy("theta", s, shape=3),
}
POSITIVE = {"lognormal", "exponential", "half_normal", "half_student", "half_cauchy"}
CORRELATION = np.array([[1.0, 0.3, -0.2], [0.3, 2.0, 0.5], [-0.2, 0.5, 1.5]])
START = pm.Normal.dist(0.0, 2.0)
#: Variables whose components belong together, with what a map of degree 0 multiplies volumes by,
#: relative to a power of s.
TOGETHER = {
    "covariance": (lambda m, s: pm.MvNormal("theta", m, cov=s**2 * CORRELATION, shape=3), 3),
    "factor": (
        lambda m, s: pm.MvNormal("theta", m, chol=s * np.linalg.cholesky(CORRELATION), shape=3),
        3,
    ),
    "vectors": (
        lambda m, s: pm.MvNormal("theta", m * np.ones(2), cov=s**2 * np.eye(2), shape=(3, 2)),
        6,
    ),
    "walk": (lambda m, s: pm.GaussianRandomWalk("theta", m, s, init_dist=START, steps=2), 2),
    "walks": (
        lambda m, s: pm.GaussianRandomWalk("theta", m, s, init_dist=START, shape=(2, 3)),
        4,
    ),
    "student_walk": (
        lambda m, s: pm.RandomWalk(
            "theta",
            innovation_dist=pm.StudentT.dist(nu=4, mu=m, sigma=s),
            init_dist=START,
            steps=2,
        ),
        2,
    ),
    "autoregression": (
        lambda m, s: pm.AR("theta", rho=[0.5], sigma=s, init_dist=START, shape=3),
        3,
    ),
}
DEGREES = np.array([0.0, 0.3, 1.0])


def hierarchy(kind="normal"):
    with pm.Model() as model:
        m = pm.Normal("m", 0.0, 1.0)
        s = pm.HalfNormal("s", 1.0)
        theta = LOCATION_SCALE[kind](m, s)
        pm.Deterministic("twice", 2 * theta)
        pm.Normal("y", theta, 1.0, observed=[0.5, -1.0, 2.0])
    return model


def layout_of(model):
    return Layout(model, initial_point(model))


def draws_of(layout, n=5):
    return 0.5 * np.random.default_rng(1).standard_normal((n, layout.dim))


@pytest.mark.parametrize("kind", LOCATION_SCALE)
def test_values_and_densities_are_those_of_the_model(kind):
    model = hierarchy(kind)
    other = recentred(model, {"theta": DEGREES})
    layout, rng = layout_of(model), np.random.default_rng(0)
    draws = draws_of(layout)
    moved = recentred_draws(model, layout, {"theta": DEGREES}, draws)
    before, after = DrawTransform(model, layout), DrawTransform(other, layout_of(other))
    values, same = before(draws, rng), after(moved, rng)
    for name in ("m", "s", "theta", "twice"):
        np.testing.assert_allclose(same[name], values[name])
    # By the change of variables: theta, or its logarithm, is m + s^k (y - (1 - k) m).
    location_only = kind in POSITIVE - {"lognormal"}
    scale = 0.0 if location_only else np.log(values["s"]) * (1 - DEGREES).sum()
    expected = before.log_density(draws) + scale
    np.testing.assert_allclose(after.log_density(moved), expected)


@pytest.mark.parametrize("kind", LOCATION_SCALE)
def test_the_non_centred_value_has_a_prior_of_its_own(kind):
    other = recentred(hierarchy(kind), {"theta": 0.0})
    theta = other["theta"]
    prior = other.logp(vars=[theta], sum=True)
    parents = [other.rvs_to_values[other[name]] for name in ("m", "s")]
    gradients = pytensor.grad(prior, parents, disconnected_inputs="ignore")
    values = [other.rvs_to_values[v] for v in other.free_RVs]
    function = pytensor.function(values, gradients, on_unused_input="ignore")
    np.testing.assert_allclose(function(0.3, -0.4, np.array([0.1, 1.0, -0.7])), 0, atol=1e-12)


def together(kind):
    with pm.Model() as model:
        m = pm.Normal("m", 0.0, 1.0)
        s = pm.HalfNormal("s", 1.0)
        theta = TOGETHER[kind][0](m, s)
        pm.Deterministic("twice", 2 * theta)
        pm.Normal("y", theta, 1.0, observed=np.full(tuple(theta.shape.eval()), 0.5))
    return model


@pytest.mark.parametrize("degree", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("kind", TOGETHER)
def test_components_that_belong_together(kind, degree):
    """The density of the values is that of the variables times the change of volume."""
    model = together(kind)
    other = recentred(model, {"theta": degree})
    layout, rng = layout_of(model), np.random.default_rng(0)
    draws = draws_of(layout)
    moved = recentred_draws(model, layout, {"theta": degree}, draws)
    before, after = DrawTransform(model, layout), DrawTransform(other, layout_of(other))
    values, same = before(draws, rng), after(moved, rng)
    for name in ("m", "s", "theta", "twice"):
        np.testing.assert_allclose(same[name], values[name], rtol=1e-10, atol=1e-12)
    # The map is linear in theta: its determinant is that of differences along the axes.
    volumes = _log_volumes(model, layout, degree, draws)
    expected = before.log_density(draws) - volumes
    np.testing.assert_allclose(after.log_density(moved), expected, rtol=1e-10)
    if degree == 0:
        change = np.diff(volumes + TOGETHER[kind][1] * np.log(values["s"]))
        np.testing.assert_allclose(change, 0, atol=1e-8)
    if degree == 1:
        np.testing.assert_allclose(moved, draws)


def _log_volumes(model, layout, degree, draws):
    """Logarithms of the determinants of the map from the variable's values to recentred ones."""
    (slot,) = (slot for slot in layout if slot.variable == "theta")
    moves = np.vstack([np.zeros(layout.dim), np.eye(layout.dim)[slot.start : slot.stop]])
    # All at once: the graph of the map is built for each call.
    points = (draws[:, np.newaxis] + moves).reshape(-1, layout.dim)
    moved = recentred_draws(model, layout, {"theta": degree}, points)[:, slot.where]
    moved = moved.reshape(len(draws), len(moves), -1)
    return np.linalg.slogdet(moved[:, 1:] - moved[:, :1])[1]


@pytest.mark.parametrize("kind", [kind for kind in TOGETHER if kind != "autoregression"])
def test_what_belongs_together_has_a_prior_of_its_own(kind):
    """The non-centred values do not depend on location and scale, given the start of a walk."""
    model = together(kind)
    other = recentred(model, {"theta": 0.0})
    prior = other.logp(vars=[other["theta"]], sum=True)
    parents = [other.rvs_to_values[other[name]] for name in ("m", "s")]
    gradients = pytensor.grad(prior, parents, disconnected_inputs="ignore")
    values = [other.rvs_to_values[v] for v in other.free_RVs]
    function = pytensor.function(values, gradients, on_unused_input="ignore")
    size = tuple(model["theta"].shape.eval())
    point = np.random.default_rng(2).standard_normal(size)
    np.testing.assert_allclose(function(0.3, -0.4, point), 0, atol=1e-10)


def test_walks_have_one_degree_and_steps_of_one_kind():
    model = together("walk")
    with pytest.raises(ValueError, match="one for each random walk"):
        recentred(model, {"theta": [0.0, 0.5, 1.0]})
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0, shape=3)
        pm.GaussianRandomWalk("uneven", 0.0, s, init_dist=START, steps=3)
        pm.AR("constant", [0.1, 0.5], sigma=s[0], constant=True, init_dist=START, shape=3)
        pm.MvNormal("by_precision", np.zeros(2), tau=np.eye(2) / s[0], shape=(4, 2))
    assert candidates(model, factorised=True) == []
    assert candidates(together("walk"), factorised=False) == ["theta"]


def test_nothing_depends_on_the_origin():
    model = hierarchy()
    layout, degree = layout_of(model), {"theta": DEGREES}
    draws = draws_of(layout)
    shift = np.array([7.0, 0.0, 7.0, 7.0, 7.0])  # of the location and all that is around it
    moved = recentred_draws(model, layout, degree, draws + shift)
    expected = recentred_draws(model, layout, degree, draws) + shift * [1, 1, *DEGREES]
    np.testing.assert_allclose(moved, expected)


def test_the_given_model_is_not_touched():
    model = hierarchy()
    before = dict(model.rvs_to_values), dict(model.rvs_to_transforms), model.initial_point()
    other = recentred(model, {"theta": 0.5})
    assert (dict(model.rvs_to_values), dict(model.rvs_to_transforms)) == before[:2]
    assert model.initial_point().keys() == before[2].keys()
    assert other["theta"] is model["theta"]
    assert [v.name for v in other.value_vars] == ["m", "s_log__", "theta_centring__"]
    assert recentred(model, {}) is model
    with model:
        pm.Deterministic("later", model["theta"].sum())
    assert other["later"] is model["later"]


def test_initial_values_and_data_are_those_of_the_model():
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        x = pm.Data("x", np.ones(2), dims="group")
        s = pm.HalfNormal("s", 1.0, initval=2.0)
        theta = pm.Normal("theta", 0.0, s, dims="group", initval=[1.0, 4.0])
        pm.Normal("y", theta * x, 1.0, observed=np.zeros(2), dims="group")
    other = recentred(model, {"theta": 0.0})
    np.testing.assert_allclose(initial_point(other)["theta_centring__"], [0.5, 2.0])
    assert layout_of(other).names[1:] == ("theta_centring__[group=a]", "theta_centring__[group=b]")
    transform = DrawTransform(other, layout_of(other))
    first = transform.log_density(np.ones((1, 3)))
    pm.set_data({"x": np.full(2, 3.0)}, model=model)
    assert transform.log_density(np.ones((1, 3))) < first


def test_candidates_have_scales_that_depend_on_others():
    with pm.Model() as model:
        m, s = pm.Normal("m"), pm.HalfNormal("s")
        pm.Normal("both", m, s)
        pm.Normal("shifted", m, 1.0)
        pm.Normal("apart", 0.0, 1.0)
        pm.HalfNormal("positive", s)
        ordered = pm.distributions.transforms.ordered
        pm.Normal("cuts", 0.0, s, shape=2, transform=ordered, initval=[0.0, 1.0])
        pm.ZeroSumNormal("effects", s, shape=3)
    assert candidates(model, factorised=False) == ["both"]
    assert candidates(model, factorised=True) == ["both", "shifted", "positive"]


@pytest.mark.parametrize(("share", "expected"), [(0.95, 0.0), (0.4, 0.6), (0.05, None)])
def test_what_the_data_say_little_about_is_non_centred(share, expected):
    model = hierarchy()
    precision = np.diag([1.0, 1e12, *np.full(3, 1 / share)])  # the scale is 1, almost surely
    q = FullGaussian.from_mean_covariance(np.zeros(5), np.linalg.inv(precision))
    degrees = propose_degrees(model, layout_of(model), ["theta"], q)
    if expected is None:
        assert degrees == {}
    else:
        np.testing.assert_allclose(degrees["theta"], np.full(3, expected), atol=1e-4)


def test_degrees_are_told():
    degrees = {"a": np.zeros(3), "b": np.full(2, 0.5), "c": np.array([0.0, 0.25])}
    told = "a: non-centred, b: centred to 0.50, c: centred to 0.00 to 0.25"
    assert describe_degrees(degrees) == told


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"thta": 0.0}, "did you mean 'theta'"),
        ({"s": 2.0}, "from 0"),
        ({"theta": "none"}, "from 0"),
        ({"theta": [[0.0, 1.0, 1.0]]}, "from 0"),
    ],
)
def test_wrong_degrees_are_refused(degrees, message):
    with pytest.raises(ValueError, match=message):
        recentred(hierarchy(), degrees)


def test_variables_without_location_and_scale_are_refused():
    with pm.Model() as model:
        pm.Beta("p", 1, 1)
    with pytest.raises(ValueError, match="no location and scale"):
        recentred(model, {"p": 0.0})
