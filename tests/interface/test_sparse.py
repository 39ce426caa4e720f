"""The sparse family from end to end: it gives what the full family gives."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.families import FullGaussian, LowRankGaussian, SparseGaussian
from pymc_ngvi.core.sparse import LowRankStructure
from pymc_ngvi.interface import family
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.hessian import Products, verify
from pymc_ngvi.results.approximation import NGVIFullRank, NGVISparse
from tests.conftest import evaluate, fit


def varying_intercepts(groups):
    """Centred: intercepts have entries with the common parameters, not with each other."""
    rng = np.random.default_rng(20240101)
    group = np.repeat(np.arange(groups), 5)
    x = rng.normal(size=group.size)
    y = 1 + rng.normal(0, 0.8, groups)[group] + 0.5 * x + rng.normal(0, 0.7, group.size)
    with pm.Model(coords={"group": range(groups)}) as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau = pm.HalfNormal("tau", 1.0)
        slope = pm.Normal("slope", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        intercept = pm.Normal("intercept", mu, tau, dims="group")
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    return varying_intercepts(60)


@pytest.fixture(scope="module")
def approx(model):
    return fit(model, family="sparse")


@pytest.fixture(scope="module")
def full(model):
    return fit(model, family="fullrank", accuracy=0.002)


@pytest.fixture(scope="module")
def idata(approx):
    return approx.sample(500, random_seed=1, log_likelihood=True)


def same(first, second):
    """Whether two Gaussians agree in every bit, with their structures."""
    arrays = first.arrays()
    return all(np.array_equal(arrays[name], value) for name, value in second.arrays().items())


def test_agrees_with_the_full_family(approx, full):
    assert isinstance(approx, NGVISparse)
    assert isinstance(full, NGVIFullRank)
    deviations = np.sqrt(full.gaussian.variance)
    np.testing.assert_array_less(abs(approx.gaussian.mean - full.gaussian.mean) / deviations, 0.05)
    ratio = np.sqrt(approx.gaussian.variance) / deviations
    np.testing.assert_array_less(abs(np.log(ratio)), 0.02)
    first, second = np.tril_indices(approx.gaussian.dim)
    covariances = approx.gaussian.covariance_between(first, second)
    scale = deviations[first] * deviations[second]
    np.testing.assert_allclose(
        covariances / scale, full.gaussian.covariance[first, second] / scale, atol=0.03
    )
    assert approx.report.elbo == pytest.approx(full.report.elbo, abs=0.02)


def test_structure_is_that_of_the_hessian(approx):
    groups, common = 60, 4
    structure = approx.gaussian.structure
    # All pairs of common parameters but (mu, slope), (mu, sigma), (tau, slope) and (tau, sigma),
    # which no term of the log density has together.
    pairs = common * (common - 1) // 2 - 4
    assert structure.nnz == groups * (1 + common) + common + pairs


def test_auto_takes_full_for_few_parameters_and_says_why(model):
    approx = fit(model, n=0)
    assert isinstance(approx.gaussian, FullGaussian)
    assert approx.report.family_reason == "few parameters"
    assert "few parameters" not in str(approx.report)


def test_auto_takes_sparse_for_many_and_says_why():
    approx = fit(varying_intercepts(250))
    assert isinstance(approx.gaussian, SparseGaussian)
    assert approx.report.status == "converged"
    assert approx.report.family_reason == "0.035 of the Hessian is not zero"
    rows = str(approx.report).splitlines()
    assert rows[1].split(maxsplit=1)[1] == "sparse, 254 parameters, bonnet-price"
    assert rows[2].strip() == approx.report.family_reason


def test_a_family_that_was_named_needs_no_reason(approx):
    assert approx.report.family_reason == ""


def test_draws(approx, idata):
    posterior = idata["posterior"]
    assert posterior["intercept"].dims == ("chain", "draw", "group")
    draws = posterior["intercept"].values[0]
    where = next(slot.where for slot in approx.layout if slot.variable == "intercept")
    mean, deviations = approx.gaussian.mean[where], np.sqrt(approx.gaussian.variance[where])
    z = (draws.mean(0) - mean) / deviations * np.sqrt(len(draws))
    assert abs(z).max() < 4.5
    again = approx.sample(500, random_seed=1)["posterior"]["intercept"].values[0]
    np.testing.assert_array_equal(draws, again)


def test_inference_data_holds_the_fit(approx, idata):
    group = idata["fit"]
    gaussian = approx.gaussian
    assert group.attrs["family"] == "sparse"
    assert "covariance" not in group
    assert list(group["parameter"].values) == list(approx.layout.names)
    np.testing.assert_array_equal(group["mean"].values, gaussian.mean)
    np.testing.assert_array_equal(group["variance"].values, gaussian.variance)
    for name, values in gaussian.arrays().items():
        np.testing.assert_array_equal(group[name].values, values)


def test_a_file_keeps_every_bit(approx, model, tmp_path):
    approx.save(tmp_path / "fit.nc")
    loaded = ngvi.load(tmp_path / "fit.nc", model)
    assert isinstance(loaded, NGVISparse)
    assert same(approx.gaussian, loaded.gaussian)
    assert str(loaded.report) == str(approx.report)
    np.testing.assert_array_equal(loaded.hist, approx.hist)
    assert loaded.history == approx.history
    names = ("mu", "tau", "intercept")
    before, after = (one.sample(20, random_seed=3)["posterior"] for one in (approx, loaded))
    for name in names:
        np.testing.assert_array_equal(before[name].values, after[name].values)


@pytest.mark.parametrize("what", ["approximation", "InferenceData"])
def test_start_from_a_sparse_fit(what, approx, idata, model):
    start = approx if what == "approximation" else idata
    begun = fit(model, family="sparse", start=start, n=0)
    assert same(approx.gaussian, begun.gaussian)
    again = fit(model, family="sparse", start=start)
    assert again.report.status == "converged"
    assert again.report.iterations < approx.report.iterations


def test_start_from_another_family(approx, full, model):
    begun = fit(model, family="sparse", start=full, n=0)
    np.testing.assert_allclose(begun.gaussian.mean, full.gaussian.mean)
    np.testing.assert_allclose(begun.gaussian.variance, full.gaussian.variance)
    begun = fit(model, family="fullrank", start=approx, n=0)
    np.testing.assert_allclose(begun.gaussian.mean, approx.gaussian.mean)
    np.testing.assert_allclose(begun.gaussian.variance, approx.gaussian.variance)


def test_graphs_of_pymc(approx, model):
    np.testing.assert_array_equal(approx.mean.eval(), approx.gaussian.mean)
    np.testing.assert_allclose(approx.std.eval(), np.sqrt(approx.gaussian.variance))
    with pytest.raises(NotImplementedError, match=r"64 parameters is not built: take approx\.std"):
        approx.cov  # noqa: B018
    draws = evaluate(approx.sample_node(model["mu"], size=400))
    where = list(approx.layout.names).index("mu")
    scale = np.sqrt(approx.gaussian.variance[where] / len(draws))
    assert abs(draws.mean() - approx.gaussian.mean[where]) < 4.5 * scale


def test_log_density_of_pymc_follows_the_gaussian(model, full):
    """The graph of log q, built before a fit, is that of the Gaussian that is held after it."""
    inference = ngvi.NGVI(model=model, family="sparse", random_seed=1, backend="interpreted")
    approx = inference.approx
    graph = approx.groups[0].symbolic_logq_not_scaled
    initial = approx.groups[0].symbolic_initial
    z = np.random.default_rng(1).normal(size=(3, approx.gaussian.dim))
    for gaussian in (
        approx.gaussian,
        type(approx.gaussian).from_mean_variance(full.gaussian.mean, full.gaussian.variance),
    ):
        approx.set_gaussian(gaussian)
        expected = gaussian.log_density(gaussian.unwhiten(z))
        np.testing.assert_allclose(graph.eval({initial: z}), expected)


def test_nuts(approx):
    """The default, which the warning of an unreliable fit names, has the variances as metric."""
    step = approx.nuts_kwargs(chains=1, random_seed=1)["step"]
    np.testing.assert_allclose(step.potential.v, approx.gaussian.variance)
    if PYMC_6:
        keywords = approx.nuts_kwargs(sampler="nutpie", chains=2, random_seed=1)
        assert set(keywords) == {"chains", "tune", "nuts_sampler", "initvals"}
        assert keywords["initvals"]["intercept"].shape == (60,)
    else:
        with pytest.raises(NotImplementedError, match="PyMC 5 does not pass a start to nutpie"):
            approx.nuts_kwargs(sampler="nutpie")


def test_callbacks_and_refine(model):
    means = []

    def callback(approx, losses, i):
        means.append(approx.mean.eval())
        assert len(losses) == i

    inference = ngvi.NGVI(model=model, family="sparse", random_seed=1, backend="interpreted")
    approx = inference.fit(callbacks=[callback], progressbar=False)
    iterations = approx.report.iterations
    assert len(means) == iterations
    before = approx.gaussian
    inference.refine(2, progressbar=False)
    assert approx.report.status == "refined"
    assert approx.report.iterations == iterations + 2
    assert approx.gaussian.kl(before) < 0.01


def test_one_step_of_a_schedule_is_exact_on_a_chain():
    """The posterior of a random walk seen with noise is Gaussian: step size 1 reaches it."""
    with pm.Model() as chain:
        steps = pm.GaussianRandomWalk(
            "steps", mu=0.0, sigma=0.5, init_dist=pm.Normal.dist(0.0, 1.0), shape=30
        )
        pm.Normal("y", steps, 0.7, observed=np.sin(np.arange(30.0)))
    options = dict(step_size=1.0, n_samples=2, n=1)
    sparse, full = (fit(chain, family=name, **options).gaussian for name in ("sparse", "fullrank"))
    assert sparse.structure.nnz == 30 + 29
    np.testing.assert_allclose(sparse.structure.matrix(sparse.precision).toarray(), full.precision)
    np.testing.assert_allclose(sparse.mean, full.mean)


@pytest.mark.filterwarnings("ignore:loo", "ignore:.*Pareto")
def test_loo(idata, full):
    """Leave-one-out of both families is the same within its Monte-Carlo error."""
    sparse = ngvi.loo(idata)
    other = ngvi.loo(full.sample(500, random_seed=1, log_likelihood=True))
    name = "elpd" if hasattr(sparse, "elpd") else "elpd_loo"
    assert getattr(sparse, name) == pytest.approx(getattr(other, name), abs=3.0)


def logistic(columns):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, columns))
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, 1.0, shape=columns)
        pm.Bernoulli("y", logit_p=x @ slopes, observed=rng.integers(0, 2, 100))
    return model


def multivariate():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0, shape=6)
        pm.MvNormal("y", mu, np.eye(6) + 0.5, observed=np.arange(6.0))
    return model


@pytest.mark.parametrize("build", [lambda: logistic(60), multivariate], ids=["rows", "MvNormal"])
def test_dense_hessian_is_refused(build):
    with pytest.raises(ValueError, match=r'family="sparse" is not possible.*the Hessian is dense'):
        ngvi.NGVI(model=build(), family="sparse", backend="interpreted")


def test_full_covariance_beyond_memory_is_refused():
    with pm.Model() as model:
        pm.Normal("x", 0.0, 1.0, shape=200_000)
    with pytest.raises(ValueError, match="a full covariance of 200,000 parameters takes about"):
        fit(model, family="fullrank")


def test_what_is_no_sum_over_rows_takes_few_products():
    """A term of three parameters costs three products, not as many as the model has parameters."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 3)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        common = pm.Normal("common", 0.0, 1.0, shape=3)
        effect = pm.Normal("effect", 0.0, tau, shape=60)
        pm.Normal("y", effect[group], 1.0, observed=rng.normal(size=group.size))
        inverse = pt.linalg.inv(5 * pt.eye(3) + pt.outer(common, common))
        pm.Potential("rest", -0.1 * pt.sum(inverse**2))
    target = compile_target(model, backend="interpreted")
    assert target.hessian_route == "rows"
    assert target.structure.nnz == 64 + 60 + 3
    points = target.initial_point + 0.3 * rng.normal(size=(2, target.dim))
    full = target.evaluate(points, "full").hessian
    np.testing.assert_allclose(full[0], target.difference_hessian(points[0]), atol=1e-5)
    values = target.evaluate(points, "sparse").hessian
    np.testing.assert_allclose(target.structure.dense(values), full, atol=1e-12)
    np.testing.assert_allclose(
        target.average(points, "sparse").hessian[0], values.mean(axis=0), atol=1e-12
    )
    assert target.hessian_price < 20  # in log densities


