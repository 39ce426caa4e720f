"""Find where a Hessian has entries, from far fewer products with vectors than it has columns.

The columns are put into buckets at random. Three products with a bucket have random values on its
columns: v, v times a number that names the column, and v times another random number. Where a row
has a single entry in the bucket, the ratio of the second product to the first names its column, and
the third confirms it. What is known is subtracted from the products of the next round, and entries
are known in both triangles at once, which completes the dense rows of parameters common to all
groups. Rows on which a product with a random vector agrees with what is known are done, and so are
their columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.colouring import Colouring, agrees, probe
from pymc_ngvi.core.sparse.elimination import Integers
from pymc_ngvi.core.sparse.structure import Structure

#: ``product(points, vectors)``: the Hessian at each point (m, d) times the vector beside it (m, d).
Product: TypeAlias = Callable[[Array, Array], Array]

_BUCKETS = 32
#: Buckets handled in one call.
_AT_ONCE = 8
#: Up to this many columns that are left, or columns in all, are probed one by one: decoding would
#: take as many products.
_FEW, _SMALL = 3 * _BUCKETS, 256
#: Products in all, at most: what they do not decode has hundreds of entries in most of its rows.
_MOST_PRODUCTS = 1500
#: Share of the open cells that a round decodes below which the next one takes twice the buckets.
_LEAST_DECODED = 0.3
#: Size of a rounding error, relative to the terms that were subtracted, and to its row.
_ROUNDING, _ZERO = 1e-9, 1e-13


def find_pattern(product: Product, points: Array, rng: np.random.Generator) -> Structure | None:
    """Find the structure of the Hessian of a function.

    It is decoded at the first point. At every other point the Hessian is recovered on the structure
    and compared with a product with a random vector; where they disagree, the entries that vanished
    before are decoded there and added.

    Parameters
    ----------
    product : callable
        Batched Hessian-vector products.
    points : array, (m, d)
        Random points, two or more: some entries may vanish at one of them.
    rng : numpy.random.Generator

    Returns
    -------
    Structure or None
        None for a dense Hessian: one that fewer products than it has columns do not find, or
        whose values need as many.
    """
    if len(points) < 2:
        raise ValueError(f"a pattern is verified at other points: got {len(points)}")
    structure = _structure(_decode(product, points[0], rng))
    for i in range(1, len(points)):
        if structure is None:
            return None
        if not _holds(product, points[i], structure, rng):
            other = _structure(_decode(product, points[i], rng))
            structure = None if other is None else structure.union(other)
            if structure is None or not _holds(product, points[i], structure, rng):
                return None
    if structure is None or Colouring(structure).count >= max(2, structure.dim):
        return None
    return structure


def _holds(product: Product, point: Array, structure: Structure, rng: np.random.Generator) -> bool:
    """Whether the Hessian at a point has no entries beyond the structure."""
    colouring = Colouring(structure)
    if colouring.count >= structure.dim:
        return True
    (values,) = colouring.recover(_products(product, point, colouring.seeds)[np.newaxis])
    vector = probe(structure, values, rng)
    (found,) = _products(product, point, vector[np.newaxis])
    return agrees(structure, values, vector, found)


def _structure(matrix: scipy.sparse.csr_array | None) -> Structure | None:
    if matrix is None:
        return None
    rows, columns = matrix.nonzero()
    return Structure(matrix.shape[0], rows, columns)


def _products(product: Product, point: Array, vectors: Array) -> Array:
    """Hessian at one point times each vector (k, d)."""
    size = 3 * _AT_ONCE
    parts = [
        product(
            np.broadcast_to(point, vectors[begin : begin + size].shape),
            vectors[begin : begin + size],
        )
        for begin in range(0, len(vectors), size)
    ]
    found = np.concatenate(parts)
    if not np.isfinite(found).all():
        raise ValueError("products with the Hessian are not finite where its pattern is looked for")
    return found


def _decode(
    product: Product, point: Array, rng: np.random.Generator
) -> scipy.sparse.csr_array | None:
    """Return the Hessian at a point; None where that takes too many products, or one a column."""
    dim = point.size
    known = scipy.sparse.csr_array((dim, dim))
    left, buckets, spent = np.arange(dim), _BUCKETS, 0
    while left.size:
        one_by_one = left.size <= _FEW or dim <= _SMALL
        cost = left.size if one_by_one else 3 * buckets
        if spent + cost > min(dim, _MOST_PRODUCTS):
            return None
        spent += cost
        if one_by_one:
            found = _columns(product, point, left, known)
        else:
            found, decoded = _round(product, point, left, known, buckets, rng)
            buckets *= 2 if decoded < _LEAST_DECODED else 1
        known = known + _symmetric(dim, *found)
        if one_by_one:
            break
        left = _disagreeing(product, point, known, rng)
        spent += 1
    return known


def _disagreeing(
    product: Product, point: Array, known: scipy.sparse.csr_array, rng: np.random.Generator
) -> Integers:
    """Rows on which what is known disagrees with a product with a random vector."""
    scale = _units(known)
    vector = rng.choice([-1.0, 1.0], scale.size) * rng.uniform(0.5, 1.5, scale.size) * scale
    (found,) = _products(product, point, vector[np.newaxis])
    noise = _ROUNDING * (abs(known) @ np.abs(vector))
    return np.flatnonzero(np.abs(found - known @ vector) > noise)


def _units(known: scipy.sparse.csr_array) -> Array:
    """Units of the parameters, by the curvatures known so far."""
    curvature = np.abs(known.diagonal())
    usual = np.median(curvature[curvature > 0]) if (curvature > 0).any() else 1.0
    return np.asarray(1 / np.sqrt(np.where(curvature > 0, curvature, usual)))


def _columns(
    product: Product, point: Array, columns: Integers, known: scipy.sparse.csr_array
) -> tuple[Integers, Integers, Array]:
    """Entries of single columns that are not yet known."""
    units = np.zeros((columns.size, point.size))
    units[np.arange(columns.size), columns] = 1.0
    found = _products(product, point, units)
    change = found - (known @ units.T).T
    size = _ZERO * np.abs(found).max(axis=1, keepdims=True)
    which, rows = np.nonzero((np.abs(change) > _ROUNDING * np.abs(found)) & (np.abs(found) > size))
    return rows, columns[which], change[which, rows]


def _round(
    product: Product,
    point: Array,
    left: Integers,
    known: scipy.sparse.csr_array,
    buckets: int,
    rng: np.random.Generator,
) -> tuple[tuple[Integers, Integers, Array], float]:
    """Decode entries of the columns that are left; also return the share of open cells decoded."""
    bucket = rng.integers(0, buckets, left.size)
    scale, size = _units(known), abs(known)
    largest = np.zeros(point.size)
    rows, columns, values = [], [], []
    n_open = 0
    for begin in range(0, buckets, _AT_ONCE):
        members = [left[bucket == b] for b in range(begin, min(begin + _AT_ONCE, buckets))]
        vectors = np.zeros((len(members), 3, point.size))
        names = [1 + (np.arange(m.size) + 1) / max(1, m.size) for m in members]
        checks = [rng.uniform(0.5, 1.5, m.size) for m in members]
        for vector, member, name, check in zip(vectors, members, names, checks, strict=True):
            value = rng.uniform(0.5, 1.5, member.size) * scale[member]
            vector[:, member] = value, value * name, value * check
        flat = vectors.reshape(-1, point.size)
        raw = _products(product, point, flat).reshape(vectors.shape)
        largest = np.maximum(largest, np.abs(raw).max(axis=(0, 1)))
        rest = raw - (known @ flat.T).T.reshape(vectors.shape)
        noise = (size @ np.abs(flat.T)).T.reshape(vectors.shape)
        for i, (member, name, check) in enumerate(zip(members, names, checks, strict=True)):
            if not member.size:
                continue
            first, second, third = rest[i]
            (row,) = np.nonzero(np.abs(first) > _ROUNDING * noise[i, 0] + _ZERO * largest)
            n_open += row.size
            ratio = second[row] / first[row]
            which = np.clip(np.rint((ratio - 1) * member.size) - 1, 0, member.size - 1).astype(int)
            named = np.abs(ratio - name[which]) < 1e-3 / member.size
            named &= np.abs(third[row] / first[row] - check[which]) < 1e-6
            rows.append(row[named])
            columns.append(member[which[named]])
            values.append(first[row[named]] / vectors[i, 0, columns[-1]])
    decoded = sum(map(len, rows)) / max(1, n_open)
    return (np.concatenate(rows), np.concatenate(columns), np.concatenate(values)), decoded


def _symmetric(
    dim: int, rows: Integers, columns: Integers, values: Array
) -> scipy.sparse.csr_array:
    """Matrix with the entries found, in both triangles; of one found twice, the first."""
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    _, once = np.unique(low * dim + high, return_index=True)
    low, high, values = low[once], high[once], values[once]
    off = low != high
    return scipy.sparse.csr_array(
        (
            np.concatenate([values, values[off]]),
            (np.concatenate([low, high[off]]), np.concatenate([high, low[off]])),
        ),
        (dim, dim),
    )
