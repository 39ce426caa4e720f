"""The result of a fit: PyMC's approximation outside, a Gaussian in double precision inside."""

import functools
from collections.abc import Callable

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
import scipy.stats
from pymc.variational.callbacks import CheckParametersConvergence, Tracker
from pymc.variational.inference import KLqp
from pymc.variational.opvi import Approximation
from pymc.variational.updates import adam
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.arguments import as_generator
from pymc_ngvi.core.families import CentredDiagonalGaussian, DiagonalGaussian, FullGaussian
from pymc_ngvi.model import vectorised
from pymc_ngvi.results.approximation import (
    NGVIFullRank,
    NGVIMeanField,
    create_approximation,
    load,
)
from pymc_ngvi.results.groups import covariance_factor

MODELS: dict[str, Callable[[], pm.Model]] = {}


def model_case(build: Callable[[], None]) -> Callable[[], pm.Model]:
    def make() -> pm.Model:
        with pm.Model(coords={"row": list("abcd"), "column": [10, 20, 30]}) as model:
            build()
        return model

    MODELS[build.__name__] = make
    return make


@model_case
def regression():
    X = pm.Data("X", np.arange(12.0).reshape(4, 3) / 10, dims=("row", "column"))
    intercept = pm.Normal("intercept")
    slope = pm.Normal("slope", dims="column")
    noise = pm.HalfNormal("noise")
    mean = pm.Deterministic("mean", intercept + X @ slope, dims="row")
    pm.Deterministic("doubled_data", 2 * X)
    pm.Normal("y", mean, noise, observed=np.ones(4), dims="row")


@model_case
def one_scalar():
    pm.Beta("p", 2, 2)


@model_case
def simplices():
    weights = pm.Dirichlet("weights", np.ones(4))
    pm.Dirichlet("several", np.ones((2, 3)))
    pm.Deterministic("largest", pt.argmax(weights))
    pm.Deterministic("sorted", pt.sort(weights))


@model_case
def covariances():
    chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1, shape=3))
    pm.Deterministic("covariance", chol @ chol.T)


@model_case
def restricted():
    pm.Normal("ordered", np.arange(3), transform=pm.distributions.transforms.ordered)
    pm.ZeroSumNormal("zero_sum", n_zerosum_axes=2, shape=(3, 4))


@model_case
def moving_bounds():
    lower = pm.Normal("lower")
    pm.Uniform("inside", lower, lower + 2)
    pm.TruncatedNormal("above", 0, 1, lower=lower)


@model_case
def missing_data():
    mean = pm.Normal("mean")
    with pytest.warns(UserWarning, match="missing|masked"):
        pm.Normal("y", mean, observed=np.ma.masked_invalid([1, np.nan, 2, np.nan]))


@model_case
def empty_variable():
    pm.Normal("nothing", shape=0)
    scalar = pm.Normal("scalar")
    pm.Deterministic("still_nothing", scalar + np.zeros(0))


@model_case
def long_sum():
    """NumPy takes 32 operands at most."""
    pm.Deterministic("total", sum(pm.HalfNormal(f"x{i}") for i in range(40)))


class Reverse(Op):
    """An operation that does not vectorise."""

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0][::-1].copy()


@_vectorize_node.register(Reverse)
def _refuse(*_):
    raise NotImplementedError("Reverse takes one vector at a time")


@model_case
def one_at_a_time():
    pm.Deterministic("reversed", Reverse()(pm.HalfNormal("x", shape=3)))


def some_gaussian(model: pm.Model, family: type = FullGaussian, seed: int = 0):
    rng = np.random.default_rng(seed)
    dim = sum(value.size for value in model.initial_point().values())
    mean = np.zeros(dim) if family is CentredDiagonalGaussian else rng.normal(0, 0.3, dim)
    if family is FullGaussian:
        root = rng.normal(size=(dim, dim)) / np.sqrt(dim)
        return family.from_mean_covariance(mean, 0.2 * (root @ root.T + np.eye(dim)))
    return family.from_mean_covariance(mean, rng.uniform(0.1, 0.5, dim))


