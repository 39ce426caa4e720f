"""The sections of RESULTS.md on time and memory: starting, evaluating, nutpie, large models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from formatting import Row, groups, markdown, numbers, small
from process import read

LINES = {"pymc6": "PyMC 6", "pymc5": "PyMC 5"}


def sections(results: Path) -> list[str]:
    """Describe what was measured, on each line of PyMC."""
    parts: dict[str, Callable[[list[Row], str], str]] = {
        "startup": _startup,
        "evaluation-rows": _rows,
        "evaluation-draws": _draws,
        "evaluation-import": _import,
        "nutpie": _nutpie,
        "large": _large,
    }
    told = []
    for part, describe in parts.items():
        for line, name in LINES.items():
            rows = read(results / f"{part}-{line}.csv")
            if rows:
                told.append(describe(rows, name))
    return told


def _middle(rows: list[Row], column: str, form: str = "") -> str:
    """Median of a column, or what kept it from being measured."""
    values = numbers(rows, column)
    if not values:
        return next((row["problem"][:60] for row in rows if row["problem"]), "")
    return format(median(values), form) if form else small(median(values))


def _startup(rows: list[Row], line: str) -> str:
    lines = []
    known = groups(rows, "model", "caches", "method")
    for model, caches in groups(rows, "model", "caches"):
        ours = known.get((model, caches, "ngvi"), [])
        for peer, limit in _peers_at_start(model, caches):
            theirs = known.get((model, caches, peer), [])
            if ours:
                lines.append((model, caches, *_beside(ours, theirs, peer, limit)))
    header = ("model", "caches", "ngvi s", "of it build, fit, verdict", "peak MB", "peer", "s")
    header += ("ratio", "limit", "ELBO, peer's", "holds")
    return f"""## From import to InferenceData, {line}

`python benchmarks/startup.py --posteriordb PATH`: seconds from the start of Python until
`approx.sample(1000)` returns, each fit in a process of its own, with empty caches and with those
that the first run has left. ADVI at its defaults; "compiled" is ngvi on PyTensor's own backend.

{markdown(header, lines)}"""


def _peers_at_start(model: str, caches: str) -> list[tuple[str, float | None]]:
    """Name the peers of a model, with the share of their time that is allowed."""
    if model == "gp_regr":
        return [("advi", None), ("compiled", 0.1 if caches == "cold" else None)]
    return [("advi", 0.1 if caches == "cold" else 0.6)]


def _beside(
    ours: list[Row], theirs: list[Row], peer: str, limit: float | None
) -> tuple[object, ...]:
    mine, other = (numbers(rows, "seconds") for rows in (ours, theirs))
    stages = ", ".join(_middle(ours, f"{stage}_s") for stage in ("build", "fit", "verdict"))
    elbos = [numbers(rows, "elbo") for rows in (ours, theirs)]
    ratio = median(mine) / median(other) if mine and other else None
    # Both ELBOs are means over draws; those of ngvi against itself differ by their noise.
    higher = all(elbos) and median(elbos[0]) >= median(elbos[1]) - 0.01
    if ratio is None or limit is None:
        holds = ""
    else:
        missed = {"time": ratio > limit, "ELBO": not higher}
        holds = ", ".join(what for what, is_missed in missed.items() if is_missed) or "yes"
    return (
        _middle(ours, "seconds"),
        stages,
        _middle(ours, "peak_mb", ".0f"),
        peer,
        _middle(theirs, "seconds"),
        "" if ratio is None else f"{ratio:.2f}",
        "" if limit is None else limit,
        f"{_middle(ours, 'elbo', '.2f')}, {_middle(theirs, 'elbo', '.2f')}",
        holds,
    )


def _rows(rows: list[Row], line: str) -> str:
    lines = [
        (
            row["likelihood"],
            f"{int(row['rows']):,} x {row['predictors']}",
            row["problem"] or f"{row['route']}, {row['backend']}",
            *(_middle([row], f"{what}_ms", ".2f") for what in ("average", "gradient", "density")),
            _middle([row], "hand_ms", ".2f"),
            _middle([row], "ratio", ".2f"),
            _middle([row], "peak_mb", ".0f"),
        )
        for row in rows
    ]
    header = ("likelihood", "data", "route", "with Hessian, ms", "gradient, ms", "density, ms")
    header += ("by hand, ms", "ratio", "peak MB")
    return f"""## One evaluation, {line}

