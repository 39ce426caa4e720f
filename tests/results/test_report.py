"""The report of a fit, its verdict and warnings, and several starts."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pymc_ngvi as ngvi
from pymc_ngvi.core.algorithm import Status
from tests.conftest import fit


def regression(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=200)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 5)
        noise = pm.HalfNormal("noise", 2)
        pm.Normal("y", slope * x, noise, observed=2 * x + rng.normal(size=200))
    return model


def funnel():
    with pm.Model() as model:
        log_scale = pm.Normal("log_scale", 0, 3)
        pm.Normal("x", 0, pt.exp(log_scale), shape=5)
    return model


def two_hills(apart=12.0, share=0.3):
    with pm.Model() as model:
        pm.Mixture(
            "x", [share, 1 - share], [pm.Normal.dist(0, 1), pm.Normal.dist(apart, 1)], initval=0.0
        )
    return model


@pytest.fixture(scope="module")
def good():
    """Return a good fit, which warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ngvi.UnreliableFit)
        warnings.simplefilter("error", ngvi.BudgetSpent)
        return fit(regression())


class TestVerdict:
    def test_a_good_fit_is_told_as_good(self, good):
        report = good.report
        assert report.status is Status.CONVERGED
        assert report.evaluations < 500
        assert report.ess > 500
        assert not report.verdict.unreliable
        assert "draws effective: " in str(report)
        assert report._repr_html_().count("<tr>") == len(str(report).splitlines())

    def test_a_funnel_is_flagged_in_one_line_with_what_to_do(self):
        with pytest.warns(ngvi.UnreliableFit, match="try reparametrize=") as caught:
            report = fit(funnel(), max_evaluations=3000, accuracy=0.2, reparametrize=False).report
        message = next(str(w.message) for w in caught if w.category is ngvi.UnreliableFit)
        assert "\n" not in message
        assert report.verdict.unreliable
        assert "parameters off" in str(report)
        assert "the fit is off in" in message

    def test_mean_field_of_a_correlated_posterior_is_flagged(self):
        with pm.Model() as model:
            pm.MvNormal("x", np.zeros(3), cov=0.95 + 0.05 * np.eye(3))
        with pytest.warns(
            ngvi.UnreliableFit, match="not close to the approximation.*family=.fullrank"
        ):
            fit(model, family="meanfield")

    def test_a_budget_is_told_with_what_to_do(self):
        with pytest.warns(ngvi.BudgetSpent, match="raise max_evaluations, or go on .* start="):
            report = fit(regression(), accuracy=1e-5, max_evaluations=300).report
        assert report.status == "max_evaluations"
        assert report.evaluations <= 300

    def test_khat_is_that_of_the_draws_of_the_fit(self, good):
        """It lies within the scatter of k-hat over other draws."""
        samples = [good.sample(1000, random_seed=seed) for seed in range(10)]
        khats = [idata["sample_stats"].attrs["khat"] for idata in samples]
        # The verdict's draws are antithetic pairs: of its tail only half is independent.
        assert abs(good.report.khat - np.mean(khats)) < 4 * np.sqrt(2) * np.std(khats, ddof=1)

    def test_an_exact_fit_is_perfect(self):
        with pm.Model() as model:
            pm.Normal("x", 1, 2, shape=3)
        report = fit(model).report
        assert report.khat == 0
        assert report.ess == pytest.approx(report.verdict_draws)

    def test_reports_are_equal_if_their_tables_are(self, good):
        report = good.report
        assert report == dataclasses.replace(report, parameters=report.parameters.copy())
        assert report != dataclasses.replace(report, parameters=2 * report.parameters[["sd"]])
        assert report != dataclasses.replace(report, khat=0.1)
        assert hash(report) == hash(dataclasses.replace(report))

    def test_timings_tell_where_the_time_went(self, good):
        report = good.report
        assert report.compile_seconds > 0
        assert report.fit_seconds > 0
        assert report.verdict_seconds > 0

    def test_a_fit_that_cannot_be_judged_is_kept(self, monkeypatch):
        def fail(*_):
            raise MemoryError("no room")

        monkeypatch.setattr("pymc_ngvi.results.checks.FreshDraws.extend", fail)
        with pytest.warns(ngvi.UnreliableFit, match="was not judged: MemoryError: no room"):
            approx = fit(two_hills(), accuracy=0.2)
        assert approx.gaussian.mean[0] == pytest.approx(0, abs=0.2)
        assert approx.report.status == "converged"
        assert "not judged" in str(approx.report)
        assert approx.report.elbo == approx.history[-1].elbo


