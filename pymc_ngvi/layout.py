"""The flat unconstrained vector of a model: which component belongs to which variable.

PyMC's variational groups lay out the value variables of the free variables one after the other,
each ravelled. A :class:`Layout` is that order with its names, so that a message can say
``beta[school=Eton]`` instead of "component 7".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """The components that belong to one variable.

    Attributes
    ----------
    name : str
        Name of the value variable: that of the variable itself, or ``tau_log__`` where transformed.
    variable : str
        Name of the variable in the model.
    start : int
        First component.
    shape : tuple of int
    dtype : str
    axes : tuple
        Per axis its dimension's name and coordinate values, or None where it is counted by number.
    """

    name: str
    variable: str
    start: int
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[tuple[str, tuple[Any, ...]] | None, ...]

    @property
    def size(self) -> int:
        """Number of components."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def stop(self) -> int:
        """Component after the last."""
        return self.start + self.size

    def label(self, offset: int) -> str:
        """Name of the component at `offset` from the block's first."""
        if not self.shape:
            return self.name
        indices = np.unravel_index(offset, self.shape)
        parts = [
            str(index) if axis is None else f"{axis[0]}={axis[1][index]}"
            for index, axis in zip(indices, self.axes, strict=True)
        ]
        return f"{self.name}[{', '.join(parts)}]"


class Layout:
    """Order, shapes and names of the flat vector.

    Parameters
    ----------
    model : pymc.Model
    point : mapping of str to array
        A point of the model on the unconstrained scale, for the shapes.

    Attributes
    ----------
    blocks : tuple of Block
    dim : int
        Number of components d.
    """

    def __init__(self, model: Any, point: Mapping[str, NDArray[Any]]) -> None:
        blocks: list[Block] = []
        start = 0
        for variable in model.free_RVs:
            value = model.rvs_to_values[variable]
            shape = np.shape(point[value.name])
            axes = _named_axes(model, variable.name, shape)
            block = Block(value.name, variable.name, start, shape, value.dtype, axes)
            blocks.append(block)
            start = block.stop
        self.blocks = tuple(blocks)
        self.dim = start

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every component."""
        return tuple(block.label(i) for block in self.blocks for i in range(block.size))

    def block_of(self, index: int) -> Block:
        """Find the block that holds component `index`."""
        if not 0 <= index < self.dim:
            raise IndexError(f"component {index} of a vector of {self.dim} components")
        return next(block for block in self.blocks if index < block.stop)

    def label(self, index: int) -> str:
        """Name of component `index`, with coordinates where the model has them."""
        block = self.block_of(index)
        return block.label(index - block.start)

    def unflatten(self, vector: Array) -> dict[str, NDArray[Any]]:
        """Return the vector (d,) as a point: one array per value variable, of its dtype."""
        vector = np.asarray(vector)
        if vector.shape != (self.dim,):
            raise ValueError(f"expected a vector of shape ({self.dim},), not {vector.shape}")
        return {
            block.name: vector[block.start : block.stop].reshape(block.shape).astype(block.dtype)
            for block in self.blocks
        }

    def flatten(self, point: Mapping[str, Any]) -> Array:
        """Return a point, complete and on the unconstrained scale, as a vector (d,)."""
        expected = {block.name for block in self.blocks}
        unknown, missing = sorted(set(point) - expected), sorted(expected - set(point))
        if unknown or missing:
            raise KeyError(
                f"the point has unknown variables {unknown} and lacks {missing}; "
                f"its variables are {[block.name for block in self.blocks]}"
            )
        vector = np.empty(self.dim)
        for block in self.blocks:
            value = np.asarray(point[block.name], dtype=np.float64)
            if value.shape != block.shape:
                raise ValueError(
                    f"{block.name} has shape {block.shape} in the model, "
                    f"but the point gives it shape {value.shape}"
                )
            vector[block.start : block.stop] = value.ravel()
        return vector


def _named_axes(
    model: Any, variable: str, shape: tuple[int, ...]
) -> tuple[tuple[str, tuple[Any, ...]] | None, ...]:
    dims = model.named_vars_to_dims.get(variable, ())
    if len(dims) != len(shape):
        return (None,) * len(shape)
    coords = model.coords
    # A transform may shorten an axis (a simplex of k has k - 1 free components), and its components
    # are then no longer those of the coordinate.
    return tuple(
        (dim, tuple(coords[dim]))
        if dim is not None and coords.get(dim) is not None and len(coords[dim]) == length
        else None
        for dim, length in zip(dims, shape, strict=True)
    )
