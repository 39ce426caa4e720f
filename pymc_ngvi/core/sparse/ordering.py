"""Minimum degree: the order of elimination that keeps the factor of a sparse matrix sparse.

Each step eliminates a component with the fewest neighbours left, which joins them to each other.
The graph of what is left is kept as a quotient graph: an eliminated component becomes an element,
the list of the components that it joined, so that no edge is ever added. Degrees are bounded from
the sizes of the elements, and components with the same neighbours are eliminated together
(Amestoy, Davis and Duff 1996).
"""

from __future__ import annotations

import numba
import numpy as np

_VARIABLE, _ELEMENT, _DEAD = 0, 1, 2


@numba.njit(cache=True)
def minimum_degree(start, index):
    """Order the nodes of a graph.

    Parameters
    ----------
    start : array of int64, (n + 1,)
    index : array of int32
        Neighbours of node i are ``index[start[i]:start[i + 1]]``: symmetric, without the diagonal.

    Returns
    -------
    array of int64, (n,)
        The step in which each node is eliminated; some share one.
    """
    n = start.size - 1
    lists = np.empty(start[n] + start[n] // 2 + 2 * n + 16, np.int32)
    lists[: start[n]] = index
    free = start[n]
    begin = start[:n].copy()
    length = start[1:] - start[:n]
    # A node's list holds first its elements, then the variables that no element joins it to.
    elements = np.zeros(n, np.int64)
    state = np.zeros(n, np.int8)
    weight = np.ones(n, np.int64)  # nodes that a variable stands for; negative while it is handled
    parent = np.full(n, -1, np.int64)
    step = np.full(n, -1, np.int64)
    degree = length.copy()
    outside = np.zeros(n, np.int64)  # what an element has outside the new one, plus `stamp`
    mark = np.zeros(n, np.int64)
    stamp, marked, steps, eliminated, lowest = 1, 0, 0, 0, 0

    head = np.full(n + 1, -1, np.int64)
    after = np.full(n, -1, np.int64)
    before = np.full(n, -1, np.int64)
    for i in range(n):
        other = head[degree[i]]
        after[i] = other
        if other >= 0:
            before[other] = i
        head[degree[i]] = i
    bucket = np.full(n, -1, np.int64)
    hashed = np.zeros(n, np.int64)
    chained = np.full(n, -1, np.int64)

    while eliminated < n:
        while head[lowest] < 0:
            lowest += 1
        pivot = head[lowest]
        head[lowest] = after[pivot]
        if after[pivot] >= 0:
            before[after[pivot]] = -1
        size = weight[pivot]
        weight[pivot] = -size
        eliminated += size

        # The new element: all neighbours of the pivot, in place where it has no elements.
        n_elements = elements[pivot]
        if n_elements:
            needed = length[pivot]
            for p in range(begin[pivot], begin[pivot] + n_elements):
                needed += length[lists[p]]
            if free + needed > lists.size:
                larger = np.empty(2 * lists.size + needed, np.int32)
                larger[:free] = lists[:free]
                lists = larger
        first = free if n_elements else begin[pivot]
        last, joined = first, 0
        for k in range(n_elements + 1):
            if k < n_elements:
                source = np.int64(lists[begin[pivot] + k])
                p0, p1 = begin[source], begin[source] + length[source]
                if state[source] == _DEAD:
                    p1 = p0
            else:
                source = pivot
                p0, p1 = begin[pivot] + n_elements, begin[pivot] + length[pivot]
            for p in range(p0, p1):
                i = np.int64(lists[p])
                if weight[i] > 0:
                    joined += weight[i]
                    weight[i] = -weight[i]
                    lists[last] = i
                    last += 1
                    if after[i] >= 0:
                        before[after[i]] = before[i]
                    if before[i] >= 0:
                        after[before[i]] = after[i]
                    else:
                        head[degree[i]] = after[i]
            if source != pivot:
                state[source] = _DEAD
        if n_elements:
            free = last
        state[pivot] = _ELEMENT
        begin[pivot] = first
        step[pivot] = steps
        steps += 1

        # How much of every element that touches the new one lies outside of it.
        stamp += n + 1
        for p in range(first, last):
            i = np.int64(lists[p])
            for q in range(begin[i], begin[i] + elements[i]):
                e = np.int64(lists[q])
                if state[e] == _ELEMENT:
                    if outside[e] < stamp:
                        outside[e] = degree[e] + stamp
                    outside[e] += weight[i]

        # New lists and degrees of the neighbours.
        for p in range(first, last):
            i = np.int64(lists[p])
            p0, total, key = begin[i], 0, 0
            write = p0
            for q in range(p0, p0 + elements[i]):
                e = np.int64(lists[q])
                if state[e] == _ELEMENT:
                    if outside[e] > stamp:
                        total += outside[e] - stamp
                        lists[write] = e
                        write += 1
                        key += e
                    else:
                        state[e] = _DEAD  # it lies in the new element
            middle = write
            for q in range(p0 + elements[i], p0 + length[i]):
                j = np.int64(lists[q])
                if weight[j] > 0:
                    total += weight[j]
                    lists[write] = j
                    write += 1
                    key += j
            if total == 0:  # no neighbours outside: it can go with the pivot
                parent[i] = pivot
                size -= weight[i]
                joined += weight[i]
                eliminated -= weight[i]
                weight[i] = 0
                state[i] = _DEAD
                continue
            degree[i] = min(degree[i], total)
            # The pivot, or an element it absorbed, has left a place for the new element.
            lists[write] = lists[middle]
            lists[middle] = lists[p0]
            lists[p0] = pivot
            elements[i] = middle - p0 + 1
            length[i] = write - p0 + 1
            key %= n
            hashed[i] = key
            chained[i] = bucket[key]
            bucket[key] = i

        # Neighbours with the same lists become one.
        for p in range(first, last):
            i = np.int64(lists[p])
            if weight[i] == 0:
                continue
            i = bucket[hashed[i]]
            if i < 0:
                continue
            bucket[hashed[i]] = -1
            while i >= 0:
                marked += 1
                for q in range(begin[i] + 1, begin[i] + length[i]):
                    mark[lists[q]] = marked
                previous, j = i, chained[i]
                while j >= 0:
                    same = length[j] == length[i] and elements[j] == elements[i]
                    q = begin[j] + 1
                    while same and q < begin[j] + length[j]:
                        same = mark[lists[q]] == marked
                        q += 1
                    if same:
                        parent[j] = i
                        weight[i] += weight[j]
                        weight[j] = 0
                        state[j] = _DEAD
                        chained[previous] = chained[j]
                    else:
                        previous = j
                    j = chained[j]
                i = chained[i]

        write = first
        for p in range(first, last):
            i = np.int64(lists[p])
            if weight[i] == 0:
                continue
            weight[i] = -weight[i]
            degree[i] = max(0, min(degree[i] + joined - weight[i], n - eliminated - weight[i]))
            other = head[degree[i]]
            after[i], before[i] = other, -1
            if other >= 0:
                before[other] = i
            head[degree[i]] = i
            lowest = min(lowest, degree[i])
            lists[write] = i
            write += 1
        weight[pivot] = size
        degree[pivot] = joined
        length[pivot] = write - first
        if n_elements:
            free = write
        if write == first:
            state[pivot] = _DEAD

    for i in range(n):
        root = i
        while step[root] < 0:
            root = parent[root]
        j = i
        while step[j] < 0:
            step[j] = step[root]
            j = parent[j]
    return step
