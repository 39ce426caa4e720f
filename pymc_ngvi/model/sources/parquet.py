"""Rows of Parquet files: columns by name, one row group at a time, and rows that pass a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pymc_ngvi.arguments import did_you_mean, told
from pymc_ngvi.model.sources.base import Piece, Rows, Source

# Bytes of the row groups that are kept after they were read, as a batch reads a part of one only.
_KEPT_BYTES = 2**27


class Parquet:
    """Parquet files whose columns feed the data containers of a model.

    Take columns by name, as of a dataframe, and give them to a :class:`.Loader`. Only these are
    read, a row group at a time; how many rows there are is known from the files' own metadata.

    Parameters
    ----------
    files : path, sequence of paths or pyarrow.dataset.Dataset
        A file, a folder of files, several files, or whatever `pyarrow` has made a dataset of, with
        partitions in folders or on remote file systems.
    filter : pyarrow.compute.Expression, optional
        Which rows to read, as ``pyarrow.compute.field("year") > 2000``. Their number is counted
        once, by reading the columns of the filter, where statistics in the files do not tell.

    Attributes
    ----------
    n_rows : int
        Number of rows that pass the filter.

    Examples
    --------
    >>> table = Parquet("flights/")  # doctest: +SKIP
    >>> arrays = {"x": table[["distance", "hour"]], "late": table["late"]}  # doctest: +SKIP
    >>> loader = Loader(arrays, batch_size=1000)  # doctest: +SKIP
    """

    def __init__(self, files: Any, *, filter: Any = None) -> None:  # noqa: A002  pyarrow's name
        self.dataset = _open(files)
        self.filter = filter

    @cached_property
    def groups(self) -> list[_Group]:
        """The row groups that have rows to read."""
        return list(_find_groups(self.dataset, self.filter))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.groups[-1].stop if self.groups else 0

    def __repr__(self) -> str:
        which = "" if self.filter is None else f", filter={self.filter}"
        return f"Parquet({len(self.dataset.files)} files, {self.n_rows} rows{which})"

    def __getitem__(self, columns: str | Sequence[str]) -> ParquetColumns:
        """Return one column as a vector, or a list of columns as a matrix."""
        names = [columns] if isinstance(columns, str) else list(columns)
        known = self.dataset.schema.names
        for name in names:
            if name not in known:
                raise KeyError(
                    f"the Parquet files have no column {name!r}"
                    f"{did_you_mean(name, known, '; they have ' + ', '.join(known))}"
                )
        return ParquetColumns(self, tuple(names), matrix=not isinstance(columns, str))


class ParquetColumns(Source):
    """Columns of Parquet files, all of one type: a vector, or a matrix of several.

    Parameters
    ----------
    table : Parquet
    columns : tuple of str
    matrix : bool
        Whether rows are vectors, of one number if there is one column.

    Raises
    ------
    TypeError
        For columns that are no numbers, and for a file in which they have another type.
    """

    def __init__(self, table: Parquet, columns: tuple[str, ...], *, matrix: bool) -> None:
        self._table = table
        self._columns = columns
        self._matrix = matrix
        self.dtype = np.result_type(*(_dtype(table.dataset.schema, name) for name in columns))
        self._check_files()
        self.shape = (table.n_rows, len(columns)) if matrix else (table.n_rows,)
        self._kept: dict[int, np.ndarray] = {}  # row groups read last, the latest at the end

    def __repr__(self) -> str:
        return f"{self._table!r}[{', '.join(self._columns)}]"

    def _check_files(self) -> None:
        """Raise where a file does not have the columns, or has them with other types."""
        schema = self._table.dataset.schema
        for fragment in self._table.dataset.get_fragments():
            own = fragment.physical_schema
            for name in self._columns:
                if name not in own.names:
                    # A column may be that of a folder, as in year=2020.
                    if not _is_of_folder(fragment, name):
                        raise TypeError(f"{fragment.path} has no column {name!r}")
                elif own.field(name).type != schema.field(name).type:
                    raise TypeError(
                        f"{fragment.path}: the column {name!r} is {own.field(name).type}, in other "
                        f"files {schema.field(name).type}: write the files with one type"
                    )

    @property
    def divisions(self) -> list[int]:
        """Where the row groups begin."""
        return [0, *(group.stop for group in self._table.groups)]

    def label(self, row: int) -> str:
        """Name the file and the row group of a row."""
        return self._table.groups[self._group_of(row)].label

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self.divisions, row, side="right")) - 1

    def read(self, rows: Rows) -> np.ndarray:
        """Read rows; the row groups that they are in stay in memory for a while."""
        if not isinstance(rows, slice):
            return _join([self.read(slice(row, row + 1)) for row in map(int, rows)])
        start, stop = rows.start, min(rows.stop, self.n_rows)
        parts = []
        for i in range(self._group_of(start), self._group_of(max(stop - 1, start)) + 1):
            group = self._table.groups[i]
            parts.append(self._read_group(i)[max(start - group.start, 0) : stop - group.start])
        return _join(parts)

    def _read_group(self, i: int) -> np.ndarray:
        if i not in self._kept:
            piece = self._piece_of(self._table.groups[i])
            self._kept[i] = piece.read()
            while sum(array.nbytes for array in self._kept.values()) > _KEPT_BYTES:
                if len(self._kept) == 1:
                    break
                del self._kept[next(iter(self._kept))]
        self._kept[i] = self._kept.pop(i)
        return self._kept[i]

    def _piece_of(self, group: _Group, start: int = 0, stop: int | None = None) -> InParquet:
        columns, dtype = self._columns, self.dtype
        return InParquet(
            group.fragment, columns, dtype, self._matrix, self._table.filter, start, stop
        )

    def piece(self, start: int, stop: int) -> Piece:
        """Return the places of the rows in the files."""
        first, last = self._group_of(start), self._group_of(max(stop - 1, start))
        pieces = []
        for group in self._table.groups[first : last + 1]:
            begin, end = max(start - group.start, 0), min(stop, group.stop) - group.start
            pieces.append(self._piece_of(group, begin, end))
        return pieces[0] if len(pieces) == 1 else Joined(tuple(pieces))


@dataclass(frozen=True)
class InParquet(Piece):
    """Rows of one row group of a file."""

    fragment: Any
    columns: tuple[str, ...]
    dtype: np.dtype[Any]
    matrix: bool
    filter: Any
    start: int
    stop: int | None

    def read(self) -> np.ndarray:
        """Read the columns of the row group, and return some of its rows."""
        table = self.fragment.to_table(columns=list(self.columns), filter=self.filter)
        table = table.slice(self.start, None if self.stop is None else self.stop - self.start)
        rows = np.empty((table.num_rows, len(self.columns)), self.dtype)
        hidden = np.zeros(rows.shape, bool)
        for i, name in enumerate(self.columns):
            column = table.column(name)
            if column.null_count:
                hidden[:, i] = column.is_null().to_numpy()
                column = column.fill_null(False if self.dtype.kind == "b" else 0)
            rows[:, i] = column.to_numpy()
        if hidden.any():
            rows = np.ma.array(rows, mask=hidden)
        return rows if self.matrix else rows[:, 0]


@dataclass(frozen=True)
class Joined(Piece):
    """Pieces one after the other."""

    pieces: tuple[Piece, ...]

    def read(self) -> np.ndarray:
        """Read all of them."""
        return _join([piece.read() for piece in self.pieces])


@dataclass(frozen=True)
class _Group:
    """A row group, and the numbers of its rows among all that are read."""

    fragment: Any
    start: int
    stop: int

    @property
    def label(self) -> str:
        number = self.fragment.row_groups[0].id
        return f"{self.fragment.path}, row group {number}"


def _find_groups(dataset: Any, condition: Any) -> Any:
    """Yield the row groups with rows that fulfil a condition."""
    start = 0
    for file in dataset.get_fragments(filter=condition):
        for fragment in file.split_by_row_group(filter=condition, schema=dataset.schema):
            if condition is None:
                n = fragment.row_groups[0].num_rows
            else:
                n = fragment.count_rows(filter=condition)
            if n:
                yield _Group(fragment, start, start + n)
                start += n


def _open(files: Any) -> Any:
    """Return a dataset of pyarrow."""
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(
            "reading Parquet files takes pyarrow: pip install 'pymc-ngvi[parquet]'"
        ) from error
    if isinstance(files, pyarrow.dataset.Dataset):
        dataset = files
    elif isinstance(files, str | Path):
        dataset = pyarrow.dataset.dataset(str(files), format="parquet")
    elif isinstance(files, Sequence):
        dataset = pyarrow.dataset.dataset([str(file) for file in files], format="parquet")
    else:
        raise TypeError(f"files must be paths or a dataset of pyarrow, got {told(files)}")
    if not isinstance(dataset, pyarrow.dataset.FileSystemDataset) or (
        dataset.format.default_extname != "parquet"
    ):
        raise TypeError(f"files must be Parquet files, got {told(files)}")
    return dataset


def _join(parts: list[np.ndarray]) -> np.ndarray:
    """Put rows one after the other, with the masks of nulls if there are any."""
    masked = any(map(np.ma.isMaskedArray, parts))
    return np.ma.concatenate(parts) if masked else np.concatenate(parts)  # type: ignore[no-untyped-call]


def _is_of_folder(fragment: Any, name: str) -> bool:
    """Whether a column has its value in the path of a file."""
    return name in str(fragment.partition_expression)


def _dtype(schema: Any, name: str) -> np.dtype[Any]:
    """Return NumPy's type of a column of numbers."""
    import pyarrow

    kind = schema.field(name).type
    if pyarrow.types.is_boolean(kind):
        return np.dtype(bool)
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise TypeError(f"the column {name!r} is {kind}: a Loader reads real numbers only")
