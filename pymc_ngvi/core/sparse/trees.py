"""Find the levels of an elimination tree, where it has few.

A column of the factor depends on those that have an entry in its row. The first row of a column is
its parent, whose column has all other rows of the column, too; so the pattern of the factor is
found by adding what parents lack, and the level of a column is the length of the longest way to it.
"""

from __future__ import annotations

import numpy as np

from pymc_ngvi.core.sparse.elimination import Integers, Pattern, inverted
from pymc_ngvi.core.sparse.levels import Levels

#: Levels before the tail, at most: a loop over more of them is slower than a compiled one.
MOST_LEVELS = 16
#: Pairs of entries of a column that are listed, at most.
_MOST_PAIRS = 2**22
# Numbers of entries in the last rows that are looked at together for fill.
_BLOCK = 2**22


def find_levels(
    order: Integers,
    rows: Integers,
    columns: Integers,
    which: Integers,
    *,
    last: int,
    most: int,
    limit: int = MOST_LEVELS,
) -> Levels | None:
    """Return the elimination by levels; None where it has too many levels or entries.

    Parameters
    ----------
    order : array of int, (d,)
        One of elimination; that of the result has the same factor.
    rows, columns, which : array of int
        Entries of the matrix off the diagonal, each once, and which value each of them is.
    last : int
        So many components at the end of the order have many entries each.
    most : int
        Entries of the factor below the diagonal, at most.
    limit : int
        Levels before the tail, at most.
    """
    n = order.size
    keys = _filled(n, _keys(order, rows, columns), last, most, limit)
    if keys is None:
        return None
    low, high = keys // n, keys % n
    level = _levels_of(n, low, high, limit)
    if level is None:
        return None
    by_level = np.argsort(level, kind="stable")
    place = inverted(by_level)
    keys = np.sort(place[low] * n + place[high])
    order = order[by_level]
    start = np.searchsorted(keys, np.arange(n + 1) * n)
    entry = np.searchsorted(keys, _keys(order, rows, columns))
    bounds = np.searchsorted(level[by_level], np.arange(level.max() + 1))
    found = Levels(order, Pattern(start, (keys % n).astype(np.int32), which, entry), bounds)
    return found if found.pairs <= _MOST_PAIRS else None


def _keys(order: Integers, rows: Integers, columns: Integers) -> Integers:
    """Return a number for each entry of the reordered matrix, increasing column by column."""
    place = inverted(order)
    first, second = place[rows], place[columns]
    return np.asarray(np.minimum(first, second) * order.size + np.maximum(first, second))


def _filled(n: int, keys: Integers, last: int, most: int, limit: int) -> Integers | None:
    """Add what elimination adds to the entries; None where that goes on or is too much.

    A parent gets the rows of its column. Parents among the last rows would hand these on one by
    one: there all rows of a column are joined to each other.
    """
    keys = np.sort(keys)
    for _ in range(limit + 1):
        if keys.size > most:
            return None
        low, high = keys // n, keys % n
        parent = _parents(n, low, high)[low]
        handed = (parent != high) & (parent < n - last)
        wanted = parent[handed] * n + high[handed]
        filled = _distinct(np.concatenate([keys, wanted, _joined(n, low, high, last)]))
        if filled.size == keys.size:
            return keys
        keys = filled
    return None


def _distinct(keys: Integers) -> Integers:
    """Return numbers above -1 in increasing order, each once."""
    keys = np.sort(keys)
    return np.asarray(keys[np.flatnonzero(np.diff(keys, prepend=-1))])


def _parents(n: int, low: Integers, high: Integers) -> Integers:
    """Return the first row of each column, by entries in the order of columns; n for none."""
    parent = np.full(n, n)
    parent[low[::-1]] = high[::-1]  # what is written last stays
    return parent


def _joined(n: int, low: Integers, high: Integers, last: int) -> Integers:
    """Return the entries among the last rows that share a column."""
    in_last = high >= n - last
    low, high = low[in_last], high[in_last] - (n - last)
    columns, low = np.unique(low, return_inverse=True)
    shared, step = np.zeros((last, last), bool), max(1, _BLOCK // max(1, last))
    for begin in range(0, columns.size, step):
        here = (low >= begin) & (low < begin + step)
        block = np.zeros((min(step, columns.size - begin), last), np.float32)
        block[low[here] - begin, high[here]] = 1.0
        shared |= block.T @ block > 0
    first, second = np.nonzero(np.triu(shared, 1))
    return np.asarray((first + n - last) * n + second + n - last)


def _levels_of(n: int, low: Integers, high: Integers, limit: int) -> Integers | None:
    """Return the level of each column, and one more for each column of the tail."""
    full = np.bincount(low, minlength=n) == np.arange(n - 1, -1, -1)
    head = 0 if full.all() else n - int(np.argmin(full[::-1]))
    parent = _parents(n, low, high)
    level = np.zeros(n, np.int64)
    above, depth = np.arange(head), 0
    while (above := np.unique(parent[above])).size and above[0] < head:
        above = above[above < head]
        depth += 1
        if depth >= limit:
            return None
        level[above] = depth
    level[head:] = depth + 1
    return level
