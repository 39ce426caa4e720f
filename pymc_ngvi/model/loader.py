"""Reading rows of data in batches, from arrays in memory, on disk or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.arguments import check_count, told
from pymc_ngvi.model.sources.base import Rows, check_rows
from pymc_ngvi.model.sources.open import open_source

if TYPE_CHECKING:
    from pymc_ngvi.model.passes import Executor

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
        such as NumPy arrays, ``numpy.memmap``, zarr, h5py and dask arrays; dataframes and series
        of dask; and columns of :class:`.Parquet` files. Row i of one array belongs to row i of the
        others. Of a pandas object give ``.to_numpy()``. Values hidden by a mask are refused: leave
        out their rows, or fill them.
    batch_size : int, optional
        Number of rows in a batch. None reads no batches: every evaluation of the log density passes
        over all the data, and the fit is that of a model that holds them.
    block : int, optional
        Number of consecutive rows that are read together. A batch consists of blocks that start at
        random rows. The default is 1 for NumPy arrays and memory maps, and the whole batch for
        other arrays, where reading single rows would take as long as reading all. The fit is right
        with any `block`, but noisier with long ones where neighbouring rows are alike, as in sorted
        data.
    client : distributed.Client, optional
        Of a dask cluster, whose workers then do all passes over the data: those of a fit, and those
        of `sample` and `loo` after it. Batches are read here. See :doc:`/scale`.

    Attributes
    ----------
    n_rows : int
        Number of rows of each array.
    in_batches : bool
        Whether the rows are read in batches, of `batch_size` rows.
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
        self,
        arrays: Mapping[str, Any],
        *,
        batch_size: int | None,
        block: int | None = None,
        client: Any = None,
    ) -> None:
        if not isinstance(arrays, Mapping):
            raise TypeError(
                f"a Loader takes a dictionary of arrays by the names of the data containers, got "
                f"{told(arrays)}"
            )
        if not arrays:
            raise ValueError("a Loader needs an array for each data container it feeds")
        self.sources = {name: open_source(name, array, client) for name, array in arrays.items()}
        lengths = {name: source.n_rows for name, source in self.sources.items()}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"arrays of different lengths cannot share their batches: {each} rows")
        self.arrays = dict(arrays)
        self.n_rows = next(iter(lengths.values()))
        self.in_batches = batch_size is not None
        self.batch_size = (
            self.n_rows if batch_size is None else check_count("batch_size", batch_size)
        )
        if self.batch_size > self.n_rows:
            raise ValueError(
                f"batch_size={batch_size} is more than the {self.n_rows} rows of "
                f"{', '.join(arrays)}: choose a smaller one, or fit all the data without batches"
            )
        self.in_memory = all(source.in_memory for source in self.sources.values())
        by_row = all(source.by_row for source in self.sources.values())
        default = 1 if by_row else self.batch_size
        self.block = default if block is None else check_count("block", block)
        if self.block > self.batch_size:
            raise ValueError(f"block={block} is more than a batch of {batch_size} rows")
        self._random_rows = by_row and self.block == 1
        self.executor: Executor | None = None
        if client is not None:
            from pymc_ngvi.model.cluster import Cluster

            self.executor = Cluster(client)
        self.reseed(0)

    @property
    def row_size(self) -> int:
        """How many numbers one row of all arrays together has."""
        return sum(source.row_size for source in self.sources.values())

    def __repr__(self) -> str:
        what = f"{', '.join(self.arrays)}: {self.n_rows} rows"
        if not self.in_batches:
            return f"Loader({what}, batch_size=None)"
        return f"Loader({what}, batch_size={self.batch_size}, block={self.block})"

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

    def _read(self, rows: Rows) -> list[np.ndarray]:
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return [
            check_rows(name, source.read(rows), source.outline, numbers)
            for name, source in self.sources.items()
        ]
