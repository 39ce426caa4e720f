"""Experiments 1 and 2: the four schedules where the posterior is Gaussian.

The divergence from the solution is known exactly at every iteration, and Propositions 4 and 5 give
its rate: with a constant step it falls geometrically to a neighbourhood of size eta V / N, or as
1/T where the samples grow; with a decreasing step as 1/T, or as log(T)/T^2 where they grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.paper.batch import Errors, SampledMean, SampledRows, distances
from examples.paper.common import Array, Rows, Settings, four_schedules
from examples.paper.gas_turbine import emissions
from examples.paper.output import (
    plot_iterations_and_samples,
    save_figure,
    write_curves,
    write_summary,
)
from examples.paper.rates import compare, log_log_slope, settling_time, stationary_level
from examples.paper.targets import GaussianTarget
from pymc_ngvi import schedules, theory
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.subsampling import LinearRegression, Subsampling


def gaussian(settings: Settings) -> Rows:
    """Experiment 1: Bonnet-Price estimates on a Gaussian target."""
    target = GaussianTarget.random(dim=10, condition=100.0, seed=settings.seed)
    return four_curves(
        "gaussian",
        settings,
        target,
        target.optimum,
        BonnetPrice(antithetic=False),
        # The growing samples of 10,000 iterations are 50 million draws for each run.
        SampledMean(target.dim, one_draw=settings.paper),
        step_size=0.01,
        n_samples=100,
        unit="samples",
    )


def subsampling(settings: Settings) -> Rows:
    """Experiment 2: batches of the gas-turbine data, a linear regression of the NOx emissions."""
    design, response = emissions(settings.data)
    target = LinearRegression(design, response, noise_variance=1.0, prior_precision=1 / 5)
    posterior = target.posterior(FullGaussian)
    return four_curves(
        "subsampling",
        settings,
        target,
        posterior,
        Subsampling(),
        SampledRows(target, posterior),
        step_size=0.001 if settings.paper else 0.01,
        n_samples=1000,
        unit="data points",
    )


def four_curves(
    name: str,
    settings: Settings,
    target: Any,
    optimum: FullGaussian,
    estimator: Any,
    errors: Errors,
    *,
    step_size: float,
    n_samples: int,
    unit: str,
) -> Rows:
    """Run the four schedules, fit their slopes, and write the figure and the numbers."""
    settling_time(step_size, settings.iterations)  # raises before the runs, not after them
    all_schedules = four_schedules(step_size, n_samples)
    runs = distances(errors, optimum, all_schedules, settings)
    samples = {s.name: s.samples_used(settings.iterations) for s in all_schedules}
    noise = theory.gradient_variance(
        [],
        optimum,
        target,
        estimator,
        step_size=step_size,
        n_samples=n_samples,
        rng=np.random.default_rng(settings.seed),
        replicates=2000,
    )
    rows = predictions(runs, samples, step_size, n_samples, noise.constant)
    write_summary(settings, name, rows)
    means = {schedule: curves.mean(axis=0) for schedule, curves in runs.items()}
    write_curves(settings.output / f"{name}_curves.csv", means, samples)
    figure = plot_iterations_and_samples(
        all_schedules,
        means,
        samples,
        ylabel=r"mean $d_{A^*}(\omega_*, \omega_t)$",
        unit=unit,
        decorate=lambda axes: axes.set_yscale("log"),
    )
    save_figure(figure, settings, name)
    return rows


def predictions(
    runs: dict[str, Array],
    samples: dict[str, Array],
    step_size: float,
    n_samples: int,
    variance: float,
) -> Rows:
    """Fitted log-log slopes beside those of the propositions, and the size of the neighbourhood."""
    flat, slow, fast, fastest = runs
    length = runs[flat].shape[1]
    settled = settling_time(step_size, length - 1)
    # A constant step forgets its start at `settled`, a decreasing one within tens of iterations.
    later = max(50, length // 20)
    bound = np.array(
        [
            theory.decreasing_step_bound(T, n_samples=schedules.growing(1.0), variance=variance)
            for T in range(length)
        ]
    )
    # Theta is an autoregression with coefficient 1 - eta, whose stationary variance is
    # eta / (2 - eta) times that of its noise: about half of the bound eta V / N.
    size = theory.neighbourhood(step_size, n_samples, variance=variance) / (2 - step_size)

    def slope_from(first: int) -> Any:
        return lambda curve: log_log_slope(curve, first)

    def level(curve: Array) -> float:
        return stationary_level(curve, step_size)

    def gain(one: Array, other: Array) -> float:
        return ratio_at_equal_samples(one, samples[fast], other, samples[fastest])

    slope = "log-log slope"
    return [
        *geometric_rate(flat, runs[flat], size, step_size),
        compare(flat, slope, 0.0, slope_from(settled), runs[flat]),
        compare(flat, "neighbourhood, nats", size, level, runs[flat]),
        compare(slow, slope, -1.0, slope_from(settled), runs[slow]),
        compare(fast, slope, -1.0, slope_from(later), runs[fast]),
        compare(fastest, slope, -2.0, slope_from(later), runs[fastest]),
        compare(
            fastest,
            f"{slope}, with log T",
            log_log_slope(bound, later),
            slope_from(later),
            runs[fastest],
        ),
        # The last estimate but k enters theta with weight 2 (T - k) / T^2. The squares of the
        # weights over N_t add up to 4 / (3 S) for S samples in equal parts, to 1 / S in growing.
        compare(fastest, "times better at equal samples", 4 / 3, gain, runs[fast], runs[fastest]),
    ]


def geometric_rate(name: str, curves: Array, size: float, step_size: float) -> Rows:
    """Compare the rate per iteration, where the neighbourhood is small enough to show one.

    Before the noise shows, the natural parameter contracts by 1 - eta, and the divergence, which is
    quadratic near the solution, by its square: twice the rate that Proposition 4 guarantees.
    """
    mean = curves.mean(axis=0)
    falling = np.flatnonzero((mean < 0.5) & (mean > 30 * size))
    if len(falling) < 20:
        return []

    def rate(curve: Array) -> float:
        return float(np.polyfit(falling, np.log(curve[falling]), 1)[0])

    return [compare(name, "geometric rate", 2 * float(np.log(1 - step_size)), rate, curves)]


def ratio_at_equal_samples(
    one: Array, samples_of_one: Array, other: Array, samples_of_other: Array
) -> float:
    """Divergence of one schedule over that of another, over the second half of the samples."""
    budget = min(samples_of_one[-1], samples_of_other[-1])
    spent = np.linspace(budget / 2, budget, 100)
    ratio = np.interp(spent, samples_of_one, one) / np.interp(spent, samples_of_other, other)
    return float(np.exp(np.mean(np.log(ratio))))
