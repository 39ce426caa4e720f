"""What the measurements say in a few lines: the part of the README that has numbers.

`python benchmarks/run.py table` writes it between two marks in the README, and a test compares it
with the committed measurements. A line whose measurements are missing is left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from compare_models import CASES, COMMON
from compare_table import fits
from formatting import Row, groups, markdown, numbers, small, span
from process import read

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- measured: written by benchmarks/facts.py -->\n", "<!-- measured ends -->"
#: Methods of the table, and what it calls them.
SHOWN = {
    "ngvi": "ngvi",
    "nutpie": "NUTS (nutpie)",
    "advi adam": "ADVI, Adam",
    "fullrank_advi adam": "full-rank ADVI, Adam",
    "laplace": "Laplace",
    "pathfinder": "Pathfinder",
}
GOOD = 0.1


def write(results: Path) -> None:
    """Put the lines and the table into the README."""
    text = README.read_text()
    head, rest = text.split(BEGIN)
    README.write_text(f"{head}{BEGIN}\n{measured(results)}\n\n{END}{rest.split(END)[1]}")


def measured(results: Path) -> str:
    """Return the lines and the table."""
    parts: dict[str, Callable[[list[Row]], str]] = {
        "startup-pymc6": _start,
        "nutpie-pymc6": _beside_nuts,
        "large-pymc6": _large,
        "subsampling-logistic": _batches,
        "shape-pymc6": _shapes,
        "verdict-pymc6": _verdict,
    }
    told = (describe(read(results / f"{name}.csv")) for name, describe in parts.items())
    lines = [textwrap.fill(text, 118, subsequent_indent="  ") for text in filter(None, told)]
    table = _table(fits(results, "own"))
    return "\n".join(lines) + ("\n\n" + table if table else "")


def _find(rows: Sequence[Row], **wanted: str) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _start(rows: list[Row]) -> str:
    times = {
        (method, caches): numbers(
            _find(rows, model="kidscore_momiq", method=method, caches=caches), "seconds"
        )
        for method in ("ngvi", "advi")
        for caches in ("cold", "warm")
    }
    if not all(times.values()):
        return ""
    ours, theirs = (
        [small(median(times[method, caches])) for caches in ("cold", "warm")]
        for method in ("ngvi", "advi")
    )
    return f"""- **The wait.** From the start of Python to 1,000 draws, a small regression takes
{ours[0]} s with empty caches of compiled code and {ours[1]} s with full ones; PyMC's ADVI takes
{theirs[0]} and {theirs[1]} s (`benchmarks/startup.py`)."""


def _beside_nuts(rows: list[Row]) -> str:
    titles = {
        ("logistic", "50"): "a logistic regression of 10,000 rows and 50 coefficients",
        ("varying_intercepts", "500"): "a hierarchy of 504 parameters",
    }
    told = []
    for (model, size), title in titles.items():
        found = _find(rows, model=model, size=size, caches="warm", problem="")
        if found:
            ours, theirs, compiling = (
                small(median(numbers(found, column)))
                for column in ("all_s", "nutpie_all_s", "nutpie_compile_s")
            )
            told.append(f"{title} takes {ours} s, NUTS {theirs} s, of which compiling {compiling}")
    if not told:
        return ""
    return f"""- **Beside NUTS** (nutpie, 2 chains of 1,000), from the start of Python:
{"; ".join(told)} (`benchmarks/against_nutpie.py`)."""


def _large(rows: list[Row]) -> str:
    titles = {
        ("varying_intercepts", "50000"): "a hierarchy",
        ("random_walk", "10000"): "a random walk",
        ("lattice", "60"): "a lattice",
    }
    told = []
    for (model, size), title in titles.items():
        found = _find(rows, model=model, size=size, problem="")
        if found:
            spent, memory = median(numbers(found, "cpu_s")), median(numbers(found, "peak_mb"))
            parameters = f"{int(found[0]['dim']):,} parameters"
            told.append(f"{title} of {parameters} {small(spent)} s and {memory / 1000:.1f} GB")
    if not told:
        return ""
    left = [f"{row['model']} {int(row['size']):,}" for row in rows if row["problem"]]
    failed = f" Not done in time: {', '.join(left)}." if left else ""
    return f"""- **Large models**, CPU seconds and peak memory of the whole process:
{"; ".join(told)} (`benchmarks/large.py`).{failed}"""


def _batches(rows: list[Row]) -> str:
    parts = [row for row in rows if row["data"] != "all the data"]
    whole = _find(rows, data="all the data")
    if not parts or not whole:
        return ""
    ours, theirs = (median(numbers(found, "cpu_seconds")) for found in (parts, whole))
    error = max(numbers(parts, "mean_error"))
    return f"""- **Batches.** A logistic regression of a million rows takes {small(ours)} s of CPU
