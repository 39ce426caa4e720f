"""Experiments 3 and 6: logistic regression, mean-field, with and without a projection of the mean.

The posterior is log-concave but not Gaussian, so the propositions do not cover it: decreasing steps
are ahead at first and behind later. Keeping the means non-negative, as the true coefficients are,
helps the runs that start on the wrong side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from scipy.special import expit

from examples.paper.common import (
    Array,
    Schedule,
    Settings,
    four_schedules,
    plot_iterations_and_samples,
    plt,
    save_figure,
    show,
    thinned,
    write_rows,
)
from pymc_ngvi.algorithm import run
from pymc_ngvi.estimators import BonnetPrice
from pymc_ngvi.families import DiagonalGaussian
from pymc_ngvi.projections import Identity, NonNegativeMean, Projection
from pymc_ngvi.target import Target, compile_target

DIM, OBSERVATIONS, ELBO_DRAWS = 5, 100, 100
STEP_SIZE, N_SAMPLES = 0.01, 100


@dataclass(frozen=True)
class Curves:
    """Means over the runs at some iterations: the ELBO, and the mean log density within it."""

    times: Array
    elbo: Array
    log_density: Array


def build_model(seed: int) -> pm.Model:
    """Covariates uniform in [-5, 5], all true coefficients 5, prior N(0, I)."""
    rng = np.random.default_rng(seed)
    design = rng.uniform(-5, 5, (OBSERVATIONS, DIM))
    response = rng.binomial(1, expit(design @ np.full(DIM, 5.0)))
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=DIM)
        # pm.Bernoulli(logit_p=...) has no finite Hessian where a logit exceeds 37 or so, and the
        # paper's starts give logits up to 100.
        logit = design @ x
        pm.Potential("likelihood", (response * logit - pm.math.log1pexp(logit)).sum())
    return model


def logistic(settings: Settings) -> list[dict[str, Any]]:
    """Experiment 3: ELBO of the four schedules."""
    target = compile_target(build_model(settings.seed), curvature="diagonal")
    all_schedules = four_schedules(STEP_SIZE, N_SAMPLES)
    curves = {s.name: climb(target, s, Identity(), settings, s.name) for s in all_schedules}
    rows = [
        {
            "schedule": name,
            **{f"elbo_at_{t}": at(curve, t) for t in (10, 100, settings.iterations)},
            "mean_log_density_at_end": float(curve.log_density[-1]),
        }
        for name, curve in curves.items()
    ]
    write_rows(settings.output / "logistic.csv", rows)
    used = {s.name: s.samples_used(settings.iterations) for s in all_schedules}
    _write_curves(settings, "logistic", curves, used)
    times = np.arange(settings.iterations + 1)
    figure = plot_iterations_and_samples(
        {name: np.interp(times, curve.times, curve.elbo) for name, curve in curves.items()},
        used,
        {s.name: s.label for s in all_schedules},
        ylabel="mean ELBO",
        unit="samples",
        decorate=lambda axes: _zoom(axes, curves.values()),
    )
    save_figure(figure, settings.output, "logistic")
    show(rows)
    return rows


def nonnegative(settings: Settings) -> list[dict[str, Any]]:
    """Experiment 6: the same with the mean projected onto non-negative values."""
    target = compile_target(build_model(settings.seed), curvature="diagonal")
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    rows, every = [], {}
    for axes, schedule in zip(panels.flat, four_schedules(STEP_SIZE, N_SAMPLES), strict=True):
        pair = {
            "projected": climb(target, schedule, NonNegativeMean(), settings, schedule.name),
            "unprojected": climb(target, schedule, Identity(), settings, schedule.name),
        }
        gain = pair["projected"].elbo - pair["unprojected"].elbo
        rows.append(
            {
                "schedule": schedule.name,
                **{
                    f"gain_at_{t}": float(np.interp(t, pair["projected"].times, gain))
                    for t in (1, 10, 100, settings.iterations)
                },
                "smallest_gain": float(gain[1:].min()),
                "elbo_at_end": float(pair["projected"].elbo[-1]),
            }
        )
        for name, curve in pair.items():
            axes.plot(curve.times, curve.elbo, label=name)
            every[f"{schedule.name}, {name}"] = curve
        axes.set(title=schedule.label, xlabel="iteration $t$", ylabel="mean ELBO")
        _zoom(axes, pair.values())
    panels[0, 0].legend()
    save_figure(figure, settings.output, "nonnegative")
    write_rows(settings.output / "nonnegative.csv", rows)
    _write_curves(settings, "nonnegative", every, None)
    show(rows)
    return rows


def climb(
    target: Target, schedule: Schedule, projection: Projection, settings: Settings, title: str
) -> Curves:
    """Mean ELBO over the runs, each estimated from 100 draws of its own."""
    times = thinned(settings.iterations + 1, most=100)
    totals = np.zeros((2, len(times)))
    wanted = set(times.tolist())
    for seed in settings.seeds(title):
        rng, judge = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        start = DiagonalGaussian.from_mean_covariance(rng.uniform(-5, 5, DIM), np.full(DIM, 0.5))
        kept = [_elbo(target, start, judge)]

        def record(state: Any, _: Any, kept: Any = kept, judge: Any = judge) -> None:
            if state.iteration in wanted:
                kept.append(_elbo(target, state.q, judge))

        run(
            target,
            start,
            n_iterations=settings.iterations,
            step_size=schedule.step_size,
            n_samples=schedule.n_samples,
            estimator=BonnetPrice(antithetic=False),
            guard="none",
            projection=projection,
            callbacks=[record],
            rng=rng,
        )
        totals += np.array(kept).T
    elbo, log_density = totals / settings.runs
    return Curves(times, elbo, log_density)


def at(curve: Curves, t: int) -> float:
    """ELBO at an iteration, between the recorded ones on a straight line."""
    return float(np.interp(t, curve.times, curve.elbo))


def _elbo(target: Target, q: DiagonalGaussian, rng: np.random.Generator) -> tuple[float, float]:
    draws = q.sample(ELBO_DRAWS, rng)
    log_density = target.log_density(draws)
    return float((log_density - q.log_density(draws)).mean()), float(log_density.mean())


def _zoom(axes: Any, curves: Any) -> None:
    """Show the last fifty nats of the climb."""
    best = max(curve.elbo.max() for curve in curves)
    axes.set_ylim(best - 50, best + 3)
    if axes.get_xlabel().startswith("iteration"):
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(left=0)


def _write_curves(
    settings: Settings, name: str, curves: dict[str, Curves], samples: dict[str, Array] | None
) -> None:
    rows = [
        {
            "schedule": label,
            "iteration": int(t),
            **({} if samples is None else {"samples": int(samples[label][t])}),
            "elbo": float(elbo),
            "mean_log_density": float(density),
        }
        for label, curve in curves.items()
        for t, elbo, density in zip(curve.times, curve.elbo, curve.log_density, strict=True)
    ]
    write_rows(settings.output / f"{name}_curves.csv", rows)
