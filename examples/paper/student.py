"""Experiment 5: Student regression, a posterior that is not log-concave, and projections.

The mean Hessian may be indefinite far from the mode, and a step may then leave the family's domain.
Five ways to go on from there, on the same seeds: stop (the bare update), the guard, the projection
on the spectrum of the precision, the projection on that of the covariance, and the last with the
estimate of the paper's published code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

from examples.paper.common import Array, Settings, figure_of_two, save_figure, show, write_rows
from examples.paper.gas_turbine import energy_yield
from pymc_ngvi import schedules
from pymc_ngvi.algorithm import run
from pymc_ngvi.errors import NGVIError
from pymc_ngvi.estimators import BonnetPrice, Estimate
from pymc_ngvi.families import FullGaussian
from pymc_ngvi.guards import Mixed
from pymc_ngvi.projections import EigenvalueBounds
from pymc_ngvi.target import Target, compile_target

PRIOR_VARIANCE, FREEDOM, N_SAMPLES, FINAL_DRAWS = 5.0, 3.0, 250, 4000
ALPHA, BETA = 1e-4, 1e4
STEP_SIZES = {"eta = 0.005": 0.005, "eta = 2/(t+2)": schedules.decreasing()}


class PublishedEstimate(BonnetPrice):
    r"""The estimate of the published code: without :math:`-H\mu` and the prior's gradient.

    Adding :math:`H\mu` to the gradient that `mix` is given takes the term out of the natural
    gradient again.
    """

    def at(self, target: Any, q: Any, z: Array) -> Estimate:
        """Estimate from standard normal rows z (n, d)."""
        found = super().at(target, q, z)
        prior = -q.unwhiten(z).mean(axis=0) / PRIOR_VARIANCE
        gradient = found.gradient - prior + found.hessian @ q.mean
        return Estimate(gradient, found.hessian, found.elbo, found.elbo_se, found.evaluations)


def clip_covariance(q: FullGaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Clip the eigenvalues of the updated covariance, be it definite or not, and keep its mean."""
    precision = (1 - step_size) * q.precision - step_size * estimate.hessian
    mean = q.mean + step_size * np.linalg.solve(precision, estimate.gradient)
    values, vectors = np.linalg.eigh(np.linalg.inv(precision))
    inside = bool((values >= ALPHA).all() and (values <= BETA).all())
    covariance = (vectors * np.clip(values, ALPHA, BETA)) @ vectors.T
    clipped = FullGaussian.from_mean_covariance(mean, (covariance + covariance.T) / 2)
    return Mixed(clipped, step_size, active=not inside)


BARE, PUBLISHED = BonnetPrice(antithetic=False), PublishedEstimate(antithetic=False)
VARIANTS: dict[str, dict[str, Any]] = {
    "unprojected": dict(estimator=BARE, guard="none"),
    "guarded": dict(estimator=BARE, guard="lin"),
    "projected": dict(estimator=BARE, guard="none", projection=EigenvalueBounds(ALPHA, BETA)),
    "covariance clipped": dict(estimator=BARE, guard=clip_covariance),
    "published estimate": dict(estimator=PUBLISHED, guard=clip_covariance),
}