def some_approximation(model: pm.Model, family: type = FullGaussian, seed: int = 0):
    return create_approximation(model, some_gaussian(model, family, seed))


@functools.cache
def shared(build: Callable[[], pm.Model], family: type = FullGaussian):
    """The same approximation for all tests that change neither it nor its model."""
    return some_approximation(build(), family)


def values_of(idata, *names: str) -> tuple[np.ndarray, ...]:
    return tuple(idata.posterior[name].values[0] for name in names)


def flat_draws(approx, idata) -> np.ndarray:
    """The unconstrained vectors behind draws made with include_transformed."""
    names = approx.ordering
    return np.concatenate([v.reshape(len(v), -1) for v in values_of(idata, *names)], axis=1)


# An approximation of PyMC's.


@pytest.mark.parametrize(
    ("family", "ours", "theirs"),
    [
        (FullGaussian, NGVIFullRank, pm.FullRank),
        (DiagonalGaussian, NGVIMeanField, pm.MeanField),
        (CentredDiagonalGaussian, NGVIMeanField, pm.MeanField),
    ],
)
def test_pymc_reads_the_gaussian(family, ours, theirs):
    model = regression()
    gaussian = some_gaussian(model, family)
    approx = create_approximation(model, gaussian)
    native = theirs(model=model)
    assert type(approx) is ours
    assert isinstance(approx, theirs)
    assert approx.gaussian is gaussian
    assert approx.model is model
    assert approx.report is None
    assert approx.hist.size == 0
    assert approx.ordering == native.ordering
    assert [p.name for p in approx.params] == [p.name for p in native.params]
    # Before 6.4, the types of PyMC's own parameters have no lengths.
    assert all(b.type.is_super(a.type) for a, b in zip(approx.params, native.params, strict=True))

    covariance = gaussian.covariance if family is FullGaussian else np.diag(gaussian.covariance)
    np.testing.assert_allclose(approx.mean.get_value(), gaussian.mean, rtol=1e-15)
    np.testing.assert_allclose(approx.mean.eval(), gaussian.mean, rtol=1e-15)
    np.testing.assert_allclose(approx.std.eval(), np.sqrt(gaussian.variance), rtol=1e-13)
    np.testing.assert_allclose(approx.cov.eval(), covariance, rtol=1e-12, atol=1e-15)


def test_sample_node_follows_the_gaussian():
    model = regression()
    approx = some_approximation(model)
    at_mean = approx.sample_node(model["mean"], deterministic=True).eval()
    mean = approx.gaussian.mean
    np.testing.assert_allclose(at_mean, mean[0] + model["X"].get_value() @ mean[1:4])


def test_setting_the_gaussian_moves_the_shared_parameters():
    model = regression()
    approx = some_approximation(model, seed=1)
    before = [p.get_value() for p in approx.params]
    other = some_gaussian(model, seed=2)
    approx.set_gaussian(other)
    assert all((p.get_value() != old).all() for p, old in zip(approx.params, before, strict=True))
    np.testing.assert_allclose(approx.cov.eval(), other.covariance, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, CentredDiagonalGaussian])
