"""Models that read batches of their data, against the same models of all of it."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi._compat import group_names, interpreted_mode
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.model.batch_target import BatchTarget
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.minibatches import find_data
from tests.conftest import fit

ROWS = 400
RNG = np.random.default_rng(1)
X = RNG.standard_normal((ROWS, 2))
GROUP = RNG.integers(3, size=ROWS).astype("int32")
Y = X @ [1.0, -0.5] + np.array([0.0, 1.0, -1.0])[GROUP] + RNG.standard_normal(ROWS)
COUNTS = RNG.poisson(np.exp(0.2 + 0.3 * X[:, 0])).astype("int32")


def hierarchy(x, group, y, counts, **total):
    """Two observed variables of one batch, and terms outside it."""
    with pm.Model(coords={"group": list("abc"), "feature": ["u", "v"]}) as model:
        spread = pm.HalfNormal("spread", 1.0)
        effect = pm.Normal("effect", 0.0, spread, dims="group")
        slope = pm.Normal("slope", 0.0, 2.0, dims="feature", initval=[0.1, 0.2])
        pm.Normal("y", effect[group] + x @ slope, 1.0, observed=y, **total)
        pm.Poisson("counts", pm.math.exp(0.2 + 0.3 * x[:, 0] + effect[0]), observed=counts, **total)
        pm.Potential("bound", -0.5 * (slope**2).sum())
    return model


def two_sources(batch=20):
    """Batches of different data, each drawn for itself."""
    few = pm.Minibatch(Y[:50], batch_size=5) if batch else Y[:50]
    many = pm.Minibatch(X[:, 0], batch_size=batch) if batch else X[:, 0]
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("few", mu, 1.0, observed=few, **({"total_size": 50} if batch else {}))
        pm.Normal("many", mu, pm.math.exp(mu), observed=many, **_total(batch))
    return model


def _total(batch):
    return {"total_size": ROWS} if batch else {}


def in_batches(size=20):
    return hierarchy(*pm.Minibatch(X, GROUP, Y, COUNTS, batch_size=size), total_size=ROWS)


def loaded(size=20, rows=2, **total):
    """The hierarchy, from containers that hold a few rows only."""
    arrays = {"x": X, "group": GROUP, "y_data": Y, "count_data": COUNTS}
    with pm.Model() as outer:
        containers = [pm.Data(name, array[:rows]) for name, array in arrays.items()]
    with outer:
        model = outer
        x, group, y, counts = containers
        spread = pm.HalfNormal("spread", 1.0)
        effect = pm.Normal("effect", 0.0, spread, shape=3)
        slope = pm.Normal("slope", 0.0, 2.0, shape=2, initval=[0.1, 0.2])
        total = total or {"total_size": ROWS}
        pm.Normal("y", effect[group] + x @ slope, 1.0, observed=y, **total)
        pm.Poisson("counts", pm.math.exp(0.2 + 0.3 * x[:, 0] + effect[0]), observed=counts, **total)
        pm.Potential("bound", -0.5 * (slope**2).sum())
    return model, ngvi.Loader(arrays, batch_size=size)


def targets():
    model, loader = loaded()
    compiled = {
        "minibatch": compile_target(in_batches(), backend="interpreted"),
        "loader": compile_target(model, backend="interpreted", loader=loader),
        "two sources": compile_target(two_sources(), backend="interpreted"),
    }
    full = compile_target(hierarchy(X, GROUP, Y, COUNTS), backend="interpreted")
    other = compile_target(two_sources(None), backend="interpreted")
    return {name: (t, other if name == "two sources" else full) for name, t in compiled.items()}


@pytest.fixture(scope="module")
def compiled():
    return targets()


each = pytest.mark.parametrize("name", ["minibatch", "loader", "two sources"])
PARTS = ("log_density", "gradient", "hessian")


def points(target, n=3):
    return 0.3 * np.random.default_rng(3).standard_normal((n, target.dim))


@each
@pytest.mark.parametrize("chunk", [2**16, 7])
def test_chunks_add_up_to_the_model_of_all_the_data(compiled, monkeypatch, name, chunk):
    monkeypatch.setattr("pymc_ngvi.model.loaded_target._LARGEST_CHUNK", chunk)
    target, full = compiled[name]
    assert isinstance(target, BatchTarget)
    assert target.hessian_route == "rows"  # to find it takes a batch
    before = target.passes
    got = target.evaluate_fully(points(target), "full")
    expected = full.evaluate(points(target), "full")
    for part in PARTS:
        np.testing.assert_allclose(getattr(got, part), getattr(expected, part), rtol=1e-9)
    assert target.passes - before == pytest.approx(1)


@each
@pytest.mark.parametrize("controlled", [False, True])
def test_batches_are_unbiased(compiled, name, controlled):
    target, full = compiled[name]
    target.begin(np.random.default_rng(1), controlled=True)
    (x,) = points(target, 1)
    if controlled:
        target.place_anchor(FullGaussian.from_mean_precision(x + 0.05, np.eye(target.dim)))
    expected = full.evaluate(x[np.newaxis], "full")
    means = {part: [] for part in PARTS}
    for seed in range(150):  # batches of one seed are no independent draws
        target.reseed(seed)
        got = target.evaluate(np.array([x]), "full")
        for part in PARTS:
            means[part].append(getattr(got, part)[0])
    for part, values in means.items():
        error = np.mean(values, axis=0) - getattr(expected, part)[0]
        deviation = np.std(values, axis=0) / np.sqrt(150)
        assert (abs(error) < 4 * deviation + 1e-8).all()


@each
def test_an_anchor_takes_the_noise_away(compiled, name):
    target, full = compiled[name]
    target.begin(np.random.default_rng(1), controlled=True)
    draws = np.repeat(points(target, 1), 20, axis=0)
    plain = target.evaluate(draws, "none").log_density.std()
    target.place_anchor(FullGaussian.from_mean_precision(draws[0] + 0.02, np.eye(target.dim)))
    controlled = target.evaluate(draws, "none").log_density
    assert controlled.std() < plain / 300
    assert controlled.mean() == pytest.approx(full.log_density(draws[:1])[0], abs=plain / 100)


@each
def test_the_same_seed_reads_the_same_batches(compiled, name):
    """So that members can be compared on common batches."""
    target, _ = compiled[name]
    target.begin(np.random.default_rng(1), controlled=True)
    draws = points(target, 40)
    for anchored in (False, True):
        if anchored:
            target.place_anchor(
                FullGaussian.from_mean_precision(draws[0] + 0.1, np.eye(target.dim))
            )
        values = []
        for seed in (5, 5, 6):
            target.reseed(seed)
            values.append(target.evaluate(draws, "none").log_density)
        np.testing.assert_array_equal(values[0], values[1])
        assert (values[0] != values[2]).all()
    same = np.repeat(draws[:1], 30, axis=0)
    assert len(set(target.evaluate(same, "none").log_density)) > 10
    assert len(set(target.log_density(same))) == 2  # of 25 draws, and of the others


def test_rows_are_counted(compiled):
    target, _ = compiled["minibatch"]
    assert target.hessian_route == "rows"  # finding it reads a batch
    target.begin(np.random.default_rng(1), controlled=True)
    target.evaluate(points(target, 10), "full")
    assert target.reading.rows == 10 * 20
    q = FullGaussian.from_mean_precision(np.zeros(target.dim), np.eye(target.dim))
    assert target.follow(q, 10)
    assert not target.follow(q, 10)
    assert (target.reading.anchors, target.passes) == (1, 1.5)


def mixture(y, **total):
    mu = pm.Normal("mu", 0, 1, shape=2)
    pm.NormalMixture("y", pm.Dirichlet("w", [1, 1]), mu, 1, observed=y, **total)


def censored(y, **total):
    pm.Censored("y", pm.Normal.dist(pm.Normal("mu"), 1), lower=-1, upper=1, observed=y, **total)


def categorical(x, group, **total):
    slope = pm.Normal("slope", 0, 1, shape=(2, 3))
    pm.Categorical("group", logit_p=x @ slope, observed=group, **total)


def several_outcomes(x, **total):
    pm.MvNormal("x", pm.Normal("mu", 0, 1, shape=2), cov=np.eye(2), observed=x, **total)


def zero_inflated(counts, **total):
    rate = pm.math.exp(pm.Normal("mu"))
    pm.ZeroInflatedPoisson("counts", pm.Beta("p", 2, 2), rate, observed=counts, **total)


def potential(x, y, total_size=None):
    """A likelihood that is scaled by the length of its batch."""
    logp = pm.logp(pm.Normal.dist(x @ pm.Normal("mu", 0, 1, shape=2), 1.0), y)
    pm.Potential("likelihood", logp.sum() if total_size is None else total_size * logp.mean())


@pytest.mark.parametrize(
    ("build", "arrays"),
    [
        (mixture, [Y]),
        (censored, [np.clip(Y, -1, 1)]),
        (categorical, [X, GROUP]),
        (several_outcomes, [X]),
        (zero_inflated, [COUNTS]),
        (potential, [X, Y]),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_any_likelihood_may_read_batches(build, arrays):
    batches = pm.Minibatch(*arrays, batch_size=20)
    with pm.Model() as model:
        build(*(batches if len(arrays) > 1 else [batches]), total_size=ROWS)
    with pm.Model() as full:
        build(*arrays)
    target, other = (compile_target(m, backend="interpreted") for m in (model, full))
    x = points(target)
    expected = other.evaluate(x, "none")
    got = target.evaluate_fully(x, "none")
    np.testing.assert_allclose(got.log_density, expected.log_density, rtol=1e-9)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-8, atol=1e-9)
    means = []
    for seed in range(60):
        target.reseed(seed)
        means.append(target.evaluate(x[:1], "none").log_density[0])
    assert abs(np.mean(means) - expected.log_density[0]) < 4 * np.std(means) / np.sqrt(60)


@pytest.fixture(scope="module")
def fitted():
    return fit(in_batches(), random_seed=1)


@pytest.fixture(scope="module")
def reference():
    return fit(hierarchy(X, GROUP, Y, COUNTS), random_seed=1, accuracy=0.005).gaussian


def assert_close(gaussian, reference, accuracy):
    deviation = np.sqrt(reference.variance)
    assert abs((gaussian.mean - reference.mean) / deviation).max() < accuracy
    assert abs(np.log(gaussian.variance / reference.variance) / 2).max() < accuracy


def test_a_fit_without_hessians(reference):
    approx = fit(in_batches(), random_seed=1, estimator="stein", accuracy=0.1)
    assert_close(approx.gaussian, reference, 0.2)


def test_a_fit_of_batches_is_one_of_all_the_data(fitted, reference):
    approx, report = fitted, fitted.report
    assert report.status == "converged"
    assert_close(approx.gaussian, reference, 0.05)
    assert (report.n_rows, report.batch_size) == (ROWS, 20)
    assert report.anchors >= 1
    assert report.passes > report.anchors
    assert np.isfinite(report.khat)
    assert "passes over 400 rows in batches of 20" in str(report)
    passes = [info.passes for info in approx.history]
    assert passes == sorted(passes)
    assert 0 < passes[0] < passes[-1] <= report.passes


def test_a_fit_from_a_loader(reference):
    model, loader = loaded()
    approx = fit(model, random_seed=1, loader=loader)
    assert_close(approx.gaussian, reference, 0.05)
    # The containers are as they were, and the densities those of all the data.
    draws = approx.sample(20, random_seed=1, log_likelihood=True)
    assert model["x"].get_value().shape == (2, 2)
    full = approx.sample(
        20, random_seed=1, log_likelihood=True, model=hierarchy(X, GROUP, Y, COUNTS)
    )
    for group, name in [
        ("log_likelihood", "y"),
        ("log_likelihood", "counts"),
        ("sample_stats", "lp"),
    ]:
        np.testing.assert_allclose(draws[group][name], full[group][name], rtol=1e-9)


def test_a_loader_beside_minibatches():
    def build(few, many, **total):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 2.0)
            if total:
                many = pm.Data("many_data", many)
            pm.Normal("few", mu, 1.0, observed=few, **({"total_size": 50} if total else {}))
            pm.Normal("many", mu, 2.0, observed=many, **total)
        return model

    model = build(pm.Minibatch(Y[:50], batch_size=5), X[:2, 0], total_size=ROWS)
    loader = ngvi.Loader({"many_data": X[:, 0]}, batch_size=20)
    target = compile_target(model, backend="interpreted", loader=loader)
    full = compile_target(build(Y[:50], X[:, 0]), backend="interpreted")
    got = target.evaluate_fully(points(target), "full").log_density
    np.testing.assert_allclose(got, full.log_density(points(target)), rtol=1e-10)


def test_a_saved_fit_of_a_loader(tmp_path):
    model, loader = loaded()
    approx = fit(model, random_seed=1, loader=loader, accuracy=1.0)
    approx.save(tmp_path / "fit.nc")
    again = ngvi.load(tmp_path / "fit.nc", model, loader=loader)
    without = ngvi.load(tmp_path / "fit.nc", model)
    expected = approx.sample(5, random_seed=1, log_likelihood=True)
    got = again.sample(5, random_seed=1, log_likelihood=True)
    np.testing.assert_array_equal(got["log_likelihood"]["y"], expected["log_likelihood"]["y"])
    assert "observed_data" not in group_names(got)  # two rows that mean nothing
    assert "lp" not in without.sample(5)["sample_stats"]
    with pytest.raises(ValueError, match="read x, group, y_data, count_data from a loader"):
        without.sample(5, log_likelihood=True)
    without.loader = loader
    assert without.sample(5, log_likelihood=True)["log_likelihood"]["y"].shape == (1, 5, ROWS)


def test_batches_follow_set_data():
    with pm.Model() as model:
        data = pm.Data("data", Y)
        mu = pm.Normal("mu", 0.0, 100.0)
        pm.Normal("y", mu, 1.0, observed=pm.Minibatch(data, batch_size=20), total_size=ROWS)
    inference = ngvi.NGVI(model=model, backend="interpreted", random_seed=1)
    before = inference.fit(progressbar=False)
    old = before.gaussian.mean[0]
    likelihood = before.sample(3, random_seed=1, log_likelihood=True)["log_likelihood"]["y"]
    with model:
        pm.set_data({"data": Y + 10})
    moved = before.sample(3, random_seed=1, log_likelihood=True)["log_likelihood"]["y"]
    assert (abs(likelihood - moved) > 1).any()
    assert inference.fit(progressbar=False).gaussian.mean[0] == pytest.approx(old + 10, abs=0.01)


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
@pytest.mark.parametrize("first", [1.0, -1.0])
def test_starts_are_compared_each_at_an_anchor_of_its_own(first):
    """The anchor of one mode tells nothing of the other."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal(5000)
    y = 1 + 0.2 * x + rng.normal(0, 0.5, 5000)
    with pm.Model() as model:
        u, v = pm.Minibatch(x, y, batch_size=50)
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("y", mu**2 + 0.2 * mu * u, 0.5, observed=v, total_size=5000)
    starts = [{"mu": first}, {"mu": -first}]
    inference = ngvi.NGVI(model=model, backend="interpreted", start=starts)
    for seed in range(3):
        approx = inference.fit(random_seed=seed, progressbar=False)
        assert approx.gaussian.mean[0] == pytest.approx(1.0, abs=0.1)


