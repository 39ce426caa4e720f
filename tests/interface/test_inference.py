"""pm.fit(method="ngvi") as a user calls it, on the interpreted backend (nothing to compile)."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
import xarray
from pymc.variational.callbacks import CheckParametersConvergence, Tracker

import pymc_ngvi as ngvi
from pymc_ngvi.errors import BudgetSpent, NonFiniteError
from pymc_ngvi.interface.options import Options
from pymc_ngvi.model.hessian import HessianFallbackWarning
from tests import conftest
from tests.models import MODELS

# Many fits here have a low accuracy, or a family that is too small for the posterior.
pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.errors.UnreliableFit")

QUICK = {"backend": "interpreted", "accuracy": 0.2}
fit = functools.partial(conftest.fit, accuracy=0.2)

# Its Hessian takes most of the time to build uncompiled, and is tested with the target.
GRADIENTS_ONLY = ("lkj_cholesky_cov",)


def gaussian_regression(dim, seed=1):
    """Known noise and a Gaussian prior: posterior mean and covariance in closed form."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((2 * dim + 3, dim)) + 1.0
    response = design @ rng.standard_normal(dim) + rng.standard_normal(len(design))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 3, shape=dim)
        pm.Normal("y", design @ beta, 0.5, observed=response)
    precision = design.T @ design / 0.25 + np.eye(dim) / 9
    return model, np.linalg.solve(precision, design.T @ response / 0.25), np.linalg.inv(precision)


@pytest.mark.parametrize("dim", [1, 5, 50])
def test_linear_regression_is_the_closed_form(dim):
    model, mean, covariance = gaussian_regression(dim)
    approx = fit(model, random_seed=2)
    sd = np.sqrt(covariance.diagonal())
    assert np.abs((approx.gaussian.mean - mean) / sd).max() < 1e-6
    assert np.abs(approx.gaussian.covariance - covariance).max() < 1e-6 * sd.max() ** 2
    np.testing.assert_allclose(approx.mean.eval(), mean, atol=1e-6)
    np.testing.assert_allclose(approx.cov.eval(), covariance, atol=1e-6)
    assert approx.report.status == "converged"
    assert isinstance(approx, pm.FullRank)


def test_conjugate_normal_is_the_closed_form():
    approx = fit(MODELS["conjugate_normal"](), random_seed=2)
    precision = 1 / 4 + 3 / 0.25
    mean = (1 / 4 + np.sum([0.3, 1.1, 0.7]) / 0.25) / precision
    assert approx.gaussian.mean[0] == pytest.approx(mean, abs=1e-9)
    assert approx.gaussian.covariance[0, 0] == pytest.approx(1 / precision, abs=1e-9)


def test_the_prior_is_fitted_where_nothing_is_observed():
    with pm.Model() as model:
        pm.Normal("x", 3.0, 2.0, shape=2)
    approx = fit(model, random_seed=1)
    np.testing.assert_allclose(approx.gaussian.mean, 3.0)
    np.testing.assert_allclose(approx.gaussian.variance, 4.0)


@pytest.mark.parametrize("name", MODELS)
def test_everything_a_model_may_contain(name, monkeypatch):
    """Fit, draw, and the draws have every variable, finite, in its support."""
    monkeypatch.setattr("pymc_ngvi.results.verdict.VERDICT_DRAWS", 100)  # one after the other
    model = MODELS[name]()
    estimator = "stein" if name in GRADIENTS_ONLY else "bonnet-price"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetSpent)
        warnings.simplefilter("ignore", HessianFallbackWarning)
        approx = fit(model, random_seed=3, max_evaluations=100, estimator=estimator)
        idata = approx.sample(20, random_seed=4)
    posterior = idata["posterior"]
    assert {variable.name for variable in model.unobserved_RVs} == set(posterior)
    for values in posterior.values():
        assert values.shape[:2] == (1, 20)
        assert np.isfinite(values).all(), values.name
    assert np.isfinite(idata["sample_stats"]["lp"]).all()  # as it is within the support only
    start, report = approx.history[0], approx.report
    assert report.elbo - start.elbo > -3 * np.hypot(report.elbo_se, start.elbo_se)


