"""Experiment 4: effects of the step size, the sample size and its growth, on the Gaussian target.

With everything constant the divergence ends at eta V / ((2 - eta) N), proportional to eta and to
1/N; with samples that grow as t^gamma it keeps falling, as t^-gamma.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.paper.batch import SampledMean, distances
from examples.paper.common import Array, Rows, Schedule, Settings
from examples.paper.output import (
    panels,
    plot_iterations_and_samples,
    save_figure,
    thinned,
    write_curves,
    write_summary,
)
from examples.paper.rates import compare, log_log_slope, settling_time, stationary_level
from examples.paper.targets import GaussianTarget
from pymc_ngvi import schedules, theory

STEP_SIZES = (0.1, 0.05, 0.01, 0.005)
SAMPLE_SIZES = (10, 100, 1000)
GAMMAS = (0.25, 0.5, 1.0, 1.5)
STEP_SIZE, N_SAMPLES, DIM = 0.01, 100, 10
VARIANCE = DIM / 2  # V of Bonnet-Price at a Gaussian optimum
DISTANCE = r"mean $d_{A^*}(\omega_*, \omega_t)$"


def neighbourhood(settings: Settings) -> Rows:
    """Experiment 4, constant step and sample sizes: the size of the neighbourhood they reach."""
    settling_time(min(STEP_SIZES), settings.iterations)  # raises before the runs, not after them
    by_step = [Schedule(f"eta = {eta}", rf"$\eta = {eta:g}$", eta, N_SAMPLES) for eta in STEP_SIZES]
    by_sample = [Schedule(f"N = {n}", f"$N = {n}$", STEP_SIZE, n) for n in SAMPLE_SIZES]
    both = [*by_step, *by_sample]
    runs = gaussian_runs(both, settings, one_draw=False)
    rows = [
        compare(
            schedule.name,
            "neighbourhood, nats",
            theory.neighbourhood(schedule.step_size, schedule.n_samples, variance=VARIANCE)
            / (2 - schedule.step_size),
            lambda curve, eta=schedule.step_size: stationary_level(curve, eta),
            runs[schedule.name],
        )
        for schedule in both
    ]
    for name, values, group, predicted in (
        ("eta", STEP_SIZES, by_step, 1.0),
        ("N", SAMPLE_SIZES, by_sample, -1.0),
    ):

        def slope(*curves: Array, values: Any = values, group: Any = group) -> float:
            levels = [stationary_level(c, s.step_size) for c, s in zip(curves, group, strict=True)]
            return float(np.polyfit(np.log(values), np.log(levels), 1)[0])

        curves = [runs[schedule.name] for schedule in group]
        title = f"neighbourhood against {name}"
        rows.append(compare(title, "log-log slope", predicted, slope, *curves))
    means = write(settings, "neighbourhood", both, runs, rows)

    figure, two = panels()
    for axes, group, title in zip(
        two, (by_step, by_sample), (f"$N = {N_SAMPLES}$", rf"$\eta = {STEP_SIZE:g}$"), strict=True
    ):
        for schedule in group:
            curve = means[schedule.name]
            times = thinned(len(curve))
            axes.plot(times, curve[times], label=schedule.label)
        axes.set(yscale="log", xlabel="iteration $t$", ylabel=DISTANCE, title=title)
        axes.legend(fontsize="small")
    save_figure(figure, settings, "neighbourhood")
    return rows


def growth(settings: Settings) -> Rows:
    """Experiment 4, growth of the samples: sizes (t + 1)^gamma with a constant step."""
    first = settling_time(STEP_SIZE, settings.iterations)
    growing = [
        Schedule(f"gamma = {gamma}", rf"$\gamma = {gamma:g}$", STEP_SIZE, schedules.growing(gamma))
        for gamma in GAMMAS
    ]
    runs = gaussian_runs(growing, settings, one_draw=True)
    rows = [
        compare(
            schedule.name,
            "log-log slope",
            -gamma,
            lambda curve: log_log_slope(curve, first),
            runs[schedule.name],
        )
        for gamma, schedule in zip(GAMMAS, growing, strict=True)
    ]
    means = write(settings, "growth", growing, runs, rows)
    figure = plot_iterations_and_samples(
        growing,
        means,
        {s.name: s.samples_used(settings.iterations) for s in growing},
        ylabel=DISTANCE,
        unit="samples",
        decorate=lambda axes: axes.set_yscale("log"),
    )
    save_figure(figure, settings, "growth")
    return rows


def gaussian_runs(
    all_schedules: Sequence[Schedule], settings: Settings, *, one_draw: bool
) -> dict[str, Array]:
    """Distances (runs, iterations + 1) of each schedule, on experiment 1's target."""
    target = GaussianTarget.random(DIM, 100.0, settings.seed)
    return distances(SampledMean(DIM, one_draw=one_draw), target.optimum, all_schedules, settings)


def write(
    settings: Settings,
    name: str,
    all_schedules: Sequence[Schedule],
    runs: dict[str, Array],
    rows: Rows,
) -> dict[str, Array]:
    """Write the summary and the mean curves, and return the curves."""
    write_summary(settings, name, rows)
    means = {schedule: curves.mean(axis=0) for schedule, curves in runs.items()}
    samples = {s.name: s.samples_used(settings.iterations) for s in all_schedules}
    write_curves(settings.output / f"{name}_curves.csv", means, samples)
    return means
