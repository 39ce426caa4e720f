"""What the experiments share: schedules, runs, slopes, and the files they write."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymc_ngvi import schedules
from pymc_ngvi.algorithm import run
from pymc_ngvi.families import FullGaussian, Gaussian

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """A step size and a sample size, each a number or a function of the iteration."""

    name: str
    label: str
    step_size: Any
    n_samples: Any

    def samples_used(self, n_iterations: int) -> Array:
        """Count the samples spent before iteration t, for t = 0, ..., n_iterations."""
        counts = schedules.as_schedule(self.n_samples, "n_samples")
        return np.concatenate([[0], np.cumsum([counts(t) for t in range(n_iterations)])])


@dataclass(frozen=True)
class Settings:
    """What the command line chooses."""

    runs: int
    iterations: int
    seed: int
    output: Path
    data: Path | None = None
    paper: bool = False
    progress: bool = True

    def seeds(self, title: str) -> Iterable[int]:
        """Seeds of the runs, the same for every schedule, with a progress bar."""
        seeds = range(self.seed, self.seed + self.runs)
        return track(seeds, description=f"{title:<34}") if self.progress else seeds


def four_schedules(step_size: float, n_samples: int) -> list[Schedule]:
    """Pair a constant or decreasing step size with constant or growing samples, as the paper."""
    constant, falling = f"$\\eta_t = {step_size:g}$", r"$\eta_t = 2/(t+2)$"
    fixed, growing = f"$N_t = {n_samples}$", "$N_t = t+1$"
    decreasing, more = schedules.decreasing(), schedules.growing(1.0)
    return [
        Schedule("constant step, constant N", f"{constant}, {fixed}", step_size, n_samples),
        Schedule("constant step, growing N", f"{constant}, {growing}", step_size, more),
        Schedule("decreasing step, constant N", f"{falling}, {fixed}", decreasing, n_samples),
        Schedule("decreasing step, growing N", f"{falling}, {growing}", decreasing, more),
    ]


def wide_start(dim: int, rng: np.random.Generator) -> FullGaussian:
    """Start of the conjugate experiments: a mean uniform in [-5, 5]^d and covariance 10 I."""
    return FullGaussian.from_mean_covariance(rng.uniform(-5, 5, dim), 10 * np.eye(dim))


def mean_distance(
    target: Any, optimum: Gaussian, schedule: Schedule, estimator: Any, settings: Settings
) -> Array:
    """Mean over the runs of d(omega_*, omega_t) at t = 0, ..., iterations, in nats."""
    total = np.zeros(settings.iterations + 1)
    for seed in settings.seeds(schedule.name):
        rng = np.random.default_rng(seed)
        start = wide_start(optimum.dim, rng)
        distances = [optimum.kl(start)]
        run(
            target,
            start,
            n_iterations=settings.iterations,
            step_size=schedule.step_size,
            n_samples=schedule.n_samples,
            estimator=estimator,
            guard="none",
            callbacks=[lambda state, _, kept=distances: kept.append(optimum.kl(state.q))],
            rng=rng,
        )
        total += distances
    return total / settings.runs


def log_log_slope(curve: Array, first: int) -> float:
    """Slope of log curve[t] against log t from `first` to the end, at times spread evenly in log t.

    The mean of all values between two such times stands for them, so that none is thrown away.
    """
    edges = np.unique(np.geomspace(first, len(curve), 25).astype(int))
    parts = [slice(a, b) for a, b in pairwise(edges)]
    times = np.arange(len(curve), dtype=float)
    log_times = [np.log(times[part]).mean() for part in parts]
    log_values = [np.log(curve[part].mean()) for part in parts]
    return float(np.polyfit(log_times, log_values, 1)[0])


def settling_time(step_size: float, iterations: int) -> int:
    """Return when a constant step has forgotten its start, 10 / eta, if the run lasts so long."""
    first = round(10 / step_size)
    if iterations <= first:
        raise ValueError(
            f"{iterations} iterations do not reach the neighbourhood of step size {step_size:g}: "
            f"give more than {first}"
        )
    return first


def stationary_level(curve: Array, step_size: float) -> float:
    """Mean of the curve once the start is forgotten."""
    return float(curve[settling_time(step_size, len(curve) - 1) :].mean())


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of equal keys as CSV, numbers to six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def write_curves(path: Path, curves: Mapping[str, Array], samples: Mapping[str, Array]) -> None:
    """Write curves over the iterations, thinned to about 300 rows each, in long form."""
    rows = [
        {"schedule": name, "iteration": int(t), "samples": int(samples[name][t]), "value": curve[t]}
        for name, curve in curves.items()
        for t in thinned(len(curve))
    ]
    write_rows(path, rows)


def thinned(length: int, most: int = 300) -> NDArray[np.intp]:
    """At most so many of the times 0, ..., length - 1: half spread evenly, half in log t."""
    even = np.linspace(0, length - 1, min(length, most // 2))
    early = np.geomspace(1, length, most // 2) - 1
    return np.unique(np.concatenate([even, early]).astype(np.intp))


def save_figure(figure: Any, folder: Path, name: str) -> None:
    """Save as PNG and as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=90)
    figure.savefig(folder / f"{name}.svg")
    plt.close(figure)


def figure_of_two(width: float = 10.0, height: float = 3.8) -> tuple[Any, Any]:
    """Make a figure of two panels, side by side."""
    return plt.subplots(1, 2, figsize=(width, height), layout="constrained")


def plot_iterations_and_samples(
    curves: Mapping[str, Array],
    samples: Mapping[str, Array],
    labels: Mapping[str, str],
    *,
    ylabel: str,
    unit: str,
    decorate: Callable[[Any], None],
) -> Any:
    """Draw the curves against the iteration and against the samples spent, as the paper does."""
    figure, (left, right) = figure_of_two()
    budget = min(float(spent[-1]) for spent in samples.values())
    for name, curve in curves.items():
        times = thinned(len(curve))
        left.plot(times, curve[times], label=labels[name])
        inside = samples[name] <= 1.0001 * budget
        right.plot(samples[name][inside], curve[inside])
    left.set(xlabel="iteration $t$", ylabel=ylabel)
    right.set(xlabel=f"{unit} used", ylabel=ylabel)
    right.locator_params(axis="x", nbins=5)
    for axes in (left, right):
        decorate(axes)
    figure.legend(loc="outside lower center", ncols=min(4, len(curves)), fontsize="small")
    return figure


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