@pytest.mark.parametrize("family", ["meanfield", "centred_meanfield"])
def test_diagonal_families(family):
    model, mean, covariance = gaussian_regression(5)
    approx = fit(model, family=family, random_seed=2, accuracy=0.02)
    assert isinstance(approx, pm.MeanField)
    precision = np.linalg.inv(covariance).diagonal()
    np.testing.assert_allclose(approx.gaussian.precision, precision, rtol=1e-6)
    if family == "meanfield":
        assert np.abs((approx.gaussian.mean - mean) * np.sqrt(precision)).max() < 0.1
    else:
        assert not approx.mean.eval().any()


def test_a_projection_that_binds_is_no_reason_to_go_on():
    with pm.Model() as model:
        pm.Normal("x", 0, 1, shape=2)
    approx = fit(model, projection=ngvi.EigenvalueBounds(1e-4, 0.25), random_seed=1)
    assert approx.report.status == "converged"
    np.testing.assert_allclose(approx.gaussian.variance, 0.25)


def test_an_estimator_of_ones_own():
    model, mean, _ = gaussian_regression(2)
    inner = ngvi.BonnetPrice()

    def estimator(target, q, n_samples, rng):
        return inner(target, q, n_samples, rng)

    approx = fit(model, estimator=estimator, n=1, step_size=1.0, n_samples=2, random_seed=1)
    np.testing.assert_allclose(approx.gaussian.mean, mean)
    with pytest.raises(ValueError, match="has no `at`"):
        fit(model, estimator=estimator)


def test_stein_estimator():
    model, mean, covariance = gaussian_regression(3)
    approx = fit(model, estimator="stein", random_seed=2, accuracy=0.02)
    assert approx.report.estimator == "stein"
    assert np.abs((approx.gaussian.mean - mean) / np.sqrt(covariance.diagonal())).max() < 0.02


def test_algorithm_1_by_hand():
    """Naming a schedule runs exactly that, for exactly n iterations."""
    model, _, _ = gaussian_regression(3)
    approx = fit(
        model,
        n=40,
        family="meanfield",
        step_size=ngvi.schedules.decreasing(m=2),
        n_samples=ngvi.schedules.growing(gamma=1.0, floor=10),
        projection=ngvi.EigenvalueBounds(1e-4, 1e4),
        random_seed=2,
    )
    assert approx.report.status == "max_iterations"
    assert approx.report.iterations == 40
    assert approx.report.evaluations == sum(max(10, t + 1) for t in range(40))


def test_one_schedule_implies_the_other():
    model, mean, _ = gaussian_regression(2)
    assert fit(model, n=3, step_size=0.5, random_seed=1).report.evaluations == 30
    approx = fit(model, n=3, n_samples=4, random_seed=1)
    assert approx.report.evaluations == 12
    np.testing.assert_allclose(approx.gaussian.mean, mean)


@pytest.fixture(scope="module")
def regression():
    return MODELS["linear_regression"]()


@pytest.fixture(scope="module")
def fitted(regression):
    return fit(regression, random_seed=5)


def scale():
    """One parameter, whose posterior is not Gaussian: the smallest model with noise in its fit."""
    with pm.Model() as model:
        s = pm.HalfNormal("s", 2.0)
        pm.Normal("y", 0.0, s, observed=[0.3, -1.1, 0.7, 2.0])
    return model


@pytest.fixture(scope="module")
def small():
    return scale()


@pytest.fixture(scope="module")
def small_fitted(small):
    return fit(small, random_seed=5)


@pytest.fixture(scope="module")
def refined(small):
    """Return an instance after a fit and a refinement, and the Gaussian and report between them."""
    inference = ngvi.NGVI(model=small, random_seed=5, **QUICK)
    approx = inference.fit(progressbar=False)
    before = approx.gaussian, approx.report
    inference.refine(3, progressbar=False)
    return inference, *before


