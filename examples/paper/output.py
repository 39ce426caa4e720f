"""The files an experiment writes: tables, curves and figures."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from examples.paper.common import Array, Schedule, Settings


def write_summary(settings: Settings, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows and write them as the CSV file that the page quotes."""
    shown = [{key: _four_digits(value) for key, value in row.items()} for row in rows]
    table = Table(*(key.replace("_", " ") for key in shown[0]))
    for row in shown:
        table.add_row(*row.values())
    console = Console()
    console.width = max(console.width, 120)  # wider than a log file is taken for
    console.print(table)
    write_rows(settings.output / f"{name}.csv", shown)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of equal keys as CSV, numbers to six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
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
    """Choose some of the times 0, ..., length - 1: half evenly in t, half evenly in log t."""
    even = np.linspace(0, length - 1, min(length, most // 2))
    early = np.geomspace(1, length, most // 2) - 1
    return np.unique(np.concatenate([even, early]).astype(np.intp))


def save_figure(figure: Any, settings: Settings, name: str) -> None:
    """Save as PNG and as SVG."""
    settings.output.mkdir(parents=True, exist_ok=True)
    figure.savefig(settings.output / f"{name}.png", dpi=90)
    figure.savefig(settings.output / f"{name}.svg")
    plt.close(figure)


def panels(rows: int = 1, height: float = 3.8) -> tuple[Any, Any]:
    """Make a figure of panels, two side by side."""
    figure, axes = plt.subplots(rows, 2, figsize=(10, height), layout="constrained")
    return figure, axes


def plot_iterations_and_samples(
    schedules: Sequence[Schedule],
    curves: Mapping[str, Array],
    samples: Mapping[str, Array],
    *,
    ylabel: str,
    unit: str,
    decorate: Callable[[Any], None],
) -> Any:
    """Draw the curves against the iteration and against the samples spent, as the paper does."""
    figure, (left, right) = panels()
    budget = min(float(spent[-1]) for spent in samples.values())
    for schedule in schedules:
        curve, spent = curves[schedule.name], samples[schedule.name]
        times = thinned(len(curve))
        left.plot(times, curve[times], label=schedule.label)
        inside = np.flatnonzero(spent <= 1.0001 * budget)
        inside = inside[thinned(len(inside))]
        right.plot(spent[inside], curve[inside])
    left.set(xlabel="iteration $t$", ylabel=ylabel)
    right.set(xlabel=f"{unit} used", ylabel=ylabel)
    right.locator_params(axis="x", nbins=5)
    for axes in (left, right):
        decorate(axes)
    figure.legend(loc="outside lower center", ncols=min(4, len(curves)), fontsize="small")
    return figure


def _four_digits(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
