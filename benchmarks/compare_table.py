"""The tables and the picture of what `compare.py` measured."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from compare_methods import METHODS
from compare_models import CASES
from formatting import Row, groups, markdown, numbers, small
from process import read

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "all_methods.png"
#: Errors are drawn between these; below the first, draws of the reference and of a fit are noise.
LOWEST, HIGHEST = 0.02, 20.0
_FAMILIES = {"ngvi": "o", "advi": "s", "fullrank_advi": "s", "numpyro": "^", "blackjax": "^"}


def section(results: Path) -> str:
    """Write the tables, one for each model."""
    rows = read(results / "compare-pymc6.csv")
    if not rows:
        return ""
    checks = {row["model"]: row for row in read(results / "references-pymc6.csv")}
    parts = [_introduction(rows)]
    for (model,), found in groups(rows, "model").items():
        parts += [f"### {CASES[model].title}", _table(found) + "\n\n" + _checked(checks.get(model))]
    return "\n\n".join(parts)


def _introduction(rows: list[Row]) -> str:
    seeds = len({row["seed"] for row in rows})
    loads = numbers(rows, "load")
    share = median(float(row["cpu_s"]) / float(row["process_s"]) for row in rows)
    limits = sorted(set(numbers(rows, "limit_s")))
    caches = ", ".join(sorted({row["caches"] for row in rows}))
    return f"""## All methods beside each other

`python benchmarks/run.py compare`, {seeds} seed{"s" if seeds > 1 else ""}, each fit in a fresh
process that was ended after {" or ".join(f"{limit:g}" for limit in limits)} s; caches of compiled
code: {caches}. Machine: {rows[-1]["machine"]}, with a load of {min(loads):.0f} to
{max(loads):.0f} by this and other work: a process had {share:.0%} of a core in the median, and the
limit, which is by the clock, was that much shorter. Times are therefore CPU seconds: of compiling,
fitting with the verdict, and 4,000 draws of the result (nutpie: 4 x 1,000), without imports. With
small models most of the time of NUTS is building: its times are those of the first fit of a model.
Versions: {rows[-1]["versions"]}.

Errors are those of the draws against a reference, over all components of the free variables on the
model's own scale: of means in standard deviations, of standard deviations as the logarithm of their
ratio; the worst, and in brackets the median. The mean of 4,000 independent draws has a standard
error of 0.016. ELBO and k-hat stand where a method tells a density. A method that failed, or was
not done in time, has the reason in its row.

![Worst error against CPU seconds, a panel a model](../docs/pictures/all_methods.png)

