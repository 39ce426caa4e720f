"""Corollary 1 of the paper on its Gaussian target: the rates, measured over 100 runs."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import schedules, theory
from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian
from tests.targets import GaussianTarget

pytestmark = pytest.mark.slow

DIM, CONDITION, RUNS = 10, 100.0, 100


def mean_distance(step_size, n_samples, iterations):
    """Mean over the runs of d(omega_*, omega_t) at t = 0, ..., iterations, in nats."""
    target = GaussianTarget.random(DIM, CONDITION, seed=1)
    optimum = target.optimum(FullGaussian)
    total = np.zeros(iterations)
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        start = FullGaussian.from_mean_covariance(rng.uniform(-5, 5, DIM), 10 * np.eye(DIM))
        distances = []
        run(
            target,
            start,
            n_iterations=iterations,
            step_size=step_size,
            n_samples=n_samples,
            estimator=BonnetPrice(antithetic=False),
            callbacks=[lambda state, info, kept=distances: kept.append(optimum.kl(state.q))],
            rng=rng,
        )
        total += distances
    return total / RUNS


def log_log_slope(distances, first):
    times = np.unique(np.geomspace(first, len(distances), 40).astype(int))
    return np.polyfit(np.log(times), np.log(distances[times - 1]), 1)[0]


def test_constant_step_and_sample_size():
    """Geometric, then flat in the predicted neighbourhood."""
    step_size, n_samples, variance = 0.01, 100, DIM / 2
    distances = mean_distance(step_size, n_samples, 1800)
    # While the noise is negligible the natural parameter contracts by 1 - eta, and the divergence,
    # quadratic near the optimum, by its square: twice the rate the bound guarantees.
    ball = theory.neighbourhood(step_size, n_samples, variance=variance)
    falling = np.flatnonzero((distances < 0.5) & (distances > 30 * ball))
    rate = np.polyfit(falling, np.log(distances[falling]), 1)[0]
    assert rate == pytest.approx(2 * np.log(1 - step_size), rel=0.15)
    assert abs(log_log_slope(distances, 1200)) < 0.15
    # Stationary second moment of theta: eta V / ((2 - eta) N), half of the bound for small eta.
    level = distances[1200:].mean()
    assert level == pytest.approx(ball / (2 - step_size), rel=0.15)
    assert level < ball


def test_constant_step_and_growing_sample_size():
    distances = mean_distance(0.01, schedules.growing(1.0), 1600)
    assert log_log_slope(distances, 900) == pytest.approx(-1, rel=0.15)


def test_decreasing_step_and_constant_sample_size():
    distances = mean_distance(schedules.decreasing(), 100, 1000)
    assert log_log_slope(distances, 50) == pytest.approx(-1, rel=0.15)
    bound = theory.decreasing_step_bound(999, n_samples=100, variance=DIM / 2)
    assert distances[-1] < bound


def test_decreasing_step_and_growing_sample_size():
    """The bound's rate is log(T) / T^2; its slope over the same times is the prediction."""
    distances = mean_distance(schedules.decreasing(), schedules.growing(1.0), 600)
    bounds = [
        theory.decreasing_step_bound(T, n_samples=schedules.growing(1.0), variance=DIM / 2)
        for T in range(600)
    ]
    predicted = log_log_slope(np.array(bounds), 50)
    measured = log_log_slope(distances, 50)
    assert measured == pytest.approx(predicted, rel=0.15)
    assert measured == pytest.approx(-2, rel=0.15)