`python benchmarks/evaluation.py rows`: log density, gradient and Hessian at one draw, beside NumPy
by hand in the same process, in turn, the best of several rounds. The ratio should be at most 1.5
for the logistic regressions.

{markdown(header, lines)}"""


def _draws(rows: list[Row], line: str) -> str:
    columns = ("batched_ms", "jacobians_ms", "looped_ms", "chosen_ms", "average_ms")
    lines = [
        (
            f"{row['model']} ({row['dim']})",
            *(_middle([row], column, ".1f") for column in columns),
            _middle([row], "ratio", ".3f"),
            _middle([row], "chosen_ratio", ".3f"),
            _middle([row], "build_s"),
        )
        for row in rows
    ]
    header = ("model (d)", "batched, ms", "loop of Jacobians, ms", "loop of products, ms")
    header += ("as chosen, ms", "their mean, ms", "batched / faster loop", "chosen / it", "build s")
    return f"""## Hessians of 64 draws, interpreted, {line}

`python benchmarks/evaluation.py draws --posteriordb PATH`: in one process, in turn, the best of
several rounds. The ratios should be at most 0.15.

{markdown(header, lines)}"""


def _import(rows: list[Row], line: str) -> str:
    pymc, ours = (min(numbers(rows, column)) for column in ("pymc_s", "pymc_ngvi_s"))
    return f"""## Importing, {line}

`python benchmarks/evaluation.py import`: `import pymc` takes {pymc:.2f} s and `import pymc_ngvi`
after it {ours:.2f} s, the best of {len(rows)} processes each. At most 0.25 s should be added."""


def _nutpie(rows: list[Row], line: str) -> str:
    lines = []
    for (model, size, caches), group in groups(rows, "model", "size", "caches").items():
        evaluations = _middle(group, "evaluations", ".0f")
        if any(numbers(group, "gradients")):
            evaluations += f" + {_middle(group, 'gradients', '.0f')}"
        stages = "{} + {}".format(*(_middle(group, f"{stage}_s") for stage in ("fit", "verdict")))
        lines.append(
            (
                f"{model} {size} ({_middle(group, 'dim', '.0f')})",
                caches,
                _middle(group, "nutpie_s"),
                stages,
                _middle(group, "ratio", ".2f"),
                _middle(group, "nutpie_all_s"),
                _middle(group, "all_s"),
                _middle(group, "ratio_all", ".2f"),
                evaluations,
                _middle(group, "mean_error", ".3f"),
                _middle(group, "sd_error", ".1%"),
                _middle(group, "peak_mb", ".0f"),
            )
        )
    header = ("model (d)", "caches", "nutpie s", "ngvi fit + verdict s", "ratio", "nutpie in all")
    header += ("ngvi in all", "ratio", "evaluations (+ gradients)", "error of a mean, sd")
    header += ("of an sd", "peak MB")
    return f"""## Beside nutpie, {line}

`python benchmarks/against_nutpie.py`: 2 chains of 400 + 1,000 draws on two cores, each side in a
process of its own. "In all" is from the start of Python to 1,000 draws, compiling included. Errors
are the largest among the global parameters and 100 groups, the noise of nutpie's draws included.

{markdown(header, lines)}"""


def _large(rows: list[Row], line: str) -> str:
    lines = []
    for (model, size), group in groups(rows, "model", "size").items():
        stages = ("build", "fit", "verdict", "draws")
        problem = next((row["problem"][:60] for row in group if row["problem"]), "")
        lines.append(
            (
                f"{model} {int(size):,}",
                _middle(group, "dim", ",.0f"),
                group[0]["family"],
                *(f"{int(n):,}" if (n := group[0][name]) else "" for name in ("nnz", "fill")),
                group[0]["colours"],
                ", ".join(_middle(group, f"{s}_s") for s in stages if numbers(group, f"{s}_s")),
                _middle(group, "all_s") if numbers(group, "all_s") else "",
                _middle(group, "peak_mb", ",.0f"),
                problem or ", ".join(sorted({row["status"] for row in group})),
                _middle(group, "khat", ".2f") if numbers(group, "khat") else "",
            )
        )
    header = ("model, size", "d", "family", "entries", "of the factor", "colours")
    header += ("build, fit, verdict, draws, s", "in all, s", "peak MB", "status", "k-hat")
    return f"""## Large models, {line}

`python benchmarks/large.py`: one fit at its defaults and 1,000 draws, each in a process of its own.
Entries are those of the lower triangle of the Hessian, and of its factor. Colours are given where
Hessians come from products and not from sums over rows.

{markdown(header, lines)}"""