class TestData:
    """Rows that the fit reads and rows that its verdict reads are told apart."""

    @staticmethod
    def minibatches():
        rng = np.random.default_rng(1)
        with pm.Model() as model:
            batch = pm.Minibatch(rng.normal(size=200), batch_size=5)
            pm.Normal("y", pm.Normal("mu"), 1, observed=batch, total_size=200)
        return model

    def test_a_schedule_reads_a_batch_an_evaluation(self):
        """Plain batches; the verdict reads all rows, as they are few."""
        inference = ngvi.NGVI(
            model=self.minibatches(), backend="interpreted", step_size=0.1, random_seed=1
        )
        with pytest.warns(ngvi.UnreliableFit, match="off in mu"):  # after two short steps
            first = inference.fit(2, progressbar=False).report
        with pytest.warns(ngvi.UnreliableFit, match="off in mu"):
            inference.refine(3, progressbar=False)
        second = inference.approx.report
        assert (first.n_rows, first.batch_size, first.anchors) == (200, 5, 0)
        evaluations = second.evaluations - first.evaluations
        checked = 1  # the log density at the last mean
        assert second.passes - first.passes == pytest.approx((evaluations + checked) * 5 / 200)
        assert first.verdict_passes == second.verdict_passes == 1.0

    def test_a_model_without_batches_reads_none(self, good):
        report = good.report
        assert (report.n_rows, report.batch_size, report.anchors) == (0, 0, 0)
        assert report.passes == report.verdict_passes == 0
        assert "passes" not in str(report)


class TestStarts:
    def test_the_higher_hill_is_found_from_several_starts(self):
        model = two_hills()
        alone = fit(model)
        assert alone.gaussian.mean[0] == pytest.approx(0, abs=0.1)
        assert alone.report.optima == 1
        best = fit(model, start=[{"x": 0.0}, {"x": 12.0}])
        assert best.gaussian.mean[0] == pytest.approx(12, abs=0.1)
        assert best.report.optima == 2
        assert "local optima exist" in str(best.report)
        elbos = {start.outcome: start.elbo for start in best.report.starts}
        assert elbos["best"] - elbos["other"] == pytest.approx(np.log(0.7 / 0.3), abs=0.05)

    def test_jittered_starts_of_a_simple_model_come_to_the_same_optimum(self):
        model = regression()
        report = fit(model, n_starts=4).report
        outcomes = [start.outcome for start in report.starts]
        assert sorted(outcomes) == ["best", "same", "same", "same"]
        assert "local optima" not in str(report)
        assert "starts" in str(report)

    def test_a_seed_fixes_the_starts(self):
        first, second = (fit(two_hills(), n_starts=3, accuracy=0.2) for _ in range(2))
        np.testing.assert_array_equal(first.gaussian.mean, second.gaussian.mean)
        assert first.report.starts == second.report.starts

    def test_an_initial_point_of_no_density_is_left_for_another(self):
        with pm.Model() as model:
            x = pm.Normal("x", 0, 1, initval=50.0)
            pm.Potential("wall", pt.switch(x > 10, -np.inf, 0.0))
        with pytest.warns(UserWarning, match="starting elsewhere"):
            approx = fit(model)
        assert approx.report.status == "converged"
        assert approx.gaussian.mean[0] == pytest.approx(0, abs=0.05)

    def test_a_given_start_of_no_density_is_an_error(self):
        with pm.Model() as model:
            x = pm.Normal("x", 0, 1)
            pm.Potential("wall", pt.switch(x > 10, -np.inf, 0.0))
        with pytest.raises(SamplingError, match="wall"):
            fit(model, start={"x": 50.0})

    def test_a_model_of_no_density_anywhere_is_an_error(self):
        with pm.Model() as model:
            x = pm.Normal("x", 0, 1)
            pm.Potential("nowhere", -np.inf * pt.exp(x))
        with pytest.raises(SamplingError, match="nowhere"):
            fit(model)

    def test_an_interrupt_keeps_the_best_of_the_starts_before(self):
        def interrupt(approx, losses, i):
            if approx.gaussian.mean[0] < 6:
                raise KeyboardInterrupt

        starts = [{"x": 12.0}, {"x": 0.0}]
        approx = fit(two_hills(), start=starts, callbacks=[interrupt])
        assert approx.report.status == "interrupted"
        assert approx.gaussian.mean[0] == pytest.approx(12, abs=0.5)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (dict(n_starts=0), ValueError, "n_starts must be a positive integer"),
            (dict(n_starts=2, step_size=0.1), ValueError, "several starts belong"),
            (dict(start=[]), ValueError, "empty list"),
            (dict(start=[{"slope": 0.0}, {"slop": 1.0}]), ValueError, "did you mean 'slope'"),
        ],
    )
    def test_bad_input(self, options, error, message):
        with pytest.raises(error, match=message):
            fit(regression(), **options)
