"""Experiment 4: what the step size, the sample size and its growth do, on the Gaussian target.

With everything constant the divergence ends at eta V / ((2 - eta) N), proportional to eta and to
1/N; with samples that grow as t^gamma it goes on falling, as t^-gamma.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.paper.common import (
    Array,
    Schedule,
    Settings,
    figure_of_two,
    log_log_slope,
    mean_distance,
    plot_iterations_and_samples,
    save_figure,
    settling_time,
    show,
    stationary_level,
    thinned,
    write_curves,
    write_rows,
)
from examples.paper.conjugate import Rows, agrees
from examples.paper.targets import GaussianTarget, MeanOfDraws
from pymc_ngvi import schedules, theory
from pymc_ngvi.estimators import BonnetPrice

STEP_SIZES = (0.1, 0.05, 0.01, 0.005)
SAMPLE_SIZES = (10, 100, 1000)
GAMMAS = (0.25, 0.5, 1.0, 1.5)
STEP_SIZE, N_SAMPLES, DIM = 0.01, 100, 10
VARIANCE = DIM / 2  # V of Bonnet-Price at a Gaussian optimum


def neighbourhood(settings: Settings) -> Rows:
    """Experiment 4, step and sample size: where constant ones end."""
    settling_time(min(STEP_SIZES), settings.iterations)  # an error now, not after the runs
    by_step = [Schedule(f"eta = {eta}", rf"$\eta = {eta:g}$", eta, N_SAMPLES) for eta in STEP_SIZES]
    by_sample = [Schedule(f"N = {n}", f"$N = {n}$", STEP_SIZE, n) for n in SAMPLE_SIZES]
    curves = _curves([*by_step, *by_sample], BonnetPrice(antithetic=False), settings)
    rows: Rows = []
    for schedule in (*by_step, *by_sample):
        eta, n = schedule.step_size, schedule.n_samples
        level = stationary_level(curves[schedule.name], eta)
        predicted = theory.neighbourhood(eta, n, variance=VARIANCE) / (2 - eta)
        rows.append(_row(schedule.name, "neighbourhood, nats", predicted, level))
    levels = [row["measured"] for row in rows]
    steps, counts = levels[: len(by_step)], levels[len(by_step) :]
    slopes = [
        ("eta", STEP_SIZES, steps, 1.0),
        ("N", SAMPLE_SIZES, counts, -1.0),
    ]
    for name, values, sizes, predicted in slopes:
        slope = float(np.polyfit(np.log(values), np.log(sizes), 1)[0])
        rows.append(_row(f"neighbourhood against {name}", "log-log slope", predicted, slope))

    figure, panels = figure_of_two()
    for axes, group, title in zip(
        panels,
        (by_step, by_sample),
        (f"$N = {N_SAMPLES}$", rf"$\eta = {STEP_SIZE:g}$"),
        strict=True,
    ):
        for schedule in group:
            curve = curves[schedule.name]
            times = thinned(len(curve))
            axes.plot(times, curve[times], label=schedule.label)
        axes.set(yscale="log", xlabel="iteration $t$", title=title)
        axes.set_ylabel(r"mean $d_{A^*}(\omega_*, \omega_t)$")
        axes.legend(fontsize="small")
    save_figure(figure, settings.output, "neighbourhood")
    _write(settings, "neighbourhood", [*by_step, *by_sample], curves, rows)
    return rows


def growth(settings: Settings) -> Rows:
    """Experiment 4, growth of the samples: sizes (t + 1)^gamma with a constant step."""
    first = settling_time(STEP_SIZE, settings.iterations)
    growing = [
        Schedule(f"gamma = {gamma}", rf"$\gamma = {gamma:g}$", STEP_SIZE, schedules.growing(gamma))
        for gamma in GAMMAS
    ]
    curves = _curves(growing, MeanOfDraws(), settings)
    rows = [
        _row(schedule.name, "log-log slope", -gamma, log_log_slope(curves[schedule.name], first))
        for gamma, schedule in zip(GAMMAS, growing, strict=True)
    ]
    figure = plot_iterations_and_samples(
        curves,
        {s.name: s.samples_used(settings.iterations) for s in growing},
        {s.name: s.label for s in growing},
        ylabel=r"mean $d_{A^*}(\omega_*, \omega_t)$",
        unit="samples",
        decorate=lambda axes: axes.set_yscale("log"),
    )
    save_figure(figure, settings.output, "growth")
    _write(settings, "growth", growing, curves, rows)
    return rows


def _curves(all_schedules: list[Schedule], estimator: Any, settings: Settings) -> dict[str, Array]:
    target = GaussianTarget.random(DIM, 100.0, settings.seed)
    optimum = target.optimum
    return {s.name: mean_distance(target, optimum, s, estimator, settings) for s in all_schedules}


def _write(
    settings: Settings,
    name: str,
    all_schedules: list[Schedule],
    curves: dict[str, Array],
    rows: Rows,
) -> None:
    samples = {s.name: s.samples_used(settings.iterations) for s in all_schedules}
    write_curves(settings.output / f"{name}_curves.csv", curves, samples)
    write_rows(settings.output / f"{name}.csv", rows)
    show(rows)


def _row(name: str, quantity: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "schedule": name,
        "quantity": quantity,
        "predicted": predicted,
        "measured": measured,
        "within_15_percent": agrees(measured, predicted),
    }
