"""Partitions of all the data of a model: what a pass over the data reads at a time, wherever.

How the data are divided depends on the data only, not on who reads them: sums over partitions are
added up in the same order on one process and on a cluster, and differ by rounding at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_ngvi.model.data import Feed, ModelData, Rows, cast
from pymc_ngvi.model.sources import Piece
from pymc_ngvi.model.sources.base import Outline, check_rows

# Numbers and rows in a partition of data that are not stored in pieces.
_NUMBERS, _MOST_ROWS = 2**22, 2**16

#: The rows of a partition in memory: for each feed, its arrays.
Loaded = tuple[list[np.ndarray], ...]


@dataclass(frozen=True)
class Share:
    """The rows of one feed that are in a partition.

    Attributes
    ----------
    names, dtypes : tuple of str
        Of the arrays of the feed, and of the containers that they go to.
    outlines : tuple of Outline
        What a row of each array is like.
    start, stop : int
        Numbers of the rows. Where there are none, one is read and has a weight of zero: compiled
        functions take no empty arrays.
    n_rows : int
        Number of all rows of the feed.
    row_bytes : int
        Bytes that a row takes.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    outlines: tuple[Outline, ...]
    start: int
    stop: int
    n_rows: int
    row_bytes: int

    @property
    def numbers(self) -> range:
        """Numbers of the rows that are read."""
        return range(self.start, max(self.stop, self.start + 1))

    def parts(self, n: int) -> Iterator[range]:
        """Divide the rows into n parts, of which some may be empty."""
        size = self.stop - self.start
        for i in range(n):
            yield range(self.start + i * size // n, self.start + (i + 1) * size // n)


@dataclass(frozen=True)
class Partition:
    """Consecutive rows of every feed, evaluated by one task.

    Attributes
    ----------
    number, of : int
        Which one it is, and how many there are.
    shares : tuple of Share
        One for each feed.
    label : str
        Where the rows are stored.
    pieces : tuple of tuple of Piece
        For each feed, where its arrays are read from.
    """

    number: int
    of: int
    shares: tuple[Share, ...]
    label: str = ""
    pieces: tuple[tuple[Piece, ...], ...] = field(default=(), repr=False)

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(share.stop - share.start for share in self.shares)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory."""
        return sum(share.row_bytes * len(share.numbers) for share in self.shares)

    @property
    def where(self) -> str:
        """Name the partition in a message about one of its rows."""
        if self.of == 1 and not self.label:
            return ""
        return f" (partition {self.number} of {self.of}{self.label and f', {self.label}'})"

    def read(self) -> Loaded:
        """Read the rows here."""
        return self.check([[piece.read() for piece in pieces] for pieces in self.pieces])

    def check(self, values: Sequence[Sequence[Any]]) -> Loaded:
        """Return rows that were read as arrays for compiled functions.

        Raises
        ------
        ValueError
            With the number of a row that has a missing value, and the partition.
        TypeError
            Where the arrays are not of the shape or the type that was promised.
        """
        loaded = []
        for share, arrays in zip(self.shares, values, strict=True):
            checked = [
                check_rows(name, array, outline, share.numbers, self.where)
                for name, array, outline in zip(share.names, arrays, share.outlines, strict=True)
            ]
            loaded.append(checked)
        return self.cast(loaded)

    def cast(self, arrays: Sequence[list[np.ndarray]]) -> Loaded:
        """Return arrays as compiled functions take them: those that have travelled may not be."""
        return tuple(
            cast(each, share.names, share.dtypes)
            for share, each in zip(self.shares, arrays, strict=True)
        )

    def chunks(self, loaded: Loaded, size: int) -> Iterator[Rows]:
        """Divide the rows into chunks of at most `size` rows of a feed."""
        if not self.shares:  # the model holds all its data
            yield Rows(0, 1.0, (), ())
        n = max((-(-(share.stop - share.start) // size) for share in self.shares), default=0) or 1
        for i, parts in enumerate(zip(*(share.parts(n) for share in self.shares), strict=True)):
            arrays, numbers = [], []
            for share, part, whole in zip(self.shares, parts, loaded, strict=True):
                seen = range(part.start, max(part.stop, part.start + 1))
                numbers.append(seen)
                arrays.append(
                    [array[seen.start - share.start : seen.stop - share.start] for array in whole]
                )
            yield Rows(
                count=sum(map(len, parts)),
                outside=float(self.number == 0 and i == 0),
                weights=tuple(len(p) / s.n_rows for p, s in zip(parts, self.shares, strict=True)),
                arrays=tuple(arrays),
                numbers=tuple(numbers),
            )


def divide(data: ModelData) -> list[Partition]:
    """Divide all the data into partitions.

    Data that are stored in pieces are divided where their pieces begin, small ones taken together;
    all others into partitions of 30 MB. With several feeds, that of most partitions decides, and
    the others are divided into as many. Without any there is one partition, of no rows.
    """
    size = min(max(_NUMBERS // max(data.row_size, 1), 1), _MOST_ROWS)
    cuts = [_cuts(feed, size) for feed in data.feeds]
    n = max(map(len, cuts), default=2) - 1
    for i, feed in enumerate(data.feeds):
        if len(cuts[i]) - 1 < n:
            rows = feed.loader.n_rows
            cuts[i] = [j * rows // n for j in range(n + 1)]
    partitions = []
    for number in range(n):
        shares, pieces, label = [], [], ""
        for feed, cut in zip(data.feeds, cuts, strict=True):
            sources = feed.loader.sources
            share = Share(
                tuple(sources),
                tuple(container.type.dtype for container in feed.containers),
                tuple(source.outline for source in sources.values()),
                cut[number],
                cut[number + 1],
                feed.loader.n_rows,
                feed.row_bytes,
            )
            read = share.numbers
            shares.append(share)
            pieces.append(tuple(source.piece(read.start, read.stop) for source in sources.values()))
            label = label or next(filter(None, (s.label(read.start) for s in sources.values())), "")
        partitions.append(Partition(number, n, tuple(shares), label, tuple(pieces)))
    return partitions


def _cuts(feed: Feed, size: int) -> list[int]:
    """Return where the partitions of a feed begin, and the number of its rows."""
    rows = feed.loader.n_rows
    stored = [source for source in feed.loader.sources.values() if len(source.divisions) > 2]
    if not stored:
        n = -(-rows // size)
        return [i * rows // n for i in range(n + 1)]
    # Rows of the widest array are those that should not move.
    divisions = max(stored, key=lambda source: source.row_size).divisions
    cuts = [0]
    for before, after in itertools.pairwise(divisions):
        if after - cuts[-1] > size and before > cuts[-1]:
            cuts.append(before)
    return [*cuts, rows]