def wide_regression(predictors, rows):
    """More predictors than rows: the Hessian is dense, and of low rank but for its diagonal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, predictors))
    y = X[:, :5].sum(axis=1) + rng.normal(size=rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 0.3, shape=predictors)
        sigma = pm.LogNormal("sigma", 0.0, 0.1)
        pm.Normal("y", X @ beta, sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def wide():
    return wide_regression(250, 30)


class TestLowRank:
    def test_hessians_are_those_of_the_graph(self, wide):
        target = compile_target(wide, backend="interpreted")
        assert isinstance(target.structure, LowRankStructure)
        assert target.structure.nnz == 2 * 250 + 1 + 30  # prior and sigma's row, and weights
        rng = np.random.default_rng(1)
        points = target.initial_point + 0.3 * rng.normal(size=(2, target.dim))
        full = target.evaluate(points, "full").hessian
        reference = target.difference_hessian(points[0])
        np.testing.assert_allclose(full[0], reference, atol=1e-6 * abs(reference).max())
        values = target.evaluate(points, "sparse").hessian
        np.testing.assert_allclose(target.structure.dense(values), full, atol=1e-10)
        (diagonal,) = target.average(points, "diagonal").hessian
        np.testing.assert_allclose(diagonal, np.einsum("nii->i", full) / 2, rtol=1e-10)

    # The sd of sigma is 0.8 of the posterior's, just at the limit of the verdict.
    @pytest.mark.filterwarnings("ignore:.*sigma:pymc_ngvi.errors.UnreliableFit")
    def test_agrees_with_the_full_family(self, wide, tmp_path):
        low, full = (fit(wide, family=family) for family in ("lowrank", "fullrank"))
        assert low.report.family == "lowrank"
        deviations = np.sqrt(full.gaussian.variance)
        shift = abs(low.gaussian.mean - full.gaussian.mean) / deviations
        np.testing.assert_array_less(shift, 0.05)
        ratio = np.sqrt(low.gaussian.variance) / deviations
        np.testing.assert_array_less(abs(np.log(ratio)), 0.02)
        assert low.report.elbo == pytest.approx(full.report.elbo, abs=0.05)
        low.save(tmp_path / "fit.nc")
        again = ngvi.load(tmp_path / "fit.nc", wide)
        assert same(again.gaussian, low.gaussian)
        draws = [one.sample(50, random_seed=2)["posterior"]["beta"] for one in (low, again)]
        np.testing.assert_array_equal(*draws)

    def test_is_taken_where_it_is_cheaper(self):
        chosen = ngvi.NGVI(model=wide_regression(1200, 20))._chosen
        assert issubclass(chosen.family, LowRankGaussian)
        assert "20 rows" in chosen.reason

    def test_errors_name_the_other_family(self, wide):
        with pytest.raises(ValueError, match='family="lowrank"'):
            ngvi.NGVI(model=wide, family="sparse")
        with pytest.raises(ValueError, match='family="sparse"'):
            ngvi.NGVI(model=varying_intercepts(20), family="lowrank")

    def test_mean_field_forms_no_matrix(self):
        """3,000 predictors: a single Hessian would take 72 MB."""
        model = wide_regression(3000, 40)
        target = compile_target(model, backend="interpreted")
        tracemalloc.start()
        target.average(np.tile(target.initial_point, (4, 1)), "diagonal")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3e7


def dense_of_one_sum(dim):
    """A Hessian with all entries that is no sum over rows of affine vectors."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=dim)
        pm.Potential("all", 0.1 * pt.log1p(pt.sum(pt.exp(-(x**2)))))
    return model


