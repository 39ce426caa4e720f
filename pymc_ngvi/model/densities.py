"""The log density of a model at many draws: in all, by observation, and with each one left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.pareto import leave_out
from pymc_ngvi.model.data import Rows
from pymc_ngvi.model.executors import executor_for
from pymc_ngvi.model.partitions import divide
from pymc_ngvi.model.passes import OwnFunctions, Passes, Work, sum_in_order
from pymc_ngvi.model.terms import Terms
from pymc_ngvi.model.variables import as_tensor
from pymc_ngvi.model.vectorised import FIRST_DRAWS, NUMBERS_PER_CALL, DrawFunction

Values = dict[str, np.ndarray]

# A log-likelihood of more numbers than this, which take 4 GB, is refused.
_MOST_NUMBERS = 2**29


class Densities:
    """Log densities of all the data, at draws of the unconstrained variables.

    The draws are given as values (n, ...) by the names of the unconstrained variables. Data that
    the model reads in batches are passed over.

    Parameters
    ----------
    terms : Terms
    names : sequence of str
        Names of the unconstrained variables.
    """

    def __init__(self, terms: Terms, names: Sequence[str]) -> None:
        self._data = terms.data
        self._functions = TermFunctions.of(terms, names)
        functions = OwnFunctions(self._functions, lambda: self._functions)
        self._over_all = Passes(divide(terms.data), executor_for(terms.data), functions)
        # Neither the rows of a chunk nor the terms at the first draws are more than one call holds.
        self._chunk = max(NUMBERS_PER_CALL // max(FIRST_DRAWS, terms.data.row_size), 1)

    def total(self, values: Values) -> np.ndarray:
        """Log density (n,) of the joint model, Jacobian included."""
        return self._over_all.run(Total(tuple(values.values()), self._chunk))

    def by_observation(self, values: Values) -> Values:
        """Log-likelihood (n, ...) of each observation, by the name of the observed variable."""
        inputs = tuple(values.values())
        _check_size(self._data.n_rows, len(inputs[0]))
        return self._over_all.run(ByObservation(inputs, self._chunk))

    def without_each(self, values: Values, log_ratios: Array, variable: str) -> LeftOut:
        """Predict each observation of a variable from all the others.

        The log-likelihood of each observation at each draw is nowhere held for all rows.

        Parameters
        ----------
        values : mapping
        log_ratios : array, (n,)
            Log p - log q at the draws.
        variable : str
            Name of the observed variable.
        """
        inputs = tuple(values.values())
        # As many numbers as in a call: each has its own ratios to smooth.
        chunk = max(NUMBERS_PER_CALL // len(log_ratios), 1)
        return self._over_all.run(
            WithoutEach(inputs, log_ratios, variable, min(chunk, self._chunk))
        )


@dataclass(frozen=True)
class TermFunctions:
    """The terms of a log density as functions of draws and of rows; it can be pickled.

    Attributes
    ----------
    function : DrawFunction
        All terms, each at the scale at which the rows that it sees stand for all rows.
    feeds : tuple of int or None
        For each term, the feed that it reads.
    observed : tuple of str or None
        For each term, the name of the observed variable if it is the likelihood of one.
    worth : tuple of float
        For each term, the number of rows that it stands for; 0 where it reads no feed.
    """

    function: DrawFunction
    feeds: tuple[int | None, ...]
    observed: tuple[str | None, ...]
    worth: tuple[float, ...]

    @classmethod
    def of(cls, terms: Terms, names: Sequence[str]) -> TermFunctions:
        """Make functions of the terms, of values of the variables with these names."""
        model = terms.data.model
        dims = model.named_vars_to_dims
        outputs = [
            terms.scaled(term, _elementwise(term.logp, dims.get(term.variable.name, ())))
            for term in terms
        ]
        arrays, containers = terms.as_inputs()
        if containers:
            outputs = graph_replace(outputs, containers, strict=False)
        by_name = {variable.name: variable for variable in model.continuous_value_vars}
        inputs = [by_name[name] for name in names]
        return cls(
            DrawFunction("log densities", inputs, outputs, [a for each in arrays for a in each]),
            tuple(term.feed for term in terms),
            tuple(term.variable.name if term.observed else None for term in terms),
            tuple(0.0 if term.feed is None else terms.worth(term) for term in terms),
        )

    def build(self) -> TermFunctions:
        """Return the functions, which are built at their first use."""
        return self

    def total(self, inputs: Sequence[np.ndarray], rows: Rows) -> Array:
        """Log density (n,) that the rows add to that of all the data."""
        weights = [rows.outside if feed is None else rows.weights[feed] for feed in self.feeds]
        add = partial(_total, weights=weights)
        return self.function(inputs, data=_arrays(rows), reduce=add)[0]

    def observations(self, inputs: Sequence[np.ndarray], rows: Rows) -> Values:
        """Log-likelihood (n, ...) of each observation in these rows.

        Terms that read no feed are given with the first rows only.
        """
        found = {
            name: i
            for i, (name, feed) in enumerate(zip(self.observed, self.feeds, strict=True))
            if name is not None and (rows.outside if feed is None else rows.weights[feed])
        }
        terms = self.function(
            inputs,
            data=_arrays(rows),
            reduce=lambda all_terms: [all_terms[i] for i in found.values()],
        )
        values = {}
        for (name, i), term in zip(found.items(), terms, strict=True):
            feed = self.feeds[i]
            scale = 1.0 if feed is None else len(rows.arrays[feed][0]) / self.worth[i]
            values[name] = term if scale == 1 else scale * term
        return values


@dataclass(frozen=True)
class Total(Work[Array]):
    """Log density (n,) at draws."""

    name = "log-densities"
    inputs: tuple[np.ndarray, ...]
    chunk: int

    def __call__(self, functions: TermFunctions, chunks: Iterator[Rows]) -> Array:
        """Sum over chunks."""
        return self.combine(functions.total(self.inputs, rows) for rows in chunks)

    def combine(self, results: Iterable[Array]) -> Array:
        """Sum."""
        return sum_in_order(results)


@dataclass(frozen=True)
class ByObservation(Work[Values]):
    """Log-likelihood (n, ...) of each observation."""

    name = "log-likelihoods"
    inputs: tuple[np.ndarray, ...]
    chunk: int

    def __call__(self, functions: TermFunctions, chunks: Iterator[Rows]) -> Values:
        """Go through the chunks."""
        return self.combine(functions.observations(self.inputs, rows) for rows in chunks)

    def combine(self, results: Iterable[Values]) -> Values:
        """Put the rows one after the other."""
        parts: dict[str, list[np.ndarray]] = {}
        for result in results:
            for name, value in result.items():
                parts.setdefault(name, []).append(value)
        return {
            name: part[0] if len(part) == 1 else np.concatenate(part, axis=1)
            for name, part in parts.items()
        }


@dataclass(frozen=True)
class LeftOut:
    """How well each observation is predicted by all the others.

    Attributes
    ----------
    elpd : array
        Log predictive density of each observation, when it is left out.
    density : array
        The same when it is not.
    khat, efficiency : array
        Pareto shape of the weights that leave it out, and the share of draws that are effective.
    """

    elpd: Array
    density: Array
    khat: Array
    efficiency: Array


@dataclass(frozen=True)
class WithoutEach(Work[LeftOut]):
    """Leave-one-out predictions of the observations of one variable."""

    name = "leave-one-out"
    inputs: tuple[np.ndarray, ...]
    log_ratios: Array
    variable: str
    chunk: int

    def __call__(self, functions: TermFunctions, chunks: Iterator[Rows]) -> LeftOut:
        """Go through the chunks, and of each observation keep four numbers."""
        found = (functions.observations(self.inputs, rows).get(self.variable) for rows in chunks)
        return self.combine(self._of(values) for values in found if values is not None)

    def _of(self, log_likelihood: np.ndarray) -> LeftOut:
        n, *shape = log_likelihood.shape
        columns = log_likelihood.reshape(n, -1).T
        left = np.array([leave_out(self.log_ratios, column) for column in columns])
        density = scipy.special.logsumexp(columns, axis=1) - np.log(n)
        elpd, khat, efficiency = left.reshape(-1, 3).T
        return LeftOut(*(a.reshape(shape) for a in (elpd, density, khat, efficiency)))

    def combine(self, results: Iterable[LeftOut]) -> LeftOut:
        """Put the rows one after the other."""
        parts = list(results)
        return LeftOut(
            *(
                np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0)
                for name in ("elpd", "density", "khat", "efficiency")
            )
        )


def _arrays(rows: Rows) -> list[np.ndarray]:
    return [array for each in rows.arrays for array in each]


def _check_size(n_rows: int, n_draws: int) -> None:
    if n_rows * n_draws > _MOST_NUMBERS:
        raise ValueError(
            f"the log-likelihood of {n_rows:,} rows at {n_draws:,} draws takes "
            f"{n_rows * n_draws * 8 / 2**30:.0f} GB: ask for fewer draws "
            f"({_MOST_NUMBERS // n_rows:,} would do)"
        )


def _total(terms: list[np.ndarray], weights: list[float]) -> list[np.ndarray]:
    """Add up terms (n, ...), each times its weight; a weight of zero leaves the term out."""
    sums = [
        weight * term.reshape(len(term), -1).sum(1, dtype=np.float64)
        for term, weight in zip(terms, weights, strict=True)
        if weight
    ]
    return [np.sum(sums, axis=0)]


def _elementwise(logp: Variable, dims: Sequence[str]) -> Variable:
    """Return a term as a tensor, with named axes, if it has such, in the order of `dims`."""
    if not hasattr(logp.type, "dims"):
        return logp
    return as_tensor(logp.transpose(*(dim for dim in dims if dim in logp.type.dims), ...))