def test_the_gaussian_stays_the_one_that_was_set(family, precision):
    """The shared variables hold a rounded copy, which is not read as long as it stands."""
    with pytensor.config.change_flags(floatX=precision):
        model = regression()
        gaussian = some_gaussian(model, family)
        approx = create_approximation(model, gaussian)
        assert approx.gaussian is gaussian
        for parameter in approx.params:
            parameter.set_value(parameter.get_value())
        assert approx.gaussian is gaussian


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, CentredDiagonalGaussian])
def test_everything_follows_the_shared_parameters(family, tmp_path):
    approx = some_approximation(regression(), family)
    approx.report = object()
    before = approx.gaussian
    rng = np.random.default_rng(3)
    for parameter in approx.params:
        value = parameter.get_value()
        parameter.set_value(value + rng.normal(0, 0.1, value.shape))
    q = approx.gaussian
    assert q is not before
    assert q is approx.gaussian
    np.testing.assert_allclose(q.mean, approx.mean.eval(), rtol=1e-13)
    covariance = np.diag(q.covariance) if q.factorised else q.covariance
    np.testing.assert_allclose(covariance, approx.cov.eval(), rtol=1e-12, atol=1e-14)

    idata = approx.sample(20_000, random_seed=1, include_transformed=True)
    draws = flat_draws(approx, idata)
    z = np.sqrt(len(draws)) * q.whiten(draws).mean(axis=0)
    assert np.abs(z).max() < 4
    np.testing.assert_allclose(idata.sample_stats["log_q"].values[0], q.log_density(draws))
    np.testing.assert_array_equal(idata["fit"]["mean"], q.mean)
    # The report was that of another Gaussian.
    assert approx.report is None

    approx.save(tmp_path / "moved.nc")
    loaded = load(tmp_path / "moved.nc", approx.model)
    np.testing.assert_array_equal(loaded.gaussian.mean, q.mean)
    np.testing.assert_allclose(loaded.cov.eval(), approx.cov.eval(), rtol=1e-12, atol=1e-14)


def test_a_change_in_place_is_seen():
    approx = some_approximation(regression(), DiagonalGaussian)
    before = approx.gaussian.mean[0]
    approx.shared_params["mu"].get_value(borrow=True)[0] += 1
    assert approx.gaussian.mean[0] == before + 1


def test_the_report_is_of_the_gaussian_that_it_judged():
    model = regression()
    approx = some_approximation(model)
    gaussian, report = approx.gaussian, object()
    approx.report = report
    assert approx.report is report
    approx.set_gaussian(some_gaussian(model, seed=2))
    assert approx.report is None
    approx.set_gaussian(gaussian)
    assert approx.report is report


@pytest.mark.parametrize(("family", "scale"), [(FullGaussian, "L_tril"), (DiagonalGaussian, "rho")])
def test_shared_parameters_that_are_no_gaussian_are_named(family, scale):
    approx = some_approximation(one_scalar(), family)
    # The softplus of -1e4 is zero.
    for name, value in [(scale, -1e4), (scale, np.nan), ("mu", np.inf)]:
        approx.set_gaussian(some_gaussian(approx.model, family))
        approx.shared_params[name].set_value([value])
        with pytest.raises(ValueError, match=f"shared parameters .*: {name} has .* set_gaussian"):
            approx.sample(5)
    approx.set_gaussian(some_gaussian(approx.model, family))
    assert np.isfinite(approx.sample(5).posterior["p"]).all()


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
def test_another_inference_of_pymc_moves_the_draws(family):
    with pm.Model() as model:
        pm.Normal("x", 50, 1, shape=2)
    start = family.from_mean_variance(np.zeros(2), np.ones(2))
    approx = create_approximation(model, start)
    # Adam moves each parameter by its rate while the gradients keep their sign.
    KLqp(approx).fit(10, obj_optimizer=adam(learning_rate=1.0), progressbar=False)
    (x,) = values_of(approx.sample(1000, random_seed=1), "x")
    assert (x.mean(axis=0) > 5).all()
    z = np.sqrt(1000) * (x.mean(axis=0) - approx.mean.eval()) / approx.std.eval()
    assert np.abs(z).max() < 4
    assert len(approx.hist) == 10


def test_callbacks_of_pymc_work():
    model = regression()
    approx = some_approximation(model, seed=1)
    tracker = Tracker(mean=approx.mean.get_value)
    converged = CheckParametersConvergence(every=1, tolerance=1e-3)
    for iteration, seed in enumerate([1, 2, 3]):
        approx.set_gaussian(some_gaussian(model, seed=seed))
        tracker(approx, [], iteration)
        converged(approx, [], iteration)
    assert len(tracker["mean"]) == 3
    with pytest.raises(StopIteration):
        converged(approx, [], 3)


