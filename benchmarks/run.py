"""Measure the automatic engine, its calibration and its peers, and write benchmarks/RESULTS.md.

    python benchmarks/run.py engine --posteriordb PATH       # every posterior, 5 seeds
    python benchmarks/run.py peers --posteriordb PATH        # ADVI at its defaults and with Adam
    python benchmarks/run.py trajectory --posteriordb PATH   # ELBO against time, beside ADVI
    python benchmarks/run.py picture                         # draw it
    python benchmarks/run.py calibration --posteriordb PATH  # 100 seeds, three accuracies
    python benchmarks/run.py growth                          # evaluations, more parameters
    python benchmarks/run.py untuned --cache FOLDER          # against NUTS
    python benchmarks/run.py families --posteriordb PATH     # mean-field, and Stein
    python benchmarks/run.py verdict --posteriordb PATH      # does it warn where it should?
    python benchmarks/run.py compare --posteriordb PATH      # every method on every model
    python benchmarks/run.py table                           # RESULTS.md from what was measured

`compare` takes the arguments of compare.py, of which `--references` and `--picture` are two.

Every measurement is a line of benchmarks/results/PART-LINE.csv, where LINE is the line of PyMC it
was made with. Rows that are there already are not measured again; delete the file to measure anew.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import large_models
import numpy as np
import pandas
import posteriordb
import process
import pymc as pm
import regressions
import table as tables
import trajectory
import untuned
from judging import elbo, gaussian_of_peer
from process import RESULTS, Row, Table
from references import kl_per_dimension, unconstrain

import pymc_ngvi as ngvi
from pymc_ngvi._compat import initial_point
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.draws import OwnScale
from pymc_ngvi.results.parameters import COLUMNS, MOST_SHIFT, MOST_SPREAD

PEER_ITERATIONS = 30_000
ACCURACIES = (0.1, 0.02, 0.005)
#: Draws by which a fit is compared with a reference, after its verdict.
VERDICT_DRAWS = 20_000
CALIBRATION_MODELS = ("kilpisjarvi", "mesquite", "arK", "eight_schools_noncentered")
#: Logistic regressions of 50 rows for each of so many coefficients.
CALIBRATION_REGRESSIONS = (50, 200, 500)
#: Models of more and more parameters: coefficients with 50 rows each, and groups.
GROWTH = {"logistic": (50, 100, 200, 400), "varying_intercepts": (100, 500, 2000)}
#: One Gaussian, of the model as it is written.
ONE_GAUSSIAN: dict[str, Any] = {"family": "fullrank", "reparametrize": False, "remedy": None}


def fitted(inference: ngvi.NGVI, **options: Any) -> tuple[Any, str]:
    """Fit, and return the approximation and the kinds of warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        approx = inference.fit(progressbar=False, **options)
    kinds = sorted({w.category.__name__ for w in caught if "ngvi" in str(w.message)})
    return approx, "+".join(kinds)


def measure_fit(inference: ngvi.NGVI, draws: np.ndarray, seed: int, **options: Any) -> Row:
    """Fit with one seed, and judge it by its ELBO and by reference draws."""
    approx, warned = fitted(inference, random_seed=seed, **options)
    report, q = approx.report, approx.gaussian
    value, error = elbo(inference._target, q)
    return {
        "status": report.status,
        "evaluations": report.evaluations,
        "gradients": report.gradients,
        "iterations": report.iterations,
        "compile_s": round(report.compile_seconds, 2),
        "fit_s": round(report.fit_seconds, 3),
        "elbo": round(value, 4),
        "elbo_se": error,
        "kl_per_dim": kl_per_dimension(draws, q.mean, q.covariance),
        "khat": report.khat,
        "ess": report.ess,
        "warned": warned,
    }


def posteriors(arguments: argparse.Namespace) -> Iterator[tuple[str, pm.Model, np.ndarray]]:
    """Give the models asked for, each with its reference draws."""
    database = posteriordb.find_database(arguments.posteriordb)
    for name in arguments.models or posteriordb.POSTERIORS:
        entry = posteriordb.POSTERIORS[name]
        model = entry.model(database)
        yield name, model, entry.unconstrained_draws(database, model)


