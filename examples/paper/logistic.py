"""Experiments 3 and 6: logistic regression, mean-field, with and without a projection of the mean.

The posterior is log-concave but not Gaussian, so the propositions do not cover it: decreasing steps
are ahead at first and behind later. Keeping the means non-negative, as the true coefficients are,
helps the runs that start on the wrong side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy.special import expit

from examples.paper.common import Array, Generators, Rows, Schedule, Settings, four_schedules
from examples.paper.output import (
    panels,
    plot_iterations_and_samples,
    save_figure,
    thinned,
    write_rows,
    write_summary,
)
from examples.paper.targets import LogisticRegression
from pymc_ngvi import schedules

DIM, OBSERVATIONS, ELBO_DRAWS = 5, 100, 100
STEP_SIZE, N_SAMPLES, START_VARIANCE = 0.01, 100, 0.5


@dataclass(frozen=True)
class Curves:
    """Means over the runs at some iterations: the ELBO, and the mean log density within it."""

    times: NDArray[np.intp]
    elbo: Array
    log_density: Array

    def at(self, t: int) -> float:
        """ELBO at an iteration, interpolated linearly between the recorded ones."""
        return float(np.interp(t, self.times, self.elbo))


def build_target(seed: int) -> LogisticRegression:
    """Covariates uniform in [-5, 5], all true coefficients 5, prior N(0, I)."""
    rng = np.random.default_rng(seed)
    design = rng.uniform(-5, 5, (OBSERVATIONS, DIM))
    return LogisticRegression(design, rng.binomial(1, expit(design @ np.full(DIM, 5.0))))


def build_model(target: LogisticRegression) -> pm.Model:
    """Build the same posterior in PyMC."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=DIM)
        pm.Bernoulli("response", logit_p=target.design @ x, observed=target.response)
    return model


def climb(
    target: LogisticRegression, schedule: Schedule, settings: Settings, *, nonnegative: bool
) -> Curves:
    """Mean ELBO over the runs, each estimated from 100 draws of its own; all runs in one array.

    The iterations are those of ``pm.fit`` with the mean-field family and no guard, with the mean
    projected onto non-negative values where `nonnegative`: a test compares the two, seed by seed.
    """
    generators = settings.generators()
    sizes = schedules.as_schedule(schedule.step_size, "step_size")
    counts = schedules.as_schedule(schedule.n_samples, "n_samples")
    times = thinned(settings.iterations + 1, most=100)
    wanted, kept = set(times.tolist()), []

    def project(mean: Array) -> Array:
        return np.maximum(mean, 0.0) if nonnegative else mean

    mean = project(np.array([rng.uniform(-5, 5, DIM) for rng in generators]))
    precision = np.full_like(mean, 1 / START_VARIANCE)
    judges = [rng.spawn(1)[0] for rng in generators]
    title = f"{schedule.name}{', projected' if nonnegative else ''}"
    for t in settings.track(range(settings.iterations + 1), title):
        if t in wanted:
            kept.append(elbo(target, mean, precision, judges))
        if t < settings.iterations:
            draws = _draws(mean, precision, int(counts(t)), generators)
            gradient, hessian = target.mean_derivatives(draws)
            eta = sizes(t)
            precision = (1 - eta) * precision - eta * hessian
            mean = project(mean + eta * gradient / precision)
    elbos, log_densities = np.mean(kept, axis=2).T
    return Curves(times, elbos, log_densities)


def elbo(
    target: LogisticRegression, mean: Array, precision: Array, judges: Generators
) -> tuple[Array, Array]:
    """Estimate the ELBO, and the mean log density in it, from fresh draws: (runs,) each."""
    draws = _draws(mean, precision, ELBO_DRAWS, judges)
    log_density = target.log_density(draws)
    squares = np.square(draws - mean[:, np.newaxis]) * precision[:, np.newaxis]
    log_q = 0.5 * (np.log(precision / (2 * np.pi))[:, np.newaxis] - squares).sum(axis=-1)
    return (log_density - log_q).mean(axis=1), log_density.mean(axis=1)


