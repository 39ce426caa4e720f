"""Every method a user could choose on models of the kinds users have, beside NUTS.

    python benchmarks/compare.py --references            # long runs of nutpie, kept as moments
    python benchmarks/compare.py                         # every method on every model
    python benchmarks/compare.py eight_schools --methods ngvi advi nutpie --seeds 3 --limit 120
    python benchmarks/compare.py --picture               # draw error against time

Each fit is a fresh process with a limit of CPU time. What a method told before it failed, or before
its time was over, is kept, with the problem named. Methods whose package is not installed are
skipped; models of posteriordb need `--posteriordb PATH`. Errors are those of means, in standard
deviations of the reference, and of logarithms of standard deviations, of all components of the free
variables on the model's own scale. Times of a method are those of building, fitting (with the
verdict of ngvi) and drawing, without imports. Rows go to benchmarks/results/compare-LINE.csv,
moments of the references to benchmarks/results/references; what is there already is not measured
again unless `--again` asks for it. `python benchmarks/run.py table` writes the tables.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import process
from compare_methods import METHODS, Clock, Fit
from compare_models import CASES

REFERENCES = process.RESULTS / "references"
COLUMNS = ("model", "method", "seed", "caches", "dim", "elbo", "elbo_se", "khat", "mean_worst")
COLUMNS += ("mean_median", "sd_worst", "sd_median", "worst", "import_cpu_s", "model_cpu_s")
COLUMNS += ("build_s", "build_cpu_s", "fit_s", "fit_cpu_s", "verdict_s", "draws_s", "draws_cpu_s")
COLUMNS += ("wait_s", "wait_cpu_s", "process_s", "cpu_s", "peak_mb", "evaluations", "gradients")
COLUMNS += ("status", "warned", "notes", "limit_s", "load", "machine", "versions", "problem")
REFERENCE_COLUMNS = ("model", "source", "draws", "rhat", "ess", "divergences", "good", "cpu_s")
REFERENCE_COLUMNS += ("machine", "versions", "problem")
PACKAGES = ("pymc-ngvi", "pymc", "pytensor", "numpy", "pymc-extras", "numpyro", "blackjax")
PACKAGES += ("jax", "nutpie", "bambi", "hssm")
MOST_RHAT, LEAST_ESS = 1.01, 4000
FIRST_DRAWS, MOST_DRAWS = 3000, 30_000


def measure(
    model: str, posteriordb: str | None, method: str = "", seed: int = 1
) -> Iterator[process.Row]:
    """Fit a model by a method, or without one make its reference."""
    if not method:
        yield from reference(model, posteriordb)
        return
    import pymc  # noqa: F401  every method needs it: its import is no part of the fit

    from pymc_ngvi._compat import initial_point

    yield {"import_cpu_s": process.used()["cpu_s"]}
    case, clock, parts = CASES[model], Clock(), {}
    built = case.model(posteriordb)
    yield {"model_cpu_s": clock.part("model")["model_cpu_s"]}
    fitted = yield from noted(METHODS[method].fit(built, seed), parts)
    yield {
        f"wait{kind}": sum(parts.get(f"{part}{kind}", 0.0) for part in ("build", "fit", "draws"))
        for kind in ("_s", "_cpu_s")
    }
    yield process.used()
    yield compared(fitted.draws, read_moments(model), case.unjudged)
    yield {"dim": sum(value.size for value in initial_point(built).values())}
    if fitted.gaussian is not None:
        from judging import elbo_and_khat

        from pymc_ngvi.model.compilation import compile_target

        target = compile_target(built, curvature="none", backend="interpreted")
        yield elbo_and_khat(target, fitted.gaussian(target))


def noted(fit: Fit, parts: process.Row) -> Fit:
    """Run a fit, and note in `parts` what it tells."""
    while True:
        try:
            row = next(fit)
        except StopIteration as end:
            return end.value
        parts.update(row)
        yield row


def compared(
    draws: dict[str, Any], moments: dict[str, tuple[float, float]], unjudged: tuple[str, ...]
) -> process.Row:
    """Tell the worst and the median error of means and of logarithms of sds."""
    import numpy as np

    shift, spread = {}, {}
    for name, values in draws.items():
        if name in unjudged:
            continue
        for i, column in enumerate(values.reshape(len(values), -1).T):
            mean, sd = moments[f"{name}[{i}]"]
            shift[f"{name}[{i}]"] = abs(column.mean() - mean) / sd
            spread[f"{name}[{i}]"] = abs(np.log(column.std() / sd))
    return {
        "mean_worst": max(shift.values()),
        "mean_median": float(np.median([*shift.values()])),
        "sd_worst": max(spread.values()),
        "sd_median": float(np.median([*spread.values()])),
        "worst": max(shift, key=lambda name: shift[name] + spread[name]),
    }


def reference(model: str, posteriordb: str | None) -> Iterator[process.Row]:
    """Write the moments of a posterior: from the database, or from a long run of nutpie."""
    case = CASES[model]
    built = case.model(posteriordb)
    if case.posteriordb:
        import posteriordb as database

        entry = database.POSTERIORS[model]
        draws = entry.draws(database.find_database(posteriordb))
        free = {v.name: draws[v.name] for v in built.free_RVs}
        write_moments(model, free)
        yield {"source": "posteriordb", "draws": len(next(iter(free.values()))), "good": "yes"}
        return
    yield from _sampled(model, built)


def _sampled(model: str, built: Any) -> Iterator[process.Row]:
    import arviz
    import nutpie
    from compare_methods import of_free

    from pymc_ngvi.model.centring import recentred

    case = CASES[model]
    # Chains that start anywhere may stay in a mode with next to no mass.
    start = {"initial_points": case.start(), "jitter_rvs": set()} if case.start else {}
    compiled = nutpie.compile_pymc_model(recentred(built, dict(case.centring)), **start)
    names = [variable.name for variable in built.free_RVs]
    draws = FIRST_DRAWS
    while True:
        data = nutpie.sample(
            compiled, draws=draws, tune=1000, chains=4, cores=2, seed=1, progress_bar=False,
            **case.sampling,
        )  # fmt: skip
        summary = arviz.summary(data, var_names=names, round_to="none", kind="diagnostics")
        rhat, ess = float(summary["r_hat"].max()), float(summary["ess_bulk"].min())
        write_moments(model, of_free(built, data["posterior"]))
        yield {
            "source": "nutpie, 4 chains",
            "draws": 4 * draws,
            "rhat": rhat,
            "ess": ess,
            "divergences": int(data["sample_stats"]["diverging"].sum()),
            "good": "yes" if rhat < MOST_RHAT and ess > LEAST_ESS else "no",
        }
        if ess > LEAST_ESS or draws == MOST_DRAWS:
            return
        draws = min(MOST_DRAWS, int(1.2 * draws * LEAST_ESS / ess))


def write_moments(model: str, draws: dict[str, Any]) -> None:
    """Write mean and standard deviation of every component."""
    REFERENCES.mkdir(parents=True, exist_ok=True)
    with (REFERENCES / f"{model}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["parameter", "mean", "sd"])
        for name, values in draws.items():
            for i, column in enumerate(values.reshape(len(values), -1).T):
                writer.writerow([f"{name}[{i}]", f"{column.mean():.8g}", f"{column.std():.8g}"])


def read_moments(model: str) -> dict[str, tuple[float, float]]:
    """Read the moments of a reference."""
    rows = process.read(REFERENCES / f"{model}.csv")
    return {row["parameter"]: (float(row["mean"]), float(row["sd"])) for row in rows}


def conditions() -> process.Row:
    """Tell under what conditions a row is measured."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    machine = f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"
    return {"machine": machine, "versions": ", ".join(versions), "load": os.getloadavg()[0]}