def engine(arguments: argparse.Namespace) -> None:
    """Fit one Gaussian to every posterior."""
    table = Table("engine", ("model", "seed"))
    for name, model, draws in posteriors(arguments):
        seeds = [seed for seed in range(1, 6) if not table.has(model=name, seed=seed)]
        inference = ngvi.NGVI(model=model, **ONE_GAUSSIAN) if seeds else None
        for seed in seeds:
            row = measure_fit(inference, draws, seed)
            table.add({"model": name, "seed": seed, "dim": draws.shape[1], **row})


def families(arguments: argparse.Namespace) -> None:
    """Fit with the mean-field family, and with gradients only."""
    table = Table("families", ("model", "variant", "seed"))
    variants = {"meanfield": {"family": "meanfield"}, "stein": {"estimator": "stein"}}
    for name, model, draws in posteriors(arguments):
        for variant, options in variants.items():
            seeds = [s for s in (1, 2, 3) if not table.has(model=name, variant=variant, seed=s)]
            inference = ngvi.NGVI(model=model, **options) if seeds else None
            for seed in seeds:
                row = measure_fit(inference, draws, seed)
                table.add({"model": name, "variant": variant, "seed": seed, **row})


PEERS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    f"{method}{label}": (method, options)
    for method in ("advi", "fullrank_advi")
    for label, options in {
        "": dict,
        " adam 0.01": lambda: {"obj_optimizer": pm.adam(learning_rate=0.01)},
    }.items()
}


def peers(arguments: argparse.Namespace) -> None:
    """Fit every posterior by PyMC's ADVI."""
    table = Table("peers", ("model", "peer", "seed"))
    for name, model, draws in posteriors(arguments):
        target = compile_target(model, curvature="none")
        for seed in (1, 2):
            for peer, (method, options) in PEERS.items():
                if table.has(model=name, peer=peer, seed=seed):
                    continue
                begin, problem = time.perf_counter(), ""
                try:
                    with model:
                        approx = pm.fit(
                            PEER_ITERATIONS,
                            method=method,
                            random_seed=seed,
                            progressbar=False,
                            **options(),
                        )
                    seconds = time.perf_counter() - begin
                    q = gaussian_of_peer(approx, target)
                    value, error_of_it = elbo(target, q)
                    divergence = kl_per_dimension(draws, q.mean, q.covariance)
                except (FloatingPointError, ngvi.DomainError) as error:
                    problem, seconds = str(error).splitlines()[0], time.perf_counter() - begin
                    value, error_of_it, divergence = np.nan, np.nan, np.nan
                row = {"elbo": value, "elbo_se": error_of_it, "kl_per_dim": divergence}
                row |= {"seconds": round(seconds, 1), "problem": problem}
                table.add({"model": name, "peer": peer, "seed": seed, **row})


def against_time(arguments: argparse.Namespace) -> None:
    """Record the ELBO of NGVI and ADVI at their iterations."""
    table = Table("trajectory", ("model", "method", "seed"))
    arguments.models = arguments.models or trajectory.MODELS
    for name, model, _ in posteriors(arguments):
        inference = ngvi.NGVI(model=model)
        target = compile_target(model, curvature="none")
        for seed, method in itertools.product((1, 2), ("ngvi", *PEERS)):
            if table.has(model=name, method=method, seed=seed):
                continue
            if method == "ngvi":
                path = trajectory.ngvi_path(inference, seed)
            else:
                peer, options = PEERS[method]
                path = trajectory.advi_path(
                    model,
                    peer,
                    PEER_ITERATIONS,
                    seed,
                    functools.partial(gaussian_of_peer, target=target),
                    **options(),
                )
            for iteration, seconds, q in path:
                value, error = elbo(target, q)
                key = {"model": name, "method": method, "seed": seed, "iteration": iteration}
                row = {"seconds": seconds, "elbo": round(value, 4), "elbo_se": error}
                table.add(key | row)


