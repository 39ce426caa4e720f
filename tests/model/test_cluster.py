"""Passes on a cluster: the same result as on one process, whatever happens to the workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager
from multiprocessing import forkserver

import numpy as np
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.errors import ClusterLostError
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.passes import LogDensity, Passes
from tests.conftest import fit
from tests.model.test_passes import X, Y, arrays, build, evaluated, same

distributed = pytest.importorskip("distributed")
Cluster = pytest.importorskip("pymc_ngvi.model.cluster").Cluster

# Workers write to the log what the tests do to them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _workers_of_one_import():
    """Fork workers from a process that has imported what they need, and nothing of the tests."""
    context = multiprocessing.get_context("forkserver")
    needed = ["distributed", "pymc", "pymc_ngvi.model.cluster", "pymc_ngvi.model.functions"]
    context.set_forkserver_preload([*needed, "scipy.linalg", "scipy.sparse"])
    forkserver.ensure_running()
    method = {"distributed.worker.multiprocessing-method": "forkserver"}
    with pytest.importorskip("dask").config.set(method):
        yield


def start(workers):
    cluster = distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        memory_limit="2GB",
        dashboard_address=None,
        silence_logs=50,
    )
    return cluster, distributed.Client(cluster, set_as_default=False, timeout=120)


@pytest.fixture(scope="module")
def client():
    cluster, client = start(2)
    yield client
    client.close()
    cluster.close()


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_ngvi.model.partitions._MOST_ROWS", 150)
        yield


@pytest.fixture(scope="module")
def logistic():
    """Return a target, and what it evaluates to on one process."""
    found, target = evaluated(ngvi.Loader({"x": X, "y": Y["logistic"]}, batch_size=100))
    return target, found


@contextmanager
def passing_on(client, target):
    """Let a target pass on a cluster that has seen nothing of it."""
    passes = target.passes_over_data
    target.passes_over_data = Passes(passes.partitions, Cluster(client), passes._functions)
    yield target
    target.passes_over_data = passes


@pytest.fixture
def far(logistic, client):
    with passing_on(client, logistic[0]) as target:
        yield target


def everything(target):
    return target.evaluate_fully(np.full((2, 3), 0.1) * [[1], [2]], "full")


@pytest.mark.parametrize("kind", ["poisson", "hierarchy"])
def test_the_same_sums_as_on_one_process(client, kind):
    data = {name: array.compute() for name, array in arrays(kind).items()}
    here, there = (
        evaluated(ngvi.Loader(data, batch_size=200, client=who), kind)[0] for who in (None, client)
    )
    same(here, there)


def test_the_same_fit_as_on_one_process(client):
    """With the same seed and backend, to rounding."""
    model, data = build("logistic"), {"x": X, "y": Y["logistic"]}
    alone, far = (
        fit(model, loader=ngvi.Loader(data, batch_size=200, client=who), accuracy=0.1)
        for who in (None, client)
    )
    np.testing.assert_allclose(far.gaussian.mean, alone.gaussian.mean, rtol=1e-8)
    np.testing.assert_allclose(far.gaussian.covariance, alone.gaussian.covariance, rtol=1e-8)
    assert far.report.elbo == pytest.approx(alone.report.elbo, rel=1e-10)
    assert alone.report.anchors == far.report.anchors > 0
    near, away = (ngvi.loo(approx, draws=100, random_seed=1) for approx in (alone, far))
    assert near.n_data_points == len(X)
    np.testing.assert_allclose(near.pareto_k, away.pareto_k, rtol=1e-4)
    near, away = (
        approx.sample(50, random_seed=1, importance="psis")["sample_stats"]["lp"]
        for approx in (alone, far)
    )
    np.testing.assert_allclose(near, away, rtol=1e-9)


def test_evaluations_of_all_the_data_without_batches(client):
    data, draws = {"x": X, "y": Y["poisson"]}, np.full((2, 3), 0.1) * [[1], [2]]
    here, there = (
        compile_target(
            build("poisson"),
            backend="interpreted",
            loader=ngvi.Loader(data, batch_size=None, client=who),
        )
        for who in (None, client)
    )
    same(here.average(draws, "full"), there.average(draws, "full"))
    np.testing.assert_allclose(here.log_density(draws), there.log_density(draws), rtol=1e-12)


@pytest.mark.parametrize("persisted", [False, True])
def test_partitions_of_dask_are_used_where_they_are(client, persisted):
    data = arrays("logistic")
    here, _ = evaluated(ngvi.Loader(data, batch_size=100))
    if persisted:
        data = {name: client.persist(array) for name, array in data.items()}
    there, _ = evaluated(ngvi.Loader(data, batch_size=100, client=client))
    same(here, there)


def test_rows_that_do_not_fit_in_memory_are_read_in_each_pass(logistic, far, monkeypatch):
    monkeypatch.setattr("pymc_ngvi.model.cluster._SHARE", 0.0)
    same(logistic[1], everything(far))
    assert not far.passes_over_data._executor._kept


def test_functions_are_built_once_a_worker(client, far):
    for _ in range(3):
        far._pass(LogDensity(np.zeros((1, 3)), 100))
    built = client.run(_count_built, far.passes_over_data._functions.packed.key)
    assert max(built.values()) == 1


def _count_built(key):
    from pymc_ngvi.model.passes import WORKSHOP

    return len(WORKSHOP._free.get(key, []))


def test_a_bad_row_is_named_with_its_partition(client):
    x = X.copy()
    x[2_345, 1] = np.nan
    dask = pytest.importorskip("dask.array")
    data = {"x": dask.from_array(x, chunks=500), "y": Y["logistic"]}
    loader = ngvi.Loader(data, batch_size=100, client=client)
    with pytest.raises(ValueError, match=r"x is not finite in row 2345 \(partition 4 of 8\)"):
        evaluated(loader)


def test_an_impossible_row_is_named_with_its_partition(client):
    y = Y["logistic"].copy()
    y[2_345] = 7
    dask = pytest.importorskip("dask.array")
    data = {"x": dask.from_array(X, chunks=500), "y": dask.from_array(y, chunks=500)}
    with pytest.raises(ValueError, match=r"obs is impossible in row 2345 .*\(partition 4 of 8\)"):
        fit(build("logistic"), loader=ngvi.Loader(data, batch_size=40, client=client))


def test_a_chunk_that_is_not_as_declared_is_refused(client):
    dask = pytest.importorskip("dask.array")
    declared = dask.from_array(X, chunks=(500, 3))

    def change(block, block_info):
        return block[:, :2] if block_info[0]["chunk-location"][0] == 3 else block

    x = declared.map_blocks(change, dtype=float, meta=X[:0])
    with pytest.raises(TypeError, match=r"x: chunk 3, 0 has the shape \(500, 2\) .*\(500, 3\)"):
        ngvi.Loader({"x": x, "y": Y["logistic"]}, batch_size=100, client=client)
    single = declared.map_blocks(lambda block: block.astype("float32"), dtype=float, meta=X[:0])
    with pytest.raises(TypeError, match=r"type float32, where .* float64 were declared"):
        ngvi.Loader({"x": single, "y": Y["logistic"]}, batch_size=100)


def test_tasks_have_readable_names(client, far):
    client.get_task_stream()  # from here on
    everything(far)
    names = {distributed.utils.key_split(task["key"]) for task in client.get_task_stream()}
    assert {"ngvi-read", "ngvi-derivatives", "ngvi-sum"} <= names


def test_a_worker_that_is_killed_changes_nothing(logistic):
    """Its rows, its functions and its sums are made again by others."""
    # Of three workers one is left in any case, whenever the others come back.
    cluster, client = start(3)
    with cluster, client, passing_on(client, logistic[0]) as far:
        processes = [*client.run(os.getpid).values()]
        same(logistic[1], everything(far))
        for pause, process in zip((0.0, 0.02), processes, strict=False):
            killer = threading.Timer(pause, os.kill, [process, signal.SIGKILL])
            killer.start()
            same(logistic[1], everything(far))
            killer.join()


def test_a_client_that_is_closed_keeps_what_was_fitted():
    cluster, client = start(1)
    with cluster, client:
        loader = ngvi.Loader({"x": X, "y": Y["logistic"]}, batch_size=100, client=client)
        seen = []

        def close(approx, losses, i):
            seen.append(approx.gaussian.mean.copy())
            client.close()

        with pytest.raises(ClusterLostError, match="cluster was lost") as caught:
            fit(build("logistic"), loader=loader, callbacks=[close], accuracy=0.01)
    assert caught.value.approximation.report.status == "failed"
    assert np.isfinite(caught.value.approximation.gaussian.mean).all()
    assert seen


def test_a_cluster_without_workers_is_lost(logistic, monkeypatch):
    """Dask itself would wait for new ones for ever."""
    monkeypatch.setattr("pymc_ngvi.model.cluster._PATIENCE", 0.5)
    monkeypatch.setattr("pymc_ngvi.model.cluster._LOOK", 0.1)
    cluster, client = start(1)
    with cluster, client, passing_on(client, logistic[0]) as far:
        same(logistic[1], everything(far))
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        with pytest.raises(
            ClusterLostError, match=r"lost .*\(NoWorkersError: no worker for 0\.5 s\)"
        ):
            everything(far)


def test_an_interrupt_cancels_what_was_submitted(client, far):
    def stop(name, rows, of):
        if rows:
            raise KeyboardInterrupt

    far.passes_over_data.watch = stop
    with pytest.raises(KeyboardInterrupt):
        everything(far)
    deadline = time.monotonic() + 120
    while any(client.processing().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [key for keys in client.processing().values() for key in keys]
    assert not [key for key in left if key.startswith("ngvi-")]


def test_what_is_no_client():
    with pytest.raises(TypeError, match=r"client must be a distributed.Client, got"):
        ngvi.Loader({"x": X}, batch_size=10, client="tcp://scheduler:8786")
