"""Kinks and jumps do not mislead a fit: it goes on with an estimator that is right at them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize

from pymc_ngvi.core.algorithm import State, drive
from pymc_ngvi.core.estimators import BonnetPrice, Score, Stein
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.engine.derivatives import examine
from pymc_ngvi.engine.settings import DEFAULTS
from tests.conftest import each_family
from tests.targets import Banana, Funnel, Jumping, Kinked, LogisticTarget, engine


def best_gaussian(log_density):
    """Mean and sd of the Gaussian with the highest ELBO in one dimension, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()

    def loss(parameters):
        mean, log_sd = parameters
        draws = mean + np.exp(log_sd) * nodes
        return -(weights @ log_density(draws[:, np.newaxis])) - log_sd

    mean, log_sd = minimize(loss, [0.1, -0.5], method="Nelder-Mead", tol=1e-8).x
    return mean, np.exp(log_sd)


@each_family
@pytest.mark.parametrize("estimator", [BonnetPrice(), Stein()], ids=repr)
@pytest.mark.parametrize("target", [LogisticTarget.random(3, 40, 1), Banana(0.5), Funnel()])
def test_no_false_alarm(family, estimator, target, monkeypatch):
    """Smooth targets that are said to have kinks are examined, and acquitted."""
    monkeypatch.setattr(type(target), "may_have_kinks", True)
    monkeypatch.setattr(type(target), "kinks", lambda *_: ["abs"])
    q = family.from_mean_variance(np.zeros(target.dim), np.full(target.dim, 0.25))
    rng = np.random.default_rng(1)
    for _ in range(10):
        finding, spent = examine(target, estimator, q, rng, DEFAULTS, 2000)
        assert finding is None
        assert DEFAULTS.examined_draws <= spent <= 2000


def test_a_target_without_kinks_costs_nothing():
    q, rng = FullGaussian.from_curvature(np.zeros(3), None), np.random.default_rng(2)
    before = rng.bit_generator.state
    assert examine(LogisticTarget.random(3, 40, 1), BonnetPrice(), q, rng, DEFAULTS, 999) == (
        None,
        0,
    )
    assert rng.bit_generator.state == before  # nor a bit of any fit


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_a_kink_is_fitted_by_steins_estimator(scale):
    target = Kinked([1.0], scale)
    fitted = engine(target)
    state = State(FullGaussian.from_curvature([1.0], None))
    result = drive(fitted.fit(state, 10_000), state)
    assert result.status == "converged"
    assert [finding.derivatives for finding in fitted.findings] == [1]
    assert isinstance(fitted.problem.estimator, Stein)
    mean, sd = best_gaussian(target.log_density)
    assert result.q.mean[0] == pytest.approx(mean, abs=0.05 * sd)
    assert np.sqrt(result.q.variance[0]) == pytest.approx(sd, rel=0.05)


def test_mean_field_fits_a_kink_too():
    target = Kinked([1.0, 1.0], 0.3)
    fitted = engine(target)
    state = State(DiagonalGaussian.from_curvature(np.zeros(2), None))
    result = drive(fitted.fit(state, 10_000), state)
    assert isinstance(fitted.problem.estimator, Stein)
    # E|x + y| = 2 s / sqrt(pi) for independent components with standard deviation s, so that the
    # ELBO is highest where s^2 + c s = 1.
    c = 1 / (0.3 * np.sqrt(np.pi))
    np.testing.assert_allclose(np.sqrt(result.q.variance), np.sqrt(c**2 / 4 + 1) - c / 2, rtol=0.05)


def test_a_jump_is_fitted_by_log_densities_alone():
    target = Jumping(1, lambda x: x[:, 0] > 0.5, 2.0)
    fitted = engine(target, accuracy=0.05)
    state = State(FullGaussian.from_curvature([0.0], None))
    result = drive(fitted.fit(state, 10_000), state)
    assert isinstance(fitted.problem.estimator, Score)

    # By hand: the probability of x > 0.5 under a Gaussian is smooth in its parameters.
    def loss(parameters):
        mean, log_sd = parameters
        inside = quad(lambda z: np.exp(-z * z / 2), (0.5 - mean) / np.exp(log_sd), 40)[0]
        return (mean**2 + np.exp(2 * log_sd)) / 2 - 2 * inside / np.sqrt(2 * np.pi) - log_sd

    mean, log_sd = minimize(loss, [0.5, 0.0], method="Nelder-Mead").x
    assert result.q.mean[0] == pytest.approx(mean, abs=0.15 * np.exp(log_sd))
    assert np.sqrt(result.q.variance[0]) == pytest.approx(np.exp(log_sd), rel=0.15)


def test_a_small_budget_does_not_hide_a_kink():
    fitted = engine(Kinked([1.0], 0.3), max_evaluations=400)
    state = State(FullGaussian.from_curvature([1.0], None))
    drive(fitted.fit(state, 10_000), state)
    assert fitted.findings
