"""The flat unconstrained vector of a model: which component belongs to which variable.

The vector holds the value variables of the free variables one after the other, each ravelled, in
the order of ``model.free_RVs``, as PyMC's variational approximations have it. A :class:`Layout` is
this order with the names of the components, so that a message can say ``beta[school=Eton]``
instead of "component 7". An :class:`Outline` is what can be written down of a layout, to tell later
whether a fit belongs to a model.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array


@dataclass(frozen=True)
class Slot:
    """The components of the flat vector that belong to one variable.

    Attributes
    ----------
    name : str
        Name of the value variable: that of the variable itself, or, where it is transformed, a name
        such as ``tau_log__``.
    variable : str
        Name of the variable in the model.
    start : int
        Index of the first component.
    shape : tuple of int
        Shape of the value variable.
    dtype : str
        Its dtype.
    axes : tuple
        For each axis the name and the coordinate values of its dimension, or None where components
        are numbered along it.
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
        """Index of the component after the last."""
        return self.start + self.size

    @property
    def where(self) -> slice:
        """Slice of the flat vector."""
        return slice(self.start, self.stop)

    @cached_property
    def labels(self) -> list[str]:
        """Names of all components, in order."""
        if not self.shape:
            return [self.name]
        parts = [
            [str(i) if axis is None else f"{axis[0]}={axis[1][i]}" for i in range(length)]
            for length, axis in zip(self.shape, self.axes, strict=True)
        ]
        return [f"{self.name}[{', '.join(indices)}]" for indices in itertools.product(*parts)]


@dataclass(frozen=True)
class Outline:
    """What is known of a flat vector, to compare it with another; None is unknown.

    Attributes
    ----------
    shapes : mapping of str to sequence, or None
        Shape of each value variable by name, in order. A length may be None, which is unknown.
    names : sequence of str, or None
        Names of the components, in order.
    """

    shapes: Mapping[str, Sequence[int | None]] | None = None
    names: Sequence[str] | None = None

    def differences(self, fit: Outline, *, ordered: bool = True) -> str:
        """Say how this model differs from the one that was fitted; nothing if it does not.

        Parameters
        ----------
        fit : Outline
            Outline of the fit. What is unknown on either side is not compared.
        ordered : bool
            Whether the order of the variables matters.

        Examples
        --------
        >>> Outline({"a": (2,), "c": ()}).differences(Outline({"a": (3,), "b": ()}))
        'the model lacks b; the model adds c; a has shape (2,) in the model and (3,) in the fit'
        """
        problems: list[str] = []
        if self.shapes is not None and fit.shapes is not None:
            problems = _set_differences(self.shapes, fit.shapes) + [
                f"{name} has shape {tuple(self.shapes[name])} in the model and {tuple(shape)} in "
                "the fit"
                for name, shape in fit.shapes.items()
                if name in self.shapes and not _agree(self.shapes[name], shape)
            ]
            if ordered and not problems and list(self.shapes) != list(fit.shapes):
                problems = [
                    f"the order of the variables is {', '.join(self.shapes)} in the model and "
                    f"{', '.join(fit.shapes)} in the fit"
                ]
        if not problems and self.names is not None and fit.names is not None:
            if len(self.names) == len(fit.names):
                pairs = zip(self.names, fit.names, strict=True)
                problems = [
                    f"the model has {name} where the fit has {other}"
                    for name, other in pairs
                    if name != other
                ]
            else:
                problems = _set_differences(self.names, fit.names) or [
                    f"the model has {len(self.names)} components and the fit {len(fit.names)}"
                ]
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        return "; ".join(problems[:5]) + more


class Layout:
    """Order, shapes and names of the flat vector of a model.

    Parameters
    ----------
    model : pymc.Model
    point : mapping of str to array
        A point of the model on the unconstrained scale, which tells the shapes.

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
            axes = named_axes(model, variable.name, shape)
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
        return tuple(label for slot in self.slots for label in slot.labels)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each value variable by name, in order."""
        return {slot.name: slot.shape for slot in self.slots}

    @property
    def outline(self) -> Outline:
        """What tells this layout from that of another model."""
        return Outline(self.shapes, self.names)

    def label(self, index: int) -> str:
        """Name of the component `index`, by coordinates where the model has them."""
        if not 0 <= index < self.dim:
            raise IndexError(f"there is no component {index} in a vector of {self.dim} components")
        slot = next(slot for slot in self.slots if index < slot.stop)
        return slot.labels[index - slot.start]

    def unflatten(self, vectors: Array) -> dict[str, NDArray[Any]]:
        """Return a vector (d,) as a point, or vectors (n, d) as points.

        Returns
        -------
        dict of str to array
            For each value variable an array of its shape and dtype, behind the axis (n,) if there
            is one.
        """
        vectors = np.asarray(vectors)
        if vectors.shape[-1:] != (self.dim,):
            raise ValueError(
                f"vectors of {self.dim} components are needed, not an array {vectors.shape}"
            )
        rows = vectors.shape[:-1]
        return {
            slot.name: vectors[..., slot.where]
            .reshape((*rows, *slot.shape))
            .astype(slot.dtype, order="C")
            for slot in self.slots
        }

    def flatten(self, point: Mapping[str, Any]) -> Array:
        """Return a point on the unconstrained scale, with all variables, as a vector (d,)."""
        expected = {slot.name for slot in self.slots}
        unknown, missing = sorted(set(point) - expected), sorted(expected - set(point))
        if unknown or missing:
            raise KeyError(
                f"the point has unknown variables {unknown} and lacks {missing}; "
                f"the variables of the model are {[slot.name for slot in self.slots]}"
            )
        vector = np.empty(self.dim)
        for slot in self.slots:
            value = np.asarray(point[slot.name], dtype=np.float64)
            if value.shape != slot.shape:
                raise ValueError(
                    f"{slot.name} has shape {slot.shape} in the model, "
                    f"but the point gives it shape {value.shape}"
                )
            vector[slot.where] = value.ravel()
        return vector


def _set_differences(model: Collection[str], fit: Collection[str]) -> list[str]:
    here, there = set(model), set(fit)
    lacking = [f"the model lacks {name}" for name in fit if name not in here]
    return lacking + [f"the model adds {name}" for name in model if name not in there]


def _agree(shape: Sequence[int | None], other: Sequence[int | None]) -> bool:
    return len(shape) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, other, strict=True)
    )


def named_axes(
    model: Any, variable: str, shape: tuple[int, ...]
) -> tuple[tuple[str, tuple[Any, ...]] | None, ...]:
    """Return names and coordinates of the axes of a variable, as a :class:`Slot` keeps them."""
    dims = model.named_vars_to_dims.get(variable, ())
    if len(dims) != len(shape):
        return (None,) * len(shape)
    coords = model.coords
    # A transform may shorten an axis (a simplex of k has k - 1 free components). Its components
    # then no longer belong to the coordinates of the dimension.
    return tuple(
        (dim, tuple(coords[dim]))
        if dim is not None and coords.get(dim) is not None and len(coords[dim]) == length
        else None
        for dim, length in zip(dims, shape, strict=True)
    )
