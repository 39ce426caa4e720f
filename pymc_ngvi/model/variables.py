"""Small helpers for PyTensor variables."""

from __future__ import annotations

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable


def as_tensor(variable: Variable) -> Variable:
    """Return a variable of ``pymc.dims`` without its named dimensions, any other as it is."""
    return variable.values if hasattr(variable.type, "dims") else variable


def value_of(data: Variable) -> np.ndarray:
    """Return the array that a variable of data holds, without a copy where possible."""
    if isinstance(data, Constant):
        return np.asarray(data.data)
    if isinstance(data, SharedVariable):
        return np.asarray(data.get_value(borrow=True))
    return np.asarray(data.eval())