in batches and {small(theirs)} s without; no mean differs by more than {error:.1g} sd
(`python -m benchmarks.subsampling logistic`)."""


def _shapes(rows: list[Row]) -> str:
    found = [row for row in rows if row["way"] == "default" and row["mean_worst"]]
    if not found:
        return ""
    models = len(groups(found, "model"))
    means = span(numbers(found, "mean_worst"), "{:.2f}".format)
    low, high = min(numbers(found, "sd_low")), max(numbers(found, "sd_high"))
    worst = min(found, key=lambda row: float(row["sd_low"]))
    return f"""- **Other shapes.** On {models} models with funnels, as centred eight schools, the
worst mean of a default call is off by {means} sd of NUTS, and sds are {low:.2f} to {high:.2f} of
its own; the least is {worst["worst"]} of {worst["model"]} (`benchmarks/shape.py`)."""


def _verdict(rows: list[Row]) -> str:
    found = _find(rows, way="default")
    if not found:
        return ""
    good, bad = ([row for row in found if bool(int(row["off"])) == off] for off in (False, True))
    called = [sum(row["warned"] == "1" for row in group) for group in (good, bad)]
    return f"""- **The verdict.** Of {len(bad)} fits in which a mean was off by 0.2 sd or an sd by
20%, it warned of {called[1]}; of {len(good)} others of {called[0]}
(`benchmarks/run.py verdict`)."""


def _table(rows: list[Row]) -> str:
    by_model = groups(rows, "model", "method")
    models = [m for m in COMMON if all((m, method) in by_model for method in ("ngvi", "nutpie"))]
    if not models:
        return ""
    lines = [
        (CASES[model].title, *(_cell(by_model.get((model, method), [])) for method in SHOWN))
        for model in models
    ]
    off = [
        f"{CASES[model].title} ({_cell(found)})"
        for (model, method), found in by_model.items()
        if method == "ngvi" and not _error(found) < GOOD
    ]
    lost = f"ngvi has a larger error than {GOOD:g} on {', '.join(off)}." if off else ""
    return f"""The worst error of any mean, in sds, or of the logarithm of any sd, and the CPU
seconds of compiling, fitting and 4,000 draws (`benchmarks/run.py compare`; for NUTS the seconds
without compiling are in brackets; a dash: not done in time, or failed):

{markdown(("model", *SHOWN.values()), lines)}

{lost}""".strip()


def _error(rows: Sequence[Row]) -> float:
    """Median over the seeds of the worst error; infinite where no fit succeeded."""
    found = [
        max(float(row["mean_worst"]), float(row["sd_worst"])) for row in rows if not row["problem"]
    ]
    return median(found) if found else float("inf")


def _cell(rows: Sequence[Row]) -> str:
    good = [row for row in rows if not row["problem"]]
    if not good:
        return "–" if rows else ""
    sampling, wait = (small(median(numbers(good, part))) for part in ("fit_cpu_s", "wait_cpu_s"))
    alone = f" ({sampling})" if good[0]["method"] == "nutpie" else ""
    return f"{small(_error(good))} in {wait} s{alone}"
