"""Rows of dask's arrays and dataframes.

A task of a fit takes the rows of a partition from the tasks that make them, on the worker where
they are: what was persisted stays there, and what was lost with a worker is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import numpy as np

from pymc_ngvi.model.sources.base import MASKED, Piece, Rows, Source


class DaskSource(Source):
    """Rows of a dask array.

    Parameters
    ----------
    array : dask.array.Array
        With known sizes of its chunks.
    client : distributed.Client, optional
    """

    def __init__(self, array: Any, client: Any = None) -> None:
        self.array = array
        self._client = client
        self.shape = tuple(map(int, array.shape))
        self.dtype = np.dtype(array.dtype)

    @property
    def divisions(self) -> list[int]:
        """Where the chunks begin."""
        return [0, *map(int, np.cumsum(self.array.chunks[0]))]

    def read(self, rows: Rows) -> np.ndarray:
        """Compute rows."""
        return np.asanyarray(_compute([self.array[rows]], self._client)[0])

    def piece(self, start: int, stop: int) -> Piece:
        """Return the rows as a dask array."""
        return Lazy(self.array[start:stop])


@dataclass(frozen=True)
class Lazy(Piece):
    """Rows that dask computes."""

    array: Any

    def read(self) -> np.ndarray:
        """Compute the rows."""
        return np.asanyarray(self.array.compute())

    def on_workers(self, client: Any) -> Any:
        """Return a future of the rows."""
        return client.compute(self.array)


def dask_source(name: str, collection: Any, client: Any = None) -> DaskSource:
    """Return the source of an array, a dataframe or a series of dask.

    The chunks of an array and the partitions of a dataframe are looked at once, for their shapes
    or columns and their types: dask knows of them what it was told.

    Raises
    ------
    TypeError
        For values that are masked or no numbers, and for a chunk or a partition that is not as it
        was declared.
    ValueError
        For an array without known sizes of its chunks.
    """
    if hasattr(collection, "map_partitions"):
        return DaskSource(_array_of_frame(name, collection, client), client)
    if not isinstance(collection, dask.array.Array):
        kind = type(collection).__name__
        raise TypeError(f"{name} is a {kind} of dask, not an array or a dataframe")
    if not collection.shape:
        raise ValueError(f"{name} has no rows to load batches of: its shape is ()")
    if any(map(np.isnan, collection.shape)):
        raise ValueError(
            f"{name} is a dask array whose chunks have unknown sizes: call its "
            "compute_chunk_sizes() first"
        )
    if np.ma.isMaskedArray(getattr(collection, "_meta", None)):
        raise TypeError(MASKED.format(f"{name} is a masked array"))
    _check_chunks(name, collection, client)
    return DaskSource(collection, client)


def _check_chunks(name: str, array: Any, client: Any) -> None:
    """Raise where a chunk of an array is not as it was declared."""
    blocks = array.to_delayed()
    found = _compute([dask.delayed(_shape_and_type)(block) for block in blocks.flat], client)
    for index, (shape, dtype) in zip(np.ndindex(blocks.shape), found, strict=True):
        expected = tuple(sizes[i] for sizes, i in zip(array.chunks, index, strict=True))
        if (shape, dtype) != (expected, array.dtype):
            raise TypeError(
                f"{name}: chunk {', '.join(map(str, index))} has the shape {shape} and the type "
                f"{dtype}, where {expected} and {array.dtype} were declared"
            )


def _shape_and_type(block: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Describe a chunk of an array."""
    block = np.asanyarray(block)
    return block.shape, block.dtype


def _array_of_frame(name: str, frame: Any, client: Any) -> Any:
    """Return the dask array of a dataframe or a series, all of one type of numbers."""
    declared = _describe(frame._meta)
    for column, dtype in declared.columns:
        if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
            where = f"{name}: the column {column!r}" if frame.ndim == 2 else name
            raise TypeError(f"{where} has the type {dtype}: a Loader reads real numbers only")
    found = _compute(list(map(dask.delayed(_describe), frame.to_delayed())), client)
    for i, part in enumerate(found):
        if part.columns != declared.columns and part.n_rows:
            difference = ", ".join(_differences(declared, part))
            raise TypeError(
                f"{name}: partition {i} of {len(found)} is not like the dataframe: {difference}. "
                "Make all partitions alike (`astype`, `map_partitions` with `meta`)"
            )
    common = np.result_type(*(dtype for _, dtype in declared.columns))
    array = frame.astype(common).to_dask_array(lengths=tuple(part.n_rows for part in found))
    filled = tuple(filter(None, array.chunks[0]))  # an empty partition is nothing to read
    return array.rechunk({0: filled}) if len(filled) < len(array.chunks[0]) else array


@dataclass(frozen=True)
class _Outline:
    """Number of rows of a partition, and its columns with their types."""

    n_rows: int
    columns: tuple[tuple[Any, Any], ...]


def _compute(collections: list[Any], client: Any) -> Sequence[Any]:
    """Compute collections, by the client or by whatever scheduler is the default of dask."""
    if client is None:
        return dask.compute(*collections)
    return client.gather(client.compute(collections))


def _describe(frame: Any) -> _Outline:
    """Describe a dataframe or a series of pandas."""
    if frame.ndim == 1:
        return _Outline(len(frame), ((frame.name, frame.dtype),))
    return _Outline(len(frame), tuple(frame.dtypes.items()))


def _differences(declared: _Outline, found: _Outline) -> Iterator[str]:
    """Say in what a partition differs from what was declared."""
    wanted, has = dict(declared.columns), dict(found.columns)
    yield from (f"it lacks {column!r}" for column in wanted if column not in has)
    yield from (f"it has {column!r} as well" for column in has if column not in wanted)
    for column in wanted:
        if column in has and has[column] != wanted[column]:
            yield f"{column!r} is {has[column]} and not {wanted[column]}"
    if set(wanted) == set(has) and list(wanted) != list(has):
        yield "its columns have another order"
