"""The protocol of a source of rows, and what is checked of every row that is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Rows to read: consecutive ones, or any in ascending order.
Rows: TypeAlias = slice | NDArray[np.intp]

MASKED = (
    "{}, and a hidden value cannot be fitted: leave out such rows, or fill the array (`filled`, "
    "`dask.array.ma.filled`) with values that are meant"
)


@dataclass(frozen=True)
class Outline:
    """Shape of a row, and type of its numbers."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Piece(ABC):
    """Consecutive rows of a source, readable wherever the piece is sent."""

    @abstractmethod
    def read(self) -> np.ndarray:
        """Read the rows."""

    def on_workers(self, client: Any) -> Any:
        """Return what a task of a ``distributed.Client`` takes in place of the rows.

        By default the piece itself, which the worker reads; or a future of the rows, where they are
        made by tasks of their own.
        """
        return self


class Source(ABC):
    """Rows of numbers, of which some are read at a time.

    Attributes
    ----------
    shape : tuple of int
        The number of rows comes first.
    dtype : numpy.dtype
    in_memory : bool
        Whether all rows are in the memory of this process.
    by_row : bool
        Whether any row can be read by itself at little cost.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    in_memory: ClassVar[bool] = False
    by_row: ClassVar[bool] = False

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def outline(self) -> Outline:
        """What every row is like."""
        return Outline(self.shape[1:], self.dtype)

    @property
    def row_size(self) -> int:
        """How many numbers a row has."""
        return prod(self.shape[1:])

    @property
    def divisions(self) -> Sequence[int]:
        """First rows of the pieces that the source is stored in, and the number of all rows."""
        return 0, self.n_rows

    @abstractmethod
    def read(self, rows: Rows) -> np.ndarray:
        """Read rows, as they are stored."""

    @abstractmethod
    def piece(self, start: int, stop: int) -> Piece:
        """Return the rows from `start` to `stop` as something that other processes can read."""

    def label(self, row: int) -> str:
        """Say where a row is stored, for messages; empty where there is nothing to say."""
        return ""


def check_rows(
    name: str,
    value: Any,
    source: Outline,
    numbers: Sequence[int] | NDArray[np.intp],
    where: str = "",
) -> np.ndarray:
    """Return rows that were read as a plain array; raise where they are not what was promised.

    Parameters
    ----------
    name : str
        Of what was read.
    value : array
        The rows, perhaps masked.
    source : Outline
        What the source has promised.
    numbers : sequence of int
        Their numbers.
    where : str
        What else to say of their place.

    Raises
    ------
    ValueError
        With the number of the first row that has a hidden value, or one that is not finite.
    TypeError
        Where the number of rows, the shape of a row or the type is another one.
    """
    value = np.asanyarray(value)
    expected = (len(numbers), *source.row_shape)
    if value.shape != expected or value.dtype != source.dtype:
        raise TypeError(
            f"{name} has the shape {value.shape} and the type {value.dtype}{where}, where "
            f"{expected} and {source.dtype} were declared"
        )
    if np.ma.is_masked(value):
        row = numbers[first_row(np.ma.getmaskarray(value))]
        raise ValueError(MASKED.format(f"{name} is masked in row {row}{where}"))
    value = np.asarray(value)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        bad = first_row(~np.isfinite(value))
        raise ValueError(
            f"{name} is not finite in row {numbers[bad]}{where}: {value[bad]}. Remove such rows, "
            "or replace what is missing"
        )
    return value


def first_row(flags: NDArray[np.bool_]) -> int:
    """Return the first row (along the first axis) with a flag that is set."""
    return int(np.argmax(flags.reshape(len(flags), -1).any(axis=1)))