A point left of the dashed line was faster than NUTS, and below 0.1 (shaded) no mean and no standard
deviation is off by more than a tenth."""


def _table(rows: list[Row]) -> str:
    lines = []
    for (method,), found in groups(rows, "method").items():
        good = [row for row in found if not row["problem"]]
        if not good:
            problem = found[0]["problem"].replace("|", "/")[:90]
            lines.append((method, *[""] * 4, _middle(found, "cpu_s"), "", "", problem))
            continue
        words = sorted({row["warned"] for row in good if row["warned"]})
        said = sorted({row["status"] for row in good if row["status"]})
        lines.append(
            (
                method,
                f"{median(numbers(good, 'elbo')):.2f}" if numbers(good, "elbo") else "",
                f"{median(numbers(good, 'khat')):.2f}" if numbers(good, "khat") else "",
                f"{_middle(good, 'mean_worst')} ({_middle(good, 'mean_median')})",
                f"{_middle(good, 'sd_worst')} ({_middle(good, 'sd_median')})",
                _middle(good, "wait_cpu_s"),
                f"{median(numbers(good, 'evaluations')):,.0f}" if _told(good) else "",
                f"{median(numbers(good, 'peak_mb')):.0f}",
                ", ".join([*_building(good), *said, *(f"warned: {word}" for word in words)]),
            )
        )
    header = ("method", "ELBO", "k-hat", "means", "sds", "CPU s", "evaluations", "MB", "remarks")
    return markdown(header, lines)


def _building(rows: list[Row]) -> list[str]:
    """Tell how much of the time was building, where a method tells it apart."""
    told = numbers(rows, "build_cpu_s")
    return [f"{median(told):.1f} s building"] if told else []


def _told(rows: list[Row]) -> bool:
    return bool(numbers(rows, "evaluations"))


def _middle(rows: list[Row], column: str) -> str:
    values = numbers(rows, column)
    if not values:
        return ""
    value = median(values)
    return f"{value:.0e}" if value >= 1e4 else small(value)


def _checked(row: Row | None) -> str:
    if row is None:
        return "Reference: not recorded."
    if row["source"] == "posteriordb":
        return f"Reference: {int(row['draws']):,} draws of posteriordb."
    return (
        f"Reference: {row['source']}, {int(row['draws']):,} draws, R-hat {float(row['rhat']):.4f}, "
        f"smallest ESS {float(row['ess']):,.0f}, {row['divergences']} divergences."
    )


def draw(results: Path) -> None:
    """Draw error against time, one panel for each model, with NUTS as the line to beat."""
    import matplotlib.pyplot as plt

    measured = read(results / "compare-pymc6.csv")
    by_model = groups(measured, "model")
    longest = max(numbers(measured, "cpu_s"))
    columns = min(3, len(by_model))
    depth = -(-len(by_model) // columns)
    figure, grid = plt.subplots(
        depth, columns, figsize=(3.7 * columns, 2.8 * depth + 1.0), layout="constrained",
        squeeze=False, sharex=True, sharey=True,
    )  # fmt: skip
    colours = {m: plt.get_cmap("tab20")(i % 20) for i, m in enumerate(METHODS) if m != "nutpie"}
    handles: dict[str, Any] = {}
    for axes, ((model,), rows) in zip(grid.flat, by_model.items(), strict=False):
        for (method,), found in groups(rows, "method").items():
            if method == "nutpie":
                times = numbers([row for row in found if not row["problem"]], "wait_cpu_s")
                if times:
                    line = axes.axvline(median(times), color="black", ls="--", lw=1.2)
                    handles["NUTS (nutpie)"] = line
                continue
            marker = _FAMILIES.get(method.split()[0], "D")
            for row in found:
                failed = bool(row["problem"])
                seconds = row["cpu_s"] if failed else row["wait_cpu_s"]
                error = HIGHEST if failed else max(float(row["mean_worst"]), float(row["sd_worst"]))
                handles[method] = axes.plot(
                    float(seconds),
                    min(max(error, LOWEST), HIGHEST),
                    ls="",
                    marker="x" if failed else marker,
                    color=colours[method],
                    ms=10 if method == "ngvi" else 6,
                    mec="black" if method == "ngvi" else None,
                    label=method,
                    zorder=2 if method == "ngvi" else 3,
                )[0]
        axes.set(xscale="log", yscale="log", ylim=(LOWEST / 1.3, HIGHEST * 1.4))
        axes.set_title(CASES[model].title, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.axhspan(LOWEST / 1.3, 0.1, color="C2", alpha=0.07, lw=0)
        axes.tick_params(labelbottom=True)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlim(1.0, 1.5 * longest)
        axes.set_xlabel("CPU seconds, compiling included", fontsize="small")
    for axes in list(grid.flat)[len(by_model) :]:
        axes.set_visible(False)
    figure.supylabel("worst error of a mean or a log sd", fontsize="medium")
    order = [m for m in (*METHODS, "NUTS (nutpie)") if m in handles]
    for method in order:
        if method != "NUTS (nutpie)" and handles[method].get_marker() == "x":
            marker = _FAMILIES.get(method.split()[0], "D")
            handles[method] = plt.Line2D([], [], ls="", marker=marker, color=colours[method])
    handles["failed, or not done in time"] = plt.Line2D([], [], ls="", marker="x", color="0.3")
    order.append("failed, or not done in time")
    figure.legend(
        [handles[m] for m in order], order, loc="outside lower center", ncols=5, frameon=False
    )
    figure.savefig(PICTURE, dpi=110)
    print(PICTURE)