def test_a_gaussian_of_another_size_or_kind_is_refused():
    approx = some_approximation(regression())
    with pytest.raises(ValueError, match="1 dimensions, the model has 5 unconstrained parameters"):
        approx.set_gaussian(FullGaussian.from_mean_covariance([0.0], [[1.0]]))
    with pytest.raises(TypeError, match="cannot hold a DiagonalGaussian"):
        NGVIFullRank(approx.model, some_gaussian(approx.model, DiagonalGaussian))


def test_a_given_layout_is_not_computed_again(monkeypatch):
    model = regression()
    gaussian = some_gaussian(model)
    first = create_approximation(model, gaussian)
    monkeypatch.setattr(pm.Model, "initial_point", lambda *_: pytest.fail("compiled again"))
    second = create_approximation(model, gaussian, layout=first.layout)
    assert second.ordering == first.ordering


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
def test_scales_sixteen_orders_apart_survive_the_softplus(family):
    with pm.Model() as model:
        pm.Normal("x", shape=5)
    scales = np.array([1e-8, 1e-3, 1.0, 50.0, 1e8])
    if family is FullGaussian:
        correlation = 0.5 * (np.eye(5) + np.ones((5, 5)))
        gaussian = family.from_mean_covariance(scales, scales[:, None] * correlation * scales)
    else:
        gaussian = family.from_mean_covariance(scales, scales**2)
    approx = create_approximation(model, gaussian)
    np.testing.assert_allclose(approx.std.eval(), scales, rtol=1e-12)
    (x,) = values_of(approx.sample(4000, random_seed=1), "x")
    np.testing.assert_allclose(x.std(axis=0), scales, rtol=0.05)
    np.testing.assert_allclose(x.mean(axis=0), scales, rtol=0.08)


def test_covariance_factor_of_a_nearly_singular_gaussian():
    x = np.linspace(0, 1, 12)
    precision = np.vander(x, 6).T @ np.vander(x, 6) + 1e-12 * np.eye(6)
    gaussian = FullGaussian.from_mean_precision(np.full(6, 1e6), precision)
    factor = covariance_factor(gaussian)
    assert (factor == np.tril(factor)).all()
    assert (factor.diagonal() > 0).all()
    np.testing.assert_allclose(factor.T @ precision @ factor, np.eye(6), atol=1e-8)


def test_single_precision_models_draw_in_double_precision():
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            pm.Normal("x", shape=2)
            pm.HalfNormal("s")
        gaussian = FullGaussian.from_mean_covariance([1.0, 2.0, 3.0], np.diag([1e-6, 1.0, 1e-8]))
        approx = create_approximation(model, gaussian)
        assert {p.dtype for p in approx.params} == {"float32"}
        np.testing.assert_allclose(approx.std.eval(), [1e-3, 1.0, 1e-4], rtol=1e-5)
        x, s = values_of(approx.sample(100, random_seed=1), "x", "s")
    assert x.dtype == s.dtype == np.float32
    z = np.random.default_rng(1).standard_normal((100, 3))
    np.testing.assert_allclose(s, np.exp(3 + 1e-4 * z[:, 2]), rtol=1e-6)


