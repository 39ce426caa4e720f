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

from pymc_ngvi.core.linalg import Array


@dataclass(frozen=True)
class Slot:
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
        """Name of the component at `offset` from the slot's first."""
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
    slots : tuple of Slot
    dim : int
        Number of components d.
    """

    def __init__(self, model: Any, point: Mapping[str, NDArray[Any]]) -> None:
        slots: list[Slot] = []
        start = 0
        for variable in model.free_RVs:
            value = model.rvs_to_values[variable]
            shape = np.shape(point[value.name])
            axes = _named_axes(model, variable.name, shape)
            slot = Slot(value.name, variable.name, start, shape, value.dtype, axes)
            slots.append(slot)
            start = slot.stop
        self.slots = tuple(slots)
        self.dim = start

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every component."""
        return tuple(slot.label(i) for slot in self.slots for i in range(slot.size))

    def slot_of(self, index: int) -> Slot:
        """Find the slot that holds component `index`."""
        if not 0 <= index < self.dim:
            raise IndexError(f"component {index} of a vector of {self.dim} components")
        return next(slot for slot in self.slots if index < slot.stop)

    def label(self, index: int) -> str:
        """Name of component `index`, with coordinates where the model has them."""
        slot = self.slot_of(index)
        return slot.label(index - slot.start)

    def unflatten(self, vector: Array) -> dict[str, NDArray[Any]]:
        """Return the vector (d,) as a point: one array per value variable, of its dtype."""
        vector = np.asarray(vector)
        if vector.shape != (self.dim,):
            raise ValueError(f"expected a vector of shape ({self.dim},), not {vector.shape}")
        return {
            slot.name: vector[slot.start : slot.stop].reshape(slot.shape).astype(slot.dtype)
            for slot in self.slots
        }

    def flatten(self, point: Mapping[str, Any]) -> Array:
        """Return a point, complete and on the unconstrained scale, as a vector (d,)."""
        expected = {slot.name for slot in self.slots}
        unknown, missing = sorted(set(point) - expected), sorted(expected - set(point))
        if unknown or missing:
            raise KeyError(
                f"the point has unknown variables {unknown} and lacks {missing}; "
                f"its variables are {[slot.name for slot in self.slots]}"
            )
        vector = np.empty(self.dim)
        for slot in self.slots:
            value = np.asarray(point[slot.name], dtype=np.float64)
            if value.shape != slot.shape:
                raise ValueError(
                    f"{slot.name} has shape {slot.shape} in the model, "
                    f"but the point gives it shape {value.shape}"
                )
            vector[slot.start : slot.stop] = value.ravel()
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
