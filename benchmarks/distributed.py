"""Passes over the data on a cluster of two workers of one thread each, against one process.

    python -m benchmarks.distributed same
    python -m benchmarks.distributed parquet --rows 10000000 --folder FOLDER
    python -m benchmarks.distributed killed
    python -m benchmarks.distributed overhead

Each appends to a table in benchmarks/results. The workers are processes on this machine, so wall
times mean something only where two cores are free; CPU times are given beside them.
"""

from __future__ import annotations

import argparse
import csv
import os
import pickle
import random
import resource
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_ngvi as ngvi
from benchmarks.subsampling import RESULTS, fit, peak_memory
from pymc_ngvi.model.executors import OneMachine

COLUMNS = 20


@contextmanager
def two_workers(memory: str = "3GB") -> Iterator[Any]:
    """Start a cluster of two workers of one thread."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit=memory,
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def logistic_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of a logistic regression with the same slopes for every seed."""
    rng = np.random.default_rng(seed)
    slopes = np.linspace(-1, 1, COLUMNS)
    x = rng.standard_normal((n, COLUMNS)) / np.sqrt(COLUMNS)
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ slopes))).astype("int32")


def logistic(n: int) -> pm.Model:
    """Return the model of n rows, of which its containers hold two."""
    x, y = logistic_rows(2, 0)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 5, shape=COLUMNS)
        rows, outcomes = pm.Data("x", x), pm.Data("y", y)
        pm.Bernoulli("obs", logit_p=rows @ slopes, observed=outcomes, total_size=n)
    return model


def models(n: int) -> Iterator[tuple[str, pm.Model, dict[str, np.ndarray]]]:
    """Give models with their data."""
    x, y = logistic_rows(n, 1)
    yield "logistic", logistic(n), {"x": x, "y": y}
    rng = np.random.default_rng(2)
    x = rng.standard_normal((n, 4))
    y = rng.poisson(np.exp(0.3 + x @ [0.5, -0.3, 0.2, 0.0])).astype("int32")
    with pm.Model() as model:
        intercept, slopes = pm.Normal("intercept", 0, 2), pm.Normal("slopes", 0, 1, shape=4)
        rate = pm.math.exp(intercept + pm.Data("x", x[:2]) @ slopes)
        pm.Poisson("obs", rate, observed=pm.Data("y", y[:2]), total_size=n)
    yield "poisson", model, {"x": x, "y": y}
    group = rng.integers(20, size=n).astype("int32")
    y = 1 + rng.normal(0, 0.7, 20)[group] + rng.normal(0, 1.5, n)
    with pm.Model() as model:
        mean, spread = pm.Normal("mean", 0, 5), pm.HalfNormal("spread", 2)
        effect = pm.Normal("effect", mean, spread, shape=20)
        noise = pm.HalfNormal("noise", 2)
        where = pm.Data("group", group[:2])
        pm.Normal("obs", effect[where], noise, observed=pm.Data("y", y[:2]), total_size=n)
    yield "hierarchical, 20 groups", model, {"group": group, "y": y}


def largest_difference(one: Any, other: Any) -> float:
    """Largest relative difference of means and covariances."""
    q, p = one.gaussian, other.gaussian
    scale = np.sqrt(p.variance)
    means = abs((q.mean - p.mean) / scale).max()
    return float(max(means, abs((q.covariance - p.covariance) / np.outer(scale, scale)).max()))


