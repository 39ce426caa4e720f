"""Where a log density may have kinks and jumps: operations whose derivative is not continuous.

An absolute value, a maximum, a comparison or a rounding on the way from the parameters to the log
density has a kink or a jump only where it switches from one side to the other. Most never switch
(the scale that a prior compares with zero is always positive: such comparisons are left out where
bounds show it), and many that do are smooth all the same (two formulas for one function). So this
is a hint where to look, and no proof. What is seen of a number only by comparing it, as in a check
of parameters, counts by the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import basic as scalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Max, Min
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.sort import SortOp

from pymc_ngvi._compat import SHIFTED_BY_MAXIMUM, interpreted_mode
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.bounds import Bounds
from pymc_ngvi.model.graph import Graph
from pymc_ngvi.model.terms import Terms

# Roundings, whose value itself tells the side.
_STEPS = (
    scalar.Ceil,
    scalar.Floor,
    scalar.IntDiv,
    scalar.RoundHalfAwayFromZero,
    scalar.RoundHalfToEven,
    scalar.Sign,
    scalar.Trunc,
)


# Numbers of this share of the largest in their array may be zero but for rounding.
_ROUNDING = 1e-10

# What a user calls an operation, where PyTensor calls it otherwise.
_WORDS = {
    "gt": "comparison",
    "ge": "comparison",
    "lt": "comparison",
    "le": "comparison",
    "eq": "comparison",
    "neq": "comparison",
    "roundhalftoeven": "round",
    "roundhalfawayfromzero": "round",
    "sortop": "sort",
}


@dataclass(frozen=True)
class Kink:
    """An operation whose derivative is not continuous.

    Attributes
    ----------
    operation : str
        Its name.
    side : Variable or None
        A number for each element that changes where the element switches sides; None where that
        cannot be seen from outside: in a loop, or in an operation of somebody else.
    by_sign : bool
        Whether it is the sign of `side` that changes.
    """

    operation: str
    side: Variable | None
    by_sign: bool = False


class Kinks:
    """The operations of a log density that may give it kinks and jumps.

    Parameters
    ----------
    graph : Graph
    terms : Terms
        Name the variables in whose terms the operations are.
    """

    def __init__(self, graph: Graph, terms: Terms) -> None:
        self._inputs = [graph.x, *graph.data]
        self._kinks = [*_find([graph.x], graph.log_density)]
        self._terms = terms
        self._function: Any = None

    def __bool__(self) -> bool:
        return bool(self._kinks)

    def crossed(self, draws: Array, rows: tuple[Any, ...]) -> list[str]:
        """Return the operations that are not on the same side at all draws (n, d).

        Parameters
        ----------
        draws : array, (n, d)
        rows : tuple
            Rows of data for the inputs ``graph.data``, the same for all draws.
        """
        if self._function is None:
            sides = [kink.side for kink in self._kinks if kink.side is not None]
            # Once, and of a few draws: compiling would take longer.
            with pytensor.config.change_flags(traceback__limit=0, cxx=""):
                self._function = pytensor.function(
                    self._inputs, sides, mode=interpreted_mode(), on_unused_input="ignore"
                )
        names = [kink.operation for kink in self._kinks if kink.side is None]
        seen = [kink for kink in self._kinks if kink.side is not None]
        of_draws = [self._function(draw, *rows) for draw in draws]
        for kink, *sides in zip(seen, *of_draws, strict=True):
            if _differ([_sign(side) for side in sides] if kink.by_sign else sides):
                names.append(kink.operation)
        return self._located(dict.fromkeys(names))

    def _located(self, names: Iterable[str]) -> list[str]:
        """Add to each operation the variables in whose terms it is."""
        values = self._terms.data.model.value_vars
        where: dict[str, list[str]] = {name: [] for name in names}
        for term in self._terms:
            for name in {kink.operation for kink in _find(values, term.logp)} & set(where):
                where[name].append(str(term.variable.name))
        return [f"{name} in {', '.join(of)}" if of else name for name, of in where.items()]


def _sign(values: Array) -> Array:
    """Return the sign of each element; NaN where it is one of rounding, for all that is known.

    Squared distances between points, of which the ones to themselves should be zero, are so.
    """
    size = np.abs(values)
    near = size <= _ROUNDING * size[np.isfinite(size)].max(initial=0.0)
    return np.where(near, np.nan, np.sign(values))


def _differ(sides: list[Array]) -> bool:
    """Whether any element is not the same at all draws, where it is known."""
    if len({np.shape(side) for side in sides}) > 1:
        return True
    return bool((np.fmax.reduce(sides) != np.fmin.reduce(sides)).any(where=~np.isnan(sides).all(0)))


def _find(inputs: Iterable[Variable], output: Variable) -> Iterator[Kink]:
    """Yield what may have a kink between the inputs and the output of a graph."""
    downstream, bounds = set(inputs), Bounds()
    counting = _counting(output)
    for node in io_toposort([], [output]):
        bounds.add(node)
        moving = [variable for variable in node.inputs if variable in downstream]
        if not moving or isinstance(node.op, Shape | Shape_i) or bounds.decide(node):
            continue
        downstream.update(node.outputs)
        if node in counting:
            yield from _of_node(node, moving)


def _counting(output: Variable) -> set[Apply]:
    """Nodes on which the output depends other than by a comparison of what they compute."""
    found: set[Apply] = set()
    open_ends = [output]
    while open_ends:
        node = open_ends.pop().owner
        if node is None or node in found:
            continue
        found.add(node)
        if not _is_discrete(node):
            open_ends += node.inputs
    return found


def _is_discrete(node: Apply) -> bool:
    """Whether a node makes discrete numbers of continuous ones, as comparisons and casts do."""
    return any(map(_is_float, node.inputs)) and not any(map(_is_float, node.outputs))


def _of_node(node: Apply, moving: list[Variable]) -> Iterator[Kink]:
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, SHIFTED_BY_MAXIMUM):
        return  # it cancels
    if isinstance(op, HasInnerGraph):
        for output in op.fgraph.outputs:
            yield from (Kink(k.operation, None) for k in _find(op.fgraph.inputs, output))
        return
    name = str(getattr(op, "scalar_op", op)).split("{")[0].lower()
    name = _WORDS.get(name, name)
    known = type(op).__module__.split(".")[0] in ("pytensor", "pymc")
    if isinstance(op, Max | Min | SortOp) or not known:
        yield Kink(name, None)
    elif isinstance(op, Elemwise):
        for gap in _gaps(op.scalar_op, node):
            yield Kink(name, gap, by_sign=True)
        side = _side(op.scalar_op, node)
        if side is not None:
            yield Kink(name, side)
    # From continuous numbers to discrete ones, as comparisons and casts lead.
    if any(_is_float(variable) for variable in moving):
        for output in node.outputs:
            if not _is_float(output) and hasattr(output.type, "dtype"):
                yield Kink(name, output)


def _gaps(op: Any, node: Apply) -> list[Variable]:
    """Return numbers whose sign says for each element on which side it is."""
    first, *others = node.inputs
    if isinstance(op, scalar.Abs):
        return [first]
    several = isinstance(op, scalar.ScalarMaximum | scalar.ScalarMinimum | scalar.Clip)
    return [first - other for other in others] if several else []


def _side(op: Any, node: Apply) -> Variable | None:
    """Say for each element on which side it is; None for an operation without a jump."""
    if isinstance(op, scalar.Mod):
        return pt.floor(node.inputs[0] / node.inputs[1])
    return node.outputs[0] if isinstance(op, _STEPS) else None


def _is_float(variable: Variable) -> bool:
    return str(getattr(variable.type, "dtype", "")).startswith("float")
