r"""The function of one row in a sum over rows.

From a tensor whose elements are to be summed, the walk goes down to variables that are affine in
the flat vector. On the way each axis of a variable is either kept (a block: the outputs of one
row), or dropped (its size is 1), or picked: an integer for each row says which element the row
sees. Indices x-independent by nature compose: row r of ``exp(s)[group]`` is exp of ``s[group[r]]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Identity, Neg, Second
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax, log_softmax, softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType

from pymc_ngvi.model.separable.affine import AFFINE, CONSTANT, Dependence, moved_inputs
from pymc_ngvi.model.separable.picks import (
    DROP,
    KEEP,
    Composer,
    Picks,
    is_by_row,
    is_kept,
    kept_axes,
)

# Elements of a block, such as the categories of a softmax: each takes a gradient of its own.
MOST_IN_BLOCK = 32


class NotSeparableError(Exception):
    """A sum is not one over rows, or not found to be one."""


@dataclass
class Leaf:
    """An input of the row function.

    Attributes
    ----------
    symbol : Variable
        Stands for the elements that one row sees.
    source : Variable
        Where they come from.
    picks : tuple or None
        What rows see of the axes of the source; None where its first axis is that of the rows.
    """

    symbol: Variable
    source: Variable
    picks: Picks | None

    @property
    def by_row(self) -> bool:
        """Whether rows see different elements."""
        return self.picks is None or is_by_row(self.picks)


@dataclass
class OneRow:
    """Walks from the summed tensor to the leaves.

    Attributes
    ----------
    dependence : Dependence
    leaves : list of Leaf
        Affine in the flat vector.
    constants : list of Leaf
        Independent of it: data.
    conditions : list of Variable
        What PyMC checks, of the variables met.
    """

    dependence: Dependence
    leaves: list[Leaf] = field(default_factory=list)
    constants: list[Leaf] = field(default_factory=list)
    conditions: list[Variable] = field(default_factory=list)
    composer: Composer = field(default_factory=Composer)
    _memo: dict[Any, Variable] = field(default_factory=dict)

    def of(self, variable: Variable, picks: Picks) -> Variable:
        """Return what one row sees of a variable: its kept axes."""
        picks = tuple(
            DROP if pick is not KEEP and size == 1 else pick
            for pick, size in zip(picks, variable.type.shape, strict=True)
        )
        key = (variable, *(p if isinstance(p, str) else id(p) for p in picks))
        if key not in self._memo:
            self._memo[key] = self._compute(variable, picks)
        return self._memo[key]

    def _compute(self, variable: Variable, picks: Picks) -> Variable:
        kind = self.dependence.of(variable)
        if kind == CONSTANT:
            if isinstance(variable, Constant) and not is_by_row(picks):
                return squeeze(variable, picks)
            return self._leaf(self.constants, variable, picks)
        node = variable.owner
        if kind == AFFINE:
            if node and isinstance(node.op, Elemwise):
                if isinstance(node.op.scalar_op, Identity):
                    return self.of(node.inputs[0], picks)
                if isinstance(node.op.scalar_op, Neg):
                    # Not a leaf: a predictor and its negative would be two, with a matrix each.
                    return -self.of(node.inputs[0], picks)
            return self._leaf(self.leaves, variable, picks)
        for operations, rule in _RULES:
            if isinstance(node.op, operations):
                return rule(self, node, picks)
        raise NotSeparableError(f"{node.op} mixes rows")

    def _leaf(self, leaves: list[Leaf], variable: Variable, picks: Picks) -> Variable:
        kept = [
            size
            for size, pick in zip(variable.type.shape, picks, strict=True)
            if isinstance(pick, str) and pick == KEEP
        ]
        symbol = pt.tensor(dtype=variable.type.dtype, shape=tuple(kept))
        if leaves is self.leaves:
            _check_block(kept)
        leaves.append(Leaf(symbol, variable, picks))
        return symbol

    def data(self, rows: Variable) -> Variable:
        """Return what one row sees of data whose first axis is that of the rows."""
        symbol = pt.tensor(dtype=rows.type.dtype, shape=rows.type.shape[1:])
        self.constants.append(Leaf(symbol, rows, None))
        return symbol

    def select(self, block: Variable, position: int, size: int, pick: Any) -> Variable:
        """Pick one element of a kept axis for each row."""
        chosen = self.data(pt.specify_shape(pt.eq(pick[:, None], pt.arange(size)), (None, size)))
        shape: list[Any] = ["x"] * block.type.ndim
        shape[position] = 0
        return pt.switch(chosen.dimshuffle(shape), block, 0.0).sum(axis=position)


def squeeze(variable: Variable, picks: Picks) -> Variable:
    """Leave out the axes that are dropped."""
    return variable.dimshuffle(kept_axes(picks))


def _check_block(shape: Sequence[int | None]) -> None:
    size = 1
    for n in shape:
        if n is None:
            raise NotSeparableError("a block of rows has a size that is not known")
        size *= n
    if size > MOST_IN_BLOCK:
        raise NotSeparableError(f"rows depend on {size} numbers together")


def _elementwise(rows: OneRow, node: Any, picks: Picks) -> Variable:
    inputs = list(node.inputs)
    if isinstance(node.op.scalar_op, Second) and _same_block(inputs[1], node.outputs[0], picks):
        return rows.of(inputs[1], picks)
    return node.op(*(rows.of(variable, picks) for variable in inputs))


def _same_block(value: Variable, output: Variable, picks: Picks) -> bool:
    return all(value.type.shape[a] == output.type.shape[a] for a in kept_axes(picks))


def _dimshuffle(rows: OneRow, node: Any, picks: Picks) -> Variable:
    order = node.op.new_order
    inner: list[Any] = [DROP] * node.inputs[0].type.ndim
    for pick, axis in zip(picks, order, strict=True):
        if axis != "x":
            inner[axis] = pick
    block = rows.of(node.inputs[0], tuple(inner))
    place = {axis: i for i, axis in enumerate(kept_axes(tuple(inner)))}
    kept = [axis for pick, axis in zip(picks, order, strict=True) if is_kept(pick)]
    return block.dimshuffle(["x" if axis == "x" else place[axis] for axis in kept])


def _reduction(rows: OneRow, node: Any, picks: Picks) -> Variable:
    source = node.inputs[0]
    axes = range(source.type.ndim) if node.op.axis is None else node.op.axis
    _check_block([source.type.shape[axis] for axis in axes])
    outer = iter(picks)
    inner = tuple(KEEP if axis in axes else next(outer) for axis in range(source.type.ndim))
    block = rows.of(source, inner)
    reduced = [i for i, axis in enumerate(kept_axes(inner)) if axis in axes]
    return node.op.clone(axis=tuple(reduced))(block)


def _check(rows: OneRow, node: Any, picks: Picks) -> Variable:
    rows.conditions.extend(node.inputs[1:])
    return rows.of(node.inputs[0], picks)


def _alloc(rows: OneRow, node: Any, picks: Picks) -> Variable:
    value = node.inputs[0]
    inner = picks[len(picks) - value.type.ndim :]
    lost = any(is_kept(pick) for pick in picks[: len(picks) - value.type.ndim])
    padded = (1,) * (len(picks) - value.type.ndim) + value.type.shape
    grown = any(padded[a] != node.outputs[0].type.shape[a] for a in kept_axes(picks))
    if lost or grown:
        raise NotSeparableError("a block is repeated")
    return rows.of(value, inner)


def _reshape(rows: OneRow, node: Any, picks: Picks) -> Variable:
    source, shape = node.inputs[0], node.outputs[0].type.shape
    if kept_axes(picks) or None in shape or None in source.type.shape:
        raise NotSeparableError("a block is reshaped")
    found = [pick for pick in picks if not isinstance(pick, str)]
    strides = [
        math.prod(shape[axis + 1 :]) for axis, pick in enumerate(picks) if not isinstance(pick, str)
    ]
    inner = []
    for axis, size in enumerate(source.type.shape):
        below = math.prod(source.type.shape[axis + 1 :])

        def place(_np: Any, *seen: Any, below: int = below, size: int = size) -> Any:
            return sum(n * pick for n, pick in zip(strides, seen, strict=True)) // below % size

        inner.append(DROP if size == 1 else rows.composer.of(place, *found))
    return rows.of(source, tuple(inner))


def indices_of(node: Any) -> list[Any]:
    """Return the slices and variables by which an operation indexes the axes of its input."""
    given = iter(node.inputs[1:])
    entries = getattr(node.op, "idx_list", None)
    if not entries:
        return [v.data if isinstance(v, Constant) and v.data is None else _slice(v) for v in given]
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, slice):
            parts = (entry.start, entry.stop, entry.step)
            found.append(slice(*(None if part is None else next(given) for part in parts)))
        else:
            found.append(next(given))
    return found


def _slice(variable: Variable) -> Any:
    literal = isinstance(variable, Constant) and isinstance(variable.data, slice)
    return variable.data if literal else variable


def _index(rows: OneRow, node: Any, picks: Picks) -> Variable:
    source, indices = node.inputs[0], indices_of(node)
    indices += [slice(None)] * (source.type.ndim - len(indices))
    outer, inner, after = iter(picks), [], []
    for axis, index in enumerate(indices):
        if not isinstance(index, slice):
            inner.append(KEEP)
            after.append(index)
            continue
        pick = next(outer)
        if is_kept(pick):
            after.append(index)
        elif not isinstance(pick, str) and index != slice(None):
            size = source.type.shape[axis] or source.shape[axis]
            pick = rows.composer.of(_sliced, size, index.start, index.stop, index.step, pick)
        elif isinstance(pick, str) and source.type.shape[axis] != 1:
            pick = KEEP  # a slice of one element
            after.append(pt.arange(source.shape[axis])[index][0])
        inner.append(pick)
    block = rows.of(source, tuple(inner))
    return block[tuple(after)] if after else block


def _gather(rows: OneRow, node: Any, picks: Picks) -> Variable:
    source, indices = node.inputs[0], indices_of(node)
    indices += [slice(None)] * (source.type.ndim - len(indices))
    arrays = [axis for axis, index in enumerate(indices) if not isinstance(index, slice)]
    plain = all(
        index == slice(None) if isinstance(index, slice) else _is_index(index) for index in indices
    )
    if not plain or arrays != list(range(arrays[0], arrays[-1] + 1)):
        raise NotSeparableError("indexing of a kind that is not followed")
    ndim = max(indices[axis].type.ndim for axis in arrays)
    own = picks[arrays[0] : arrays[0] + ndim]
    if kept_axes(own) or not is_by_row(own):
        raise NotSeparableError("indexing within a block")
    found = [_element(rows, indices[axis], own) for axis in arrays]
    return rows.of(source, (*picks[: arrays[0]], *found, *picks[arrays[0] + ndim :]))


def _is_index(index: Any) -> bool:
    return getattr(index.type, "dtype", "").startswith(("int", "uint"))


def _element(rows: OneRow, index: Variable, picks: Picks) -> Variable:
    """Return the element of an array of indices that each row sees, (rows,)."""
    n_rows = next(pick for pick in picks if not isinstance(pick, str)).shape[0]
    picks = picks[len(picks) - index.type.ndim :]
    sizes = index.type.shape
    chosen = [0 if size == 1 else pick for pick, size in zip(picks, sizes, strict=True)]
    element = rows.composer.of(lambda _np, array, *places: array[places], index, *chosen)
    if element.type.ndim == 0:
        return rows.composer.of(lambda np, one, n: one + 0 * np.arange(n), element, n_rows)
    return element


def _sliced(np: Any, n: Any, start: Any, stop: Any, step: Any, pick: Any) -> Any:
    return np.arange(n)[slice(start, stop, step)][pick]


def _join(rows: OneRow, node: Any, picks: Picks) -> Variable:
    parts = [node.inputs[i] for i in moved_inputs(node)]
    if isinstance(node.op, MakeVector):
        axis, parts = 0, [part[None] for part in parts]
        for part, single in zip(parts, node.inputs, strict=True):
            rows._memo[(part, DROP)] = rows._memo[(part, KEEP)] = rows.of(single, ())
        if kept_axes(picks):
            return pt.stack([rows.of(single, ()) for single in node.inputs])
    elif hasattr(node.op, "axis"):
        axis = node.op.axis
    else:
        axis = int(node.inputs[0].data)
    pick, sizes = picks[axis], [part.type.shape[axis] for part in parts]
    if is_kept(pick):
        position = kept_axes(picks).index(axis)
        return pt.concatenate([rows.of(part, picks) for part in parts], axis=position)
    if isinstance(pick, str) or None in sizes:
        raise NotSeparableError("pieces of unknown sizes are joined")
    seen: Any = None
    start = sum(sizes)
    for part, size in zip(reversed(parts), reversed(sizes), strict=True):
        start -= size
        inner = rows.composer.of(_clipped, pick, start, size)
        one = rows.of(part, (*picks[:axis], inner, *picks[axis + 1 :]))
        seen = one if seen is None else pt.switch(rows.data(pick < start + size), one, seen)
    return seen


def _clipped(np: Any, pick: Any, start: int, size: int) -> Any:
    return np.clip(pick - start, 0, size - 1)


def _whole(rows: OneRow, node: Any, picks: Picks) -> Variable:
    """Keep all axes of an operation that works on a small array, and pick from its result."""
    output = node.outputs[0]
    _check_block(output.type.shape)
    inputs = [
        rows.of(v, (KEEP,) * v.type.ndim) if isinstance(v.type, TensorType) else v
        for v in node.inputs
    ]
    return _pick_from(rows, node.op(*inputs), tuple(range(output.type.ndim)), output, picks)


def _along_axis(rows: OneRow, node: Any, picks: Picks) -> Variable:
    output, axis = node.outputs[0], node.op.axis
    if isinstance(axis, tuple):
        (axis,) = axis if len(axis) == 1 else (None,)
    if axis is None:
        raise NotSeparableError(f"{node.op} over several axes")
    axis %= output.type.ndim
    _check_block([output.type.shape[axis]])
    inner = tuple(KEEP if a == axis else pick for a, pick in enumerate(picks))
    kept = kept_axes(inner)
    position = kept.index(axis)
    block = rows.of(node.inputs[0], inner)
    if isinstance(node.op, CumOp):
        block = CumOp(axis=position, mode=node.op.mode)(block)
    else:
        block = (softmax if isinstance(node.op, Softmax) else log_softmax)(block, axis=position)
    return _pick_from(rows, block, tuple(kept), output, picks)


def _pick_from(
    rows: OneRow, block: Variable, axes: tuple[int, ...], output: Variable, picks: Picks
) -> Variable:
    for position, axis in reversed(list(enumerate(axes))):
        pick = picks[axis]
        if is_kept(pick):
            continue
        if isinstance(pick, str):
            block = block.sum(axis=position)
        else:
            block = rows.select(block, position, output.type.shape[axis], pick)
    return block


def _same(rows: OneRow, node: Any, picks: Picks) -> Variable:
    return rows.of(node.inputs[0], picks)


_RULES: tuple[tuple[Any, Any], ...] = (
    (Elemwise, _elementwise),
    (DimShuffle, _dimshuffle),
    (CAReduce, _reduction),
    (CheckAndRaise, _check),
    (SpecifyShape, _same),
    (Alloc, _alloc),
    (Reshape, _reshape),
    (Subtensor, _index),
    (AdvancedSubtensor, _gather),
    ((Join, MakeVector), _join),
    ((Softmax, LogSoftmax, CumOp), _along_axis),
    ((IncSubtensor, AdvancedIncSubtensor), _whole),
)
