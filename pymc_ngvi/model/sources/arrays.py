"""Rows of arrays: in memory, in memory maps, and in files of chunks such as those of zarr and HDF5.

What is sent to other processes depends on the array: rows in memory are sent themselves, and of
those in files only where they are. The files have to be readable from there by the same name.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pymc_ngvi.model.sources.base import Piece, Rows, Source


class ArraySource(Source):
    """Rows of anything that has a shape and a type and can be sliced.

    Parameters
    ----------
    array : array
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = tuple(map(int, array.shape))
        self.dtype = np.dtype(array.dtype)

    def read(self, rows: Rows) -> np.ndarray:
        """Read rows."""
        return np.asanyarray(self.array[rows])

    def piece(self, start: int, stop: int) -> Piece:
        """Return rows that the worker reads from the array, which has to be picklable."""
        return Sliced(self.array, start, stop)

    @property
    def divisions(self) -> list[int]:
        """Where the chunks of the array begin, if it has chunks along its rows."""
        chunks = getattr(self.array, "chunks", None)
        if not chunks or not isinstance(chunks[0], int):
            return [0, self.n_rows]
        return [*range(0, self.n_rows, chunks[0]), self.n_rows]


class MemorySource(ArraySource):
    """Rows of a NumPy array."""

    in_memory = True
    by_row = True

    def piece(self, start: int, stop: int) -> Piece:
        """Return the rows themselves."""
        return Held(self.array[start:stop])


class MappedSource(ArraySource):
    """Rows of a file that is mapped to memory.

    Parameters
    ----------
    name : str
        Of the array, for messages.
    array : numpy.ndarray
        A memory map or a view of one.
    memory : mmap.mmap
        The map.
    size : int
        Bytes that the file had, at least, when it was mapped.
    file : str
        Its name.
    offset : int
        Where in the file the map begins.
    """

    by_row = True

    def __init__(
        self, name: str, array: np.ndarray, memory: mmap.mmap, size: int, file: str, offset: int
    ) -> None:
        super().__init__(array)
        self._name = name
        self._memory = memory
        self._size = size
        self._file = file
        self._offset = offset

    def read(self, rows: Rows) -> np.ndarray:
        """Read rows into memory: the file may change from here on."""
        now = self._memory.size()
        if now < self._size:  # reading beyond its end would kill the process
            raise OSError(
                f"{self._name}: its file {self._file} has been cut short, from {self._size} to "
                f"{now} bytes: the rows cannot be read"
            )
        return np.array(self.array[rows])

    def piece(self, start: int, stop: int) -> Piece:
        """Return the place of the rows in the file."""
        rows = self.array[start:stop]
        if not rows.flags.c_contiguous or not Path(self._file).is_file():
            return Held(rows)
        begin = np.frombuffer(self._memory, dtype=np.uint8, count=1).ctypes.data
        offset = self._offset + rows.ctypes.data - begin
        return InFile(str(Path(self._file).resolve()), offset, rows.shape, rows.dtype)


class HDF5Source(ArraySource):
    """Rows of a dataset of h5py, which other processes open by its name."""

    def piece(self, start: int, stop: int) -> Piece:
        """Return the names of file and dataset."""
        file = str(Path(self.array.file.filename).resolve())
        return InHDF5(file, self.array.name, start, stop)


@dataclass(frozen=True)
class Held(Piece):
    """Rows in memory."""

    rows: np.ndarray

    def read(self) -> np.ndarray:
        """Return the rows, which may be a part of a larger array."""
        return np.ascontiguousarray(self.rows)


@dataclass(frozen=True)
class Sliced(Piece):
    """Rows of an array that can be pickled, such as zarr's."""

    array: Any
    start: int
    stop: int

    def read(self) -> np.ndarray:
        """Read the rows."""
        return np.asanyarray(self.array[self.start : self.stop])


@dataclass(frozen=True)
class InFile(Piece):
    """Rows that lie one after the other in a file."""

    file: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self) -> np.ndarray:
        """Read the rows."""
        count = int(np.prod(self.shape))
        rows = np.fromfile(self.file, self.dtype, count, offset=self.offset)
        if len(rows) < count:
            raise OSError(f"{self.file} has been cut short: the rows cannot be read")
        return rows.reshape(self.shape)


@dataclass(frozen=True)
class InHDF5(Piece):
    """Rows of a dataset in an HDF5 file."""

    file: str
    dataset: str
    start: int
    stop: int

    def read(self) -> np.ndarray:
        """Open the file and read the rows."""
        import h5py

        with h5py.File(self.file, "r") as file:
            return np.asarray(file[self.dataset][self.start : self.stop])


def mapped_source(name: str, array: Any) -> MappedSource | None:
    """Return the source of an array of NumPy that is a view of a memory map, None of others."""
    view, offset, file = array, 0, ""
    while isinstance(view, np.ndarray):
        if isinstance(view, np.memmap):
            offset, file = view.offset, str(view.filename or "")
        view = view.base
    if not (isinstance(view, mmap.mmap) and file):
        return None
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    return MappedSource(name, array, view, begin + len(view), file, begin)