class TestResult:
    def test_hist_is_the_negative_elbo(self, fitted):
        assert len(fitted.hist) == fitted.report.iterations
        assert fitted.hist[0] > -fitted.report.elbo  # the start is worse than the result

    def test_elbo_is_the_evidence_where_the_posterior_is_gaussian(self):
        """The report's ELBO is that of the result, not of the member the last step started from."""
        for y, n in (([50.0, 51.0, 52.0], None), ([0.3], 1)):
            with pm.Model() as model:
                mu = pm.Normal("mu", 0, 2)
                pm.Normal("y", mu, 1, observed=y)
            evidence = scipy.stats.multivariate_normal(np.zeros(len(y)), np.eye(len(y)) + 4).logpdf(
                y
            )
            schedule = {} if n is None else {"n": 1, "step_size": 1.0, "n_samples": 2}
            report = fit(model, random_seed=1, **schedule).report
            assert report.elbo == pytest.approx(evidence, abs=1e-7)
            assert report.elbo_se < 1e-9
            assert report.iterations >= 1

    def test_evaluations_are_counted(self):
        model, _, _ = gaussian_regression(2)
        inference = ngvi.NGVI(model=model, random_seed=1, **QUICK)
        target, counted = inference._target, []

        def counting(evaluate):
            def evaluate_and_count(draws, *how):
                counted.append(len(draws))
                return evaluate(draws, *how)

            return evaluate_and_count

        target.evaluate, target.average = counting(target.evaluate), counting(target.average)
        approx = inference.fit(progressbar=False)
        at_the_start = 2  # one to check that it is finite, one for the curvature
        assert approx.report.evaluations == sum(counted) - at_the_start

    def test_report_prints(self, fitted):
        text = str(fitted.report)
        assert "converged" in text
        assert "ELBO" in text
        assert fitted.report._repr_html_().count("<tr>") == len(text.splitlines())

    def test_sampling_outside_the_context(self, fitted):
        idata = fitted.sample(200, random_seed=1)
        assert idata["posterior"]["slopes"].shape == (1, 200, 3)
        assert (idata["posterior"]["sigma"] > 0).all()

    def test_posterior_predictive(self):
        # On a model of its own: PyMC 5.28 leaves one whose log density cannot be built any more,
        # after ADVI too.
        regression = MODELS["linear_regression"]()
        idata = fit(regression, n=2, step_size=1.0).sample(30, random_seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = pm.sample_posterior_predictive(
                idata, model=regression, random_seed=1, progressbar=False
            )
        assert predicted["posterior_predictive"]["y"].shape == (1, 30, 40)

    def test_return_inferencedata(self, small):
        direct = fit(
            small, random_seed=5, return_inferencedata=True, draws=7, include_transformed=True
        )
        assert direct["posterior"]["s_log__"].shape == (1, 7)
        other = ngvi.fit_ngvi(model=small, random_seed=5, draws=7, progressbar=False, **QUICK)
        np.testing.assert_array_equal(other["posterior"]["s"], direct["posterior"]["s"])

    def test_set_data_after_the_fit(self):
        model = MODELS["mutable_data"]()
        approx = fit(model, random_seed=1)
        before = approx.sample(3, random_seed=1)["posterior"]
        with model:
            pm.set_data({"x": np.zeros(6)})
        after = approx.sample(3, random_seed=1)["posterior"]
        np.testing.assert_array_equal(before["slope"], after["slope"])


class TestSeeds:
    def test_same_seed_same_result(self, small, small_fitted):
        for seed in (5, np.random.default_rng(5)):
            again = fit(small, random_seed=seed)
            np.testing.assert_array_equal(again.gaussian.mean, small_fitted.gaussian.mean)

    def test_a_sequence_is_a_seed(self, small):
        once, again = (fit(small, random_seed=[5]).gaussian.mean for _ in range(2))
        np.testing.assert_array_equal(once, again)

    def test_minibatches_follow_the_seed(self):
        rng = np.random.default_rng(1)
        with pm.Model() as model:
            batch = pm.Minibatch(rng.normal(size=200), batch_size=5)
            mu = pm.Normal("mu")
            pm.Normal("y", mu, 1, observed=batch, total_size=200)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HessianFallbackWarning)
            means = [
                fit(model, n=5, step_size=0.1, random_seed=seed).gaussian.mean for seed in (1, 1, 2)
            ]
        np.testing.assert_array_equal(means[0], means[1])
        assert (means[0] != means[2]).all()

    def test_other_seed_other_result(self, small, small_fitted):
        assert (fit(small, random_seed=6).gaussian.mean != small_fitted.gaussian.mean).any()

    def test_same_result_in_another_process(self, small_fitted):
        code = (
            "from tests.interface.test_inference import fit, scale\n"
            "approx = fit(scale(), random_seed=5)\n"
            "print(approx.gaussian.mean.tobytes().hex())"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip().splitlines()[-1] == small_fitted.gaussian.mean.tobytes().hex()


class TestStart:
    def test_names_plain_and_transformed(self, regression):
        arguments = dict(n=1, step_size=1e-9, n_samples=2, random_seed=1)
        plain = fit(regression, start={"sigma": 2.0, "slopes": [1.0, 2.0, 3.0]}, **arguments)
        transformed = fit(
            regression, start={"sigma_log__": np.log(2.0), "slopes": [1.0, 2.0, 3.0]}, **arguments
        )
        np.testing.assert_allclose(plain.gaussian.mean, [0, 1, 2, 3, np.log(2)], atol=1e-5)
        np.testing.assert_allclose(plain.gaussian.mean, transformed.gaussian.mean, atol=1e-12)

    def test_previous_approximation_and_its_inferencedata(self, regression, fitted):
        arguments = dict(n=1, step_size=1e-9, n_samples=2, random_seed=1)
        for start in (fitted, fitted.sample(2)):
            again = fit(regression, start=start, **arguments)
            np.testing.assert_allclose(again.gaussian.mean, fitted.gaussian.mean, atol=1e-6)
            np.testing.assert_allclose(
                again.gaussian.covariance, fitted.gaussian.covariance, rtol=1e-6, atol=1e-12
            )

    def test_family_may_differ_from_the_previous_one(self, regression, fitted):
        again = fit(regression, start=fitted, family="meanfield", n=1, step_size=1e-9, n_samples=2)
        np.testing.assert_allclose(again.gaussian.variance, fitted.gaussian.variance, rtol=1e-6)

    def test_any_posterior_gives_its_means(self, regression, fitted):
        idata = fitted.sample(500, random_seed=1)
        del idata["fit"]
        again = fit(regression, start=idata, n=1, step_size=1e-9, n_samples=2)
        sd = np.sqrt(fitted.gaussian.variance)
        assert np.abs((again.gaussian.mean - fitted.gaussian.mean) / sd).max() < 0.2

    def test_approximation_of_another_method(self, regression):
        with pm.Model(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            advi = pm.FullRank(model=regression)
        again = fit(regression, start=advi, n=1, step_size=1e-9, n_samples=2)
        np.testing.assert_allclose(again.gaussian.mean, advi.mean.eval(), atol=1e-3)

    def test_dependent_transforms_see_each_other(self):
        """x lies in (0, s): whichever name s goes by, x is transformed with that s."""
        with pm.Model() as model:
            s = pm.HalfNormal("s")
            pm.Uniform("x", 0, s)
        points = [
            ngvi.NGVI(model=model, start=start)._starts[0].point
            for start in ({"s": 10.0, "x": 5.0}, {"s_log__": np.log(10.0), "x": 5.0})
        ]
        np.testing.assert_allclose(points[0], [np.log(10), 0.0], atol=1e-12)
        np.testing.assert_allclose(points[0], points[1])

    def test_what_find_map_returns(self):
        with pm.Model() as model:
            s = pm.HalfNormal("s", shape=3)
            pm.Deterministic("double", 2 * s)
        everything = {"s": 2.0, "double": 4 * np.ones(3)}
        point = ngvi.NGVI(model=model, start=everything)._starts[0].point
        np.testing.assert_allclose(point, np.log(2 * np.ones(3)))

    def test_a_fit_group_of_another_tool(self, regression, fitted):
        class Foreign(dict):
            groups = ("/posterior", "/fit")

        posterior = fitted.sample(50, random_seed=1)["posterior"]
        foreign = xarray.Dataset({"mean_vector": ("rows", np.zeros(5))})
        start = ngvi.NGVI(
            model=regression, start=Foreign(posterior=posterior, fit=foreign)
        )._starts[0]
        assert start.gaussian is None
        assert np.isfinite(start.point).all()

    def test_start_sigma(self, regression):
        inference = ngvi.NGVI(model=regression, start_sigma={"slopes": 0.1, "sigma": 0.2}, **QUICK)
        sd = np.sqrt(inference.approx.gaussian.variance)
        np.testing.assert_allclose(sd, [1, 0.1, 0.1, 0.1, 0.2])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (dict(start={"slope": 1.0}), "no free variable 'slope'; did you mean 'slopes'"),
            (dict(start={"slopes": [1.0, 2.0]}), "slopes has shape"),
            (dict(start={"sigma": -1.0}), "sigma_log__ is nan"),
            (dict(start={"sigma_log__": [1.0, 2.0]}), r"sigma_log__ has shape \(2,\)"),
            (dict(start_sigma={"sigma": -1.0}), "start_sigma: sigma must be positive"),
            (dict(start_sigma={"slopes": [1.0, 2.0]}), r"start_sigma: slopes has shape \(2,\)"),
            (dict(start_sigma={"tau": 1.0}), "start_sigma: the model has no free variable 'tau'"),
        ],
    )
    def test_bad_values_are_named(self, regression, options, message):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with pytest.raises(ValueError, match=message):
                ngvi.NGVI(model=regression, **QUICK, **options)

    def test_approximation_of_another_model(self, fitted):
        with pytest.raises(ValueError, match=r"of another model.*slopes"):
            ngvi.NGVI(model=MODELS["conjugate_normal"](), start=fitted)

    def test_start_sigma_is_no_number(self, regression):
        with pytest.raises(TypeError, match="start_sigma is a dict of values by name, not float"):
            ngvi.NGVI(model=regression, start_sigma=0.1)

    def test_no_start_at_all(self, regression):
        with pytest.raises(TypeError, match="start is a dict of values, a previous approx"):
            ngvi.NGVI(model=regression, start=3.0)