@dataclass
class Runs:
    """ELBO of each run over the iterations, NaN after a failure, and of each final member."""

    curves: list[Array] = field(default_factory=list)
    final: list[float] = field(default_factory=list)
    activations: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def build_model(design: Array, response: Array) -> pm.Model:
    """Student regression with three degrees of freedom and unit scale."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, PRIOR_VARIANCE**0.5, shape=design.shape[1])
        pm.StudentT("y", nu=FREEDOM, mu=design @ x, sigma=1, observed=response)
    return model


def student(settings: Settings) -> list[dict[str, Any]]:
    """Experiment 5: robust regression, unprojected, guarded and projected on the same seeds."""
    target = compile_target(build_model(*energy_yield(settings.data)))
    results = {
        (variant, step): repeat(target, variant, step, settings)
        for step in STEP_SIZES
        for variant in VARIANTS
    }
    rows = [summary(variant, step, runs) for (variant, step), runs in results.items()]
    write_rows(settings.output / "student.csv", rows)
    _write_curves(settings, results)
    _draw(settings, results)
    show(rows)
    return rows


def repeat(target: Target, variant: str, step: str, settings: Settings) -> Runs:
    """All runs of one variant and step size, from the prior."""
    runs = Runs()
    start = FullGaussian.from_mean_covariance(
        np.zeros(target.dim), PRIOR_VARIANCE * np.eye(target.dim)
    )
    for seed in settings.seeds(f"{variant}, {step}"):
        try:
            result = run(
                target,
                start,
                n_iterations=settings.iterations,
                step_size=STEP_SIZES[step],
                n_samples=N_SAMPLES,
                rng=np.random.default_rng(seed),
                **VARIANTS[variant],
            )
        except NGVIError as error:
            result = error.result
            runs.failures.append(str(error))
        else:
            draws = result.q.sample(FINAL_DRAWS, np.random.default_rng([seed, 1]))
            ratio = target.log_density(draws) - result.q.log_density(draws)
            runs.final.append(float(ratio.mean()))
        curve = np.full(settings.iterations, np.nan)
        curve[: len(result.history)] = result.trace("elbo")
        runs.curves.append(curve)
        active = result.trace("guard_active") | result.trace("projection_active")
        runs.activations.append(int(active.sum()))
    return runs


def summary(variant: str, step: str, runs: Runs) -> dict[str, Any]:
    """Failed runs, and the final ELBO over the others."""
    final = runs.final or [float("nan")]
    low, middle, high = np.quantile(final, [0.25, 0.5, 0.75])
    return {
        "variant": variant,
        "step_size": step,
        "runs": len(runs.curves),
        "failed": len(runs.failures),
        "elbo_mean": f"{np.mean(final):.3f}",
        "elbo_lowest": f"{np.min(final):.3f}",
        "elbo_q25": f"{low:.3f}",
        "elbo_median": f"{middle:.3f}",
        "elbo_q75": f"{high:.3f}",
        "activations_mean": float(np.mean(runs.activations)),
    }


def _draw(settings: Settings, results: dict[tuple[str, str], Runs]) -> None:
    """Draw the mean as a line and the quartiles as a band, over the runs that go on."""
    times = np.arange(settings.iterations)
    best = max(max(runs.final, default=-np.inf) for runs in results.values())
    figure, panels = figure_of_two(height=4.2)
    for axes, step in zip(panels, STEP_SIZES, strict=True):
        for i, variant in enumerate(VARIANTS):
            curves = np.array(results[variant, step].curves)
            going = np.isfinite(curves).any(axis=0)
            if going.sum() < 2:
                continue
            low, middle, high = np.nanquantile(curves[:, going], [0.25, 0.5, 0.75], axis=0)
            axes.fill_between(times[going], low, high, color=f"C{i}", alpha=0.25, linewidth=0)
            axes.plot(times[going], middle, color=f"C{i}", label=f"{variant}, median")
            mean = np.nanmean(curves[:, going], axis=0)
            axes.plot(times[going], mean, color=f"C{i}", linestyle=":", linewidth=1)
        axes.set(title=step.replace("eta", r"$\eta_t$"), xlabel="iteration $t$", ylabel="ELBO")
        axes.set(ylim=(best - 150, best + 5), xscale="symlog")
        axes.set_xlim(0, settings.iterations)
    handles = {h.get_label(): h for axes in panels for h in axes.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, fontsize="small")
    save_figure(figure, settings.output, "student")


def _write_curves(settings: Settings, results: dict[tuple[str, str], Runs]) -> None:
    rows = []
    for (variant, step), runs in results.items():
        curves = np.array(runs.curves)
        for t in range(0, settings.iterations, max(1, settings.iterations // 200)):
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
    write_rows(settings.output / "student_curves.csv", rows)