def make_references(models: list[str], arguments: argparse.Namespace) -> None:
    """Sample the references that are not there."""
    table = process.Table("references", ("model",), REFERENCE_COLUMNS)
    for model in models:
        if not table.has(model=model):
            case = {"model": model, "posteriordb": arguments.posteriordb}
            row = process.measure(__file__, case, limit=arguments.limit)
            table.add({"model": model, **conditions(), **row})


def compare(models: list[str], arguments: argparse.Namespace) -> None:
    """Measure what is not measured yet."""
    table = process.Table("compare", ("model", "method", "seed", "caches"), COLUMNS)
    methods = arguments.methods or [*METHODS]
    for method in [m for m in methods if not METHODS[m].installed]:
        print(f"{method} is skipped: {METHODS[method].package} is not installed")
    for model, method, seed in itertools.product(
        models, [m for m in methods if METHODS[m].installed], range(1, arguments.seeds + 1)
    ):
        key = {"model": model, "method": method, "seed": seed}
        if table.has(**key, caches=arguments.caches) and not arguments.again:
            continue
        if not (REFERENCES / f"{model}.csv").exists():
            print(f"{model} is skipped: it has no reference; `--references` makes it")
            continue
        case = {**key, "posteriordb": arguments.posteriordb}
        told = conditions()
        with tempfile.TemporaryDirectory() as folder:
            own = arguments.caches == "own"
            environment = {} if own else process.empty_caches(folder)
            if arguments.caches == "warm":
                process.measure(__file__, case, limit=arguments.limit, environment=environment)
            row = process.measure(__file__, case, limit=arguments.limit, environment=environment)
        table.remove(**key, caches=arguments.caches)
        table.add(key | told | row | {"caches": arguments.caches, "limit_s": arguments.limit})


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600, help="CPU seconds of each fit")
    parser.add_argument(
        "--caches", choices=("own", "empty", "warm"), default="own",
        help="caches of compiled code: yours, empty ones, or filled by the same fit before",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure also what is there already")
    parser.add_argument("--references", action="store_true", help="make references instead")
    parser.add_argument("--picture", action="store_true", help="draw, and measure nothing")
    process.add_posteriordb(parser)
    arguments = parser.parse_args()
    for model in arguments.models:
        if model not in CASES:
            parser.error(f"no model is called {model}; there are {', '.join(CASES)}")
    models = arguments.models or [
        name for name, case in CASES.items() if arguments.posteriordb or not case.posteriordb
    ]
    if arguments.picture:
        import compare_picture

        compare_picture.draw(process.RESULTS)
    elif arguments.references:
        make_references(models, arguments)
    else:
        compare(models, arguments)


if __name__ == "__main__":
    process.answer(measure) or main()
