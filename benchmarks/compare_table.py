"""The tables of what `compare.py` measured; `compare_picture.py` draws it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from compare_models import CASES
from formatting import Row, groups, markdown, numbers, small
from process import read

#: Methods that are measured with empty and with full caches of compiled code.
WAITED_FOR = ("ngvi", "nutpie", "advi adam", "laplace")
CACHES = ("empty", "warm")


def fits(results: Path, *caches: str) -> list[Row]:
    """Read what was measured with these caches of compiled code."""
    return [row for row in read(results / "compare-pymc6.csv") if row["caches"] in caches]


def section(results: Path) -> str:
    """Write the tables, one for each model."""
    rows = fits(results, "own")
    if not rows:
        return ""
    waits = _waits(fits(results, *CACHES))
    checks = {row["model"]: row for row in read(results / "references-pymc6.csv")}
    parts = [_introduction(rows), waits] if waits else [_introduction(rows)]
    for (model,), found in groups(rows, "model").items():
        parts += [f"### {CASES[model].title}", _table(found) + "\n\n" + _checked(checks.get(model))]
    return "\n\n".join(parts)


def _waits(rows: list[Row]) -> str:
    by_fit = groups(rows, "model", "method", "caches")
    if not by_fit:
        return ""
    lines = [
        (
            CASES[model].title,
            *(
                " / ".join(_waited(by_fit.get((model, method, caches))) for caches in CACHES)
                for method in WAITED_FOR
            ),
        )
        for (model,) in groups(rows, "model")
    ]
    return f"""### Empty and full caches

`python benchmarks/run.py compare --caches empty`, and `warm`: CPU seconds of compiling, fitting and
drawing with empty caches of compiled code, and with those that the same fit has filled. A dash: not
done in time, or failed.

{markdown(("model", *WAITED_FOR), lines)}"""


def _waited(rows: list[Row] | None) -> str:
    if rows is None:
        return ""
    good = [row for row in rows if not row["problem"]]
    return small(median(numbers(good, "wait_cpu_s"))) if good else "–"


def _introduction(rows: list[Row]) -> str:
    seeds = len({row["seed"] for row in rows})
    share = median(float(row["cpu_s"]) / float(row["process_s"]) for row in rows)
    limits = sorted(set(numbers(rows, "limit_s")))
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    versions = dict(part.rsplit(" ", 1) for row in rows for part in row["versions"].split(", "))
    return f"""## All methods beside each other

`python benchmarks/run.py compare`, {seeds} seed{"s" if seeds > 1 else ""}, each fit in a fresh
process that was ended after {" or ".join(f"{limit:g}" for limit in limits)} s of CPU.
{len({row["model"] for row in rows})} of {len(CASES)} models were measured.
Machine: {machines}, shared with other work: a process had {share:.0%} of a core in the median.
Times are therefore CPU seconds: of compiling, fitting with the verdict, and 4,000 draws of the
result (nutpie: 4 x 1,000), without imports. With small models most of the time of NUTS is building:
its times are those of the first fit of a model. Versions:
{", ".join(f"{name} {number}" for name, number in versions.items())}.

Errors are those of the draws against a reference, over all components of the free variables on the
model's own scale: of means in standard deviations, of standard deviations as the logarithm of their
ratio; the worst, and in brackets the median. The mean of 4,000 independent draws has a standard
error of 0.016. ELBO and k-hat stand where a method tells a density. A method that failed, or was
not done in time, has the reason in its row.

![Worst error against CPU seconds, a panel a model](../docs/pictures/all_methods.png)

NUTS is exact in the limit, and the clock to beat: it needed the CPU seconds up to the dotted line
for sampling alone, up to the dashed line with compiling. A point left of the dotted line was faster
than NUTS that has nothing to compile. In the green area no mean is off by more than a tenth of its
standard deviation, and no standard deviation by more than a tenth. Crosses are methods that failed
or were not done in time."""


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