# The draws.


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, CentredDiagonalGaussian])
def test_draws_have_the_moments_of_the_gaussian(family):
    approx = shared(regression, family)
    gaussian, n = approx.gaussian, 20_000
    idata = approx.sample(n, random_seed=1, include_transformed=True)
    z = gaussian.whiten(flat_draws(approx, idata))
    # Whitened draws are standard normal: each entry below has standard error one.
    assert np.abs(np.sqrt(n) * z.mean(axis=0)).max() < 4
    second = np.sqrt(n) * (z.T @ z / n - np.eye(gaussian.dim))
    assert np.abs(second / np.sqrt(1 + np.eye(gaussian.dim))).max() < 4


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_is_what_pymc_computes_at_that_draw(name):
    model = MODELS[name]()
    approx = some_approximation(model)
    idata = approx.sample(40, random_seed=1, include_transformed=True)
    variables = model.unobserved_value_vars
    mode = interpreted_mode()
    reference = model.compile_fn(
        variables, inputs=model.value_vars, mode=mode, on_unused_input="ignore", point_fn=False
    )
    assert list(idata.posterior.data_vars) == [variable.name for variable in variables]
    for draw in (0, 1, 39):
        point = [idata.posterior[v.name].values[0, draw, ...] for v in model.value_vars]
        for variable, expected in zip(variables, reference(*point), strict=True):
            actual = idata.posterior[variable.name].values[0, draw, ...]
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_transforms_in_closed_form():
    with pm.Model() as model:
        pm.HalfNormal("positive")
        pm.Beta("share", 1, 1)
        pm.Normal("plain", shape=2)
    approx = some_approximation(model)
    idata = approx.sample(50, random_seed=1, include_transformed=True)
    flat = flat_draws(approx, idata)
    positive, share, plain = values_of(idata, "positive", "share", "plain")
    np.testing.assert_allclose(positive, np.exp(flat[:, 0]))
    np.testing.assert_allclose(share, scipy.special.expit(flat[:, 1]))
    np.testing.assert_array_equal(plain, flat[:, 2:])


def test_deterministics_are_numerically_stable():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("softplus", pt.log(1 + pt.exp(x)))
        pm.Deterministic("log_complement", pt.log(1 - pt.sigmoid(x)))
    gaussian = DiagonalGaussian.from_mean_covariance([800.0], [1.0])
    idata = create_approximation(model, gaussian).sample(20, random_seed=1)
    x, softplus, log_complement = values_of(idata, "x", "softplus", "log_complement")
    np.testing.assert_allclose(softplus, x)
    np.testing.assert_allclose(log_complement, -x)


def test_draws_agree_with_those_of_pymc():
    approx = shared(regression)
    ours = approx.sample(2000, random_seed=1)
    theirs = Approximation.sample(approx, 2000, random_seed=1)
    assert list(ours.posterior.data_vars) == list(theirs.posterior.data_vars)
    for name in ("intercept", "slope", "noise", "mean"):
        a, b = ours.posterior[name], theirs.posterior[name]
        assert a.dims == b.dims
        assert all((a[dim] == b[dim]).all() for dim in a.dims)
        columns = zip(*(v.values.reshape(2000, -1).T for v in (a, b)), strict=True)
        for mine, yours in columns:
            assert scipy.stats.ks_2samp(mine, yours).pvalue > 1e-3


def test_multitrace_is_like_that_of_pymc():
    approx = shared(regression)
    ours = approx.sample(7, random_seed=1, return_inferencedata=False)
    theirs = Approximation.sample(approx, 7, random_seed=1, return_inferencedata=False)
    assert type(ours) is type(theirs)
    assert len(ours) == len(theirs) == 7
    assert ours.varnames == theirs.varnames
    for name in ours.varnames:
        assert ours[name].shape == theirs[name].shape
        assert ours[name].dtype == theirs[name].dtype
        assert ours.point(3)[name].shape == theirs.point(3)[name].shape
    idata = approx.sample(7, random_seed=1)
    np.testing.assert_array_equal(ours["noise"], idata.posterior["noise"].values[0])


