"""Fits of large models with sparse Hessians, each in a fresh process.

    python benchmarks/large.py                           # the sizes of the table
    python benchmarks/large.py --small                   # a quick look at every model
    python benchmarks/large.py lattice:30 random_walk:1000 --limit 60

Rows go to benchmarks/results/large-LINE.csv (those of --small to large-small-LINE.csv); what is
there already is not measured again. `python benchmarks/run.py table` writes the tables.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import process

# Sizes in the terms of each model (groups, steps, side of a lattice, persons, predictors), a small
# one first.
SIZES = {
    "varying_intercepts": (300, 2_000, 10_000, 50_000),
    "varying_intercepts_poisson": (300, 2_000, 10_000, 50_000),
    "varying_slopes": (200, 2_000, 10_000),
    "nested": (300, 2_000, 10_000),
    "crossed": (200, 2_000),
    "random_walk": (300, 10_000, 100_000),
    "lattice": (18, 60, 200),
    "icar": (16, 60),
    "irt_2pl": (200, 5_000),
    "irt_2pl_long": (200, 5_000),
    "multinomial": (150, 2_000, 10_000),
    "ordinal": (300, 2_000, 10_000),
    "wide": (1_000, 5_000, 20_000),
}

COLUMNS = ("model", "size", "seed", "dim", "model_s", "route", "family", "reason", "nnz", "fill")
COLUMNS += ("colours", "build_s", "fit_s", "verdict_s", "draws_s", "all_s", "cpu_s", "peak_mb")
COLUMNS += ("status", "iterations", "evaluations", "gradients", "elbo", "khat", "backend")
COLUMNS += ("problem",)


def measure(model: str, size: int, seed: int, options: dict[str, Any]) -> Iterator[process.Row]:
    """Build a model, fit it and draw from it, and tell what each of these took."""
    import large_models

    import pymc_ngvi as ngvi

    begin = time.perf_counter()
    built = large_models.MODELS[model](size)
    yield {"model_s": time.perf_counter() - begin}
    inference = ngvi.NGVI(model=built, **options)
    yield described(inference)
    approx = inference.fit(random_seed=seed, progressbar=False)
    yield reported(approx.report)
    begin = time.perf_counter()
    approx.sample(1000, random_seed=seed)
    yield {
        "draws_s": time.perf_counter() - begin,
        "all_s": process.since_start(),
        **process.used(),
    }


def described(inference: Any) -> process.Row:
    """Tell the family of an inference that was not fitted yet, and the structure it found."""
    target = inference._target
    row = {
        "dim": target.dim,
        "route": target.hessian_route,
        "family": inference._chosen.family.name,
        "reason": inference._chosen.reason,
    }
    structure = target.structure
    if structure is not None:
        colouring = target._functions._second._colouring
        row |= {"nnz": structure.nnz, "fill": structure.fill}
        row |= {"colours": "" if colouring is None else colouring.count}
    return row


def reported(report: Any) -> process.Row:
    """Tell what a report says of a fit."""
    return {
        "build_s": report.compile_seconds,
        "fit_s": report.fit_seconds,
        "verdict_s": report.verdict_seconds,
        "status": str(report.status),
        "iterations": report.iterations,
        "evaluations": report.evaluations,
        "gradients": getattr(report, "gradients", ""),
        "elbo": report.elbo,
        "khat": report.khat,
        "backend": report.backend,
        "problem": report.problem,
    }


def main() -> None:
    """Measure the cases named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="MODEL[:SIZE]", help=", ".join(SIZES))
    parser.add_argument("--small", action="store_true", help="one small size of each model")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600, help="CPU seconds of each fit")
    parser.add_argument("--family", help="other than the default")
    parser.add_argument("--backend", help="other than the default")
    arguments = parser.parse_args()
    options = {k: v for k in ("family", "backend") if (v := getattr(arguments, k))}
    name = "-".join(["large", *(["small"] if arguments.small else []), *options.values()])
    table = process.Table(name, ("model", "size", "seed"), COLUMNS)
    for case in arguments.cases or SIZES:
        model, _, named = case.partition(":")
        if model not in SIZES:
            parser.error(f"no model is called {model}; there are {', '.join(SIZES)}")
        sizes = SIZES[model][:1] if arguments.small else SIZES[model][1:]
        sizes = (int(named),) if named else sizes
        for size, seed in itertools.product(sizes, range(1, arguments.seeds + 1)):
            key = {"model": model, "size": size, "seed": seed}
            if not table.has(**key):
                whole = {**key, "options": options}
                table.add(key | process.measure(__file__, whole, limit=arguments.limit))


if __name__ == "__main__":
    process.answer(measure) or main()
