"""Arithmetic on constants and data in double precision.

PyTensor gives the number 3 in a model the type int8 and 0.5 the type float32, and an operation on
such numbers alone the narrow type that NumPy gives it. In ``nu * sigma**2`` with ``nu=3`` and
``sigma=10`` the product of 300 is therefore 44, and ``gammaln(nu / 2)`` is right to seven digits
only. Once the parameters come in, everything is float64: what is lost is lost before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytensor.scalar as ps
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

# Results of these operations on whole numbers are the same in float64, but for the overflow.
_ARITHMETIC = ps.Add | ps.Sub | ps.Mul | ps.Pow | ps.Sqr | ps.Neg | ps.Abs | ps.Sign

# These rearrange or repeat the values of their first input; the others are indices and shapes.
_CARRIERS = (
    DimShuffle,
    Alloc,
    Reshape,
    SpecifyShape,
    Subtensor,
    AdvancedSubtensor,
    CheckAndRaise,
    ViewOp,
)

_FLOATING = {"float16", "float32"}
_NARROW = _FLOATING | {"int8", "int16", "int32", "uint8", "uint16", "uint32"}


def in_double_precision(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the graphs with their elementwise arithmetic in float64 where it was narrower.

    Numbers that feed a floating-point operation or a comparison are cast to float64, and so is what
    integer arithmetic makes of them on the way. Indices, shapes and integer results stay as they
    are, and what a model casts to single precision itself is rounded to it. The given graphs are
    not changed.
    """
    return _Widening(outputs).outputs


class _Widening:
    """For each variable a copy of its own type, and for a narrow one its value in float64."""

    def __init__(self, outputs: Sequence[Variable]) -> None:
        self._same: dict[Variable, Variable] = {}
        self._wide: dict[Variable, Variable] = {}
        for node in io_toposort([], outputs):
            if isinstance(node.op, Elemwise) and len(node.outputs) == 1:
                self._compute(node)
            else:
                self._copy(node)
                self._carry(node)
        self.outputs = [
            self._widen(output) if output.dtype in _FLOATING else self._keep(output)
            for output in outputs
        ]

    def _keep(self, variable: Variable) -> Variable:
        return self._same.get(variable, variable)

    def _widen(self, variable: Variable) -> Variable:
        """Return the value of a numeric variable in float64."""
        if variable.dtype == "float64":
            return self._keep(variable)
        if variable not in self._wide:
            if isinstance(variable, Constant):
                double = variable.type.clone(dtype="float64")
                wide = double.make_constant(variable.data.astype("float64"), name=variable.name)
            else:
                wide = self._keep(variable).astype("float64")
            self._wide[variable] = wide
        return self._wide[variable]

    def _widen_if_narrow(self, variable: Variable) -> Variable:
        return self._widen(variable) if _is_narrow(variable) else self._keep(variable)

    def _copy(self, node: Apply, inputs: Iterable[Variable] | None = None) -> None:
        """Replace a node by one of other inputs and the same outputs."""
        new = [self._keep(variable) for variable in node.inputs] if inputs is None else [*inputs]
        if any(mine is not old for mine, old in zip(new, node.inputs, strict=True)):
            copy = node.clone_with_new_inputs(new, strict=False)
            self._same.update(zip(node.outputs, copy.outputs, strict=True))

    def _carry(self, node: Apply) -> None:
        """Widen values before they are rearranged, if they were computed in a narrow type."""
        if not isinstance(node.op, _CARRIERS) or not _is_narrow(node.inputs[0]):
            return
        first, *others = node.inputs
        if first in self._wide or isinstance(first, Constant):
            inputs = [self._widen(first), *(self._keep(variable) for variable in others)]
            self._wide[node.outputs[0]] = node.clone_with_new_inputs(inputs, strict=False).out

    def _compute(self, node: Apply) -> None:
        """Widen the inputs of an elementwise operation where it is one on numbers."""
        (output,), operation = node.outputs, node.op.scalar_op
        if isinstance(operation, ps.Cast):
            self._copy(node)
        elif output.dtype in _FLOATING:
            self._wide[output] = node.op(*self._arguments(node, self._widen))
            self._same[output] = self._wide[output].astype(output.dtype)
        elif output.dtype in ("float64", "bool"):
            self._copy(node, self._arguments(node, self._widen_if_narrow))
        else:
            self._copy(node)
            if _is_narrow(output) and isinstance(operation, _ARITHMETIC):
                self._wide[output] = node.op(*map(self._widen, node.inputs))

    def _arguments(self, node: Apply, widen: Callable[[Variable], Variable]) -> list[Variable]:
        """Return the inputs of an operation widened, but a condition as it is."""
        inputs = [widen(variable) for variable in node.inputs]
        if isinstance(node.op.scalar_op, ps.Switch):
            inputs[0] = self._keep(node.inputs[0])
        return inputs


def _is_narrow(variable: Variable) -> bool:
    return getattr(variable.type, "dtype", None) in _NARROW