def _draws(mean: Array, precision: Array, n: int, generators: Generators) -> Array:
    """Draws (runs, n, d), each run's from its own generator."""
    draws = np.array([rng.standard_normal((n, DIM)) for rng in generators])
    draws /= np.sqrt(precision)[:, np.newaxis]
    draws += mean[:, np.newaxis]
    return draws


def logistic(settings: Settings) -> Rows:
    """Experiment 3: ELBO of the four schedules."""
    target = build_target(settings.seed)
    all_schedules = four_schedules(STEP_SIZE, N_SAMPLES)
    curves = {s.name: climb(target, s, settings, nonnegative=False) for s in all_schedules}
    rows = [
        {
            "schedule": name,
            **{f"elbo_at_{t}": nats(curve.at(t)) for t in (10, 100, settings.iterations)},
            "mean_log_density_at_end": nats(curve.log_density[-1]),
        }
        for name, curve in curves.items()
    ]
    write_summary(settings, "logistic", rows)
    write_elbos(settings, "logistic", curves)
    times = np.arange(settings.iterations + 1)
    figure = plot_iterations_and_samples(
        all_schedules,
        {name: np.interp(times, curve.times, curve.elbo) for name, curve in curves.items()},
        {s.name: s.samples_used(settings.iterations) for s in all_schedules},
        ylabel="mean ELBO",
        unit="samples",
        decorate=lambda axes: zoom(axes, curves.values()),
    )
    save_figure(figure, settings, "logistic")
    return rows


def nonnegative(settings: Settings) -> Rows:
    """Experiment 6: the same with the mean projected onto non-negative values."""
    target = build_target(settings.seed)
    figure, four = panels(rows=2, height=6.5)
    rows: Rows = []
    every: dict[str, Curves] = {}
    for axes, schedule in zip(four.flat, four_schedules(STEP_SIZE, N_SAMPLES), strict=True):
        pair = {
            "projected": climb(target, schedule, settings, nonnegative=True),
            "unprojected": climb(target, schedule, settings, nonnegative=False),
        }
        projected, free = pair.values()
        gain = projected.elbo - free.elbo
        times = (1, 10, 100, settings.iterations)
        rows.append(
            {
                "schedule": schedule.name,
                **{f"gain_at_{t}": nats(np.interp(t, projected.times, gain)) for t in times},
                "smallest_gain": nats(gain[1:].min()),
                "elbo_at_end": nats(projected.elbo[-1]),
            }
        )
        for name, curve in pair.items():
            axes.plot(curve.times, curve.elbo, label=name)
            every[f"{schedule.name}, {name}"] = curve
        axes.set(title=schedule.label, xlabel="iteration $t$", ylabel="mean ELBO")
        zoom(axes, pair.values())
    four[0, 0].legend()
    save_figure(figure, settings, "nonnegative")
    write_summary(settings, "nonnegative", rows)
    write_elbos(settings, "nonnegative", every)
    return rows


def nats(value: float) -> str:
    """Write an ELBO to a hundredth."""
    return f"{value:.2f}"


def zoom(axes: Any, curves: Iterable[Curves]) -> None:
    """Limit the plot to the last fifty nats of the rise."""
    best = max(curve.elbo.max() for curve in curves)
    axes.set_ylim(best - 50, best + 3)
    if axes.get_xlabel().startswith("iteration"):
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(left=0)


def write_elbos(settings: Settings, name: str, curves: Mapping[str, Curves]) -> None:
    """Write the curves in long form."""
    rows = [
        {
            "schedule": label,
            "iteration": int(t),
            "elbo": float(elbo),
            "mean_log_density": float(density),
        }
        for label, curve in curves.items()
        for t, elbo, density in zip(curve.times, curve.elbo, curve.log_density, strict=True)
    ]
    write_rows(settings.output / f"{name}_curves.csv", rows)