class TestLargeDense:
    def test_what_does_not_fit_is_refused_before_it_is_allocated(self, monkeypatch):
        monkeypatch.setattr(family, "_MATRICES", 10**6)
        model = dense_of_one_sum(2000)
        tracemalloc.start()
        for options in ({"family": "fullrank"}, {}):
            with pytest.raises(ValueError, match=r'2,000 parameters .* GB.*family="meanfield"'):
                ngvi.NGVI(model=model, backend="interpreted", **options)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3e7  # a single matrix takes 3.2e7

    def test_mean_field_takes_gradients_alone(self):
        approx = fit(dense_of_one_sum(1500), family="meanfield", accuracy=0.1)
        assert approx.report.estimator == "stein"
        assert approx.report.status == "converged"
        np.testing.assert_allclose(approx.gaussian.mean, 0.0, atol=0.2)
        np.testing.assert_allclose(approx.gaussian.variance, 1.0, atol=0.2)

    def test_a_wrong_hessian_that_is_not_formed_is_seen(self):
        target = compile_target(dense_of_one_sum(1500), backend="interpreted")
        assert target.hessian_route != "none"
        evaluator = target._functions._second
        hessian = Products(evaluator, target.initial_point + 0.3, ())
        direction = np.random.default_rng(0).standard_normal(1500)
        step = 1e-5 * direction
        ends = np.stack([hessian._point + step, hessian._point - step])
        above, below = target.evaluate(ends, "none").gradient
        np.testing.assert_allclose(hessian @ direction, (above - below) / 2e-5, atol=1e-6)

        def wrong(points, curvature):
            found = target.evaluate(points, "none")
            if curvature == "none":
                return found
            doubled = [Products(evaluator, point, ()) for point in points]
            for one in doubled:
                one._times = lambda vectors, times=one._times: 2 * times(vectors)
            return replace(found, hessian=doubled)

        with pytest.raises(ArithmeticError, match="contradicts the gradient"):
            verify(wrong, target.initial_point, target.layout)
