"""Reading rows of data in batches, from arrays in memory or on disk."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.arguments import check_count, told

# Up to so many rows, one permutation gives all batches of a pass. With more, each batch is drawn by
# itself: two of them seldom have a row in common, and a permutation would take as long to draw as
# the batches take to evaluate.
_LONGEST_ORDER = 2**17
_ROWS_AT_A_TIME = 2**16


class Loader:
    """Feeds a model's data containers with batches of rows, and with all rows in chunks.

    Give it to ``pm.fit(method="ngvi", loader=...)``. The model reads the data from ``pm.Data``
    containers, whose contents do not matter for the fit (a few rows will do), and ``total_size=``
    of its observed variables is the number of all rows.

    Parameters
    ----------
    arrays : mapping of str to array
        For the name of each container, the array that feeds it: anything with a shape and slices,
        such as NumPy arrays, ``numpy.memmap``, zarr, h5py and dask arrays. Row i of one array
        belongs to row i of the others. Of a pandas object give ``.to_numpy()``. Values hidden by a
        mask are refused: leave out their rows, or fill them.
    batch_size : int
        Number of rows in a batch.
    block : int, optional
        Number of consecutive rows that are read together. A batch consists of blocks that start at
        random rows. The default is 1 for NumPy arrays and memory maps, and the whole batch for
        other arrays, where reading single rows would take as long as reading all. The fit is right
        with any `block`, but noisier with long ones where neighbouring rows are alike, as in sorted
        data.

    Attributes
    ----------
    n_rows : int
        Number of rows of each array.
    in_memory : bool
        Whether all arrays are NumPy's own.
    drawn : array
        Numbers of the rows of the batch that was drawn last.

    Examples
    --------
    >>> loader = Loader({"x": np.arange(10.0), "y": np.arange(10.0) ** 2}, batch_size=4)
    >>> x, y = loader.draw()
    >>> len(x), (y == x**2).all()
    (4, np.True_)
    >>> [len(chunk["x"]) for chunk in loader.chunks(6)]
    [6, 4]
    """

    def __init__(
        self, arrays: Mapping[str, Any], *, batch_size: int, block: int | None = None
    ) -> None:
        if not isinstance(arrays, Mapping):
            raise TypeError(
                f"a Loader takes a dictionary of arrays by the names of the data containers, got "
                f"{told(arrays)}"
            )
        if not arrays:
            raise ValueError("a Loader needs an array for each data container it feeds")
        arrays = {name: _unmasked(name, array) for name, array in arrays.items()}
        for name, array in arrays.items():
            _check_array(name, array)
        lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"arrays of different lengths cannot share their batches: {each} rows")
        self.arrays = dict(arrays)
        self.n_rows = next(iter(lengths.values()))
        self.batch_size = check_count("batch_size", batch_size)
        if self.batch_size > self.n_rows:
            raise ValueError(
                f"batch_size={batch_size} is more than the {self.n_rows} rows of "
                f"{', '.join(arrays)}: choose a smaller one, or fit all the data without batches"
            )
        kinds = {type(array) for array in arrays.values()}
        self.in_memory = kinds == {np.ndarray}
        mapped = kinds <= {np.ndarray, np.memmap}
        default = 1 if mapped else self.batch_size
        self.block = default if block is None else check_count("block", block)
        if self.block > self.batch_size:
            raise ValueError(f"block={block} is more than a batch of {batch_size} rows")
        self._random_rows = mapped and self.block == 1
        self.reseed(0)

    @property
    def row_size(self) -> int:
        """How many numbers one row of all arrays together has."""
        return sum(int(np.prod(array.shape[1:])) for array in self.arrays.values())

    def __repr__(self) -> str:
        return (
            f"Loader({', '.join(self.arrays)}: {self.n_rows} rows, batch_size={self.batch_size}, "
            f"block={self.block})"
        )

    def reseed(self, seed: int) -> None:
        """Restart the sequence of batches from `seed`."""
        self._rng = np.random.default_rng(seed)
        self._order = self.drawn = np.empty(0, dtype=np.intp)

    def draw(self) -> list[np.ndarray]:
        """Read the next batch of each array; every row is equally likely to be in it."""
        if not self._random_rows:
            n_blocks = -(-self.batch_size // self.block)
            starts = self._rng.integers(self.n_rows, size=n_blocks)
            rows = starts[:, np.newaxis] + np.arange(self.block)
            self.drawn = rows.ravel()[: self.batch_size] % self.n_rows
            return self._read_blocks(starts)
        self.drawn = np.sort(self._next_rows())
        return self._read(self.drawn)

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Read all rows in order, `size` at a time, as dictionaries for ``pm.set_data``."""
        for start in range(0, self.n_rows, size):
            yield dict(zip(self.arrays, self.read(start, start + size), strict=True))

    def check(self) -> None:
        """Raise where a row of arrays in memory is not finite, with the number of the row."""
        if self.in_memory:
            for _ in self.chunks(_ROWS_AT_A_TIME):
                pass

    def read(self, start: int, stop: int) -> list[np.ndarray]:
        """Read the rows from `start` to `stop` of each array."""
        return self._read(slice(start, min(stop, self.n_rows)))

    def _next_rows(self) -> NDArray[np.intp]:
        if self.n_rows > _LONGEST_ORDER:
            return self._rng.choice(self.n_rows, self.batch_size, replace=False, shuffle=False)
        # Batches of one pass have no row in common; rows left over at its end are skipped.
        if len(self._order) < self.batch_size:
            self._order = self._rng.permutation(self.n_rows)
        rows, self._order = np.split(self._order, [self.batch_size])
        return rows

    def _read_blocks(self, starts: NDArray[np.int64]) -> list[np.ndarray]:
        """Read blocks; one that reaches the last row goes on with the first."""
        pieces = []
        left = self.batch_size
        for start in map(int, starts):
            size = min(self.block, left)
            pieces.append(self.read(start, start + size))
            if start + size > self.n_rows:
                pieces.append(self.read(0, start + size - self.n_rows))
            left -= size
        return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

    def _read(self, rows: slice | NDArray[np.intp]) -> list[np.ndarray]:
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return [self._read_array(name, rows, numbers) for name in self.arrays]

    def _read_array(
        self, name: str, rows: slice | NDArray[np.intp], numbers: range | NDArray[np.intp]
    ) -> np.ndarray:
        """Read rows of one array; `numbers` are theirs, for messages."""
        mapped = _find_map(self.arrays[name])
        if mapped is not None:
            mapped.check(name)
        value = np.asanyarray(self.arrays[name][rows])
        if mapped is not None:
            value = np.array(value)  # the file may change from here on
        if np.ma.is_masked(value):
            row = numbers[_first_row(np.ma.getmaskarray(value))]
            raise ValueError(_MASKED.format(f"{name} is masked in row {row}"))
        value = np.asarray(value)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            bad = _first_row(~np.isfinite(value))
            raise ValueError(
                f"{name} is not finite in row {numbers[bad]}: {value[bad]}. Remove such rows, or "
                "replace what is missing"
            )
        return value