def test_the_same_seed_gives_the_same_draws():
    approx = shared(regression)

    def noise(seed, draws=5):
        return values_of(approx.sample(draws, random_seed=seed), "noise")[0]

    np.testing.assert_array_equal(noise(3), noise(3))
    np.testing.assert_array_equal(noise([1, 2]), noise((1, 2)))
    np.testing.assert_array_equal(noise(3), noise(np.random.default_rng(3)))
    np.testing.assert_allclose(noise(3, draws=20)[:5], noise(3), rtol=1e-13)
    assert (noise(3) != noise(4)).all()
    assert (noise(None) != noise(None)).all()
    state = np.random.RandomState(1), np.random.RandomState(1)
    np.testing.assert_array_equal(noise(state[0]), noise(state[1]))


def test_draws_are_the_same_on_every_machine():
    with pm.Model() as model:
        pm.HalfNormal("s")
        pm.Normal("x", shape=2)
    covariance = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 2.0]]
    gaussian = FullGaussian.from_mean_covariance([0.0, 1.0, -1.0], covariance)
    s, x = values_of(create_approximation(model, gaussian).sample(2, random_seed=11), "s", "x")
    z = np.random.default_rng(11).standard_normal((2, 3))
    expected = gaussian.mean + z @ np.linalg.cholesky(covariance).T
    np.testing.assert_allclose(np.c_[np.log(s), x], expected, rtol=1e-12)
    # The generator's own numbers, so that a change of stream or of their use is noticed.
    np.testing.assert_allclose(z[0], [0.0341927673, 1.3597475403, 1.2247210786], rtol=1e-8)


def test_chunks_of_draws_give_the_same_values(monkeypatch):
    approx = some_approximation(simplices())
    whole = approx.sample(100, random_seed=1).posterior
    monkeypatch.setattr(vectorised, "NUMBERS_PER_CALL", 100)
    chunks = approx.sample(100, random_seed=1).posterior
    for name in whole.data_vars:
        np.testing.assert_allclose(whole[name], chunks[name], rtol=1e-14)


def test_operations_that_do_not_vectorise_are_announced_once(caplog):
    approx = some_approximation(one_at_a_time())
    with caplog.at_level("INFO", logger="pymc_ngvi"):
        approx.sample(3)
        approx.sample(3)
    messages = [record.message for record in caplog.records if record.name.startswith("pymc_ngvi")]
    assert len(messages) == 1
    assert "Reverse takes one vector at a time" in messages[0]


def test_random_deterministics_differ_by_draw_and_follow_the_seed():
    with pm.Model() as model:
        mean = pm.Normal("mean", shape=2)
        pm.Deterministic("simulated", pm.Normal.dist(mean, 1e-3))
    approx = some_approximation(model)
    mean, simulated = values_of(approx.sample(50, random_seed=1), "mean", "simulated")
    noise = (simulated - mean) / 1e-3
    assert np.unique(noise.round(6)).size == 100
    assert np.abs(noise).max() < 5
    (again,) = values_of(approx.sample(50, random_seed=1), "simulated")
    np.testing.assert_array_equal(simulated, again)


# The container.


def test_groups_coordinates_and_dimensions():
    idata = shared(regression).sample(6, random_seed=1)
    posterior = idata.posterior
    assert {"chain": 1, "draw": 6, "row": 4, "column": 3}.items() <= dict(posterior.sizes).items()
    assert posterior["slope"].dims == ("chain", "draw", "column")
    assert list(posterior["column"].values) == [10, 20, 30]
    assert list(posterior["row"].values) == list("abcd")
    dims = ("chain", "draw", "doubled_data_dim_0", "doubled_data_dim_1")
    assert posterior["doubled_data"].dims == dims
    assert "noise_log__" not in posterior
    assert posterior.attrs["inference_library"] == "pymc_ngvi"
    assert idata.observed_data["y"].dims == ("row",)
    assert idata.constant_data["X"].dims == ("row", "column")


def test_added_coordinates_and_dimensions():
    approx = some_approximation(restricted())
    idata = approx.sample(3, coords={"cut": ["low", "mid", "high"]}, dims={"ordered": ["cut"]})
    assert list(idata.posterior["ordered"].coords["cut"].values) == ["low", "mid", "high"]


