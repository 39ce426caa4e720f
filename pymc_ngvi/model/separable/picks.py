"""What rows see of the axes of a variable.

An axis is kept (a block: the outputs of one row), or dropped (its size is 1), or picked: an integer
for each row says which element the row sees. Picks that are known are kept as constants, one for
each array of integers, so that the same picks are the same variable wherever they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import ScalarType

KEEP, DROP = "keep", "drop"
Picks: TypeAlias = tuple[Any, ...]


def is_kept(pick: Any) -> bool:
    """Whether an axis is kept."""
    return isinstance(pick, str) and pick == KEEP


def is_by_row(picks: Picks) -> bool:
    """Whether some axis is picked."""
    return any(not isinstance(pick, str) for pick in picks)


def kept_axes(picks: Picks) -> list[int]:
    """Axes that are kept."""
    return [axis for axis, pick in enumerate(picks) if is_kept(pick)]


class Composer:
    """Computes with picks: in NumPy where they are known, else symbolically."""

    def __init__(self) -> None:
        self._known: dict[bytes, Variable] = {}

    def of(self, function: Callable[..., Any], *arguments: Any) -> Variable:
        """Apply a function of `numpy` or `pytensor.tensor`, and of picks and indices."""
        if any(isinstance(a, Variable) and not isinstance(a, Constant) for a in arguments):
            return function(pt, *map(_as_tensor, arguments))
        values = [a.data if isinstance(a, Constant) else a for a in arguments]
        array = np.asarray(function(np, *values), dtype=np.int64)
        return self._known.setdefault(array.tobytes(), pt.constant(array))


def _as_tensor(argument: Any) -> Any:
    scalar = isinstance(argument, Variable) and isinstance(argument.type, ScalarType)
    return pt.tensor_from_scalar(argument) if scalar else argument