_MASKED = (
    "{}, and a hidden value cannot be fitted: leave out such rows, or fill the array (`filled`, "
    "`dask.array.ma.filled`) with values that are meant"
)


def _unmasked(name: str, array: Any) -> Any:
    """Return the data of a masked array in memory that hides nothing."""
    if not np.ma.isMaskedArray(array):
        return array
    if array.ndim and np.ma.is_masked(array):
        row = _first_row(np.ma.getmaskarray(array))
        raise ValueError(_MASKED.format(f"{name} is masked in row {row}"))
    return np.ma.getdata(array)


def _check_array(name: str, array: Any) -> None:
    """Raise where rows of numbers cannot be read by position from an array."""
    kind = type(array).__name__
    if not hasattr(array, "shape"):
        raise TypeError(f"{name} is a {kind}, not an array: convert it to one")
    if hasattr(array, "iloc"):
        # pandas takes row numbers for labels, or for the names of columns.
        raise TypeError(f"{name} is a pandas {kind}, not an array: give its .to_numpy()")
    if scipy.sparse.issparse(array):
        raise TypeError(f"{name} is a sparse {kind}: a Loader reads dense rows only")
    if not np.shape(array):
        raise ValueError(f"{name} has no rows to load batches of: its shape is ()")
    # Whether an array of dask hides anything is known only when all of it is computed.
    if np.ma.isMaskedArray(getattr(array, "_meta", None)):
        raise TypeError(_MASKED.format(f"{name} is a masked array"))
    try:
        dtype = np.dtype(array.dtype)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{name} is a {kind}, not an array of NumPy's types") from error
    if dtype.kind not in "biuf":
        raise TypeError(f"{name} has the type {dtype}: a Loader reads real numbers only")


def _first_row(flags: NDArray[np.bool_]) -> int:
    """Return the first row (along the first axis) with a flag that is set."""
    return int(np.argmax(flags.reshape(len(flags), -1).any(axis=1)))


@dataclass(frozen=True)
class _Map:
    """The file behind an array in memory: reading beyond its end would kill the process.

    Attributes
    ----------
    memory : mmap.mmap
    size : int
        Bytes that the file had, at least, when it was mapped.
    file : str
        Its name.
    """

    memory: mmap.mmap
    size: int
    file: str

    def check(self, name: str) -> None:
        """Raise where the file has been cut short since."""
        now = self.memory.size()
        if now < self.size:
            raise OSError(
                f"{name}: its file {self.file} has been cut short, from {self.size} to {now} "
                "bytes: the rows cannot be read"
            )


def _find_map(array: Any) -> _Map | None:
    """Find the memory map that an array of NumPy is a view of."""
    offset, file = 0, ""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            offset, file = array.offset, str(array.filename or "")
        array = array.base
    if not (isinstance(array, mmap.mmap) and file):
        return None
    return _Map(array, offset - offset % mmap.ALLOCATIONGRANULARITY + len(array), file)
