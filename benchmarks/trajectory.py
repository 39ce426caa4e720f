"""Accuracy against time: the ELBO of NGVI and of ADVI at their iterations, and the picture of both.

`python benchmarks/run.py trajectory --posteriordb PATH` measures, and
`python benchmarks/run.py picture` draws docs/pictures/accuracy_against_time.png from that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from formatting import numbers
from process import read

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import Gaussian

MODELS = ("nes1972", "arK", "eight_schools_noncentered")
TITLES = {
    "nes1972": "nes1972: regression, 10 parameters",
    "arK": "arK: time series, 7 parameters",
    "eight_schools_noncentered": "eight schools, non-centred: 10 parameters",
}
STYLES = {
    "ngvi": ("C0", "-", "ngvi"),
    "advi": ("C1", ":", "advi"),
    "advi adam 0.01": ("C1", "-", "advi, Adam 0.01"),
    "fullrank_advi": ("C3", ":", "fullrank_advi"),
    "fullrank_advi adam 0.01": ("C3", "-", "fullrank_advi, Adam 0.01"),
}
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "accuracy_against_time.png"
#: Gaps below this are Monte-Carlo noise.
SMALLEST_GAP = 1e-3

#: Iteration, seconds since the first one began, and the Gaussian reached.
Point = tuple[int, float, Gaussian]


def ngvi_path(inference: ngvi.NGVI, seed: int) -> list[Point]:
    """Fit by NGVI, and return the Gaussian of each iteration."""
    passed: list[tuple[int, float, Gaussian]] = []

    def note(approx: Any, losses: Any, i: int) -> None:
        passed.append((i, time.perf_counter(), approx.gaussian))

    report = inference.fit(random_seed=seed, callbacks=[note], progressbar=False).report
    begin = time.perf_counter() - report.fit_seconds - report.verdict_seconds
    return [(i, moment - begin, q) for i, moment, q in passed]


def advi_path(
    model: pm.Model,
    method: str,
    iterations: int,
    seed: int,
    gaussian: Callable[[Any], Gaussian],
    **options: Any,
) -> list[Point]:
    """Fit by ADVI, and return the Gaussians of about thirty of its iterations."""
    wanted = set(np.unique(np.geomspace(10, iterations, 30).round()).astype(int))
    passed: list[tuple[int, float, list[np.ndarray]]] = []
    clock = {"begin": 0.0, "lost": 0.0}

    def note(approx: Any, losses: Any, i: int) -> None:
        moment = time.perf_counter()
        clock["begin"] = clock["begin"] or moment
        if i in wanted:
            values = [parameter.get_value() for parameter in approx.params]
            passed.append((i, moment - clock["begin"] - clock["lost"], values))
            clock["lost"] += time.perf_counter() - moment

    with model:
        approx = pm.fit(
            iterations,
            method=method,
            random_seed=seed,
            callbacks=[note],
            progressbar=False,
            **options,
        )
    path = []
    for i, seconds, values in passed:
        for parameter, value in zip(approx.params, values, strict=True):
            parameter.set_value(value)
        path.append((i, seconds, gaussian(approx)))
    return path


def draw(results: Path) -> None:
    """Draw the picture from the measurements."""
    import matplotlib.pyplot as plt

    rows = read(results / "trajectory-pymc6.csv")
    figure, axes = plt.subplots(1, len(MODELS), figsize=(11, 3.9), layout="constrained")
    for ax, model in zip(axes, MODELS, strict=True):
        of_model = [row for row in rows if row["model"] == model]
        best = max(numbers(of_model, "elbo"))
        for method, (color, line, label) in STYLES.items():
            of_method = [row for row in of_model if row["method"] == method]
            for seed in sorted({row["seed"] for row in of_method}):
                path = [row for row in of_method if row["seed"] == seed]
                gaps = np.maximum(best - np.array(numbers(path, "elbo")), SMALLEST_GAP)
                ax.plot(
                    numbers(path, "seconds"),
                    gaps,
                    color=color,
                    ls=line,
                    lw=2 if method == "ngvi" else 1.2,
                    marker="o" if method == "ngvi" else None,
                    ms=3,
                    label=label if seed == "1" else None,
                )
        ax.set(xscale="log", yscale="log", title=TITLES[model], xlabel="seconds after compiling")
        ax.title.set_fontsize("medium")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("nats below the best ELBO")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(STYLES), frameon=False)
    figure.savefig(PICTURE, dpi=130)
    print(PICTURE)
