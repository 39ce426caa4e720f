"""Fits that read batches of their data, against fits of all the data.

    python -m benchmarks.subsampling gas-turbine --data FOLDER
    python -m benchmarks.subsampling logistic
    python -m benchmarks.subsampling memory
    python -m benchmarks.subsampling models
    python -m benchmarks.subsampling intercepts

Each writes a table to benchmarks/results. `--rows` makes the data of the second and third smaller.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_ngvi as ngvi
from pymc_ngvi import schedules
from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.families import FullGaussian

RESULTS = Path(__file__).parent / "results"


def fit(model: pm.Model, **options: Any) -> Any:
    """Fit, without a progress bar."""
    return pm.fit(method="ngvi", model=model, progressbar=False, **options)


def difference(q: FullGaussian, reference: FullGaussian) -> dict[str, float]:
    """Largest errors of means, in standard deviations, and of log standard deviations."""
    return {
        "mean_error": abs((q.mean - reference.mean) / np.sqrt(reference.variance)).max(),
        "log_sd_error": abs(np.log(q.variance / reference.variance) / 2).max(),
    }


def gas_turbine(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows until the fit of a linear regression is within 0.01 d of the posterior, by method."""
    from examples.paper.gas_turbine import emissions

    design, response = emissions(arguments.data)
    n_rows, dim = design.shape
    exact = ngvi.LinearRegression(design, response, noise_variance=1.0, prior_precision=1 / 5)
    posterior, close = exact.posterior(FullGaussian), 0.01 * dim
    rows = []
    with pm.Model() as model:
        z, y = pm.Minibatch(design, response, batch_size=100)
        x = pm.Normal("x", 0, np.sqrt(5), shape=dim)
        pm.Normal("y", z @ x, 1, observed=y, total_size=n_rows)
    for seed in range(arguments.runs):
        found: list[int] = []

        def watch(approx: Any, losses: Any, i: int, found: list[int] = found) -> None:
            if not found and posterior.kl(approx.gaussian) < close:
                found.append(i)

        approx = fit(model, random_seed=seed, callbacks=[watch], backend=arguments.backend)
        reached = approx.history[found[0] - 1].passes if found else np.nan
        rows.append(
            {
                "method": "control variates",
                "seed": seed,
                "passes_until_close": reached,
                "passes": approx.report.passes,
                "anchors": approx.report.anchors,
                "distance_per_dimension": posterior.kl(approx.gaussian) / dim,
            }
        )
        print(rows[-1])
    for seed in range(min(arguments.runs, 3)):
        rows.append(_plain(exact, posterior, close, seed))
        print(rows[-1])
    return rows


def _plain(
    exact: ngvi.LinearRegression, posterior: FullGaussian, close: float, seed: int
) -> dict[str, Any]:
    """Plain subsampling at its best: expectations in closed form, and decreasing steps."""
    distances: list[float] = []

    def watch(state: Any, info: Any) -> None:
        distances.append(posterior.kl(state.q))
        if distances[-1] < close:
            raise StopIteration

    start = FullGaussian.from_mean_covariance(np.zeros(exact.dim), np.eye(exact.dim))
    result = run(
        exact,
        start,
        n_iterations=20_000,
        step_size=schedules.decreasing(),
        n_samples=10_000,
        estimator=ngvi.Subsampling(),
        callbacks=[watch],
        rng=np.random.default_rng(seed),
    )
    passes = result.state.evaluations / exact.n_terms
    return {
        "method": "plain batches, decreasing steps",
        "seed": seed,
        "passes_until_close": passes if distances[-1] < close else np.nan,
        "passes": passes,
        "anchors": 0,
        "distance_per_dimension": distances[-1] / exact.dim,
    }