def calibration(arguments: argparse.Namespace) -> None:
    """Compare the errors of 100 fits with the accuracy that was asked for."""
    table = Table("calibration", ("model", "accuracy"))
    for name, model in _calibrated(arguments):
        if all(table.has(model=name, accuracy=accuracy) for accuracy in ACCURACIES):
            continue
        inference = ngvi.NGVI(model=model, **ONE_GAUSSIAN)
        long, _ = fitted(inference, random_seed=1000, accuracy=2e-4, max_evaluations=2_000_000)
        best = long.gaussian
        for accuracy in ACCURACIES:
            if table.has(model=name, accuracy=accuracy):
                continue
            errors, spent, converged = [], [], 0
            for seed in range(arguments.seeds):
                approx, _ = fitted(inference, random_seed=seed, accuracy=accuracy)
                errors.append(abs(approx.gaussian.mean - best.mean) / np.sqrt(best.variance))
                spent.append((approx.report.evaluations, approx.report.gradients))
                converged += approx.report.status == "converged"
            table.add(
                {
                    "model": name,
                    "accuracy": accuracy,
                    "within": float(np.mean(np.array(errors) < accuracy)),
                    "largest": float(np.max(errors)),
                    "converged": converged,
                    "seeds": arguments.seeds,
                    "evaluations": float(np.median(spent, axis=0)[0]),
                    "gradients": float(np.median(spent, axis=0)[1]),
                }
            )


def _calibrated(arguments: argparse.Namespace) -> Iterator[tuple[str, pm.Model]]:
    """Give the models whose accuracy is compared with their errors."""
    sizes = {f"logistic_{size}": size for size in CALIBRATION_REGRESSIONS}
    names = arguments.models or [*CALIBRATION_MODELS, *sizes]
    arguments.models = [name for name in names if name not in sizes]
    if arguments.models:
        yield from ((name, model) for name, model, _ in posteriors(arguments))
    for name in names:
        if name in sizes:
            yield name, regressions.MODELS["logistic"](50 * sizes[name], sizes[name])[0]


def growth(arguments: argparse.Namespace) -> None:
    """Count the evaluations of fits at their defaults as parameters become more."""
    table = Table("growth", ("model", "size", "seed"))
    for name, size in ((name, size) for name, sizes in GROWTH.items() for size in sizes):
        seeds = [s for s in range(1, 6) if not table.has(model=name, size=size, seed=s)]
        if not seeds or name not in (arguments.models or GROWTH):
            continue
        if name == "logistic":
            model = regressions.MODELS[name](50 * size, size)[0]
        else:
            model = large_models.MODELS[name](size)
        for seed in seeds:
            approx, warned = fitted(ngvi.NGVI(model=model), random_seed=seed)
            report = approx.report
            row = {"dim": approx.ndim, "family": report.family, "status": report.status}
            row |= {"evaluations": report.evaluations, "gradients": report.gradients}
            table.add({"model": name, "size": size, "seed": seed, **row, "warned": warned})


def against_nuts(arguments: argparse.Namespace) -> None:
    """Compare fits of the untuned models with NUTS."""
    table = Table("untuned", ("model", "seed"))
    for name in arguments.models or untuned.MODELS:
        entry = untuned.MODELS[name]
        seeds = [seed for seed in (1, 2, 3) if not table.has(model=name, seed=seed)]
        if not seeds:
            continue
        reference = untuned.load_reference(entry, arguments.cache)
        inference = ngvi.NGVI(model=entry.build())
        for seed in seeds:
            row = measure_fit(inference, reference.draws, seed)
            idata = inference.approx.sample(4000, random_seed=seed)
            names, draws = untuned.scalars(idata)
            errors = abs(draws.mean(axis=(0, 1)) - reference.means) / reference.sds
            worst = int(np.argmax(errors))
            row |= {"worst_error": float(errors[worst]), "worst": str(names[worst])}
            row |= {"within": float(np.mean(errors < 0.15))}
            table.add({"model": name, "seed": seed, "dim": reference.draws.shape[1], **row})


#: One Gaussian, as far as it goes; and what a user gets who names no option.
VERDICT_WAYS: dict[str, dict[str, Any]] = {"one": {"remedy": None}, "default": {}}
VERDICT_SEEDS = (1, 2)