def same(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the results of fits on one process and on two workers."""
    with two_workers() as client:
        for name, model, arrays in models(200_000):
            fits = [
                fit(
                    model,
                    loader=ngvi.Loader(arrays, batch_size=500, client=who),
                    random_seed=1,
                    backend=arguments.backend,
                )
                for who in (None, client)
            ]
            yield {
                "model": name,
                "rows": 200_000,
                "parameters": fits[0].report.dim,
                "anchors": fits[1].report.anchors,
                "passes": fits[1].report.passes,
                "difference": largest_difference(*fits),
                "seconds_alone": fits[0].report.fit_seconds,
                "seconds_cluster": fits[1].report.fit_seconds,
            }


def write_parquet(folder: Path, n: int, per_group: int = 100_000) -> None:
    """Write the rows of a logistic regression, ten row groups a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"x{i}" for i in range(COLUMNS)]
    for file in range(-(-n // (10 * per_group))):
        path = folder / f"{file:04d}.parquet"
        if path.exists():
            continue
        count = min(10 * per_group, n - file * 10 * per_group)
        x, y = logistic_rows(count, file + 1)
        table = pa.table(dict(zip(names, x.T, strict=True)) | {"y": y})
        pq.write_table(table, path, row_group_size=per_group, compression="none")


def parquet(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Fit data from Parquet files in less memory than they take."""
    n, megabytes = arguments.rows, arguments.rows * (COLUMNS * 8 + 4) / 2**20
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder, n)
    columns = [f"x{i}" for i in range(COLUMNS)]
    table, draws = ngvi.Parquet(folder), np.zeros((1, COLUMNS))
    arrays = {"x": table[columns], "y": table["y"]}
    with two_workers() as client:
        limit = reserved() + arguments.limit * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        received = count_received()
        with peak_memory() as peak:
            loader = ngvi.Loader(arrays, batch_size=1000, client=client)
            begin = time.perf_counter()
            approx = fit(logistic(n), loader=loader, random_seed=1, backend=arguments.backend)
            seconds = time.perf_counter() - begin
        bytes_of_fit = sum(received)
        target = approx.target
        busy = cpu_of_workers(client)
        begin = time.perf_counter()
        far = target.evaluate_fully(draws, "full")
        wall = time.perf_counter() - begin
        cpu = [after - before for before, after in zip(busy, cpu_of_workers(client), strict=True)]
        memory = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
        keep_no_rows(target.passes_over_data._executor)
        begin = time.perf_counter()
        target.evaluate_fully(draws, "full")
        reading = time.perf_counter() - begin
    machine = OneMachine()
    machine._cores = 1
    target.passes_over_data._executor = machine
    begin, before = time.perf_counter(), time.process_time()
    near = target.evaluate_fully(draws, "full")
    alone, cpu_alone = time.perf_counter() - begin, time.process_time() - before
    yield {
        "rows": n,
        "data_MB": megabytes,
        "client_limit_MB": arguments.limit,
        "passes": approx.report.passes,
        "anchors": approx.report.anchors,
        "seconds": seconds,
        "kB_to_client": bytes_of_fit / 2**10,
        "client_peak_MB": peak(),
        "worker_peak_MB": max(memory.values()),
        "pass_alone_s": alone,
        "pass_cluster_s": wall,
        "ratio": wall / alone,
        "pass_cluster_reading_s": reading,
        "ratio_reading": reading / alone,
        "cpu_alone_s": cpu_alone,
        "cpu_busiest_worker_s": max(cpu),
        "cpu_ratio": max(cpu) / cpu_alone,
        "same_bits": bool((near.hessian == far.hessian).all()),
    }


def keep_no_rows(cluster: Any) -> None:
    """Let workers read the rows in each pass, as where they have no room for them."""
    cluster._have_room_for = lambda partitions: False
    cluster._kept.clear()


def reserved() -> int:
    """Bytes that this process has reserved; Arrow alone reserves a gigabyte, and uses little."""
    with Path("/proc/self/status").open() as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmData"].split()[0]) * 2**10


def count_received() -> list[int]:
    """Note the size of every sum that comes to the client."""
    from pymc_ngvi.model.cluster import Cluster

    sizes: list[int] = []
    run = Cluster.run

    def counted(self: Any, *args: Any) -> Iterator[Any]:
        for result in run(self, *args):
            sizes.append(len(pickle.dumps(result)))
            yield result

    Cluster.run = counted  # type: ignore[method-assign]
    return sizes


def cpu_of_workers(client: Any) -> list[float]:
    """CPU seconds of each worker so far."""
    return list(client.run(time.process_time).values())


def killed(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill workers at random moments of fits."""
    rows, kills, fits = 200_000, 0, 0
    model, (x, y) = logistic(rows), logistic_rows(rows, 1)
    options = {"random_seed": 1, "backend": "interpreted"}
    arrays = {"x": x, "y": y}
    expected = fit(model, loader=ngvi.Loader(arrays, batch_size=500), **options)
    moments = random.Random(1)
    while kills < arguments.kills:
        over = threading.Event()
        died: list[int] = []
        # A new cluster for each fit: in one that was kept, workers did not come back after two
        # kills, for a reason that was not found, and fits went on with one worker.
        with two_workers() as client:

            def kill(client: Any = client, over: Any = over, died: list[int] = died) -> None:
                while not over.wait(moments.uniform(0.2, 2.0)):
                    ready, nannies = client.nthreads(), client.cluster.workers.values()
                    processes = [nanny.pid for nanny in nannies if nanny.worker_address in ready]
                    if len(processes) == 2:
                        died.append(moments.choice(processes))
                        os.kill(died[-1], signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            loader = ngvi.Loader(arrays, batch_size=500, client=client)
            approx = fit(model, loader=loader, **options)
            over.set()
            killer.join()
        fits, kills = fits + 1, kills + len(died)
        yield {
            "rows": rows,
            "fit": fits,
            "workers_killed": len(died),
            "difference": largest_difference(approx, expected),
        }


def overhead(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the time of a fit of few rows with and without a cluster."""
    rows = 100_000
    model, (x, y) = logistic(rows), logistic_rows(rows, 1)
    with two_workers() as client:
        for _ in range(arguments.runs):
            seconds = []
            for who in (None, client):
                begin = time.perf_counter()
                loader = ngvi.Loader({"x": x, "y": y}, batch_size=500, client=who)
                fit(model, loader=loader, random_seed=1, backend=arguments.backend)
                seconds.append(time.perf_counter() - begin)
            alone, cluster = seconds
            yield {
                "rows": rows,
                "seconds_alone": alone,
                "seconds_cluster": cluster,
                "overhead_seconds": cluster - alone,
            }


EXPERIMENTS = {"same": same, "parquet": parquet, "killed": killed, "overhead": overhead}


def main(given: Sequence[str] | None = None) -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where Parquet files are, or are written")
    parser.add_argument("--limit", type=int, default=1000, help="MB that the client may add")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    path = arguments.output / f"distributed-{arguments.experiment}.csv"
    for row in EXPERIMENTS[arguments.experiment](arguments):
        print(row)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            if new:
                writer.writeheader()
            writer.writerow(
                {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in row.items()}
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
