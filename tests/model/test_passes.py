"""Passes over the data: the same sums whoever does the work, and whatever happens to them."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.model import executors
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.passes import LogDensity
from tests.conftest import fit

N = 4_000
RNG = np.random.default_rng(1)
X = RNG.standard_normal((N, 3))
GROUP = RNG.integers(20, size=N).astype("int32")
LINEAR = X @ [0.5, -0.3, 0.2]
Y = {
    "logistic": RNG.binomial(1, 1 / (1 + np.exp(-LINEAR))).astype("int32"),
    "poisson": RNG.poisson(np.exp(LINEAR)).astype("int32"),
    "hierarchy": LINEAR + RNG.normal(0, 0.7, 20)[GROUP] + RNG.standard_normal(N),
}


def build(kind):
    """Return a model whose containers hold two rows."""
    with pm.Model() as model:
        x, y = pm.Data("x", X[:2]), pm.Data("y", Y[kind][:2])
        slopes = pm.Normal("slopes", 0, 2, shape=3)
        if kind == "logistic":
            pm.Bernoulli("obs", logit_p=x @ slopes, observed=y, total_size=N)
        elif kind == "poisson":
            pm.Poisson("obs", pm.math.exp(x @ slopes), observed=y, total_size=N)
        else:
            group = pm.Data("group", GROUP[:2])
            spread = pm.HalfNormal("spread", 1)
            effect = pm.Normal("effect", 0, spread, shape=20)
            pm.Normal("obs", effect[group] + x @ slopes, 1, observed=y, total_size=N)
    return model


def arrays(kind, chunks=700):
    """Return dask arrays of uneven chunks."""
    dask = pytest.importorskip("dask.array")
    data = {"x": X, "y": Y[kind]} | ({"group": GROUP} if kind == "hierarchy" else {})
    return {name: dask.from_array(array, chunks=chunks) for name, array in data.items()}


def evaluated(loader, kind="logistic", curvature="full", monkeypatch=None):
    target = compile_target(build(kind), backend="interpreted", loader=loader)
    x = np.full((2, target.dim), 0.1) * [[1], [2]]
    return target.evaluate_fully(x, curvature), target


def same(one, other):
    """Check that sums agree to rounding, which functions built elsewhere may do differently."""
    for name in ("log_density", "gradient", "hessian"):
        expected = getattr(one, name)
        tolerance = 1e-12 * abs(expected).max()
        np.testing.assert_allclose(getattr(other, name), expected, rtol=0, atol=tolerance)


@pytest.fixture
def small_chunks(monkeypatch):
    """Make partitions of 500 rows at most, so that there are several groups of them."""
    monkeypatch.setattr("pymc_ngvi.model.partitions._MOST_ROWS", 150)


def test_partitions_add_up_to_all_the_data(small_chunks):
    """The sum is that of one chunk, to rounding."""
    loader = ngvi.Loader({"x": X, "y": Y["logistic"]}, batch_size=100)
    found, target = evaluated(loader)
    assert len(target.passes_over_data.partitions) == 27
    with pm.Model():
        slopes = pm.Normal("slopes", 0, 2, shape=3)
        pm.Bernoulli("obs", logit_p=X @ slopes, observed=Y["logistic"])
        whole = compile_target(pm.modelcontext(None), backend="interpreted")
    expected = whole.evaluate(np.full((2, 3), 0.1) * [[1], [2]], "full")
    np.testing.assert_allclose(found.log_density, expected.log_density, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-10)
    np.testing.assert_allclose(found.hessian, expected.hessian, rtol=1e-10)


def test_small_pieces_are_taken_together_and_large_ones_left_whole(monkeypatch):
    monkeypatch.setattr("pymc_ngvi.model.partitions._MOST_ROWS", 1000)
    chunks = ((300, 300, 300, 300, 2500, 300),)
    dask = pytest.importorskip("dask.array")
    data = {
        "x": dask.from_array(X, chunks=(*chunks, 3)),
        "y": dask.from_array(Y["logistic"], chunks=1234),
    }
    _, target = evaluated(ngvi.Loader(data, batch_size=100))
    assert [p.count for p in target.passes_over_data.partitions] == [900, 300, 2500, 300]
    rows = [p.chunks(p.read(), 1000) for p in target.passes_over_data.partitions]
    assert [[chunk.count for chunk in part] for part in rows][2] == [833, 833, 834]


def test_threads_give_the_same_sums(small_chunks, monkeypatch):
    loader = ngvi.Loader({"x": X, "y": Y["logistic"]}, batch_size=100)
    alone, _ = evaluated(loader)
    chosen = []
    monkeypatch.setattr(executors.OneMachine, "_threads", lambda self, left: chosen.append(2) or 2)
    together, target = evaluated(loader)
    assert len(chosen) == 2
    same(alone, together)
    work = LogDensity(np.zeros((1, 3)), 100)
    seen = []
    target.watch(lambda *told: seen.append(told))
    np.testing.assert_allclose(target._pass(work), target._pass(work), rtol=1e-12)
    assert seen[:3] == [("log-densities", rows, N) for rows in (0, 2370, N)]


def test_threads_are_used_where_they_are_faster():
    machine = executors.OneMachine()
    machine._cores = 2
    assert machine._threads(10**9) == 1  # nothing is known yet
    machine._rates[1] = 1000.0
    assert machine._threads(1000) == 1
    assert machine._threads(10_000) == 2
    machine._rates[2] = 900.0
    assert machine._threads(10**9) == 1
    machine._rates[2] = 1100.0
    assert machine._threads(10) == 2


def test_an_impossible_row_is_named_with_its_partition(small_chunks):
    y = Y["logistic"].copy()
    y[2_345] = 7
    dask = pytest.importorskip("dask.array")
    data = {"x": dask.from_array(X, chunks=500), "y": dask.from_array(y, chunks=500)}
    with pytest.raises(ValueError, match=r"obs is impossible in row 2345 .*\(partition 4 of 8\)"):
        fit(build("logistic"), loader=ngvi.Loader(data, batch_size=40))


def test_a_fit_without_batches_is_that_of_all_the_data(small_chunks):
    """The same seed gives the same fit, up to the rounding of the sums."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 2, shape=3)
        pm.Bernoulli("obs", logit_p=X @ slopes, observed=Y["logistic"])
    expected = fit(model, accuracy=0.1)
    loader = ngvi.Loader({"x": X, "y": Y["logistic"]}, batch_size=None)
    found = fit(build("logistic"), loader=loader, accuracy=0.1)
    np.testing.assert_allclose(found.gaussian.mean, expected.gaussian.mean, rtol=1e-7)
    np.testing.assert_allclose(found.gaussian.covariance, expected.gaussian.covariance, rtol=1e-7)
    assert found.report.elbo == pytest.approx(expected.report.elbo, rel=1e-9)
    assert found.report.evaluations == expected.report.evaluations
    drawn = (
        approx.sample(50, random_seed=1, importance="psis")["sample_stats"]["lp"]
        for approx in (found, expected)
    )
    np.testing.assert_allclose(*drawn, rtol=1e-9)


def test_a_sum_over_all_rows_needs_no_total_size():
    loader = ngvi.Loader({"x": X, "y": Y["poisson"]}, batch_size=None)
    assert repr(loader) == "Loader(x, y: 4000 rows, batch_size=None)"
    values = []
    for total in ({}, {"total_size": N}):
        with pm.Model() as model:
            x, y = pm.Data("x", X[:2]), pm.Data("y", Y["poisson"][:2])
            slopes = pm.Normal("slopes", 0, 2, shape=3)
            pm.Poisson("obs", pm.math.exp(x @ slopes), observed=y, **total)
        target = compile_target(model, backend="interpreted", loader=loader)
        values.append(target.log_density(np.full((1, 3), 0.1)))
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_all_or_no_data_are_read_in_batches():
    with pm.Model() as model:
        y = pm.Data("y", Y["poisson"][:2])
        rate = pm.Exponential("rate", 1)
        pm.Poisson("obs", rate, observed=y)
        batch = pm.Minibatch(Y["logistic"], batch_size=10)
        pm.Poisson("others", rate, observed=batch, total_size=N)
    with pytest.raises(ValueError, match="give the Loader a batch_size"):
        compile_target(model, loader=ngvi.Loader({"y": Y["poisson"]}, batch_size=None))
