"""Batches of rows: uniform, seeded, from any kind of array, and bad rows named."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import scipy.sparse

from pymc_ngvi.model.loader import Loader

ROWS = 30


def arrays(tmp_path, kind):
    x = np.arange(float(2 * ROWS)).reshape(ROWS, 2)
    y = np.arange(ROWS)
    if kind == "memmap":
        for name, array in (("x", x), ("y", y)):
            np.save(tmp_path / f"{name}.npy", array)
        return {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy"}
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        made = {}
        for name, array in (("x", x), ("y", y)):
            made[name] = zarr.create_array(
                str(tmp_path / f"{name}.zarr"),
                shape=array.shape,
                chunks=(7, *array.shape[1:]),
                dtype=array.dtype,
            )
            made[name][:] = array
        return made
    if kind == "dask":
        dask = pytest.importorskip("dask.array")
        return {"x": dask.from_array(x, chunks=7), "y": dask.from_array(y, chunks=11)}
    return {"x": x, "y": y}


KINDS = ["numpy", "memmap", "zarr", "dask"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 4, None])
def test_batches_are_uniform(tmp_path, kind, block):
    """Every row is as likely as any other, at the ends and where blocks do not divide a batch."""
    size, n = 6, 400 if kind in ("numpy", "memmap") else 100
    loader = Loader(arrays(tmp_path, kind), batch_size=size, block=block)
    repeats = np.empty((n, ROWS))
    for i in range(n):
        loader.reseed(i)
        x, y = loader.draw()
        assert len(x) == size
        np.testing.assert_array_equal(x[:, 0], 2 * y)
        repeats[i] = np.bincount(y, minlength=ROWS)
    counts = repeats.mean(axis=0)
    z = (counts - size / ROWS) / np.sqrt(repeats.var(axis=0).mean() / n)
    assert abs(z).max() < 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_batches(tmp_path, kind):
    loader = Loader(arrays(tmp_path, kind), batch_size=5)
    drawn = []
    for seed in (3, 3, 4):
        loader.reseed(seed)
        drawn.append(np.concatenate([loader.draw()[1] for _ in range(4)]))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_batches_of_a_pass_have_no_row_in_common(tmp_path):
    loader = Loader(arrays(tmp_path, "numpy"), batch_size=5)
    rows = np.concatenate([loader.draw()[1] for _ in range(6)])
    assert sorted(rows) == list(range(ROWS))


def test_rows_beyond_the_longest_order(monkeypatch, tmp_path):
    monkeypatch.setattr("pymc_ngvi.model.loader._LONGEST_ORDER", 10)
    loader = Loader(arrays(tmp_path, "numpy"), batch_size=ROWS)
    assert sorted(loader.draw()[1]) == list(range(ROWS))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_all_rows_in_order(tmp_path, kind):
    loader = Loader(arrays(tmp_path, kind), batch_size=5)
    chunks = list(loader.chunks(8))
    assert [len(chunk["y"]) for chunk in chunks] == [8, 8, 8, 6]
    np.testing.assert_array_equal(np.concatenate([chunk["y"] for chunk in chunks]), range(ROWS))


@pytest.mark.parametrize("block", [1, 3])
def test_a_row_that_is_not_finite_is_named(tmp_path, block):
    data = arrays(tmp_path, "numpy")
    data["x"][17, 1] = np.nan
    loader = Loader(data, batch_size=ROWS, block=block)
    with pytest.raises(ValueError, match=r"x is not finite in row 17: \[34. nan\]"):
        [loader.draw() for _ in range(20)]
    with pytest.raises(ValueError, match="x is not finite in row 17"):
        list(loader.chunks(4))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(arrays={}, batch_size=2), "needs an array"),
        (dict(arrays={"x": np.ones(3), "y": np.ones(4)}, batch_size=2), "x has 3, y has 4 rows"),
        (dict(arrays={"x": np.float64(3)}, batch_size=2), "x has no rows"),
        (dict(arrays={"x": np.ones(3)}, batch_size=5), "batch_size=5 is more than the 3 rows of x"),
        (dict(arrays={"x": np.ones(3)}, batch_size=0), "batch_size must be a positive integer"),
        (dict(arrays={"x": np.ones(3)}, batch_size=2, block=3), "block=3 is more than a batch"),
    ],
)
def test_what_makes_no_loader(wrong, message):
    with pytest.raises(ValueError, match=message):
        Loader(**wrong)


def test_what_is_no_array():
    with pytest.raises(TypeError, match="x is a list, not an array"):
        Loader({"x": [1.0, 2.0]}, batch_size=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pd: pd.Series([1.0, 2.0], index=[1, 0]), r"pandas Series.*give its .to_numpy\(\)"),
        (lambda pd: pd.DataFrame({"x": [1.0, 2.0]}), r"pandas DataFrame.*give its .to_numpy\(\)"),
        (lambda _: scipy.sparse.eye_array(3), "sparse"),
        (lambda _: np.array(["a", "b"]), "x has the type <U1: a Loader reads real numbers only"),
        (lambda _: np.array([None, 1]), "x has the type object"),
    ],
)
def test_rows_that_cannot_be_read_by_position(make, message):
    with pytest.raises(TypeError, match=message):
        Loader({"x": make(pytest.importorskip("pandas"))}, batch_size=1)


class Masking:
    """An array whose slices are masked arrays, as those of netCDF4 are."""

    dtype = np.dtype(float)

    def __init__(self, hidden):
        self.values = np.ma.array(np.arange(float(ROWS)), mask=np.arange(ROWS) == hidden)
        self.shape = self.values.shape

    def __getitem__(self, rows):
        return self.values[rows]


def test_hidden_values_are_refused():
    values = np.ma.array(np.ones((ROWS, 2)), mask=False)
    values[17, 1] = np.ma.masked
    with pytest.raises(ValueError, match="x is masked in row 17, and a hidden value cannot be fit"):
        Loader({"x": values}, batch_size=5)
    loader = Loader({"x": Masking(hidden=17)}, batch_size=5)
    with pytest.raises(ValueError, match="x is masked in row 17"):
        list(loader.chunks(8))
    with pytest.raises(ValueError, match="x is masked in row 17"):
        [loader.draw() for _ in range(100)]


def test_a_masked_array_of_dask_is_refused_before_it_is_computed():
    dask = pytest.importorskip("dask.array")
    values = dask.ma.masked_greater(dask.arange(ROWS, chunks=7), ROWS)
    with pytest.raises(TypeError, match=r"x is a masked array.*dask.array.ma.filled"):
        Loader({"x": values}, batch_size=5)


@pytest.mark.parametrize("make", [lambda: np.ma.array(np.arange(30.0)), lambda: Masking(hidden=-1)])
def test_a_mask_that_hides_nothing_is_no_mask(make):
    loader = Loader({"x": make()}, batch_size=5)
    (chunk,) = loader.chunks(ROWS)
    assert type(chunk["x"]) is np.ndarray
    np.testing.assert_array_equal(chunk["x"], np.arange(30.0))


@pytest.mark.parametrize("kind", ["numpy", "dask"])
@pytest.mark.parametrize("block", [1, 4])
def test_the_rows_of_a_batch_have_numbers(tmp_path, kind, block):
    loader = Loader(arrays(tmp_path, kind), batch_size=6, block=block)
    for _ in range(10):
        np.testing.assert_array_equal(loader.draw()[1], loader.drawn)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cuts no file that is mapped")
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[3:], np.asarray], ids=["map", "view", "array"]
)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_is_cut_short_is_an_error_and_no_crash(tmp_path, view, mode):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100_000.0))
    loader = Loader({"x": view(np.load(path, mmap_mode=mode))}, batch_size=50)
    loader.draw()
    os.truncate(path, 4096)
    for read in (loader.draw, lambda: loader.read(99_000, 99_010)):
        with pytest.raises(
            OSError, match=r"x: its file .*x.npy has been cut short.* to 4096 bytes"
        ):
            read()


def test_a_loader_says_what_it_loads(tmp_path):
    loader = Loader(arrays(tmp_path, "numpy"), batch_size=5)
    assert repr(loader) == "Loader(x, y: 30 rows, batch_size=5, block=1)"
