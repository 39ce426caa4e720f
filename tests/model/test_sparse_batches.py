"""Sparse Hessians of data that are read in parts: those of all the data, on one structure."""

from __future__ import annotations

import pickle
import tracemalloc
from functools import cache

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, SparseGaussian
from pymc_ngvi.model.compilation import compile_target
from tests.conftest import fit

ROWS, BATCH = 600, 40


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    """Read all data in several parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_ngvi.model.loaded_target._LARGEST_CHUNK", 250)
        yield


def simulated(groups, rows):
    """Return a generator, the group of each row, and a predictor."""
    rng = np.random.default_rng(groups)
    group = rng.permutation(np.arange(rows) % groups).astype("int32")
    return rng, group, rng.standard_normal(rows)


def intercepts(groups, read, rows, **total):
    """Varying intercepts: a sum over rows, its prior too."""
    rng, group, x = simulated(groups, rows)
    y = 1 + rng.normal(0, 0.8, groups)[group] + 0.5 * x + rng.normal(0, 0.7, x.size)
    with pm.Model() as model:
        group, x, y = read(group=group, x=x, y_data=y)
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        slope = pm.Normal("slope", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        intercept = pm.Normal("intercept", mu, tau, shape=groups)
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y, **total)
    return model


def slopes(groups, read, rows, **total):
    """Intercepts and slopes that vary together, whose prior is no sum over rows."""
    rng, group, x = simulated(groups, rows)
    effects = [1.0, 0.5] + 0.5 * rng.normal(size=(groups, 2))
    y = rng.normal(effects[group, 0] + effects[group, 1] * x, 1.0)
    with pm.Model() as model:
        group, x, y = read(group=group, x=x, y_data=y)
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        tau = pm.HalfNormal("tau", 2.0, shape=2)
        sigma = pm.HalfNormal("sigma", 2.0)
        factor = tau[:, np.newaxis] * np.linalg.cholesky([[1.0, 0.5], [0.5, 1.0]])
        effect = pm.MvNormal("effect", mu, chol=factor, shape=(groups, 2))
        predictor = effect[group, 0] + effect[group, 1] * x
        pm.Normal("y", predictor, sigma, observed=y, **total)
    return model


def wide(groups, read, rows, **total):
    """More predictors than a batch has rows, and fewer than there are in all."""
    rng, group, x = simulated(groups, rows)
    many = rng.normal(size=(rows, 250))
    with pm.Model() as model:
        group, many, y = read(group=group, x=many, y_data=x)
        effect = pm.Normal("effect", 0.0, 1.0, shape=groups)
        beta = pm.Normal("beta", 0.0, 0.1, shape=250)
        pm.Normal("y", many @ beta + effect[group], 1.0, observed=y, **total)
    return model


def in_memory(**arrays):
    return arrays.values()


def in_batches(**arrays):
    return pm.Minibatch(*arrays.values(), batch_size=BATCH)


class Loading:
    """Containers of a few rows, and a loader of all."""

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def __call__(self, **arrays):
        self.loader = ngvi.Loader(arrays, batch_size=self.batch_size)
        return [pm.Data(name, array[:2]) for name, array in arrays.items()]


def built(build, groups, way, rows=ROWS):
    """Return a model that reads its data in this way, and its loader."""
    if way == "all":
        return build(groups, in_memory, rows), None
    read = in_batches if way == "minibatch" else Loading(BATCH if way == "loader" else None)
    return build(groups, read, rows, total_size=rows), getattr(read, "loader", None)


@cache
def target_of(build, groups, way, rows=ROWS):
    model, loader = built(build, groups, way, rows)
    return compile_target(model, backend="interpreted", loader=loader)


WAYS = ["minibatch", "loader", "passes"]
each_model = pytest.mark.parametrize(
    ("build", "groups"),
    [(intercepts, 26), (slopes, 12), (wide, 10)],
    ids=lambda given: getattr(given, "__name__", ""),
)


@each_model
@pytest.mark.parametrize("way", WAYS)
def test_structure_is_that_of_the_model_of_all_data(build, groups, way):
    found = target_of(build, groups, way).find_structure()
    assert found.has_places_of(target_of(build, groups, "all").find_structure())


@each_model
@pytest.mark.parametrize("way", WAYS)
def test_all_data_give_what_they_give_in_memory(build, groups, way):
    target, full = (target_of(build, groups, each) for each in (way, "all"))
    structure = target.find_structure()
    points = full.initial_point + 0.3 * np.random.default_rng(3).standard_normal((2, full.dim))
    expected = full.evaluate(points, "full")
    got = target.evaluate_fully(points, "sparse")
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(structure.dense(got.hessian), expected.hessian, rtol=1e-9, atol=1e-8)


@each_model
@pytest.mark.parametrize("curvature", ["sparse", "diagonal", "none"])
def test_anchored_batches_are_the_dense_ones_on_the_structure(build, groups, curvature):
    target = target_of(build, groups, "minibatch")
    structure, dim = target.find_structure(), target.dim
    mean = target.initial_point + 0.1
    draws = mean + 0.3 * np.random.default_rng(1).standard_normal((5, dim))
    dense = FullGaussian.from_mean_precision(mean, np.eye(dim))
    sparse = SparseGaussian.on(structure).from_mean_variance(mean, np.ones(dim))
    target.begin(np.random.default_rng(1), controlled=True)
    found = []
    for q, asked in ((dense, "none" if curvature == "none" else "full"), (sparse, curvature)):
        target.place_anchor(q)
        target.reseed(4)
        once = target.evaluate(draws, asked)
        target.reseed(4)
        found += [(once, target.evaluate(draws, asked), target.log_density(draws))]
    (expected, _, density), (got, again, other) = found
    np.testing.assert_allclose(got.log_density, expected.log_density, rtol=1e-8)
    np.testing.assert_allclose(other, density, rtol=1e-8)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(again.gradient, got.gradient, rtol=1e-12, atol=1e-10)  # recalled
    if curvature == "sparse":
        np.testing.assert_allclose(
            structure.dense(got.hessian), expected.hessian, rtol=1e-8, atol=1e-8
        )
    if curvature == "diagonal":
        diagonal = np.einsum("nii->ni", expected.hessian)
        np.testing.assert_allclose(got.hessian, diagonal, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("controlled", [False, True])
def test_batches_are_unbiased(controlled):
    target, full = (target_of(intercepts, 26, way) for way in ("minibatch", "all"))
    structure = target.find_structure()
    (x,) = full.initial_point + 0.3 * np.random.default_rng(5).standard_normal((1, full.dim))
    target.begin(np.random.default_rng(1), controlled=True)
    if controlled:
        near = SparseGaussian.on(structure).from_mean_variance(x + 0.05, np.ones(full.dim))
        target.place_anchor(near)
    got = []
    for seed in range(200):  # batches of one seed are no independent draws
        target.reseed(seed)
        got.append(target.evaluate(x[np.newaxis], "sparse"))
    expected = full.evaluate(x[np.newaxis], "full")
    values = structure.values(expected.hessian[0])
    for of_batches, of_all in [
        ([one.log_density[0] for one in got], expected.log_density[0]),
        ([one.gradient[0] for one in got], expected.gradient[0]),
        ([one.hessian[0] for one in got], values),
    ]:
        error = np.mean(of_batches, axis=0) - of_all
        deviation = np.std(of_batches, axis=0) / np.sqrt(len(got))
        assert (abs(error) < 4.5 * deviation + 1e-8).all()


def test_containers_that_no_loader_feeds_may_change():
    """What priors need is kept from batch to batch, but not when their data are replaced."""
    with pm.Model() as model:
        design = pm.Data("design", np.eye(6)[:, :2])
        group = pm.Data("group", np.zeros(2, "int32"))
        y = pm.Data("y_data", np.zeros(2))
        gamma = pm.Normal("gamma", 0.0, 1.0, shape=2)
        effect = pm.Normal("effect", design @ gamma, 1.0, shape=6)
        pm.Normal("y", effect[group], 1.0, observed=y, total_size=60)
    arrays = {"group": np.arange(60, dtype="int32") % 6, "y_data": np.arange(60.0)}
    loader = ngvi.Loader(arrays, batch_size=10)
    target = compile_target(model, backend="interpreted", loader=loader)
    x = np.linspace(-1, 1, 8)[np.newaxis]
    before = target.evaluate_fully(x, "full").hessian
    with model:
        pm.set_data({"design": 2 * np.eye(6)[:, :2]})
    after = target.evaluate_fully(x, "full").hessian
    assert before[0, 0, 0] == pytest.approx(-2.0)
    assert after[0, 0, 0] == pytest.approx(-5.0)


@each_model
def test_functions_of_other_processes_know_the_structure(build, groups):
    target = target_of(build, groups, "minibatch")
    target.find_structure()
    functions = pickle.loads(pickle.dumps(target._functions.blueprint)).build()
    x, rows = target.initial_point[np.newaxis] + 0.1, target._draw_rows()
    here, there = (each.evaluate(x, "sparse", rows) for each in (target._functions, functions))
    np.testing.assert_array_equal(here.hessian, there.hessian)


def test_no_dense_matrix_is_formed():
    """Of 2,004 parameters a single one takes 32 MB, and those of 8 draws 256 MB."""
    target = target_of(intercepts, 2000, "minibatch", 4000)
    structure = target.find_structure()
    q = SparseGaussian.on(structure).from_mean_variance(target.initial_point, np.ones(2004))
    target.begin(np.random.default_rng(1), controlled=True)
    tracemalloc.start()
    target.place_anchor(q)
    target.average(q.sample(8, np.random.default_rng(1)), "sparse")
    target.place_anchor(DiagonalGaussian.from_mean_variance(q.mean, q.variance))
    target.average(q.sample(8, np.random.default_rng(1)), "diagonal")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5e7


@pytest.fixture(scope="module")
def reference():
    model, _ = built(intercepts, 60, "all")
    return fit(model, family="sparse", accuracy=0.002, reparametrize=False).gaussian


@pytest.fixture(scope="module")
def reason():
    """Say why a fit without batches takes the sparse family."""
    return fit(built(intercepts, 250, "all")[0], n=0).report.family_reason


class TestFits:
    @pytest.mark.parametrize("way", WAYS)
    def test_agree_with_the_fit_of_all_data(self, reference, way):
        model, loader = built(intercepts, 60, way)
        approx = fit(model, family="sparse", loader=loader, reparametrize=False)
        assert approx.report.status == "converged"
        assert approx.gaussian.structure.has_places_of(reference.structure)
        shift = abs(approx.gaussian.mean - reference.mean) / np.sqrt(reference.variance)
        ratio = np.log(approx.gaussian.variance / reference.variance) / 2
        assert shift.max() < 0.04
        assert abs(ratio).max() < 0.04

    @pytest.mark.parametrize("way", WAYS)
    def test_auto_takes_it_where_it_does_without_batches(self, reason, way):
        model, loader = built(intercepts, 250, way)
        approx = fit(model, n=0, loader=loader)
        assert isinstance(approx.gaussian, SparseGaussian)
        assert approx.report.family_reason == reason
        if way != "passes":  # the structure took a pass, which is one of the fit
            assert approx.report.passes >= 1

    def test_auto_does_not_pass_over_data_to_see_a_dense_hessian(self):
        model, loader = built(wide, 10, "loader")
        approx = fit(model, n=0, loader=loader)
        assert isinstance(approx.gaussian, FullGaussian)
        assert "dense" in approx.report.family_reason
        assert approx.report.passes < 1

    def test_rows_that_do_not_tell_are_refused_with_the_reason(self):
        rng = np.random.default_rng(1)
        batch = pm.Minibatch(rng.normal(size=(300, 2)), batch_size=50)
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 1.0, shape=2)
            other = pm.Normal("other", 0.0, 1.0, shape=60)
            scale = pm.math.exp(other[:2])
            pm.MvNormal("y", mu, cov=scale[:, None] * np.eye(2), observed=batch, total_size=300)
        with pytest.raises(ValueError, match=r'no sum over rows: .*family="fullrank"'):
            ngvi.NGVI(model=model, backend="interpreted", family="sparse")
