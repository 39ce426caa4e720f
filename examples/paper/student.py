"""Experiment 5: Student regression, a posterior that is not log-concave, and projections.

The mean Hessian may be indefinite far from the mode, and a step may then leave the family's domain.
Six variants are compared on the same seeds: the plain update, which stops there; the two guards;
the projection of the spectrum of the precision; the projection of the spectrum of the covariance;
and the latter with the estimate of the paper's published code.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from examples.paper.common import Array, Rows, Settings, repeat
from examples.paper.gas_turbine import energy_yield
from examples.paper.output import panels, save_figure, write_rows, write_summary
from examples.paper.published import PublishedEstimate, clip_covariance
from examples.paper.targets import StudentRegression
from pymc_ngvi import NGVI, BonnetPrice, EigenvalueBounds, FullGaussian, UnreliableFit, schedules
from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.errors import NGVIError

PRIOR_VARIANCE, FREEDOM, N_SAMPLES, FINAL_DRAWS = 5.0, 3.0, 250, 4000
ALPHA, BETA = 1e-4, 1e4
STEP_SIZES: dict[str, Any] = {"eta = 0.005": 0.005, "eta = 2/(t+2)": schedules.decreasing()}


PLAIN = BonnetPrice(antithetic=False)
BOUNDS = EigenvalueBounds(ALPHA, BETA)
VARIANTS: dict[str, dict[str, Any]] = {
    "unprojected": dict(estimator=PLAIN, guard="none"),
    "guard lin": dict(estimator=PLAIN, guard="lin"),
    "guard backtrack": dict(estimator=PLAIN, guard="backtrack"),
    "projected": dict(estimator=PLAIN, guard="none", projection=BOUNDS),
    "covariance clipped": dict(estimator=PLAIN, guard=clip_covariance(BOUNDS)),
    "published estimate": dict(
        estimator=PublishedEstimate(PRIOR_VARIANCE), guard=clip_covariance(BOUNDS)
    ),
}


@dataclass(frozen=True)
class Run:
    """One run: the ELBO over the iterations and of the final member, NaN after a failure."""

    curve: Array
    final: float
    activations: int
    failure: str = ""


def build_model(design: Array, response: Array) -> pm.Model:
    """Student regression with three degrees of freedom and unit scale."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, PRIOR_VARIANCE**0.5, shape=design.shape[1])
        pm.StudentT("y", nu=FREEDOM, mu=design @ x, sigma=1, observed=response)
    return model


def build_target(data: Path | None) -> StudentRegression:
    """Make the same posterior in NumPy, for hundreds of runs."""
    return StudentRegression(*energy_yield(data), FREEDOM, PRIOR_VARIANCE)


def student(settings: Settings) -> Rows:
    """Experiment 5: robust regression, unprojected, guarded and projected on the same seeds."""
    target = build_target(settings.data)
    results = {
        (variant, step): run_all(target, variant, step, settings)
        for step in STEP_SIZES
        for variant in VARIANTS
    }
    start = elbo_of(target, prior(target.dim), np.random.default_rng(settings.seed))
    rows = [
        dict.fromkeys(summary("", "", []), "") | {"variant": "start", "elbo_mean": f"{start:.2f}"},
        *(summary(variant, step, runs) for (variant, step), runs in results.items()),
    ]
    write_summary(settings, "student", rows)
    curves = statistics(results)
    write_rows(settings.output / "student_curves.csv", curves)
    draw(settings, curves)
    return rows


def run_all(target: StudentRegression, variant: str, step: str, settings: Settings) -> list[Run]:
    """All runs of one variant and step size, from the prior."""

    def one_run(rng: np.random.Generator) -> Run:
        judge, failure, final = rng.spawn(1)[0], "", np.nan
        try:
            result = run(
                target,
                prior(target.dim),
                n_iterations=settings.iterations,
                step_size=STEP_SIZES[step],
                n_samples=N_SAMPLES,
                rng=rng,
                **VARIANTS[variant],
            )
        except NGVIError as error:
            result, failure = error.result, str(error)
        else:
            final = elbo_of(target, result.q, judge)
        curve = np.full(settings.iterations, np.nan)
        curve[: len(result.history)] = result.trace("elbo")
        active = result.trace("guard_active") | result.trace("projection_active")
        return Run(curve, final, int(active.sum()), failure)

    return repeat(settings, f"{variant}, {step}", one_run)


