"""The experiments of the paper: their parts, their data, and the page that quotes them."""

from __future__ import annotations

import csv
import re
from itertools import product

import numpy as np
import pymc as pm
import pytest
from scipy.special import log_expit
from scipy.stats import norm

from examples.paper import gas_turbine, logistic, page
from examples.paper.batch import SampledMean, SampledRows, distances
from examples.paper.common import Settings, four_schedules
from examples.paper.output import thinned
from examples.paper.published import PublishedEstimate, clip_covariance
from examples.paper.rates import compare, jackknife, log_log_slope
from examples.paper.student import build_model
from examples.paper.targets import GaussianTarget, StudentRegression
from pymc_ngvi import NGVI
from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.estimators import BonnetPrice, Estimate
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.projections import EigenvalueBounds, Identity, NonNegativeMean
from pymc_ngvi.core.subsampling import LinearRegression, Subsampling
from pymc_ngvi.model.compilation import compile_target

# Numbers of the page that are settings of the experiments, not results.
SETTINGS = {"0.01", "0.001", "0.005", "0.5"}


@pytest.fixture
def regression():
    rng = np.random.default_rng(1)
    design = rng.standard_normal((30, 3))
    return design, design @ [1.0, -1.0, 0.5] + rng.standard_t(3, 30)


def test_student_regression_is_the_pymc_model(regression):
    draws = np.random.default_rng(2).normal(scale=2.0, size=(20, 3))
    compiled = compile_target(build_model(*regression), backend="interpreted")
    expected = compiled.evaluate(draws.copy(), "full")
    target = StudentRegression(*regression, freedom=3.0, prior_variance=5.0)
    found = target.evaluate(draws, "full")
    np.testing.assert_allclose(found.log_density, expected.log_density, rtol=1e-7)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.hessian, expected.hessian, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(target.log_density(draws), found.log_density)


def test_a_failure_with_a_large_logit_has_a_log_density():
    # The paper's starts go there; 1 - sigmoid(logit) is zero in floating point from 36.7 on.
    with pm.Model() as model:
        logit = pm.Normal("logit", 0, 1, shape=1)
        pm.Bernoulli("failure", logit_p=logit, observed=[0])
    target = compile_target(model, backend="interpreted")
    logits = np.array([[36.7], [36.8], [700.0]])
    density = target.evaluate(logits, "none").log_density
    np.testing.assert_allclose(density, (norm.logpdf(logits) + log_expit(-logits))[:, 0])


def test_published_estimate_lacks_two_terms(regression):
    design, response = regression
    target = StudentRegression(design, response, freedom=3.0, prior_variance=5.0)
    q = FullGaussian.from_mean_covariance([1.0, 2.0, 3.0], np.eye(3))
    z = np.random.default_rng(3).standard_normal((50, 3))
    estimate = PublishedEstimate(prior_variance=5.0).at(target, q, z)
    # What the paper calls the first component of g^N is gradient - hessian @ mean.
    residuals = response - q.unwhiten(z) @ design.T
    of_likelihood = (4 * residuals / (3 + residuals**2) @ design).mean(axis=0)
    np.testing.assert_allclose(estimate.gradient - estimate.hessian @ q.mean, of_likelihood)


def test_clipping_the_covariance_makes_a_wide_direction_narrow():
    bounds = EigenvalueBounds(1e-4, 1e4)
    q = FullGaussian.from_mean_covariance(np.zeros(2), np.eye(2))
    # The new precision is diag(1, -0.01): the second direction just passed an infinite variance.
    estimate = Estimate(np.zeros(2), np.diag([-1.0, 1.02]), 0.0, 0.0, 1)
    mixed = clip_covariance(bounds)(q, estimate, 0.5)
    assert mixed.active
    np.testing.assert_allclose(mixed.q.variance, [1.0, bounds.alpha])
    ours = q.mix_clipped(estimate.gradient, estimate.hessian, 0.5, *bounds.precision_bounds)
    np.testing.assert_allclose(ours.variance, [1.0, bounds.beta])


