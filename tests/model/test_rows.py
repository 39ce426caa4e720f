"""Rows of data: impossible ones are named, and what has no rows of its own is told from them."""

from __future__ import annotations

import os
import sys
import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.model.compilation import compile_target
from tests.conftest import fit

N, BAD = 600, 431
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 2))
Y = RNG.integers(2, size=N).astype("int32")
SPOILED = np.where(np.arange(N) == BAD, 7, Y).astype("int32")

ENGINES = {
    "automatic": {},
    "plain": {"control_variates": False},
    "schedule": {"n": 40, "step_size": 0.5, "n_samples": 8},
    "anchored schedule": {"n": 2, "step_size": 0.5, "n_samples": 8, "control_variates": True},
}


def of_batches(y):
    with pm.Model() as model:
        x_rows, y_rows = pm.Minibatch(X, y, batch_size=50)
        slope = pm.Normal("slope", shape=2)
        pm.Bernoulli("outcome", logit_p=x_rows @ slope, observed=y_rows, total_size=N)
    return model


def of_containers(held=2):
    with pm.Model() as model:
        x_rows, y_rows = pm.Data("x", X[:held]), pm.Data("y", Y[:held])
        slope = pm.Normal("slope", shape=2)
        pm.Bernoulli("outcome", logit_p=x_rows @ slope, observed=y_rows, total_size=N)
    return model


def on_disk(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    maps = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays}
    return ngvi.Loader(maps, batch_size=50)


def refuse_to_compile(monkeypatch):
    monkeypatch.setattr(
        "pymc_ngvi.model.compiler.Compiler.function",
        lambda *_: pytest.fail("compiled something"),
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_impossible_row_in_memory_is_named_before_compiling(engine, monkeypatch):
    refuse_to_compile(monkeypatch)
    message = rf"outcome is impossible in row {BAD} of the data, where .* = 7: its log density"
    with pytest.raises(ValueError, match=message):
        fit(of_batches(SPOILED), **ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_impossible_row_on_disk_is_named_when_it_is_read(engine, tmp_path):
    """What was fitted before is kept."""
    loader = on_disk(tmp_path, x=X, y=SPOILED)
    with pytest.raises(ValueError, match=rf"outcome is impossible in row {BAD} .*y = 7") as caught:
        fit(of_containers(), loader=loader, **ENGINES[engine])
    assert np.isfinite(caught.value.approximation.gaussian.mean).all()


def test_a_row_that_some_parameters_allow_is_not_impossible():
    """At the initial point, scale = 1, the last row lies outside of the support."""
    y = np.append(np.linspace(0.1, 0.9, N - 1), 2.5)
    with pm.Model() as model:
        rows = pm.Minibatch(y, batch_size=50)
        scale = pm.LogNormal("scale", initval=1.0)
        pm.Uniform("y", 0, scale, observed=rows, total_size=N)
    target = compile_target(model, backend="interpreted")
    target.begin(np.random.default_rng(0), controlled=True)


def test_a_potential_has_rows_too():
    with pm.Model() as model:
        rows = pm.Minibatch(np.where(np.arange(N) == BAD, -1.0, 1.0), batch_size=50)
        mu = pm.Normal("mu")
        pm.Potential("roots", N / 50 * (np.sqrt(rows) * mu).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = compile_target(model, backend="interpreted")
    with pytest.raises(ValueError, match=f"roots is impossible in row {BAD} of the data"):
        target.begin(np.random.default_rng(0), controlled=True)


@pytest.mark.parametrize("held", [1, 2, 50])
def test_an_array_that_the_loader_lacks_is_named(held, monkeypatch):
    refuse_to_compile(monkeypatch)
    message = "outcome cannot be evaluated .* rows of y: it also reads rows of x, for which the"
    with pytest.raises(ValueError, match=message):
        fit(of_containers(held), loader=ngvi.Loader({"y": Y}, batch_size=50))


@pytest.mark.parametrize("shape", [lambda rows: 50, lambda rows: rows.shape[0]])
def test_a_variable_for_each_row_is_named(shape, monkeypatch):
    refuse_to_compile(monkeypatch)
    with pm.Model() as model:
        x_rows, y_rows = pm.Minibatch(X, Y, batch_size=50)
        slope, effect = pm.Normal("slope", shape=2), pm.Normal("effect", shape=shape(x_rows))
        pm.Bernoulli("outcome", logit_p=x_rows @ slope + effect, observed=y_rows, total_size=N)
    with pytest.raises(ValueError, match="effect has a component for each row of the data"):
        fit(model)


def test_a_variable_for_each_column_is_none_for_each_row():
    with pm.Model() as model:
        x_rows, y_rows = pm.Minibatch(X, Y, batch_size=50)
        slope = pm.Normal("slope", shape=x_rows.shape[1])
        pm.Bernoulli("outcome", logit_p=x_rows @ slope, observed=y_rows, total_size=N)
    assert compile_target(model, backend="interpreted").dim == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cuts no file that is mapped")
def test_a_file_cut_short_during_a_fit_keeps_what_was_fitted(tmp_path):
    loader = on_disk(tmp_path, x=X, y=Y)

    def cut(approx, losses, i):
        if i == 3:
            os.truncate(tmp_path / "x.npy", 4096)

    with pytest.raises(OSError, match=r"x: its file .* has been cut short") as caught:
        fit(of_containers(), loader=loader, n=20, step_size=0.5, n_samples=4, callbacks=[cut])
    assert len(caught.value.approximation.hist) == 3
    assert caught.value.approximation.report.status == "failed"