def verdicts(arguments: argparse.Namespace) -> None:
    """Compare what the verdict says of each parameter with the reference."""
    table = Table("verdict", ("model", "way", "seed"))
    wanted = arguments.models or [*posteriordb.POSTERIORS, *untuned.MODELS]
    for name in wanted:
        cases = itertools.product(VERDICT_WAYS, VERDICT_SEEDS)
        left = [case for case in cases if not table.has(model=name, way=case[0], seed=case[1])]
        if not left:
            continue
        if name in untuned.MODELS:
            model = untuned.MODELS[name].build()
            draws = untuned.load_reference(untuned.MODELS[name], arguments.cache).draws
        else:
            arguments.models = [name]
            _, model, draws = next(posteriors(arguments))
        for way, seed in left:
            inference = ngvi.NGVI(model=model, backend=arguments.backend, **VERDICT_WAYS[way])
            approx, warned = fitted(inference, random_seed=seed)
            row = _errors_of_parameters(approx, model, draws)
            row["warned"] = int("UnreliableFit" in warned)
            table.add({"model": name, "way": way, "seed": seed, "dim": draws.shape[1], **row})


def _errors_of_parameters(approx: Any, model: pm.Model, reference: np.ndarray) -> Row:
    """Compare draws of a fit, and what its report says of them, with reference draws (n, d).

    The draws are those that a user gets, whatever was done for them.
    """
    report = approx.report
    verdict, said = report.verdict, report.parameters
    layout = Layout(model, initial_point(model))
    own = OwnScale(model, layout)
    labels = [label for slot in [*layout, *own.slots()] for label in slot.labels]
    n = VERDICT_DRAWS if approx.importance is None else VERDICT_DRAWS // 5
    posterior = approx.sample(n, random_seed=0)["posterior"]
    draws = unconstrain(model, {v.name: posterior[v.name].values[0] for v in model.free_RVs})
    ours, theirs = (
        pandas.DataFrame(np.hstack([each, own(each)]), columns=labels)
        for each in (draws, reference)
    )
    shift = (theirs.mean() - ours.mean()) / theirs.std()
    ratio = ours.std() / theirs.std()
    error = np.maximum(abs(shift) / MOST_SHIFT, abs(ratio - 1) / MOST_SPREAD)
    error = error[theirs.std() > 0]
    off = error > 1
    worst = error.idxmax()
    # Values that the fit has centred by itself are not the model's own.
    told = said.loc[worst] if worst in said.index else dict.fromkeys(COLUMNS[1:], np.nan)
    return {
        "status": report.status,
        "family": report.family,
        "evaluations": report.evaluations,
        "khat": report.khat,
        "ess": report.ess,
        "draws": report.verdict_draws,
        "weighable": int(verdict.weighable),
        "warned": 0,
        "parameters": len(error),
        "off": int(off.sum()),
        "called": len(verdict.off),
        "rightly": int(sum(off.get(label, False) for label in verdict.off.index)),
        "error": float(error.max()),
        "worst": worst,
        "shift": float(shift[worst]),
        "said_shift": float(told["shift"]),
        "shift_error": float(told["shift_error"]),
        "sd_ratio": float(ratio[worst]),
        "said_sd_ratio": float(told["sd_ratio"]),
        "sd_ratio_error": float(told["sd_ratio_error"]),
        "notes": "; ".join(report.notes),
    }


def hand_over(script: str) -> None:
    """Become another script: this process is large, and would pass its peak of memory on."""
    os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name(script)), *sys.argv[2:]])


def main() -> None:
    """Measure a part, or write the table."""
    if sys.argv[1:2] == ["compare"]:
        hand_over("compare.py")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts: dict[str, Callable[[argparse.Namespace], None]] = {
        "engine": engine,
        "peers": peers,
        "trajectory": against_time,
        "picture": lambda arguments: trajectory.draw(RESULTS),
        "calibration": calibration,
        "growth": growth,
        "untuned": against_nuts,
        "families": families,
        "verdict": verdicts,
        "table": lambda arguments: tables.write(RESULTS),
    }
    parser.add_argument("part", choices=[*parts, "compare"])
    parser.add_argument("--models", nargs="+", help="only these models")
    parser.add_argument("--seeds", type=int, default=100, help="of each accuracy in `calibration`")
    parser.add_argument("--backend", help="of the fits that `verdict` makes")
    process.add_posteriordb(parser)
    untuned.add_option(parser)
    arguments = parser.parse_args()
    parts[arguments.part](arguments)


if __name__ == "__main__":
    main()
