"""Sources of rows: whatever they are stored in, the same rows, here and in another process."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.sources import Parquet, open_source

ROWS = 30
X = np.arange(2.0 * ROWS).reshape(ROWS, 2)


def parquet(folder, columns=("a", "b"), per_group=4, **more):
    """Write X as the columns a and b of two files, and the number of each row as `row`."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for i, rows in enumerate((slice(0, 18), slice(18, ROWS))):
        table = pa.table(
            {"a": X[rows, 0], "b": X[rows, 1], "row": np.arange(ROWS)[rows]}
            | {name: column[rows] for name, column in more.items()}
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=per_group)
    return Parquet(folder)[list(columns)]


def frame(_folder):
    pandas, dask = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    return dask.from_pandas(pandas.DataFrame(X, columns=["a", "b"]), npartitions=4)


def hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("group/x", data=X, chunks=(7, 2))
    return h5py.File(folder / "x.h5")["group/x"]


def zarr(folder):
    module = pytest.importorskip("zarr")
    made = module.create_array(str(folder / "x.zarr"), shape=X.shape, chunks=(7, 2), dtype=X.dtype)
    made[:] = X
    return made


def memmap(folder):
    np.save(folder / "x.npy", np.vstack([X[:3], X]))
    return np.load(folder / "x.npy", mmap_mode="r")[3:]