def one_by_one(target, optimum, schedule, estimator, settings):
    """Distances of the runs by the algorithm of the core, one run after the other."""
    curves = []
    for rng in settings.generators():
        dim = optimum.dim
        start = FullGaussian.from_mean_covariance(rng.uniform(-5, 5, dim), 10 * np.eye(dim))
        kept = [optimum.kl(start)]
        run(
            target,
            start,
            n_iterations=settings.iterations,
            step_size=schedule.step_size,
            n_samples=schedule.n_samples,
            estimator=estimator,
            guard="none",
            callbacks=[lambda state, _, kept=kept: kept.append(optimum.kl(state.q))],
            rng=rng,
        )
        curves.append(kept)
    return np.array(curves)


@pytest.fixture
def small(tmp_path):
    return Settings(runs=3, iterations=40, seed=5, output=tmp_path, progress=False)


def test_runs_at_once_are_the_runs_one_by_one_on_a_gaussian_target(small):
    target = GaussianTarget.random(4, 100.0, seed=1)
    all_schedules = four_schedules(0.05, 7)
    found = distances(SampledMean(4, one_draw=False), target.optimum, all_schedules, small)
    for schedule in all_schedules:
        plain = BonnetPrice(antithetic=False)
        expected = one_by_one(target, target.optimum, schedule, plain, small)
        np.testing.assert_allclose(found[schedule.name], expected, rtol=1e-9)


def test_runs_at_once_are_the_runs_one_by_one_with_batches_of_rows(small):
    rng = np.random.default_rng(1)
    design = rng.standard_normal((50, 3)) * [1.0, 2.0, 3.0] + 1
    response = design @ [1.0, 0.0, -1.0] + rng.standard_normal(50)
    target = LinearRegression(design, response, noise_variance=2.0, prior_precision=0.2)
    posterior, all_schedules = target.posterior(FullGaussian), four_schedules(0.05, 7)
    found = distances(SampledRows(target, posterior), posterior, all_schedules, small)
    for schedule in all_schedules:
        expected = one_by_one(target, posterior, schedule, Subsampling(), small)
        np.testing.assert_allclose(found[schedule.name], expected, rtol=1e-9)


def test_one_draw_of_the_mean_has_the_law_of_the_mean_of_draws():
    moments = []
    for one_draw in (True, False):
        generators = [np.random.default_rng(seed) for seed in range(4000)]
        means = SampledMean(3, one_draw=one_draw).draw(7, generators)
        assert np.all(np.abs(means.mean(axis=0)) < 4 / np.sqrt(7 * 4000))
        moments.append(np.cov(means.T))
    for covariance in moments:  # the standard error of an entry is at most 0.022 of 1/7
        np.testing.assert_allclose(covariance, np.eye(3) / 7, atol=0.1 / 7)


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")  # short mean-field fits are
def test_logistic_runs_at_once_are_those_of_pm_fit(small):
    target = logistic.build_target(seed=1)
    model = logistic.build_model(target)
    compiled = compile_target(model, backend="interpreted")
    times = thinned(small.iterations + 1, most=100)
    for schedule, projection in product(
        four_schedules(0.05, 10)[1:3], (Identity(), NonNegativeMean())
    ):
        nonnegative = isinstance(projection, NonNegativeMean)
        kept = []
        for rng in small.generators():
            mean, judge = rng.uniform(-5, 5, logistic.DIM), rng.spawn(1)[0]
            start = DiagonalGaussian.from_mean_covariance(mean, np.full(logistic.DIM, 0.5))
            members = [projection(start)]
            pm.fit(
                small.iterations,
                method=NGVI(model=model, family="meanfield", backend="interpreted"),
                estimator=BonnetPrice(antithetic=False),
                guard="none",
                step_size=schedule.step_size,
                n_samples=schedule.n_samples,
                projection=projection,
                start={"x": mean},
                start_sigma={"x": 0.5**0.5},
                callbacks=[lambda approx, _, __, kept=members: kept.append(approx.gaussian)],
                score=False,
                random_seed=rng,
                progressbar=False,
            )
            elbos = []
            for t in times:
                draws = members[t].sample(logistic.ELBO_DRAWS, judge)
                density = compiled.log_density(draws)
                elbos.append((density - members[t].log_density(draws)).mean())
            kept.append(elbos)
        found = logistic.climb(target, schedule, small, nonnegative=nonnegative)
        np.testing.assert_allclose(found.elbo, np.mean(kept, axis=0), rtol=1e-6)