def test_a_model_without_data_has_no_data_groups():
    idata = shared(one_scalar).sample(3)
    assert not hasattr(idata, "observed_data")
    assert not hasattr(idata, "constant_data")


def test_a_part_of_a_dimension_keeps_its_own_name():
    with pm.Model(coords={"time": range(5)}) as model:
        x = pm.Normal("x", dims="time")
        pm.Deterministic("steps", pt.diff(x), dims="time")
    posterior = some_approximation(model).sample(3).posterior
    assert posterior["x"].sizes["time"] == 5
    assert posterior["steps"].sizes["steps_dim_0"] == 4


def test_posterior_predictive_of_pymc():
    model = regression()
    idata = some_approximation(model).sample(5, random_seed=1)
    predictive = pm.sample_posterior_predictive(
        idata, model=model, random_seed=1, progressbar=False
    )
    assert predictive.posterior_predictive["y"].shape == (1, 5, 4)


# The model afterwards.


def test_deterministics_follow_set_data():
    model = regression()
    approx = some_approximation(model)
    before = approx.sample(5, random_seed=1)
    new = np.ones((2, 3))
    with model:
        pm.set_data({"X": new}, coords={"row": ["e", "f"]})
    after = approx.sample(5, random_seed=1)
    # Two rows of predictors and four observations have no density.
    assert list(after.sample_stats.data_vars) == ["log_q"]
    assert "broadcast" in after.sample_stats.attrs["lp_missing"]
    intercept, slope, mean = values_of(after, "intercept", "slope", "mean")
    np.testing.assert_array_equal(values_of(before, "slope")[0], slope)
    np.testing.assert_allclose(mean, intercept[:, None] + slope @ new.T)
    assert list(after.posterior["row"].values) == ["e", "f"]


def test_a_deterministic_added_after_the_fit_is_computed():
    model = regression()
    approx = some_approximation(model)
    approx.sample(5)
    with model:
        pm.Deterministic("variance", model["noise"] ** 2)
    noise, variance = values_of(approx.sample(5), "noise", "variance")
    np.testing.assert_allclose(variance, noise**2)


def test_another_model_of_the_same_variables():
    approx = shared(one_scalar)
    with pm.Model() as other:
        p = pm.Beta("p", 1, 1)
        pm.Deterministic("odds", p / (1 - p))
    p, odds = values_of(approx.sample(5, model=other), "p", "odds")
    np.testing.assert_allclose(odds, p / (1 - p))
    message = r"the model lacks p_logodds__; the model adds intercept; .* Fit again"
    with pytest.raises(ValueError, match=message):
        approx.sample(5, model=regression())
    with pm.Model() as wider:
        pm.Beta("p", 1, 1, shape=2)
    with pytest.raises(ValueError, match=r"p_logodds__ has shape \(2,\) in the model and \(\) in"):
        approx.sample(5, model=wider)


def test_a_context_is_neither_needed_nor_looked_at():
    approx = shared(one_scalar)
    with regression():
        idata = approx.sample(3)
    assert list(idata.posterior.data_vars) == ["p"]


# Bad input.


@pytest.mark.parametrize("draws", [0, -3, 2.5, "ten", None])
def test_draws_have_to_be_a_positive_integer(draws):
    with pytest.raises(ValueError, match=f"positive integer, got {draws!r}"):
        shared(one_scalar).sample(draws)


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), ("one", TypeError)])
def test_seeds_that_are_none(seed, error):
    with pytest.raises(error, match=f"random_seed {seed!r} is not a seed: give a non-negative"):
        as_generator(seed)


def test_a_pickled_approximation_gives_the_same_draws():
    approx = some_approximation(one_scalar())
    copied = cloudpickle.loads(cloudpickle.dumps(approx))
    first, second = (values_of(each.sample(20, random_seed=1), "p") for each in (approx, copied))
    np.testing.assert_array_equal(first, second)