def logistic_data(n_rows: int, dim: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Generate a logistic regression of correlated predictors, with an intercept."""
    rng = np.random.default_rng(1)
    design = rng.standard_normal((n_rows, dim))
    design[:, 1:] += 0.5 * rng.standard_normal((n_rows, 1))
    design[:, 0] = 1
    slopes = np.linspace(-1, 1, dim)
    return design, rng.binomial(1, 1 / (1 + np.exp(-design @ slopes))).astype("int32")


def logistic_model(design: Any, response: Any, **total: int) -> pm.Model:
    """Build a logistic regression."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 5, shape=20)
        pm.Bernoulli("y", logit_p=design @ slopes, observed=response, **total)
    return model


def logistic(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time, memory and agreement of batches of 1,000 and of all the data, in one run."""
    n_rows = arguments.rows
    design, response = logistic_data(n_rows)
    rows = []
    fits = []
    batches = pm.Minibatch(design, response, batch_size=1000)
    models = {
        "batches of 1,000": lambda: logistic_model(*batches, total_size=n_rows),
        "all the data": lambda: logistic_model(design, response),
    }
    for name, build in models.items():
        for seed in range(arguments.runs if name.startswith("batches") else 1):
            begin = time.process_time()
            with peak_memory() as peak:
                approx = fit(build(), random_seed=seed, backend=arguments.backend)
            fits.append(approx.gaussian)
            report = approx.report
            rows.append(
                {
                    "data": name,
                    "seed": seed,
                    "passes": report.passes or report.evaluations,
                    "cpu_seconds": time.process_time() - begin,
                    "compile_seconds": report.compile_seconds,
                    "fit_seconds": report.fit_seconds,
                    "verdict_seconds": report.verdict_seconds,
                    "peak_MB": peak(),
                    "khat": report.khat,
                    "elbo": report.elbo,
                }
            )
            print(rows[-1])
    for row, q in zip(rows, fits, strict=True):
        row |= difference(q, fits[-1])
        row["times_faster"] = rows[-1]["cpu_seconds"] / row["cpu_seconds"]
    return rows


def memory(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Memory that fits of data on disk take, by the number of rows."""
    rows = []
    for n_rows in (arguments.rows // 10, arguments.rows, 4 * arguments.rows):
        with tempfile.TemporaryDirectory() as folder:
            arrays = {}
            for name, array in zip("zy", logistic_data(n_rows), strict=True):
                path = Path(folder) / f"{name}.npy"
                np.save(path, array)
                arrays[name] = np.load(path, mmap_mode="r")
                del array
            with pm.Model() as model:
                z, y = pm.Data("z", arrays["z"][:2]), pm.Data("y", arrays["y"][:2])
                slopes = pm.Normal("slopes", 0, 5, shape=20)
                pm.Bernoulli("obs", logit_p=z @ slopes, observed=y, total_size=n_rows)
            with peak_memory() as peak:
                loader = ngvi.Loader(arrays, batch_size=1000)
                approx = fit(model, loader=loader, random_seed=1, backend=arguments.backend)
            rows.append(
                {
                    "rows": n_rows,
                    "data_MB": sum(array.nbytes for array in arrays.values()) / 2**20,
                    "peak_MB": peak(),
                    "passes": approx.report.passes,
                    "fit_seconds": approx.report.fit_seconds,
                }
            )
            print(rows[-1])
    return rows


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Watch the memory the process adds, in MB, without pages that map files."""
    before = _anonymous_memory()
    seen, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            seen.append(_anonymous_memory() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(seen)
    finally:
        over.set()
        thread.join()


def _anonymous_memory() -> float:
    with Path("/proc/self/status").open() as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["RssAnon"].split()[0]) / 2**10


def models(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare fits of a Poisson regression and of a hierarchy with those of all the data."""
    rows = []
    for name, build in {"poisson": _poisson, "hierarchical": _hierarchical}.items():
        full, batched = build()
        reference = fit(full, random_seed=0, accuracy=0.005, backend=arguments.backend)
        for seed in range(arguments.runs):
            approx = fit(batched, random_seed=seed, backend=arguments.backend)
            rows.append(
                {
                    "model": name,
                    "seed": seed,
                    "parameters": approx.report.dim,
                    "rows": approx.report.n_rows,
                    "batch": approx.report.batch_size,
                    "passes": approx.report.passes,
                    "status": approx.report.status,
                    "khat": approx.report.khat,
                    "elbo_error": approx.report.elbo - reference.report.elbo,
                }
                | difference(approx.gaussian, reference.gaussian)
            )
            print(rows[-1])
    return rows


def _poisson() -> tuple[pm.Model, pm.Model]:
    rng = np.random.default_rng(2)
    n_rows = 20_000
    x = rng.standard_normal((n_rows, 4))
    y = rng.poisson(np.exp(0.3 + x @ [0.5, -0.3, 0.2, 0.0])).astype("int32")

    def build(x: Any, y: Any, **total: int) -> pm.Model:
        with pm.Model() as model:
            intercept = pm.Normal("intercept", 0, 2)
            slopes = pm.Normal("slopes", 0, 1, shape=4)
            pm.Poisson("y", pm.math.exp(intercept + x @ slopes), observed=y, **total)
        return model

    return build(x, y), build(*pm.Minibatch(x, y, batch_size=200), total_size=n_rows)


def _hierarchical() -> tuple[pm.Model, pm.Model]:
    rng = np.random.default_rng(3)
    n_rows, n_groups = 20_000, 30
    group = rng.integers(n_groups, size=n_rows).astype("int32")
    x = rng.standard_normal(n_rows)
    effects = rng.normal(0, 0.7, n_groups)
    y = 1 + effects[group] + 0.5 * x + rng.normal(0, 1.5, n_rows)

    def build(group: Any, x: Any, y: Any, **total: int) -> pm.Model:
        with pm.Model() as model:
            mean = pm.Normal("mean", 0, 5)
            spread = pm.HalfNormal("spread", 2)
            effect = pm.Normal("effect", mean, spread, shape=n_groups)
            slope = pm.Normal("slope", 0, 2)
            noise = pm.HalfNormal("noise", 2)
            pm.Normal("y", effect[group] + slope * x, noise, observed=y, **total)
        return model

    batches = pm.Minibatch(group, x, y, batch_size=200)
    return build(group, x, y), build(*batches, total_size=n_rows)


def intercepts(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Fits of varying intercepts by a sparse precision, in batches and of all the data."""
    rows = []
    for groups in (2_000, 10_000):
        options = dict(family="sparse", reparametrize=False, random_seed=1)
        options["backend"] = arguments.backend
        reference = fit(_varying_intercepts(groups)[0], accuracy=0.002, **options).gaussian
        for way, batch in [("all", 0), ("minibatch", groups // 4)] + [
            (way, groups) for way in ("minibatch", "loader")
        ]:
            model, loader = _varying_intercepts(groups, way, batch)
            begin = time.process_time()
            approx = fit(model, loader=loader, **options)
            seconds = time.process_time() - begin
            report = approx.report
            rows.append(
                {
                    "parameters": report.dim,
                    "rows": 10 * groups,
                    "read": way,
                    "batch": batch,
                    "status": report.status,
                    "evaluations": report.evaluations,
                    "passes": report.passes,
                    "cpu_seconds": seconds,
                }
                | difference(approx.gaussian, reference)
            )
            print(rows[-1], flush=True)
    return rows


def _varying_intercepts(
    groups: int, way: str = "all", batch: int = 0
) -> tuple[pm.Model, ngvi.Loader | None]:
    """Gaussian regression with an intercept for each group of 10 rows, in random order."""
    rng = np.random.default_rng(groups)
    group = rng.permutation(np.repeat(np.arange(groups, dtype="int32"), 10))
    x = rng.normal(size=group.size)
    y = rng.normal(1.0 + rng.normal(0.0, 0.7, groups)[group] + 0.5 * x, 1.0)
    arrays: Any = {"group": group, "x": x, "y_data": y}
    total = {} if way == "all" else {"total_size": y.size}
    loader = ngvi.Loader(arrays, batch_size=batch) if way == "loader" else None
    with pm.Model() as model:
        group, x, y = arrays.values()
        if way == "minibatch":
            group, x, y = pm.Minibatch(group, x, y, batch_size=batch)
        if loader is not None:
            group, x, y = (pm.Data(name, array[:2]) for name, array in arrays.items())
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfNormal("tau", 2.0)
        slope = pm.Normal("slope", 0.0, 5.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        intercept = pm.Normal("intercept", mu, tau, shape=groups)
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y, **total)
    return model, loader


EXPERIMENTS = {
    "gas-turbine": gas_turbine,
    "logistic": logistic,
    "memory": memory,
    "models": models,
    "intercepts": intercepts,
}


def main(given: Sequence[str] | None = None) -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--data", type=Path, help="folder of the gas-turbine data")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args(given)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    rows = EXPERIMENTS[arguments.experiment](arguments)
    path = arguments.output / f"subsampling-{arguments.experiment}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in row.items()}
            for row in rows
        )
    print(f"{path}, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
