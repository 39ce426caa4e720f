"""The experiments of the paper: their parts, their data, and the page that quotes them."""

from __future__ import annotations

import csv
import re

import numpy as np
import pymc as pm
import pytest
from scipy.special import log_expit
from scipy.stats import norm

from examples.paper import gas_turbine, page
from examples.paper.published import PublishedEstimate, clip_covariance
from examples.paper.rates import compare, jackknife, log_log_slope
from examples.paper.student import build_model
from examples.paper.targets import GaussianTarget, MeanOfDraws, StudentRegression
from pymc_ngvi.core.estimators import BonnetPrice, Estimate
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.projections import EigenvalueBounds
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


def test_mean_of_draws_has_the_law_of_bonnet_price():
    target = GaussianTarget.random(3, 10.0, seed=1)
    q = FullGaussian.from_mean_covariance(np.ones(3), np.diag([1.0, 2.0, 3.0]))
    moments = []
    for estimator in (MeanOfDraws(), BonnetPrice(antithetic=False)):
        rng = np.random.default_rng(2)
        estimates = [estimator(target, q, 7, rng) for _ in range(4000)]
        gradients = np.array([estimate.gradient for estimate in estimates])
        np.testing.assert_allclose(estimates[0].hessian, -target.precision)
        moments.append((gradients.mean(axis=0), np.cov(gradients.T)))
    (mean, covariance), (expected_mean, expected_covariance) = moments
    error = np.sqrt(expected_covariance.diagonal() / 2000)
    assert np.all(np.abs(mean - expected_mean) < 4 * error)
    np.testing.assert_allclose(
        np.linalg.slogdet(covariance)[1], np.linalg.slogdet(expected_covariance)[1], atol=0.2
    )


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