KINDS = {
    "numpy": lambda _: X,
    "memmap": memmap,
    "zarr": zarr,
    "hdf5": hdf5,
    "dask": lambda _: pytest.importorskip("dask.array").from_array(X, chunks=7),
    "frame": frame,
    "parquet": parquet,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_rows_are_those_of_the_array(tmp_path, kind):
    source = open_source("x", KINDS[kind](tmp_path))
    assert source.shape == X.shape
    assert source.dtype == X.dtype
    for rows in (slice(0, ROWS), slice(5, 6), slice(3, 23)):
        np.testing.assert_array_equal(source.read(rows), X[rows])
    some = np.array([0, 7, 8, 29])
    np.testing.assert_array_equal(source.read(some), X[some])


@each_kind
def test_pieces_are_read_elsewhere(tmp_path, kind):
    """What is pickled knows its rows; divisions cover all rows."""
    source = open_source("x", KINDS[kind](tmp_path))
    divisions = list(source.divisions)
    assert divisions[0] == 0
    assert divisions[-1] == ROWS
    assert divisions == sorted(set(divisions))
    for start, stop in [*itertools.pairwise(divisions), (2, 25), (11, 12)]:
        piece = pickle.loads(pickle.dumps(source.piece(start, stop)))
        np.testing.assert_array_equal(piece.read(), X[start:stop])


def test_a_piece_of_a_memory_map_is_a_place_in_its_file(tmp_path):
    source = open_source("x", memmap(tmp_path))
    assert len(pickle.dumps(source.piece(0, ROWS))) < X.nbytes


@each_kind
def test_a_loader_reads_it(tmp_path, kind):
    loader = Loader({"x": KINDS[kind](tmp_path), "y": np.arange(ROWS)}, batch_size=6)
    for _ in range(5):
        x, y = loader.draw()
        np.testing.assert_array_equal(x[:, 0], 2 * y)


def test_a_column_and_a_matrix_of_one_column(tmp_path):
    parquet(tmp_path)
    table = Parquet(tmp_path)
    assert table["a"].shape == (ROWS,)
    assert table[["a"]].shape == (ROWS, 1)
    assert table["row"].dtype == np.int64
    with pytest.raises(KeyError, match=r"no column 'raw'.*'row'"):
        table["raw"]


def test_rows_that_pass_a_filter(tmp_path):
    compute = pytest.importorskip("pyarrow.compute")
    parquet(tmp_path)
    kept = (np.arange(ROWS) % 3 != 0) & (np.arange(ROWS) > 6)
    field = compute.field("row")
    condition = (field > 6) & (field != 9) & ~field.isin([*range(0, ROWS, 3)])
    table = Parquet(tmp_path, filter=condition)
    assert table.n_rows == kept.sum()
    source = table[["a", "b"]]
    np.testing.assert_array_equal(source.read(slice(0, table.n_rows)), X[kept])
    np.testing.assert_array_equal(source.piece(3, 11).read(), X[kept][3:11])


def test_only_the_row_groups_of_the_rows_are_read(tmp_path, monkeypatch):
    source = parquet(tmp_path)
    read = []
    original = type(source)._piece_of
    monkeypatch.setattr(
        type(source), "_piece_of", lambda self, group: read.append(group) or original(self, group)
    )
    source.read(slice(5, 7))
    source.read(slice(4, 8))
    assert [(group.start, group.stop) for group in read] == [(4, 8)]


def test_files_of_other_columns_or_types_are_refused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet(tmp_path)
    pq.write_table(pa.table({"a": np.arange(3), "row": np.arange(3)}), tmp_path / "2.parquet")
    with pytest.raises(TypeError, match=r"2.parquet: the column 'a' is int64, in other.*double"):
        Parquet(tmp_path)["a"]
    with pytest.raises(TypeError, match=r"2.parquet has no column 'b'"):
        Parquet(tmp_path)["b"]
    assert Parquet(tmp_path)["row"].n_rows == ROWS + 3


def test_columns_without_numbers_are_refused(tmp_path):
    missing = np.arange(float(ROWS)).astype(object)
    missing[20] = None
    parquet(tmp_path, word=np.array(["a"] * ROWS), missing=missing)
    with pytest.raises(TypeError, match="'word' is string: a Loader reads real numbers only"):
        Parquet(tmp_path)["word"]
    loader = Loader({"x": Parquet(tmp_path)["missing"]}, batch_size=2)
    with pytest.raises(ValueError, match="x is masked in row 20, and a hidden value"):
        loader.read(15, 24)


def test_a_dataframe_of_unlike_partitions_is_refused():
    pandas, dask = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    good = pandas.DataFrame(X, columns=["a", "b"])

    def part(i):
        return [good, good.astype({"b": "float32"}), good.drop(columns="b")][i]

    for kinds, message in (
        ([0, 1], "partition 1 of 2 is not like .* 'b' is float32 and not float64"),
        ([0, 0, 2], "partition 2 of 3 is not like the dataframe: it lacks 'b'"),
    ):
        made = dask.from_map(part, kinds, meta=good[:0], enforce_metadata=False)
        with pytest.raises(TypeError, match=message):
            Loader({"x": made}, batch_size=2)


def test_columns_of_a_dataframe_share_a_type_and_empty_partitions_do_no_harm():
    pandas, dask = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame({"a": np.arange(ROWS), "b": X[:, 1], "c": X[:, 0] > 20})
    made = dask.from_pandas(table, npartitions=3)
    made = made[made.a < 22]  # nothing is left of the last partition
    source = open_source("x", made[["a", "c"]])
    assert source.shape == (22, 2)
    assert source.dtype == np.int64
    np.testing.assert_array_equal(source.read(slice(0, 22))[:, 0], np.arange(22))
    assert open_source("b", made["b"]).shape == (22,)
    with pytest.raises(TypeError, match="the column 'word' has the type"):
        open_source("x", made.assign(word="x")[["a", "word"]])


def test_a_dask_array_of_unknown_length_is_refused():
    pytest.importorskip("dask.dataframe")
    with pytest.raises(ValueError, match=r"unknown sizes: call its compute_chunk_sizes\(\)"):
        open_source("x", frame(None).values)


PROGRAM = """
import sys
sys.modules.update(dask=None, distributed=None, pyarrow=None)  # importing one of them would raise
import numpy as np
import pymc_ngvi as ngvi
ngvi.Loader({"x": np.ones(10)}, batch_size=2).draw()
"""


def test_packages_that_are_not_used_are_not_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