def student_pymc(settings: Settings) -> Rows:
    """Experiment 5 by ``pm.fit`` with a PyMC model: the same final ELBOs for the same seeds."""
    target = build_target(settings.data)
    inference = NGVI(model=build_model(target.design, target.response))
    rows = []
    for step in STEP_SIZES:
        for variant in VARIANTS:
            own = run_all(target, variant, step, settings)
            fitted = fit_all(inference, target, variant, step, settings)
            rows += [
                {
                    "variant": variant,
                    "step_size": step,
                    "seed": seed,
                    "elbo": _nats(one.final),
                    "elbo_by_pm_fit": _nats(other),
                }
                for seed, (one, other) in enumerate(
                    zip(own, fitted, strict=True), start=settings.seed
                )
            ]
    write_summary(settings, "student_pymc", rows)
    return rows


def fit_all(
    inference: NGVI, target: StudentRegression, variant: str, step: str, settings: Settings
) -> list[float]:
    """Make the same runs by ``pm.fit``, and return their final ELBOs, NaN after a failure."""

    def one_run(rng: np.random.Generator) -> float:
        judge = rng.spawn(1)[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnreliableFit)  # some variants are meant to be
                approx = pm.fit(
                    settings.iterations,
                    method=inference,
                    step_size=STEP_SIZES[step],
                    n_samples=N_SAMPLES,
                    start={"x": np.zeros(target.dim)},
                    start_sigma={"x": PRIOR_VARIANCE**0.5},
                    random_seed=rng,
                    progressbar=False,
                    **VARIANTS[variant],
                )
        except NGVIError:
            return np.nan
        return elbo_of(target, approx.gaussian, judge)

    return repeat(settings, f"pm.fit, {variant}, {step}", one_run)


def prior(dim: int) -> FullGaussian:
    """Where all runs start."""
    return FullGaussian.from_mean_covariance(np.zeros(dim), PRIOR_VARIANCE * np.eye(dim))


def elbo_of(target: StudentRegression, q: Gaussian, rng: np.random.Generator) -> float:
    """ELBO of a member from fresh draws."""
    draws = q.sample(FINAL_DRAWS, rng)
    return float((target.log_density(draws) - q.log_density(draws)).mean())


def summary(variant: str, step: str, runs: list[Run]) -> dict[str, Any]:
    """Failed runs, and the final ELBO over the others."""
    final = [run.final for run in runs if not run.failure] or [np.nan]
    low, middle, high = np.quantile(final, [0.25, 0.5, 0.75])
    return {
        "variant": variant,
        "step_size": step,
        "runs": len(runs),
        "failed": sum(bool(run.failure) for run in runs),
        "elbo_mean": _nats(float(np.mean(final))),
        "elbo_lowest": _nats(min(final)),
        "elbo_q25": _nats(low),
        "elbo_median": _nats(middle),
        "elbo_q75": _nats(high),
        "activations": f"{np.mean([run.activations for run in runs] or [0]):.1f}",
    }


def _nats(value: float) -> str:
    return "failed" if np.isnan(value) else f"{value:.2f}"


def statistics(results: dict[tuple[str, str], list[Run]]) -> Rows:
    """Mean, median and quartiles of the ELBO over the runs that go on, at 200 iterations or so."""
    rows = []
    for (variant, step), runs in results.items():
        curves = np.array([run.curve for run in runs])
        length = curves.shape[1]
        for t in range(0, length, max(1, length // 200)):
            column = curves[np.isfinite(curves[:, t]), t]
            if not column.size:
                continue
            low, middle, high = np.quantile(column, [0.25, 0.5, 0.75])
            rows.append(
                {
                    "variant": variant,
                    "step_size": step,
                    "iteration": t,
                    "runs_going": column.size,
                    "mean": float(column.mean()),
                    "q25": float(low),
                    "median": float(middle),
                    "q75": float(high),
                }
            )
    return rows


def draw(settings: Settings, rows: Rows) -> None:
    """Draw medians as lines and quartiles as bands, means dotted, within 150 nats of the best."""
    best = max(row["median"] for row in rows)
    figure, two = panels(height=4.4)
    for axes, step in zip(two, STEP_SIZES, strict=True):
        for i, variant in enumerate(VARIANTS):
            own = [row for row in rows if (row["variant"], row["step_size"]) == (variant, step)]
            t, mean, low, middle, high = (
                np.array([row[key] for row in own])
                for key in ("iteration", "mean", "q25", "median", "q75")
            )
            # Narrower on top of wider, as many of them coincide.
            width = 1.5 * (len(VARIANTS) - i)
            axes.plot(t, middle, color=f"C{i}", linewidth=width, label=variant)
            axes.plot(t, mean, color=f"C{i}", linestyle=":", linewidth=1.5)
            axes.fill_between(t, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
        axes.set(title=step.replace("eta", r"$\eta_t$"), xlabel="iteration $t$", ylabel="ELBO")
        axes.set_xscale("symlog", linthresh=10)
        axes.set(ylim=(best - 150, best + 10), xlim=(0, t[-1]))
    figure.legend(*two[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    save_figure(figure, settings, "student")
