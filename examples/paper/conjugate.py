"""Experiments 1 and 2: the four schedules where the posterior is Gaussian.

The divergence from the solution is known exactly at every iteration, and Propositions 4 and 5 give
its rate: with a constant step it falls geometrically to a neighbourhood of size eta V / N, or as
1/T where the samples grow; with a decreasing step as 1/T, or as log(T)/T^2 where they grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.paper.common import (
    Array,
    Settings,
    four_schedules,
    log_log_slope,
    mean_distance,
    plot_iterations_and_samples,
    save_figure,
    settling_time,
    show,
    stationary_level,
    write_curves,
    write_rows,
)
from examples.paper.gas_turbine import emissions
from examples.paper.targets import GaussianTarget
from pymc_ngvi import schedules, theory
from pymc_ngvi.estimators import BonnetPrice
from pymc_ngvi.families import FullGaussian
from pymc_ngvi.subsampling import LinearRegression, Subsampling

Rows = list[dict[str, Any]]


def gaussian(settings: Settings) -> Rows:
    """Experiment 1: Bonnet-Price estimates on a Gaussian target."""
    target = GaussianTarget.random(dim=10, condition=100.0, seed=settings.seed)
    return compare(
        "gaussian",
        settings,
        target,
        target.optimum,
        BonnetPrice(antithetic=False),
        step_size=0.01,
        n_samples=100,
        unit="samples",
    )


def subsampling(settings: Settings) -> Rows:
    """Experiment 2: batches of the gas-turbine data, a linear regression of the NOx emissions."""
    design, response = emissions(settings.data)
    target = LinearRegression(design, response, noise_variance=1.0, prior_precision=1 / 5)
    step_size = 0.001 if settings.paper else 0.01
    return compare(
        "subsampling",
        settings,
        target,
        target.posterior(FullGaussian),
        Subsampling(),
        step_size=step_size,
        n_samples=1000,
        unit="data points",
    )


def compare(
    name: str,
    settings: Settings,
    target: Any,
    optimum: FullGaussian,
    estimator: Any,
    *,
    step_size: float,
    n_samples: int,
    unit: str,
) -> Rows:
    """Run the four schedules, fit their slopes, and write the figure and the numbers."""
    settled = settling_time(step_size, settings.iterations)
    all_schedules = four_schedules(step_size, n_samples)
    curves = {
        schedule.name: mean_distance(target, optimum, schedule, estimator, settings)
        for schedule in all_schedules
    }
    noise = theory.gradient_variance(
        [],
        optimum,
        target,
        estimator,
        step_size=step_size,
        n_samples=n_samples,
        rng=np.random.default_rng(settings.seed),
        replicates=400,
    )
    samples = {s.name: s.samples_used(settings.iterations) for s in all_schedules}
    rows = rates(curves, samples, settled, step_size, n_samples, noise.constant)
    write_curves(settings.output / f"{name}_curves.csv", curves, samples)
    write_rows(settings.output / f"{name}.csv", rows)
    figure = plot_iterations_and_samples(
        curves,
        samples,
        {s.name: s.label for s in all_schedules},
        ylabel=r"mean $d_{A^*}(\omega_*, \omega_t)$",
        unit=unit,
        decorate=lambda axes: axes.set_yscale("log"),
    )
    save_figure(figure, settings.output, name)
    show(rows)
    return rows


def rates(
    curves: dict[str, Array],
    samples: dict[str, Array],
    settled: int,
    step_size: float,
    n_samples: int,
    variance: float,
) -> Rows:
    """Fitted log-log slopes beside those of the propositions, and the size of the neighbourhood."""
    flat, slow, fast, fastest = curves
    # A constant step forgets its start at `settled`, a decreasing one within tens of iterations.
    later = max(50, len(curves[fast]) // 20)
    bounds = [
        theory.decreasing_step_bound(T, n_samples=schedules.growing(1.0), variance=variance)
        for T in range(len(curves[fastest]))
    ]
    # Theta is an autoregression with coefficient 1 - eta, whose stationary variance is
    # eta / (2 - eta) times that of its noise: about half of the bound eta V / N.
    level = stationary_level(curves[flat], step_size)
    expected = step_size * variance / ((2 - step_size) * n_samples)
    # Before the noise shows, the natural parameter contracts by 1 - eta, and the divergence, which
    # is quadratic near the solution, by its square: twice the rate that Proposition 4 guarantees.
    falling = np.flatnonzero((curves[flat] < 0.5) & (curves[flat] > 30 * expected))
    measured = [
        *_geometric_rate(flat, curves[flat], falling, step_size),
        (flat, "log-log slope", 0.0, log_log_slope(curves[flat], settled)),
        (flat, "neighbourhood, nats", expected, level),
        (slow, "log-log slope", -1.0, log_log_slope(curves[slow], settled)),
        (fast, "log-log slope", -1.0, log_log_slope(curves[fast], later)),
        (fastest, "log-log slope", -2.0, log_log_slope(curves[fastest], later)),
        (
            fastest,
            "log-log slope, with log T",
            log_log_slope(np.array(bounds), later),
            log_log_slope(curves[fastest], later),
        ),
        # The last estimate but k enters theta with weight 2 (T - k) / T^2. The squares of the
        # weights over N_t add up to 4 / (3 S) for S samples in equal parts, to 1 / S in growing.
        (
            fastest,
            "times better at equal samples",
            4 / 3,
            _ratio_at_equal_samples(fast, fastest, curves, samples),
        ),
    ]
    return [
        {
            "schedule": name,
            "quantity": quantity,
            "predicted": predicted,
            "measured": value,
            "within_15_percent": agrees(value, predicted),
        }
        for name, quantity, predicted, value in measured
    ]


def _geometric_rate(
    name: str, curve: Array, falling: Array, step_size: float
) -> list[tuple[str, str, float, float]]:
    """Compare the rate per iteration, where the neighbourhood is small enough to show one."""
    if len(falling) < 20:
        return []
    rate = float(np.polyfit(falling, np.log(curve[falling]), 1)[0])
    return [(name, "geometric rate", 2 * float(np.log(1 - step_size)), rate)]


def _ratio_at_equal_samples(
    one: str, other: str, curves: dict[str, Array], samples: dict[str, Array]
) -> float:
    """Divergence of one schedule over that of another, over the second half of the samples."""
    budget = min(samples[one][-1], samples[other][-1])
    spent = np.linspace(budget / 2, budget, 100)
    first, second = (np.interp(spent, samples[name], curves[name]) for name in (one, other))
    return float(np.exp(np.mean(np.log(first / second))))


def agrees(value: float, predicted: float) -> bool:
    """Within 15%; of 1 where the prediction is 0."""
    return bool(abs(value - predicted) <= 0.15 * (abs(predicted) or 1.0))
