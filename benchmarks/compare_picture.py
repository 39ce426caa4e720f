"""The pictures of what `compare.py` measured: error against time, a panel for each model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from compare_models import CASES, COMMON
from compare_table import fits
from facts import GOOD
from formatting import Row, groups, numbers
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
#: Errors are drawn between these; below the first, draws of the reference and of a fit are noise.
LOWEST, HIGHEST = 0.02, 20.0
#: Methods of the picture for those who see the package for the first time.
CHOSEN = ("ngvi", "advi", "advi adam", "fullrank_advi adam", "laplace", "pathfinder", "dadvi")


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Attributes
    ----------
    color, marker : str
        Of its points.
    label : str
        In the legend.
    size : float
        Of its points.
    """

    color: str
    marker: str
    label: str
    size: float = 6.5

    def point(self, seconds: float, error: float, *, failed: bool) -> Line2D:
        """Return one fit as a point; one that failed is a cross at the upper end."""
        ours = self.size > Style.size
        return Line2D(
            [seconds], [HIGHEST if failed else min(max(error, LOWEST), HIGHEST)],
            ls="", color=self.color, marker="x" if failed else self.marker,
            ms=5.5 if failed else self.size, mec="black" if ours and not failed else None,
            zorder=4 if ours else 3, label=self.label,
        )  # fmt: skip


STYLES = {
    "ngvi": Style("#1f77b4", "o", "ngvi", 10),
    "ngvi stein": Style("#6baed6", "o", "ngvi, gradients only"),
    "ngvi meanfield": Style("#9ecae1", "o", "ngvi, mean-field"),
    "ngvi sparse": Style("#08519c", "o", "ngvi, sparse"),
    "ngvi nested": Style("#17becf", "o", "ngvi, nested"),
    "advi": Style("#fdae6b", "s", "ADVI (PyMC)"),
    "advi adam": Style("#ff7f0e", "s", "ADVI, Adam (PyMC)"),
    "fullrank_advi": Style("#fb9a99", "D", "full-rank ADVI (PyMC)"),
    "fullrank_advi adam": Style("#d62728", "D", "full-rank ADVI, Adam (PyMC)"),
    "laplace": Style("#2ca02c", "P", "Laplace (pymc-extras)"),
    "pathfinder": Style("#9467bd", "v", "Pathfinder (pymc-extras)"),
    "dadvi": Style("#8c564b", "<", "DADVI (pymc-extras)"),
    "extras advi": Style("#c49c94", ">", "ADVI (pymc-extras)"),
    "numpyro svi": Style("#e377c2", "^", "SVI, full (NumPyro)"),
    "numpyro lowrank": Style("#f7b6d2", "^", "SVI, low rank (NumPyro)"),
    "blackjax": Style("#7f7f7f", "h", "full-rank VI (BlackJAX)"),
}


def draw(results: Path) -> None:
    """Draw all that was measured, and the common models by the common methods."""
    rows = fits(results, "own")
    measured = {row["model"] for row in rows}
    _panels(rows, [m for m in CASES if m in measured], [*STYLES], 5, FOLDER / "all_methods.png")
    common = [m for m in COMMON if m in measured]
    _panels(rows, common, CHOSEN, 4, FOLDER / "overview.png")


def _panels(
    rows: Sequence[Row], models: Sequence[str], methods: Sequence[str], columns: int, path: Path
) -> None:
    """Draw a panel for each model."""
    shown = [
        row for row in rows if row["model"] in models and row["method"] in (*methods, "nutpie")
    ]
    by_model = groups(shown, "model")
    columns = min(columns, len(models))
    depth = -(-len(models) // columns)
    figure, grid = plt.subplots(
        depth, columns, figsize=(2.9 * columns, 2.25 * depth + 1.3), layout="constrained",
        squeeze=False, sharex=True, sharey=True,
    )  # fmt: skip
    for axes, model in zip(grid.flat, models, strict=False):
        _panel(axes, by_model[(model,)])
        axes.set_title(CASES[model].title, fontsize="medium")
    # A fit that failed has but the time of its process; NUTS has one without compiling.
    times = [*numbers(shown, "wait_cpu_s"), *numbers(shown, "fit_cpu_s")]
    times += numbers([row for row in shown if row["problem"]], "cpu_s")
    span = (min(times) / 1.5, max(times) * 1.5)
    grid[0, 0].set(xlim=span, ylim=(LOWEST / 1.3, HIGHEST * 1.5))
    for axes in list(grid.flat)[len(models) :]:
        axes.set_visible(False)
    for axes in list(grid.flat)[max(0, len(models) - columns) : len(models)]:
        axes.set_xlabel("CPU seconds", fontsize="small")
    figure.supylabel("worst error of a mean (in sds) or of a log sd", fontsize="medium")
    figure.legend(
        handles=_legend({row["method"] for row in shown}), loc="outside lower center",
        ncols=min(4, columns + 1), frameon=False, fontsize="small",
    )  # fmt: skip
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(path)


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the fits of one model, and between which times NUTS is done."""
    axes.axhspan(LOWEST / 2, GOOD, color="#2ca02c", alpha=0.10, lw=0)
    for row in rows:
        failed = bool(row["problem"])
        if row["method"] in STYLES:
            seconds = float(row["cpu_s"] if failed else row["wait_cpu_s"])
            error = 0.0 if failed else max(float(row["mean_worst"]), float(row["sd_worst"]))
            axes.add_line(STYLES[row["method"]].point(seconds, error, failed=failed))
    sampled = [row for row in rows if row["method"] == "nutpie" and not row["problem"]]
    if sampled:
        first, last = (median(numbers(sampled, part)) for part in ("fit_cpu_s", "wait_cpu_s"))
        axes.axvspan(first, last, color="0.5", alpha=0.25, lw=0)
        axes.axvline(first, color="black", ls=":", lw=1.2)
        axes.axvline(last, color="black", ls="--", lw=1.2)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelbottom=True)
    axes.grid(alpha=0.3)


def _legend(methods: set[str]) -> list[Any]:
    """Say what the points, the lines and the areas are."""
    points = [
        Line2D(
            [], [], ls="", color=style.color, marker=style.marker, ms=style.size, label=style.label,
            mec="black" if style.size > Style.size else None,
        )
        for method, style in STYLES.items()
        if method in methods
    ]  # fmt: skip
    return [
        *points,
        Line2D([], [], ls="", color="0.3", marker="x", ms=5.5, label="failed, or not done in time"),
        Line2D([], [], color="black", ls=":", label="NUTS (nutpie), sampling alone"),
        Line2D([], [], color="black", ls="--", label="NUTS (nutpie), with compiling"),
        Patch(color="#2ca02c", alpha=0.10, label=f"no error above {GOOD:g}"),
    ]
