"""The loops of the sparse factorisation P = L D L', with L of unit diagonal, compiled by Numba.

Column j of L below the diagonal has its rows at ``index[start[j]:start[j + 1]]``, in increasing
order, and its values at the same places of an array of their own. The loops that factorise and
invert take complex values too: the derivative of an analytic function is the imaginary part of its
value at a point with a tiny imaginary part.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def elimination_tree(row_start, row_index):
    """Parents in the elimination tree, and the entries of each column of L below the diagonal.

    Parameters
    ----------
    row_start, row_index : array of int64, array of int32
        Rows of the matrix, left of the diagonal.
    """
    n = row_start.size - 1
    parent = np.full(n, -1, np.int64)
    count = np.zeros(n, np.int64)
    seen = np.full(n, -1, np.int64)
    for k in range(n):
        seen[k] = k
        for p in range(row_start[k], row_start[k + 1]):
            i = np.int64(row_index[p])
            while seen[i] != k:
                if parent[i] < 0:
                    parent[i] = k
                count[i] += 1
                seen[i] = k
                i = parent[i]
    return parent, count


@numba.njit(cache=True)
def postorder(parent):
    """Order the nodes of a forest so that every subtree is contiguous, its root last.

    Parameters
    ----------
    parent : array of int64, (n,)
        -1 for a root; else larger than the node.
    """
    n = parent.size
    head = np.full(n + 1, -1, np.int64)
    after = np.empty(n, np.int64)
    for i in range(n - 1, -1, -1):
        at = parent[i] if parent[i] >= 0 else n
        after[i] = head[at]
        head[at] = i
    order = np.empty(n, np.int64)
    stack = np.empty(n + 1, np.int64)
    stack[0], depth, done = n, 1, 0
    while depth:
        node = stack[depth - 1]
        child = head[node]
        if child >= 0:
            head[node] = after[child]
            stack[depth] = child
            depth += 1
        else:
            depth -= 1
            if node < n:
                order[done] = node
                done += 1
    return order


@numba.njit(cache=True)
def fill_columns(row_start, row_index, parent, start):
    """Rows of every column of L, and the place of every entry of the matrix among them."""
    n = row_start.size - 1
    index = np.empty(start[n], np.int32)
    place = np.empty(row_index.size, np.int64)
    end = start[:n].copy()
    seen = np.full(n, -1, np.int64)
    for k in range(n):
        seen[k] = k
        for p in range(row_start[k], row_start[k + 1]):
            i = np.int64(row_index[p])
            while seen[i] != k:
                index[end[i]] = k
                end[i] += 1
                seen[i] = k
                i = parent[i]
        for p in range(row_start[k], row_start[k + 1]):
            place[p] = end[row_index[p]] - 1  # the last row added to the column is k
    return index, place


@numba.njit(cache=True)
def factorise(start, index, lower, pivots, reference, rule, raised, end):
    """Factorise the columns before `end` in place, as if there were no others.

    `lower` and `pivots` hold the matrix on the pattern of L.

    A pivot is too small where it does not exceed `rule[0]` times its reference.

    Parameters
    ----------
    start, index : arrays
        Pattern of L.
    lower, pivots : arrays
    reference : array, (n,)
        Positive.
    rule : array, (5,)
        Smallest relative pivot; 1 to raise smaller ones or 0 to stop at them; and the a, c and s
        of the value to raise to, the larger of a r + c pivot^2 / r and abs(pivot + s) - s with the
        reference r.
    raised : array, (n,)
        Gets what was added to the pivots.
    end : int

    Returns
    -------
    int
        Column of the first pivot that was too small; -1 where there is none.
    """
    n = start.size - 1
    column = np.zeros_like(pivots)
    at = np.empty(n, np.int64)
    waiting = np.full(n, -1, np.int64)  # columns whose next row is this one
    following = np.empty(n, np.int64)
    for j in range(end):
        for p in range(start[j], start[j + 1]):
            column[index[p]] = lower[p]
        pivot = pivots[j]
        k = waiting[j]
        while k >= 0:
            later = following[k]
            p0, p1 = at[k], start[k + 1]
            factor = lower[p0] * pivots[k]
            pivot -= lower[p0] * factor
            for p in range(p0 + 1, p1):
                column[index[p]] -= lower[p] * factor
            if p0 + 1 < p1:
                at[k] = p0 + 1
                following[k] = waiting[index[p0 + 1]]
                waiting[index[p0 + 1]] = k
            k = later
        if not pivot.real > rule[0] * reference[j] or np.isinf(pivot.real):
            if rule[1] == 0 or np.isnan(pivot.real):
                return j
            # Large multipliers would carry what is wrong here on to the columns after it.
            value = rule[2] * reference[j] + rule[3] * pivot.real * (pivot.real / reference[j])
            value = max(value, abs(pivot.real + rule[4]) - rule[4])
            for p in range(start[j], start[j + 1]):
                ratio = np.sqrt(reference[j] / reference[index[p]])
                value = max(value, abs(column[index[p]]) * ratio)
            raised[j] = value - pivot.real
            pivot += raised[j]
        pivots[j] = pivot
        inverse = 1 / pivot
        for p in range(start[j], start[j + 1]):
            lower[p] = column[index[p]] * inverse
        if start[j] < start[j + 1]:
            at[j] = start[j]
            following[j] = waiting[index[start[j]]]
            waiting[index[start[j]]] = j
    return -1


@numba.njit(cache=True)
def reduce_tail(start, index, lower, pivots, head, done):
    """Subtract from the tail, the columns from `head` on, what the columns before them take away.

    The columns of the tail are full, so that the place of an entry is known. Columns that are
    `done` are left out.
    """
    for k in range(head):
        if done[k]:
            continue
        p1 = start[k + 1]
        p0 = p1
        while p0 > start[k] and index[p0 - 1] >= head:
            p0 -= 1
        for p in range(p0, p1):
            i = np.int64(index[p])
            factor = lower[p] * pivots[k]
            pivots[i] -= lower[p] * factor
            base = start[i] - i - 1
            for q in range(p + 1, p1):
                lower[base + index[q]] -= lower[q] * factor


@numba.njit(cache=True)
def triangular(mode, start, index, lower, order, before, after, rows, result):
    """Apply L (mode 0), its transpose (1), or the inverse of L (2) or of its transpose (3).

    The components of all rows are handled together, side by side in memory.

    Parameters
    ----------
    mode : int
    start, index, lower : arrays
        L, without its unit diagonal.
    order : array of int, (d,)
    before, after : array, (d,)
        Factors of the components before and after, in this order.
    rows, result : array, (n, d)
    """
    m, n = rows.shape
    x = np.empty((n, m))
    for k in range(n):
        i = order[k]
        for r in range(m):
            x[k, r] = rows[r, i] * before[k]
    forward = mode == 1 or mode == 2
    for k in range(n):
        j = k if forward else n - 1 - k
        for p in range(start[j], start[j + 1]):
            i, value = index[p], lower[p]
            if mode == 0:
                for r in range(m):
                    x[i, r] += value * x[j, r]
            elif mode == 1:
                for r in range(m):
                    x[j, r] += value * x[i, r]
            elif mode == 2:
                for r in range(m):
                    x[i, r] -= value * x[j, r]
            else:
                for r in range(m):
                    x[j, r] -= value * x[i, r]
    for k in range(n):
        i = order[k]
        for r in range(m):
            result[r, i] = x[k, r] * after[k]


@numba.njit(cache=True)
def selected_inverse(start, index, lower, pivots, below, diagonal, head, done):
    """Entries of the inverse on the pattern of L, by Takahashi's recursion, in place.

    Parameters
    ----------
    start, index, lower, pivots : arrays
        L and D.
    below, diagonal : arrays
        The inverse below the diagonal at the places of L, and on it. It is there already in the
        tail, the full columns from `head` on, and in columns that are `done`.
    head : int
    done : array of bool, (n,)
    """
    n = start.size - 1
    place = np.full(n, -1, np.int64)
    for j in range(head - 1, -1, -1):
        if done[j]:
            continue
        p0, p1 = start[j], start[j + 1]
        for p in range(p0, p1):
            place[index[p]] = p
            below[p] = 0
        total = 1 / pivots[j]
        for p in range(p0, p1):
            k = np.int64(index[p])
            factor = lower[p]
            inner = factor * diagonal[k]
            if k >= head:
                base = start[k] - k - 1
                for t in range(p + 1, p1):
                    value = below[base + index[t]]
                    inner += lower[t] * value
                    below[t] -= factor * value
            else:
                for q in range(start[k], start[k + 1]):
                    t = place[index[q]]
                    if t >= 0:
                        inner += lower[t] * below[q]
                        below[t] -= factor * below[q]
            below[p] -= inner
        for p in range(p0, p1):
            place[index[p]] = -1
            total -= lower[p] * below[p]
        diagonal[j] = total


@numba.njit(cache=True)
def quadratic_forms(start, index, change, below, diagonal, head, done):
    """Variance of the change of L times x, from the inverse.

    It is that of the columns before `head` that are not `done`.
    """
    n = start.size - 1
    spread = np.zeros(n)
    values = np.zeros(n)
    for j in range(head):
        if done[j]:
            continue
        p0, p1 = start[j], start[j + 1]
        for p in range(p0, p1):
            values[index[p]] = change[p]
        total = 0.0
        for p in range(p0, p1):
            k = np.int64(index[p])
            inner = 0.0
            if k >= head:
                base = start[k] - k - 1
                for t in range(p + 1, p1):
                    inner += change[t] * below[base + index[t]]
            else:
                for q in range(start[k], start[k + 1]):
                    inner += values[index[q]] * below[q]
            total += change[p] * (change[p] * diagonal[k] + 2 * inner)
        for p in range(p0, p1):
            values[index[p]] = 0.0
        spread[j] = total
    return spread


@numba.njit(cache=True)
def distance_two_colours(start, index):
    """Colour the nodes of a graph so that no two with a common neighbour, or adjacent, agree.

    Each node in turn takes the first colour that is free.
    """
    n = start.size - 1
    colours = np.full(n, -1, np.int64)
    taken = np.full(n + 1, -1, np.int64)
    for j in range(n):
        for p in range(start[j], start[j + 1]):
            i = index[p]
            if colours[i] >= 0:
                taken[colours[i]] = j
            for q in range(start[i], start[i + 1]):
                k = index[q]
                if colours[k] >= 0:
                    taken[colours[k]] = j
        free = 0
        while taken[free] == j:
            free += 1
        colours[j] = free
    return colours