@pytest.fixture(scope="module")
def inference():
    return ngvi.NGVI(model=in_batches(), backend="interpreted", random_seed=1)


@pytest.mark.parametrize(("small", "plain"), [(True, True), (False, True), (False, False)])
def test_the_elbo_is_that_of_all_the_data(compiled, fitted, inference, monkeypatch, small, plain):
    """Computed from few rows, estimated from many by an anchor, whether the fit has one or not."""
    monkeypatch.setattr(BatchTarget, "small", small)
    _, full = compiled["minibatch"]
    options = {"n": 5, "step_size": 0.001} if plain else {"accuracy": 0.5}
    approx = inference.fit(start=fitted, progressbar=False, **options)
    q = approx.gaussian
    draws = q.sample(2000, np.random.default_rng(0))
    ratios = full.log_density(draws) - q.log_density(draws)
    error = np.hypot(ratios.std() / np.sqrt(2000), approx.report.elbo_se)
    assert abs(approx.report.elbo - ratios.mean()) < 4 * error
    assert approx.report.elbo_se < 0.1
    assert (approx.report.anchors == 0) == plain
    assert np.isfinite(approx.report.khat)
    assert approx.report.verdict_passes > 0


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
def test_a_schedule_takes_plain_batches_or_anchors():
    model, options = two_sources(), dict(n=40, n_samples=10, random_seed=1)
    plain, anchored = fit(model, **options), fit(model, control_variates=True, **options)
    assert plain.report.anchors == 0
    assert plain.report.passes == pytest.approx(40 * 10 * 25 / 450, abs=0.5)
    assert anchored.report.anchors >= 1
    optimum = fit(two_sources(None), random_seed=1).gaussian
    assert optimum.kl(anchored.gaussian) < optimum.kl(plain.gaussian) / 10


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
def test_plain_batches_stay_plain_after_the_verdict(monkeypatch):
    monkeypatch.setattr(BatchTarget, "small", False)  # so that the verdict takes an anchor
    inference = ngvi.NGVI(model=two_sources(), backend="interpreted", random_seed=1, n_samples=10)
    approx = inference.fit(5, progressbar=False)
    assert approx.report.verdict_passes > 1
    inference.refine(5, progressbar=False)
    assert approx.report.anchors == 0
    assert approx.report.passes == pytest.approx(10 * 10 * 25 / 450, abs=0.5)
    assert inference._target._batches.anchor is None


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
def test_sample_sizes_are_capped_at_the_data():
    sizes = ngvi.schedules.growing(1.0, floor=2)
    approx = fit(two_sources(), n=25, n_samples=sizes, random_seed=1)
    assert [info.n_samples for info in approx.history][:5] == [2, 2, 3, 4, 5]
    assert max(info.n_samples for info in approx.history) == 450 // 25


