"""Reading rows of data in batches, from arrays in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.arguments import check_count

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
        belongs to row i of the others.
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
        if not arrays:
            raise ValueError("a Loader needs an array for each data container it feeds")
        shapeless = [name for name, array in arrays.items() if not hasattr(array, "shape")]
        if shapeless:
            name = shapeless[0]
            raise TypeError(
                f"{name} is a {type(arrays[name]).__name__}, not an array: convert it to one"
            )
        scalars = [name for name, array in arrays.items() if not np.shape(array)]
        if scalars:
            raise ValueError(f"{scalars[0]} has no rows to load batches of: its shape is ()")
        lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"arrays of different lengths cannot share their batches: {told} rows")
        self.arrays = dict(arrays)
        self.n_rows = next(iter(lengths.values()))
        self.batch_size = check_count("batch_size", batch_size)
        if self.batch_size > self.n_rows:
            raise ValueError(
                f"batch_size={batch_size} is more than the {self.n_rows} rows of "
                f"{', '.join(arrays)}: choose a smaller one, or fit all the data without batches"
            )
        kinds = {type(array) for array in arrays.values()}
        self._in_memory = kinds == {np.ndarray}
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
        self._order = np.empty(0, dtype=np.intp)

    def draw(self) -> list[np.ndarray]:
        """Read the next batch of each array; every row is equally likely to be in it."""
        if not self._random_rows:
            n_blocks = -(-self.batch_size // self.block)
            starts = self._rng.integers(self.n_rows, size=n_blocks)
            return self._read_blocks(starts)
        return self._read(np.sort(self._next_rows()))

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Read all rows in order, `size` at a time, as dictionaries for ``pm.set_data``."""
        for start in range(0, self.n_rows, size):
            yield dict(zip(self.arrays, self.read(start, start + size), strict=True))

    def check(self) -> None:
        """Raise where a row of arrays in memory is not finite, with the number of the row."""
        if self._in_memory:
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
        values = [np.asarray(array[rows]) for array in self.arrays.values()]
        for name, value in zip(self.arrays, values, strict=True):
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                bad = int(np.argmin(np.isfinite(value).reshape(len(value), -1).all(axis=1)))
                row = rows.start + bad if isinstance(rows, slice) else int(rows[bad])
                raise ValueError(
                    f"{name} is not finite in row {row}: {value[bad]}. Remove such rows, or "
                    "replace what is missing"
                )
        return values