@pytest.mark.parametrize("n", [70, 300])  # within the workspace, and beyond it
def test_mean_hessian_of_the_student_regression_is_the_mean_of_its_hessians(regression, n):
    target = StudentRegression(*regression, freedom=3.0, prior_variance=5.0)
    draws = np.random.default_rng(2).normal(scale=2.0, size=(n, 3))
    each, found = target.evaluate(draws, "full"), target.average(draws, "full")
    np.testing.assert_allclose(found.log_density, each.log_density)
    np.testing.assert_allclose(found.gradient, each.gradient)
    np.testing.assert_allclose(found.hessian[0], each.hessian.mean(axis=0))


def test_jackknife_of_a_mean_is_its_standard_error():
    curves = np.random.default_rng(4).normal(3.0, 1.0, (30, 1))
    value, error = jackknife(lambda mean: mean[0], curves)
    assert value == pytest.approx(curves.mean())
    assert error == pytest.approx(curves.std(ddof=1) / np.sqrt(30))


def test_log_log_slope_of_a_power():
    times = np.arange(1001.0)
    assert log_log_slope((times + 1e-9) ** -1.5, 50) == pytest.approx(-1.5, abs=0.01)


def test_predictions_of_zero_are_compared_with_one():
    def last(curve):
        return curve[-1]

    assert compare("", "", 0.0, last, np.array([[0.1]]))["within_15_percent"] == "yes"
    assert compare("", "", 0.0, last, np.array([[0.2]]))["within_15_percent"] == "no"
    assert compare("", "", -2.0, last, np.array([[-2.2]]))["within_15_percent"] == "yes"


def test_missing_data_is_an_error_that_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv(gas_turbine.VARIABLE, raising=False)
    with pytest.raises(FileNotFoundError, match=r"download it from .* --data"):
        gas_turbine.emissions(None)
    with pytest.raises(FileNotFoundError, match=r"gt_2011\.csv"):
        gas_turbine.emissions(tmp_path)


def test_the_tables_of_the_page_are_the_results():
    text = page.PAGE.read_text()
    assert page.with_tables(text, page.RESULTS) == text
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == {
        path.stem for path in page.RESULTS.glob("*.csv")
    }


def test_the_numbers_in_the_text_of_the_page_are_in_the_results():
    measured = []
    for path in page.RESULTS.glob("*.csv"):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        measured += [abs(float(cell)) for cell in cells if re.fullmatch(r"-?\d[\d.e-]*", cell)]
    text = re.sub(r"^```.*?^```", "", page.PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    for number in re.findall(r"\d+\.\d+", "\n".join(lines)):
        digits = len(number.split(".")[1])
        assert number in SETTINGS or any(f"{value:.{digits}f}" == number for value in measured), (
            f"{number} is in no summary"
        )


def test_updating_takes_over_summaries_and_pictures(tmp_path, monkeypatch):
    for name, content in {"RESULTS": "results", "PICTURES": "pictures"}.items():
        (tmp_path / content).mkdir()
        monkeypatch.setattr(page, name, tmp_path / content)
    copy = tmp_path / "paper.md"
    copy.write_text("before\n\n<!-- table: one -->\n| old |\n\nafter\n")
    monkeypatch.setattr(page, "PAGE", copy)
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "one.csv").write_text("a_b,c\n1,x\n")
    (folder / "one_curves.csv").write_text("t\n1\n")
    (folder / "one.png").write_bytes(b"")
    page.update(folder)
    expected = "before\n\n<!-- table: one -->\n| a b | c |\n| --- | --- |\n| 1 | x |\n\nafter\n"
    assert copy.read_text() == expected
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["one.csv"]
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["paper_one.png"]