@pytest.mark.filterwarnings("ignore::pymc_ngvi.BudgetSpent", "ignore::pymc_ngvi.UnreliableFit")
def test_results_follow_the_seed(fitted):
    same = fit(fitted.model, random_seed=1, n=3)
    assert [info.elbo for info in same.history] == [info.elbo for info in fitted.history[:3]]
    other = fit(fitted.model, random_seed=2, n=3)
    assert same.history[0].elbo != other.history[0].elbo


@pytest.mark.filterwarnings("ignore:The effect of Potentials")
def test_predictions_of_all_rows(fitted):
    with ngvi.full_data(fitted.model):
        predicted = pm.sample_posterior_predictive(
            fitted.sample(10, random_seed=1), progressbar=False, random_seed=1
        )
    assert predicted["posterior_predictive"]["y"].shape == (1, 10, ROWS)


def test_the_model_of_all_the_data(fitted):
    plain, full = hierarchy(X, GROUP, Y, COUNTS), ngvi.full_data(fitted.model)
    assert ngvi.full_data(plain) is plain
    point = {name: value + 0.3 for name, value in plain.initial_point().items()}
    logps = [model.compile_logp(mode=interpreted_mode())(point) for model in (full, plain)]
    assert logps[0] == pytest.approx(logps[1])
    assert list(full.rvs_to_initial_values[full["slope"]]) == [0.1, 0.2]


