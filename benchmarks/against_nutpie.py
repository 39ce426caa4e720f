"""NGVI beside NUTS by nutpie: time after compiling and in all, evaluations, and agreement.

    python benchmarks/against_nutpie.py                                   # PyMC 6, two cores
    python benchmarks/against_nutpie.py varying_intercepts:5000 --limit 1800
    python benchmarks/against_nutpie.py --caches empty                    # compiling counts
    python benchmarks/against_nutpie.py --agreement       # all large models, small, no clock

nutpie samples 2 chains of 400 + 1,000 draws, and for --agreement 4 of 1,000 + 2,000. Each side is a
process of its own, nutpie's first. Errors are those of NGVI's posterior means, in nutpie's standard
deviations, and of its standard deviations, as a share of nutpie's, on the model's own scale: of all
global parameters, and of 100 groups. Rows go to benchmarks/results/nutpie-LINE.csv, those of
--agreement to agreement-LINE.csv; what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import process

CASES = ("logistic:50", "varying_intercepts:100", "varying_intercepts:500")
CASES += ("varying_intercepts:2000",)
LOGISTIC_ROWS = 10_000
SAMPLING = {"chains": 2, "tune": 400, "draws": 1000}
LONG_SAMPLING = {"chains": 4, "tune": 1000, "draws": 2000}
DRAWS = 1000
GROUPS = 100

COLUMNS = ("model", "size", "caches", "seed", "dim", "nutpie_compile_s", "nutpie_s", "nutpie_all_s")
COLUMNS += ("nutpie_divergences", "nutpie_rhat", "nutpie_peak_mb", "build_s", "fit_s", "verdict_s")
COLUMNS += ("draws_s", "all_s", "peak_mb", "family", "route", "backend", "status", "evaluations")
COLUMNS += ("gradients", "khat", "ratio", "ratio_all", "mean_error", "mean_worst", "sd_error")
COLUMNS += ("sd_worst", "problem")
AGREEMENT = ("model", "size", "seed", "dim", "family", "status", "evaluations", "gradients", "khat")
AGREEMENT += ("notes", "nutpie_divergences", "nutpie_rhat", "compared", "mean_error", "mean_worst")
AGREEMENT += ("sd_error", "sd_worst", "mean_off", "sd_off", "problem")
#: Errors that an agreement allows, of a mean in standard deviations, and of one of these.
ALLOWED = 0.1


def measure(
    side: str, model: str, size: int, seed: int, sampling: dict[str, int]
) -> Iterator[process.Row]:
    """Run one side on one model."""
    import large_models

    if model == "logistic":
        built = large_models.logistic(LOGISTIC_ROWS, size)
    else:
        built = large_models.MODELS[model](size)
    return _nutpie(built, seed, sampling) if side == "nutpie" else _ngvi(built, seed)


def _nutpie(model: Any, seed: int, sampling: dict[str, int]) -> Iterator[process.Row]:
    import nutpie

    begin = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model)
    yield {"nutpie_compile_s": time.perf_counter() - begin}
    begin = time.perf_counter()
    idata = nutpie.sample(compiled, cores=2, seed=seed, progress_bar=False, **sampling)
    yield {"nutpie_s": time.perf_counter() - begin, "nutpie_all_s": process.since_start()}
    yield {"nutpie_peak_mb": process.used()["peak_mb"]}
    moments = _moments(idata["posterior"])
    rhat = max(moment.pop("rhat") for moment in moments.values())
    divergences = int(idata["sample_stats"]["diverging"].sum())
    yield {"moments": moments, "nutpie_rhat": rhat, "nutpie_divergences": divergences}


def _ngvi(model: Any, seed: int) -> Iterator[process.Row]:
    from large import described, reported

    import pymc_ngvi as ngvi

    inference = ngvi.NGVI(model=model)
    approx = inference.fit(random_seed=seed, progressbar=False)
    yield reported(approx.report) | {"notes": "; ".join(approx.report.notes)}
    begin = time.perf_counter()
    approx.sample(DRAWS, random_seed=seed)
    yield {"draws_s": time.perf_counter() - begin, "all_s": process.since_start()}
    yield {"peak_mb": process.used()["peak_mb"], **described(inference)}
    # More draws than a user asks for, so that their noise does not pass for an error of the fit.
    yield {"moments": _moments(approx.sample(4 * DRAWS, random_seed=seed)["posterior"])}


def _moments(posterior: Any) -> dict[str, dict[str, float]]:
    """Mean and sd of global parameters and of some components of long ones; R-hat of halves."""
    import numpy as np

    rng = np.random.default_rng(0)
    found = {}
    for name, variable in sorted(posterior.data_vars.items()):
        values = variable.transpose("chain", "draw", ...).values
        values = values.reshape(*values.shape[:2], -1)
        size = values.shape[-1]
        which = sorted(rng.choice(size, GROUPS, replace=False)) if size > GROUPS else range(size)
        for i in which:
            draws = values[..., i]
            halves = np.concatenate(np.array_split(draws[:, : draws.shape[1] // 2 * 2], 2, axis=1))
            within, between = halves.var(axis=1).mean(), halves.mean(axis=1).var(ddof=1)
            found[f"{name}[{i}]" if size > 1 else name] = {
                "mean": float(draws.mean()),
                "sd": float(draws.std()),
                "rhat": float(np.sqrt(1 + between / within)),
            }
    return found


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> process.Row:
    """Return the largest errors of means and standard deviations, and whose they are."""
    theirs = {n: t for n, t in theirs.items() if t["sd"] > 0}  # the diagonal of correlations is not
    shift = {n: abs(ours[n]["mean"] - t["mean"]) / t["sd"] for n, t in theirs.items()}
    spread = {n: abs(ours[n]["sd"] / t["sd"] - 1) for n, t in theirs.items()}
    off = [sum(error > ALLOWED for error in errors.values()) for errors in (shift, spread)]
    mean_worst, sd_worst = max(shift, key=shift.__getitem__), max(spread, key=spread.__getitem__)
    return {
        "mean_error": shift[mean_worst],
        "mean_worst": mean_worst,
        "sd_error": spread[sd_worst],
        "sd_worst": sd_worst,
        "compared": len(shift),
        "mean_off": off[0],
        "sd_off": off[1],
    }


def both(case: process.Row, limit: float, environment: dict[str, str]) -> process.Row:
    """Run both sides, and compare them."""
    row: process.Row = {}
    moments, problems = [], []
    for side in ("nutpie", "ngvi"):
        found = process.measure(
            __file__, {"side": side, **case}, limit=limit, environment=environment
        )
        if found["problem"]:
            problems.append(f"{side}: {found['problem']}")
        moments.append(found.pop("moments", None))
        row |= found
    if all(moments):
        row |= compared(moments[1], moments[0])
        row["ratio"] = (row["fit_s"] + row["verdict_s"]) / row["nutpie_s"]
        row["ratio_all"] = row["all_s"] / row["nutpie_all_s"]
    return row | {"problem": "; ".join(problems)}


def agree(arguments: argparse.Namespace) -> None:
    """Compare the posteriors of the cases named, or of every large model at its small size."""
    from large import SIZES

    small = [f"{model}:{sizes[0]}" for model, sizes in SIZES.items()]
    table = process.Table("agreement", ("model", "size", "seed"), AGREEMENT)
    for case in arguments.cases or ["varying_intercepts:2000", *small]:
        model, _, size = case.partition(":")
        for seed in range(1, arguments.seeds + 1):
            key = {"model": model, "size": int(size), "seed": seed}
            if not table.has(**key):
                table.add(key | both({**key, "sampling": LONG_SAMPLING}, arguments.limit, {}))


def main() -> None:
    """Measure the cases named, or those of the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="MODEL:SIZE", help="models as in large.py")
    parser.add_argument("--agreement", action="store_true", help="compare, whatever the time")
    parser.add_argument("--caches", choices=("empty", "warm", "own"), default="own")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900, help="CPU seconds of each side")
    arguments = parser.parse_args()
    if arguments.agreement:
        agree(arguments)
        return
    table = process.Table("nutpie", ("model", "size", "caches", "seed"), COLUMNS)
    for case in arguments.cases or CASES:
        model, _, size = case.partition(":")
        for seed in range(1, arguments.seeds + 1):
            key = {"model": model, "size": int(size), "seed": seed}
            case = {**key, "sampling": SAMPLING}
            if table.has(**key, caches=arguments.caches):
                continue
            with tempfile.TemporaryDirectory() as folder:
                own = arguments.caches == "own"
                environment = {} if own else process.empty_caches(folder)
                row = both(case, arguments.limit, environment)
                if arguments.caches == "warm":
                    row = both(case, arguments.limit, environment)
            table.add(key | {"caches": arguments.caches} | row)


if __name__ == "__main__":
    process.answer(measure) or main()
