r"""Log densities that are sums over rows of functions of affine row vectors.

.. math:: f(x) = \sum_t \sum_r h_t(u_{t1}[r], \ldots, u_{tK}[r]), \qquad u_{tk} = A_{tk} x + b_{tk}

Most likelihoods and priors are such sums: u is X @ b, an effect by group, a difference, a scale
that all rows see. Gradient and Hessian then need two gradients of the row functions, whose size is
that of the rows, and linear algebra:

.. math:: \nabla f = \sum_{tk} A_{tk}' g_{tk}, \qquad
    \nabla^2 f = \sum_{tkl} A_{tk}' \, \mathrm{diag}(w_{tkl}) \, A_{tl},

and the mean of Hessians over draws takes the mean of w first: one product for all draws. The
pattern of the Hessian is known from the matrices A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.model.separable.affine import CONSTANT, Dependence, Matrices, constants_of
from pymc_ngvi.model.separable.evaluator import BoundTerm, RowEvaluator, TermMatrices
from pymc_ngvi.model.separable.functions import Compile, RowFunction
from pymc_ngvi.model.separable.one_row import Leaf, NotSeparableError
from pymc_ngvi.model.separable.row_term import RowTerm, block_size
from pymc_ngvi.model.separable.sums import RowSum, Sums, conditions_in, opened


@dataclass(frozen=True)
class Separable:
    """The sums over rows of a log density, found in its graph.

    Attributes
    ----------
    x : Variable, (d,)
        The flat vector.
    data : tuple of Variable
        Further inputs of the graph.
    terms : tuple of RowTerm
    fixed : tuple of Variable
        Parts that do not depend on the flat vector.
    requirements : tuple of Variable
        Conditions that do not depend on it.
    remainder : Variable or None
        What is left of the log density, a scalar; None if nothing is.
    reasons : tuple of str
        For each part of the remainder, why it is not a sum over rows.
    dependence : Dependence
    """

    x: Variable
    data: tuple[Variable, ...]
    terms: tuple[RowTerm, ...]
    fixed: tuple[Variable, ...]
    requirements: tuple[Variable, ...]
    remainder: Variable | None
    reasons: tuple[str, ...]
    dependence: Dependence

    def compile(self, function: Compile) -> CompiledRows:
        """Prepare for evaluation; `function` compiles outputs and inputs into a function."""
        return CompiledRows(self, function)


def separate(x: Variable, log_density: Variable, data: Sequence[Variable] = ()) -> Separable:
    """Find the sums over rows in a log density; what is not one goes into the remainder.

    Parameters
    ----------
    x : Variable, (d,)
        The flat vector.
    log_density : Variable, ()
    data : sequence of Variable
        Other inputs of the graph: the rows of a batch.
    """
    with pytensor.config.change_flags(traceback__limit=0):
        log_density = opened(log_density, x)
        sums = Sums(log_density)
        dependence = Dependence(x, [log_density])
        terms: list[RowTerm] = []
        fixed: list[Variable] = []
        requirements: list[Variable] = []
        left: list[RowSum] = []
        reasons: list[str] = []
        for part in sums.parts:
            if not any(map(dependence.of, (part.tensor, *(f for f, _ in part.factors)))):
                fixed.append(part.total)
                continue
            try:
                terms.append(RowTerm.find(part, dependence))
            except NotSeparableError as reason:
                left.append(part)
                reasons.append(str(reason))
        for condition in (c for whole in sums.conditions for c in conditions_in(whole)):
            if dependence.of(condition) == CONSTANT:
                requirements.append(condition)
                continue
            try:
                terms.append(RowTerm.find_condition(condition, dependence))
            except NotSeparableError as reason:
                reasons.append(f"a condition: {reason}")
                left, terms, fixed = sums.parts, [], []
                break
        requirements += [condition for term in terms for condition in term.requirements]
        remainder = None
        if left:
            remainder = sum((part.total for part in left[1:]), start=left[0].total)
    return Separable(
        x,
        tuple(data),
        tuple(terms),
        tuple(fixed),
        tuple(c for c in requirements if not (isinstance(c, Constant) and np.all(c.data))),
        remainder,
        tuple(reasons),
        dependence,
    )


class CompiledRows:
    """Row functions that wait for data.

    Parameters
    ----------
    found : Separable
    function : callable
    """

    def __init__(self, found: Separable, function: Compile) -> None:
        self.found = found
        self._functions = [RowFunction(term, function) for term in found.terms]
        self._wanted = list(_unknown(found))
        self._prepare: Any = None
        # Terms whose matrices do not follow from the rows of a batch, as those of priors: they are
        # the same for all batches, until data in the model's containers are replaced.
        self._lasting = [bool(found.data) and not _reads(term, found) for term in found.terms]
        # The first input is the weight of terms that read no rows, the same in all batches.
        seen = [ancestors(leaf.source for leaf in term.constants) for term in found.terms]
        self._common = [
            lasting and {*above}.isdisjoint(found.data[1:])
            for lasting, above in zip(self._lasting, seen, strict=True)
        ]
        self._held = [v for v in ancestors(self._wanted) if isinstance(v, SharedVariable)]
        self._kept: dict[int, TermMatrices] = {}
        self._kept_of: list[Any] = []

    def bind(self, *data: Any) -> RowEvaluator:
        """Build the matrices from the data that the model holds now, and from these inputs.

        Raises
        ------
        TooLargeError
            Where a matrix would not fit in memory.
        """
        found = self.found
        self._forget_what_was_replaced()
        values = self._values(data)
        matrices = Matrices(found.x, found.dependence, values)

        def value(variable: Variable) -> np.ndarray:
            return variable.data if isinstance(variable, Constant) else values[variable]

        terms = []
        for number, (term, function) in enumerate(zip(found.terms, self._functions, strict=True)):
            n_rows = next((len(value(p)) for p in term.picks if not isinstance(p, str)), 1)
            if not n_rows:  # no data yet, or none left by a mask: the sum is zero
                continue
            bound = self._kept.get(number)
            if bound is None:
                bound = TermMatrices(function, n_rows)
                for leaf in term.leaves:
                    source = matrices.of(leaf.source)
                    positions = _seen(np.arange(source.size).reshape(source.shape), leaf, value)
                    bound.add_leaf(source, positions.reshape(-1, block_size(leaf)), leaf)
                if self._lasting[number]:
                    self._kept[number] = bound
            constants = [_seen(value(leaf.source), leaf, value) for leaf in term.constants]
            terms.append(BoundTerm(bound, constants, self._common[number]))
        offset = float(sum(np.sum(value(part)) for part in found.fixed))
        if not all(np.all(value(condition)) for condition in found.requirements):
            offset = -np.inf
        return RowEvaluator(terms, offset, found.x.type.shape[0])

    def _forget_what_was_replaced(self) -> None:
        now = [variable.get_value(borrow=True) for variable in self._held]
        if not all(mine is other for mine, other in zip(self._kept_of, now, strict=False)):
            self._kept = {}
        self._kept_of = now

    def _values(self, data: Sequence[Any]) -> dict[Variable, np.ndarray]:
        values: dict[Variable, np.ndarray] = {}
        computed = []
        inputs = dict(zip(self.found.data, data, strict=True))
        for variable in self._wanted:
            if isinstance(variable, SharedVariable):
                values[variable] = np.asarray(variable.get_value(borrow=True))
            elif variable in inputs:
                values[variable] = np.asarray(inputs[variable])
            else:
                computed.append(variable)
        if computed:
            if self._prepare is None:
                self._prepare = _function([self.found.x, *self.found.data], computed)
            x = np.zeros(self.found.x.type.shape)
            values.update(zip(computed, self._prepare(x, *data), strict=True))
        return values


def _function(inputs: list[Variable], outputs: list[Variable]) -> Any:
    flags = {"cxx": "", "traceback__limit": 0, "traceback__compile_limit": 0}
    with pytensor.config.change_flags(**flags):
        return pytensor.function(inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore")


def _reads(term: RowTerm, found: Separable) -> bool:
    """Whether the matrices of a term follow from inputs of the graph other than the flat vector."""
    picks = [pick for leaf in term.leaves for pick in leaf.picks or () if not isinstance(pick, str)]
    picks += [pick for pick in term.picks if not isinstance(pick, str)]
    sources = constants_of([leaf.source for leaf in term.leaves], found.dependence)
    by_row = any(leaf.picks is None for leaf in term.leaves)
    return by_row or not {*ancestors([*picks, *sources])}.isdisjoint(found.data)


def _unknown(found: Separable) -> dict[Variable, None]:
    """Variables whose values are needed and are not literal constants."""
    leaves = [leaf for term in found.terms for leaf in (*term.leaves, *term.constants)]
    sources = [leaf.source for term in found.terms for leaf in term.leaves]
    wanted = [
        *constants_of(sources, found.dependence),
        *(leaf.source for term in found.terms for leaf in term.constants),
        *(pick for leaf in leaves for pick in leaf.picks or () if not isinstance(pick, str)),
        *(pick for term in found.terms for pick in term.picks if not isinstance(pick, str)),
        *found.fixed,
        *found.requirements,
    ]
    return dict.fromkeys(v for v in wanted if not isinstance(v, Constant))


def _seen(array: np.ndarray, leaf: Leaf, value: Any) -> np.ndarray:
    """Return what rows see of an array: (rows, ...), or (...) if all see the same."""
    if leaf.picks is None:
        return array
    picked = [a for a, p in enumerate(leaf.picks) if not isinstance(p, str)]
    dropped = [a for a, p in enumerate(leaf.picks) if isinstance(p, str) and p == "drop"]
    kept = [a for a in range(array.ndim) if a not in picked and a not in dropped]
    index = (*(value(leaf.picks[a]) for a in picked), *(0 for _ in dropped))
    return array.transpose([*picked, *dropped, *kept])[index]