def test_loo_is_that_of_all_the_data():
    y = RNG.standard_normal(100)

    def build(data, **total):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 2.0)
            pm.Normal("y", mu, 1.0, observed=data, **total)
        return model

    batched = build(pm.Minibatch(y, batch_size=10), total_size=100)
    scores = [ngvi.loo(fit(model, random_seed=1), random_seed=1) for model in (batched, build(y))]
    values = [getattr(score, "elpd", None) or score.elpd_loo for score in scores]
    assert values[0] == pytest.approx(values[1], abs=0.05)


class TestBadInput:
    def test_missing_total_size(self):
        with pytest.warns(
            UserWarning, match="y sees batches of 20 of 400 rows but has no total_size"
        ):
            compile_target(
                hierarchy(*pm.Minibatch(X, GROUP, Y, COUNTS, batch_size=20)), backend="interpreted"
            )

    def test_missing_total_size_fits_what_the_model_says(self):
        """A posterior of one batch's worth of data, from all of it."""
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 10.0)
            pm.Normal("y", mu, 1.0, observed=pm.Minibatch(Y, batch_size=20))
        with pytest.warns(UserWarning, match="add total_size=400"):
            approx = fit(model, random_seed=1)
        precision = 20 + 0.01
        assert approx.gaussian.precision[0, 0] == pytest.approx(precision)
        assert approx.gaussian.mean[0] == pytest.approx(20 * Y.mean() / precision, abs=1e-6)

    def test_wrong_total_size(self):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 10.0)
            pm.Normal("y", mu, 1.0, observed=pm.Minibatch(Y, batch_size=20), total_size=100)
        with pytest.warns(UserWarning, match="total_size=100, but its data have 400 rows"):
            target = compile_target(model, backend="interpreted")
        hessian = target.evaluate_fully(np.zeros((1, 1)), "full").hessian
        assert hessian[0, 0, 0] == pytest.approx(-100.01)

    def test_a_batch_larger_than_the_data(self):
        with pytest.raises(ValueError, match="batch_size=500 is more than the 400 rows of many"):
            fit(two_sources(500))

    def test_arrays_of_different_lengths(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            x, y = pm.Minibatch(X[:, 0], Y[:-1], batch_size=5)
            pm.Normal("y", mu * x, 1.0, observed=y, total_size=ROWS)
        with pytest.raises(ValueError, match="different lengths"):
            fit(model)

    def test_rows_that_are_not_finite(self):
        bad = Y.copy()
        bad[123] = np.inf
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("y", mu, 1.0, observed=pm.Minibatch(bad, batch_size=5), total_size=ROWS)
        with pytest.raises(ValueError, match="y is not finite in row 123: inf"):
            fit(model)

    def test_a_loader_of_what_the_model_has_not(self):
        model, _ = loaded()
        loader = ngvi.Loader({"x": X, "y_dat": Y}, batch_size=5)
        with pytest.raises(ValueError, match=r"no such pm\.Data container; did you mean 'y_data'"):
            fit(model, loader=loader)
        with pytest.raises(ValueError, match="rows of the container x have the shape"):
            fit(model, loader=ngvi.Loader({"x": X[:, :1]}, batch_size=5))
        with pytest.raises(ValueError, match="group holds int32, the loader's array has float64"):
            fit(model, loader=ngvi.Loader({"group": Y}, batch_size=5))
        with pytest.raises(TypeError, match=r"must be a pymc_ngvi\.Loader, got dict"):
            fit(model, loader={"x": X})
        large = ngvi.Loader({"group": GROUP.astype("int64") + 2**40}, batch_size=5)
        with pytest.raises(OverflowError, match="group has integers too large"):
            fit(model, loader=large)

    def test_terms_of_two_sources(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            x, y = pm.Minibatch(X[:, 0], batch_size=5), pm.Minibatch(Y, batch_size=5)
            pm.Normal("y", mu * x, 1.0, observed=y, total_size=ROWS)
        with pytest.raises(NotImplementedError, match="y reads batches of different data"):
            fit(model)

    def test_potentials_are_sums_or_means(self):
        def build(scale):
            with pm.Model() as model:
                mu = pm.Normal("mu")
                batch = pm.Minibatch(Y, batch_size=20)
                pm.Potential("likelihood", scale(-((batch - mu) ** 2)))
            return model

        with pytest.warns(UserWarning, match="unless that is done, multiply it by 20"):
            compile_target(build(lambda logp: 20 * logp.sum()), backend="interpreted")
        with pytest.raises(NotImplementedError, match="neither a sum over the rows"):
            compile_target(build(lambda logp: logp.sum() ** 2), backend="interpreted")

    @pytest.mark.parametrize("mean", [False, True])
    def test_a_potential_may_be_zero_somewhere(self, mean):
        """A sum or a mean, that is zero near the initial point and for the first rows."""
        flags = np.repeat([0.0, 1.0], [50, ROWS - 50])

        def build(y, flag):
            with pm.Model() as model:
                mu = pm.Normal("mu")
                logp = flag * (mu - 0.1) * y
                pm.Potential("likelihood", ROWS * logp.mean() if mean else logp.sum())
            return model

        model = build(*pm.Minibatch(Y, flags, batch_size=20))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            target = compile_target(model, backend="interpreted")
        assert any("multiply it by 20" in str(w.message) for w in caught) != mean
        full = compile_target(build(Y, flags), backend="interpreted")
        prior = -0.5 * np.log(2 * np.pi)
        scale = 1 if mean else 20 / ROWS
        expected = prior + scale * (full.log_density(np.zeros((1, 1))) - prior)
        got = target.evaluate_fully(np.zeros((1, 1)), "none").log_density
        np.testing.assert_allclose(got, expected)

    def test_a_potential_that_is_zero_everywhere(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            batch = pm.Minibatch(Y, batch_size=20)
            pm.Potential("wall", pt.switch(mu + 0 * batch > 50, -1.0, 0.0).sum())
        with pytest.warns(UserWarning, match="wall is zero or .* taken for a sum"):
            compile_target(model, backend="interpreted")

    def test_control_variates_of_nothing(self):
        with pytest.raises(ValueError, match="this model does not"):
            fit(two_sources(None), control_variates=True)

    def test_other_draws_in_the_log_density(self):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            generator = pytensor.shared(np.random.default_rng(1))
            pm.Potential("shaken", mu * pt.random.normal(0.0, 1.0, rng=generator))
        with pytest.raises(NotImplementedError, match="draws at random"):
            fit(model)


def test_a_model_of_all_its_data_reads_no_batches():
    assert not find_data(hierarchy(X, GROUP, Y, COUNTS)).feeds


def test_data_containers_may_be_read_in_batches():
    with pm.Model() as model:
        data = pm.Data("data", Y)
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu, 1.0, observed=pm.Minibatch(data, batch_size=20), total_size=ROWS)
    (feed,) = find_data(model).feeds
    np.testing.assert_array_equal(feed.loader.arrays["y"], Y)