class TestCallbacks:
    def test_signature_and_stop(self, small):
        seen = []

        def callback(approx, losses, i):
            seen.append((approx.mean.get_value().copy(), losses.copy(), i))
            if i == 3:
                raise StopIteration("enough")

        approx = fit(small, callbacks=[callback], random_seed=1)
        assert [i for _, _, i in seen] == [1, 2, 3]
        assert [len(losses) for _, losses, _ in seen] == [1, 2, 3]
        assert (seen[0][0] != seen[1][0]).any()
        assert approx.report.status == "stopped_by_callback"
        assert len(approx.hist) == 3

    def test_no_score(self, small):
        losses_seen = []
        approx = fit(
            small, score=False, callbacks=[lambda a, losses, i: losses_seen.append(losses)]
        )
        assert set(losses_seen) == {None}
        assert len(approx.hist) == 0

    def test_pymc_tracker_and_convergence_check(self, small):
        inference = ngvi.NGVI(model=small, random_seed=1, **QUICK)
        tracker = Tracker(mean=inference.approx.mean.get_value, std=inference.approx.std.eval)
        stop = CheckParametersConvergence(every=1, tolerance=0.5, diff="absolute")
        approx = inference.fit(progressbar=False, callbacks=[tracker, stop])
        assert approx is inference.approx
        assert len(tracker["mean"]) == approx.report.iterations
        assert approx.report.status == "stopped_by_callback"

    def test_interrupt_keeps_the_fit(self, small):
        def interrupt(approx, losses, i):
            if i == 3:
                raise KeyboardInterrupt

        approx = fit(small, callbacks=[interrupt], random_seed=1)
        assert approx.report.status == "interrupted"
        assert approx.report.iterations == 3
        assert np.isfinite(approx.gaussian.mean).all()

    def test_late_failure_keeps_the_fit(self, small):
        def fail(approx, losses, i):
            if i == 3:
                raise OSError("disk full")

        inference = ngvi.NGVI(model=small, random_seed=1, **QUICK)
        with pytest.raises(OSError, match="disk full") as error:
            inference.fit(progressbar=False, callbacks=[fail])
        assert error.value.approximation is inference.approx
        assert inference.approx.report.status == "failed"
        assert len(inference.hist) == 3


