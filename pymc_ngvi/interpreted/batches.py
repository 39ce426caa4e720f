"""Operations on a batch of matrices or vectors at once.

PyTensor runs them on one member of the batch after the other, through `numpy.vectorize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from pytensor.graph.basic import Apply

from pymc_ngvi.interpreted.elementwise import Array, ArrayFunction

# Triangular systems of up to so many rows are solved a row at a time, in all members at once.
_FEW_ROWS = 16


class NotAtOnceError(Exception):
    """These arrays are to be taken one member of the batch after the other."""


def batch_function(node: Apply) -> ArrayFunction | None:
    """Find the function of whole batches that a `Blockwise` is; None if none is known.

    Where a function raises an error, PyTensor's own runs instead and says what is wrong.
    """
    make = _MAKERS.get(type(node.op.core_op).__name__)
    function = make(node) if make else None
    if function is None:
        return None

    def run(*inputs: Array) -> Any:
        try:
            return function(*inputs)
        except (NotAtOnceError, np.linalg.LinAlgError, ValueError, IndexError):
            storage: list[list[Any]] = [[None] for _ in node.outputs]
            node.op.perform(node, inputs, storage)
            results = tuple(cell[0] for cell in storage)
            return results if len(results) > 1 else results[0]

    return run


def _cholesky(node: Apply) -> ArrayFunction | None:
    if not node.op.core_op.lower:
        return None
    return lambda matrix: np.linalg.cholesky(matrix)


def _solve_triangular(node: Apply) -> ArrayFunction | None:
    core, dtype = node.op.core_op, node.outputs[0].type.dtype
    if dtype != "float64" or getattr(core, "trans", 0) not in (0, "N"):
        return None
    lower, unit = core.lower, core.unit_diagonal

    def solve(matrix: Array, right: Array, n_right: int = core.b_ndim) -> Array:
        if n_right == 1 and matrix.ndim > 2 and matrix.shape[-3] == 1:
            # Vectors with one matrix in common are the columns of one right side.
            columns = solve(matrix[..., 0, :, :], right.swapaxes(-1, -2), 2)
            return np.ascontiguousarray(columns.swapaxes(-1, -2))
        batch = np.broadcast_shapes(matrix.shape[:-2], right.shape[: right.ndim - n_right])
        core_shape = right.shape[right.ndim - n_right :]
        matrices = np.broadcast_to(matrix, (*batch, *matrix.shape[-2:]))
        rights = np.broadcast_to(right, (*batch, *core_shape))
        if len(batch) and matrix.shape[-1] <= _FEW_ROWS:
            columns = rights if n_right == 2 else rights[..., np.newaxis]
            return _substitute(matrices, columns, lower, unit).reshape(*batch, *core_shape)
        solution = np.empty((*batch, *core_shape))
        trtrs = scipy.linalg.lapack.dtrtrs
        for i in np.ndindex(batch):
            # The transpose of an array in C's order is one in Fortran's, which is not copied.
            x, info = trtrs(matrices[i].T, rights[i], lower=not lower, trans=1, unitdiag=unit)
            solution[i] = np.nan if info else x
        return solution

    return solve


def _substitute(matrices: Array, rights: Array, lower: bool, unit: bool) -> Array:
    """Solve triangular systems (..., k, k) for columns (..., k, m) by substitution.

    LAPACK solves one system at a time, and with many columns on several threads: those of 100 pairs
    of effects took 400 times as long on a machine that had other things to do.
    """
    k = matrices.shape[-1]
    solution = np.array(rights)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for i in range(k) if lower else reversed(range(k)):
            found = solution[..., i, :]
            if not unit:
                found /= matrices[..., i, i, np.newaxis]
            left = slice(i + 1, k) if lower else slice(0, i)
            factors = matrices[..., left, i, np.newaxis]
            solution[..., left, :] -= factors * found[..., np.newaxis, :]
    if not unit:
        singular = (np.diagonal(matrices, axis1=-2, axis2=-1) == 0).any(axis=-1)
        solution[singular] = np.nan
    return solution


def _arange(node: Apply) -> ArrayFunction:
    dtype = node.outputs[0].type.dtype

    def arange(start: Array, stop: Array, step: Array) -> Array:
        if any(
            values.size == 0 or (values != values.flat[0]).any() for values in (start, stop, step)
        ):
            raise NotAtOnceError
        one = np.arange(start.flat[0], stop.flat[0], step.flat[0], dtype=dtype)
        batch = np.broadcast_shapes(start.shape, stop.shape, step.shape)
        return np.array(np.broadcast_to(one, (*batch, len(one))))

    return arange


def _alloc_diag(node: Apply) -> ArrayFunction | None:
    core = node.op.core_op
    if (core.axis1, core.axis2) != (0, 1) or node.inputs[0].type.ndim - node.op.batch_ndim(
        node
    ) > 1:
        return None

    def allocate(values: Array) -> Array:
        n = values.shape[-1] + abs(core.offset)
        matrix = np.zeros((*values.shape[:-1], n, n), values.dtype)
        i = np.arange(values.shape[-1])
        matrix[..., i + max(-core.offset, 0), i + max(core.offset, 0)] = values
        return matrix

    return allocate


def _take(node: Apply) -> ArrayFunction | None:
    """Index the first axes of each member of a batch by arrays of integers of its own."""
    core, n_batch = node.op.core_op, node.op.batch_ndim(node)
    indices = node.inputs[1:]
    plain = getattr(core, "idx_list", None) in (None, tuple(range(len(indices))))
    ndims = {getattr(index.type, "ndim", None) for index in indices}
    whole = all(getattr(i.type, "dtype", "").startswith(("int", "uint")) for i in indices)
    if not plain or not whole or len(ndims) != 1:
        return None
    n_inner = ndims.pop() - n_batch

    def take(values: Array, *indices: Array) -> Array:
        batches = [index.shape[:n_batch] for index in indices]
        if all(size == 1 for batch in batches for size in batch):
            inner = tuple(index.reshape(index.shape[n_batch:]) for index in indices)
            return np.array(values[(slice(None),) * n_batch + inner])
        batch = np.broadcast_shapes(values.shape[:n_batch], *batches)
        whole = np.broadcast_to(values, (*batch, *values.shape[n_batch:]))
        members = np.ogrid[tuple(slice(size) for size in batch)]
        places = [member.reshape(member.shape + (1,) * n_inner) for member in members]
        return whole[(*places, *indices)]

    return take


def _join(node: Apply) -> ArrayFunction:
    """Concatenate the members of several batches, some of which may be one for all."""
    core, n_batch = node.op.core_op, node.op.batch_ndim(node)

    def join(*arrays: Array) -> Array:
        if hasattr(core, "axis"):
            axis = core.axis
        else:  # an input of its own before PyTensor 3
            axis, arrays = int(_common(arrays[0], n_batch)), arrays[1:]
        axis %= arrays[0].ndim - n_batch
        batch = np.broadcast_shapes(*(array.shape[:n_batch] for array in arrays))
        whole = [np.broadcast_to(array, (*batch, *array.shape[n_batch:])) for array in arrays]
        return np.concatenate(whole, axis=n_batch + axis)

    return join


def _split(node: Apply) -> ArrayFunction:
    """Split the members of a batch, all at the same places."""
    core, n_batch = node.op.core_op, node.op.batch_ndim(node)

    def split(values: Array, *how: Array) -> Any:
        sizes = _common(how[-1], n_batch)
        # The axis is an input of its own before PyTensor 3.
        axis = core.axis if hasattr(core, "axis") else int(_common(how[0], n_batch))
        axis = n_batch + axis % (values.ndim - n_batch)
        batch = np.broadcast_shapes(values.shape[:n_batch], *(x.shape[:n_batch] for x in how))
        if len(sizes) != core.len_splits or sizes.sum() != values.shape[axis] or (sizes < 0).any():
            raise NotAtOnceError
        whole = np.broadcast_to(values, (*batch, *values.shape[n_batch:]))
        parts = tuple(np.array(part) for part in np.split(whole, np.cumsum(sizes[:-1]), axis))
        return parts if len(parts) > 1 else parts[0]

    return split


def _common(values: Array, n_batch: int) -> Array:
    """Return what all members of a batch have in common."""
    members = values.reshape(-1, *values.shape[n_batch:])
    if not len(members) or (members != members[0]).any():
        raise NotAtOnceError
    return members[0]


_MAKERS: dict[str, Callable[[Apply], ArrayFunction | None]] = {
    "ARange": _arange,
    "AdvancedSubtensor": _take,
    "AllocDiag": _alloc_diag,
    "Cholesky": _cholesky,
    "Join": _join,
    "SolveTriangular": _solve_triangular,
    "Split": _split,
}
