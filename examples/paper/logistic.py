"""Experiments 3 and 6: logistic regression, mean-field, with and without a projection of the mean.

The posterior is log-concave but not Gaussian, so the propositions do not cover it: decreasing steps
are ahead at first and behind later. Keeping the means non-negative, as the true coefficients are,
helps the runs that start on the wrong side.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy.special import expit

from examples.paper.common import Array, Rows, Schedule, Settings, four_schedules, repeat
from examples.paper.output import (
    panels,
    plot_iterations_and_samples,
    save_figure,
    thinned,
    write_rows,
    write_summary,
)
from pymc_ngvi import NGVI, BonnetPrice, DiagonalGaussian, Identity, NonNegativeMean, UnreliableFit
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.projections import Projection
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.target import ModelTarget

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


class Experiment:
    """The model, compiled once for all runs: for the fits, and for the ELBO of their results."""

    def __init__(self, seed: int) -> None:
        model = build_model(seed)
        self.inference = NGVI(
            model=model, family="meanfield", estimator=BonnetPrice(antithetic=False), guard="none"
        )
        self.target: ModelTarget = compile_target(model, curvature="none")

    def climb(
        self, schedule: Schedule, projection: Projection, settings: Settings, title: str
    ) -> Curves:
        """Mean ELBO over the runs, each estimated from 100 draws of its own."""
        times = thinned(settings.iterations + 1, most=100)
        wanted = set(times.tolist())

        def one_run(rng: np.random.Generator) -> Array:
            mean, judge = rng.uniform(-5, 5, DIM), rng.spawn(1)[0]
            start = DiagonalGaussian.from_mean_covariance(mean, np.full(DIM, START_VARIANCE))
            kept = [self.elbo(projection(start), judge)]

            def record(approx: Any, _: Any, iteration: int) -> None:
                if iteration in wanted:
                    kept.append(self.elbo(approx.gaussian, judge))

            with warnings.catch_warnings():
                # Each of hundreds of mean-field fits, which is the paper's family, would warn.
                warnings.simplefilter("ignore", UnreliableFit)
                pm.fit(
                    settings.iterations,
                    method=self.inference,
                    step_size=schedule.step_size,
                    n_samples=schedule.n_samples,
                    projection=projection,
                    start={"x": mean},
                    start_sigma={"x": START_VARIANCE**0.5},
                    callbacks=[record],
                    score=False,
                    random_seed=rng,
                    progressbar=False,
                )
            return np.array(kept)

        elbo, log_density = np.mean(repeat(settings, title, one_run), axis=0).T
        return Curves(times, elbo, log_density)

    def elbo(self, q: Gaussian, rng: np.random.Generator) -> tuple[float, float]:
        """Estimate the ELBO, and the mean log density in it, from fresh draws."""
        draws = q.sample(ELBO_DRAWS, rng)
        log_density = self.target.log_density(draws)
        return float((log_density - q.log_density(draws)).mean()), float(log_density.mean())


def build_model(seed: int) -> pm.Model:
    """Covariates uniform in [-5, 5], all true coefficients 5, prior N(0, I)."""
    rng = np.random.default_rng(seed)
    design = rng.uniform(-5, 5, (OBSERVATIONS, DIM))
    response = rng.binomial(1, expit(design @ np.full(DIM, 5.0)))
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=DIM)
        pm.Bernoulli("response", logit_p=design @ x, observed=response)
    return model


def logistic(settings: Settings) -> Rows:
    """Experiment 3: ELBO of the four schedules."""
    experiment = Experiment(settings.seed)
    all_schedules = four_schedules(STEP_SIZE, N_SAMPLES)
    curves = {s.name: experiment.climb(s, Identity(), settings, s.name) for s in all_schedules}
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
    experiment = Experiment(settings.seed)
    figure, four = panels(rows=2, height=6.5)
    rows: Rows = []
    every: dict[str, Curves] = {}
    for axes, schedule in zip(four.flat, four_schedules(STEP_SIZE, N_SAMPLES), strict=True):
        pair = {
            "projected": experiment.climb(schedule, NonNegativeMean(), settings, schedule.name),
            "unprojected": experiment.climb(schedule, Identity(), settings, schedule.name),
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