class TestInstance:
    def test_without_registration(self, small, small_fitted):
        ngvi.unregister()
        try:
            inference = ngvi.NGVI(model=small, random_seed=5, **QUICK)
            with small:
                approx = pm.fit(method=inference, progressbar=False)
        finally:
            ngvi.register()
        np.testing.assert_array_equal(approx.gaussian.mean, small_fitted.gaussian.mean)

    def test_seed_and_start_reach_an_instance(self, small, small_fitted):
        inference = ngvi.NGVI(model=small, **QUICK)
        with small:
            approx = pm.fit(method=inference, random_seed=5, progressbar=False)
        np.testing.assert_array_equal(approx.gaussian.mean, small_fitted.gaussian.mean)

    def test_none_for_an_argument_of_pymc_keeps_what_the_instance_has(self, small, small_fitted):
        inference = ngvi.NGVI(model=small, random_seed=5, **QUICK)
        approx = pm.fit(
            method=inference, model=small, random_seed=None, start=None, progressbar=False
        )
        np.testing.assert_array_equal(approx.gaussian.mean, small_fitted.gaussian.mean)

    def test_refine_goes_on(self, refined):
        inference, gaussian, _ = refined
        shift = (inference.approx.gaussian.mean - gaussian.mean) / np.sqrt(gaussian.variance)
        assert 0 < np.abs(shift).max() < 0.3

    def test_refine_reports_the_whole_fit(self, refined):
        inference, _, before = refined
        report = inference.approx.report
        assert report.iterations == len(inference.hist) == before.iterations + 3
        assert len(inference.approx.hist) == len(inference.approx.history) == report.iterations
        assert report.evaluations > before.evaluations
        assert report.fit_seconds > before.fit_seconds
        assert report.verdict_seconds > before.verdict_seconds
        # A function that pays only now may be built; what was built before counts on.
        assert report.compile_seconds >= before.compile_seconds
        assert report.status == "refined"

    def test_refine_needs_a_fit(self, small):
        with pytest.raises(TypeError, match="Need to call"):
            ngvi.NGVI(model=small, **QUICK).refine(3)

    def test_options_of_a_fit_hold_for_that_fit(self, small):
        inference = ngvi.NGVI(model=small, **QUICK)
        seeded = [inference.fit(random_seed=5, progressbar=False).gaussian.mean for _ in range(2)]
        free = inference.fit(score=False, progressbar=False)
        np.testing.assert_array_equal(*seeded)
        assert (free.gaussian.mean != seeded[0]).any()
        assert len(inference.hist) == len(free.hist) == 0

    def test_a_fit_that_cannot_start_changes_nothing(self, small, small_fitted):
        inference = ngvi.NGVI(model=small, random_seed=5, **QUICK)
        with pytest.raises(pm.exceptions.SamplingError):
            inference.fit(start={"s_log__": -800.0}, progressbar=False)
        with pytest.raises(TypeError, match="Need to call"):
            inference.refine(1)
        inference.fit(progressbar=False)
        engine = inference._fit.search.engine
        with pytest.raises(ValueError, match="no free variable"):
            inference.fit(start={"nothing": 1.0})
        with pytest.raises(pm.exceptions.SamplingError):
            inference.fit(start={"s_log__": -800.0}, progressbar=False)
        assert inference._fit.search.engine is engine
        inference.refine(1, progressbar=False)
        again = inference.fit(progressbar=False)
        np.testing.assert_array_equal(again.gaussian.mean, small_fitted.gaussian.mean)

    def test_refine_of_a_schedule(self, small):
        inference = ngvi.NGVI(
            model=small, random_seed=5, **QUICK, step_size=ngvi.schedules.decreasing()
        )
        inference.fit(10, progressbar=False)
        inference.refine(5, progressbar=False)
        assert inference.state.iteration == 15
        assert len(inference.hist) == 15

    def test_options_of_the_fit_override(self, small):
        inference = ngvi.NGVI(model=small, **QUICK)
        approx = inference.fit(3, step_size=0.3, n_samples=2, progressbar=False)
        assert approx.report.evaluations == 6
        with pytest.raises(TypeError, match="family belongs to NGVI"):
            inference.fit(family="meanfield")


class TestBadInput:
    def test_discrete_variables(self):
        with pm.Model() as model:
            pm.Poisson("k", 3.0)
            pm.Normal("x")
        with pytest.raises(
            Exception, match=r"Discrete variables are not .*: k\..*(marginal|Sum them out)"
        ):
            fit(model)

    def test_no_free_variables(self):
        with pm.Model() as model:
            pm.Normal("y", 0, 1, observed=1.0)
        with pytest.raises(TypeError, match="no free variables"):
            fit(model)

    def test_empty_variables(self):
        with pm.Model() as model:
            pm.Normal("nothing", shape=0)
        with pytest.raises(TypeError, match=r"no parameters.*: nothing has shape \(0,\)"):
            fit(model)

    def test_no_model(self):
        with pytest.raises(TypeError, match="context"):
            pm.fit(method="ngvi")

    def test_start_outside_the_support(self):
        with pm.Model() as model:
            x = pm.Normal("x", initval=2.0)
            pm.Potential("wall", pt.log(1.0 - x))
        with pytest.raises(pm.exceptions.SamplingError, match=r"(?s)wall.*not finite"):
            fit(model, start={"x": 2.0})

    def test_nan_during_the_fit_names_variable_and_iteration(self):
        """Data that turn bad during the fit: no step is short enough."""
        with pm.Model() as model:
            x = pm.Normal("x", 0, 10)
            tilt = pm.Data("tilt", 1.0)
            pm.Potential("tilted", tilt * x)

        def spoil(approx, losses, i):
            pm.set_data({"tilt": np.nan}, model=model)

        inference = ngvi.NGVI(model=model, random_seed=1, **QUICK)
        message = r"(?s)iteration \d:.*log density.*not finite.*tilted.*not finite"
        with pytest.raises(NonFiniteError, match=message) as error:
            inference.fit(progressbar=False, callbacks=[spoil])
        assert error.value.approximation is inference.approx
        assert np.isfinite(inference.approx.gaussian.mean).all()
        assert inference.approx.report.status == "failed"

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (dict(famly="meanfield"), TypeError, "no option 'famly'; did you mean 'family'"),
            (dict(family="mean"), ValueError, "did you mean 'meanfield'"),
            (dict(estimator="bonnet"), ValueError, "did you mean 'bonnet-price'"),
            (dict(family=None), ValueError, "family None is none of 'auto', 'meanfield'"),
            (dict(guard="linn"), ValueError, "guard 'linn' is none of .*did you mean 'lin'"),
            (dict(n=-1), ValueError, "n must be zero or a positive integer, got -1"),
            (dict(n=pm.Model()), TypeError, r"give the model by its name, model="),
            (dict(n=2.5), ValueError, "n must be zero or a positive integer"),
            (dict(step_size=2.0), ValueError, "step_size at t = 0 is 2.0"),
            (dict(n_samples=lambda t: 0), ValueError, "n_samples at t = 0 is 0"),
            (dict(step_size="fast"), TypeError, "step_size must be a number or a callable"),
            (dict(accuracy=0), ValueError, "accuracy must be a number from 1e-06 to 1000, got 0"),
            (dict(accuracy="high"), TypeError, "accuracy must be a number .* got 'high'"),
            (dict(accuracy=1e-300), ValueError, "accuracy must be a number .* got 1e-300"),
            (dict(accuracy=np.inf), ValueError, "accuracy must be a number .* got inf"),
            (dict(callbacks=print), TypeError, "callbacks must be a list .* as \\[callback\\]"),
            (dict(callbacks=[lambda: 0]), TypeError, r"callbacks\(approx, losses, i\)"),
            (dict(guard=[]), ValueError, r"guard \[\] is none of 'lin', 'backtrack', 'none'"),
            (dict(guard=lambda *_: None), TypeError, "guard .* must return a pymc_ngvi.*Mixed"),
            (dict(projection=[]), TypeError, r"projection \[\] is not callable"),
            (dict(projection=ngvi.EigenvalueBounds), TypeError, "projection .* is a class: give"),
            (dict(projection=abs), TypeError, "projection .* fails on the Gaussian"),
            (dict(projection=lambda q: 3), TypeError, "must return a Gaussian .* returned 3"),
            (dict(model="x"), TypeError, "model must be a pymc.Model, got 'x'"),
            (dict(compile_kwargs=[1]), TypeError, "compile_kwargs must be a dictionary"),
            (dict(compile_kwargs={"mod": 1}), TypeError, "compile_kwargs: .*did you mean 'mode'"),
            (dict(compile_kwargs={"mode": "FAST"}), ValueError, "compile_kwargs: mode 'FAST'"),
            (dict(compile_kwargs={"mode": 3}), TypeError, "compile_kwargs: mode must be .* got 3"),
            (dict(inf_kwargs=[1]), TypeError, "inf_kwargs must be a dictionary"),
            (dict(n_samples=1e300), ValueError, "n_samples at t = 0 is 1e[+]300; .* at most"),
            (dict(step_size=lambda t: 1 / t), ValueError, "step_size .* fails at t = 0: ZeroDiv"),
            (dict(start={"sigma": "wide"}), TypeError, "start: sigma must be a number .*'wide'"),
            (dict(start_sigma={"sigma": np.inf}), ValueError, "sigma must be positive and finite"),
            (dict(progressbar_theme="dark"), TypeError, "progressbar_theme must be a rich"),
            (dict(log_likelihood="yes"), TypeError, "log_likelihood must be True or False"),
            (dict(max_evaluations=-1), ValueError, "max_evaluations must be a positive integer"),
            (dict(draws=0), ValueError, "draws must be a positive integer"),
            (dict(backend="cuda"), ValueError, "backend"),
            (dict(averaging=True), ValueError, "averaging belongs to Algorithm 1"),
            (
                dict(projection=ngvi.NonNegativeMean()),
                ValueError,
                "NonNegativeMean does not fit family 'fullrank'",
            ),
            (dict(random_seed="one"), TypeError, "random_seed"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_options(self, regression, options, error, message, monkeypatch):
        """Refused before anything is compiled."""
        monkeypatch.setattr(
            "pymc_ngvi.model.compiler.Compiler.function",
            lambda *_: pytest.fail("compiled something"),
        )
        with pytest.raises(error, match=message):
            fit(**dict(model=regression) | options)

    def test_a_model_beside_an_instance(self, small, regression):
        inference = ngvi.NGVI(model=small, **QUICK)
        with pytest.raises(ValueError, match="model: the instance of NGVI has a model of its own"):
            pm.fit(method=inference, model=regression)

    def test_what_is_said_of_draws_that_are_not_returned(self, small):
        with pytest.warns(UserWarning, match="draws, log_likelihood: not used.*return_inferenced"):
            fit(small, n=0, draws=10, log_likelihood=True)

    def test_keywords_of_other_methods_are_ignored_with_a_warning(self, small):
        with pytest.warns(UserWarning, match="no use for obj_optimizer, total_grad_norm"):
            fit(
                small,
                n=1,
                step_size=0.5,
                obj_optimizer=pm.adam(),
                total_grad_norm_constraint=10.0,
            )

    def test_budget_is_announced(self, small):
        with pytest.warns(UserWarning, match="stopped on its budget.*raise max_evaluations"):
            approx = fit(small, max_evaluations=100, accuracy=1e-4)
        assert approx.report.status == "max_evaluations"
        with pytest.warns(UserWarning, match="raise n"):
            assert fit(small, n=2).report.status == "max_iterations"

    def test_every_option_is_documented(self):
        entries = re.findall(r"(?m)^(\w+(?:, \w+)*) : ", inspect.getdoc(Options))
        documented = [name for entry in entries for name in entry.split(", ")]
        assert sorted(documented) == sorted(inspect.signature(Options).parameters)
