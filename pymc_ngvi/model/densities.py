"""The log density of a model at many draws, in all and by observation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pymc
import pytensor
from pytensor.graph.basic import Variable

from pymc_ngvi.model.minibatches import Batched, Term, as_tensor
from pymc_ngvi.model.vectorised import FIRST_DRAWS, NUMBERS_PER_CALL, DrawFunction

Values = dict[str, np.ndarray]

# Numbers of a log-likelihood beyond which it is refused: 4 GB.
_MOST_NUMBERS = 2**29


class Densities(Protocol):
    """Log densities at draws given as unconstrained values (n, ...), by the names of these."""

    def total(self, values: Values) -> np.ndarray:
        """Log density (n,) of the joint model, Jacobian included."""

    def by_observation(self, values: Values) -> Values:
        """Log-likelihood (n, ...) of each observation, by observed variable."""


class PlainDensities:
    """Log densities of a model that holds its data.

    Parameters
    ----------
    model : pymc.Model
    names : sequence of str
        Of the value variables.
    """

    def __init__(self, model: pymc.Model, names: Sequence[str]) -> None:
        # PyMC 5.28 lists an observed variable twice once its predictions were sampled.
        observed = list(dict.fromkeys(model.observed_RVs))
        variables = [*observed, *model.free_RVs, *model.potentials]
        # PyTensor keeps with each node the stack traces of all the nodes it replaced.
        with pytensor.config.change_flags(traceback__limit=0):
            terms = model.logp(vars=variables, sum=False)
        ordered = [
            _in_order_of_dims(term, model.named_vars_to_dims.get(variable.name, ()))
            for term, variable in zip(terms, variables, strict=True)
        ]
        self._observed = [variable.name for variable in observed]
        self._function = DrawFunction("log densities", _inputs(model, names), ordered)

    def total(self, values: Values) -> np.ndarray:
        """Log density (n,) of the joint model, Jacobian included."""
        (density,) = self._function(list(values.values()), reduce=lambda terms: [_total(terms)])
        return density

    def by_observation(self, values: Values) -> Values:
        """Log-likelihood (n, ...) of each observation, by observed variable."""
        n = len(self._observed)
        terms = self._function(list(values.values()), reduce=lambda terms: terms[:n])
        return dict(zip(self._observed, terms, strict=True))


class BatchedDensities:
    """Log densities of a model that reads batches, on all the data, chunk by chunk.

    Parameters
    ----------
    batched : Batched
    names : sequence of str
        Of the value variables.
    """

    def __init__(self, batched: Batched, names: Sequence[str]) -> None:
        self._batched = batched
        self._terms = batched.terms
        unscaled = [as_tensor(term.logp) * self._share(term) for term in self._terms]
        inputs = _inputs(batched.model, names)
        self._function = DrawFunction("log densities", inputs, unscaled)

    def _share(self, term: Term) -> Variable | float:
        """Return what takes back the scaling of a term to the total size."""
        if term.feed is None or (term.total is None and not term.averages):
            return 1.0
        rows = self._batched.feeds[term.feed].containers[0].shape[0]
        return rows if term.total is None else rows / term.total

    def _weight(self, term: Term) -> float:
        """Return what scales a term, added up over all rows, to the total size."""
        if term.feed is None:
            return 1.0
        loader = self._batched.feeds[term.feed].loader
        if term.averages:
            return 1 / loader.n_rows
        total = loader.batch_size if term.total is None else term.total.eval()
        return float(total) / loader.n_rows

    def total(self, values: Values) -> np.ndarray:
        """Log density (n,) of the joint model of all the data, Jacobian included."""
        inputs = list(values.values())
        density = np.zeros(len(inputs[0]))
        weights = [self._weight(term) for term in self._terms]
        for read in self._chunks():
            chosen = [weight * seen for weight, seen in zip(weights, read, strict=True)]

            def add(terms: list[np.ndarray], chosen: list[float] = chosen) -> list[np.ndarray]:
                return [_total([w * t for w, t in zip(chosen, terms, strict=True) if w])]

            density += self._function(inputs, reduce=add)[0]
        return density

    def by_observation(self, values: Values) -> Values:
        """Log-likelihood (n, rows, ...) of each observation of all the data."""
        inputs = list(values.values())
        observed = [i for i, term in enumerate(self._terms) if self._is_observed(term)]
        rows = self._batched.n_rows
        if rows * len(inputs[0]) > _MOST_NUMBERS:
            raise ValueError(
                f"the log-likelihood of {rows:,} rows at {len(inputs[0]):,} draws takes "
                f"{rows * len(inputs[0]) * 8 / 2**30:.0f} GB: ask for fewer draws "
                f"({_MOST_NUMBERS // rows:,} would do)"
            )
        parts: list[list[np.ndarray]] = [[] for _ in observed]
        for read in self._chunks():
            terms = self._function(inputs, reduce=lambda terms: [terms[i] for i in observed])
            for part, i, term in zip(parts, observed, terms, strict=True):
                if read[i]:
                    part.append(term)
        names = [self._terms[i].variable.name for i in observed]
        return {
            name: part[0] if len(part) == 1 else np.concatenate(part, axis=1)
            for name, part in zip(names, parts, strict=True)
        }

    def _is_observed(self, term: Term) -> bool:
        return term.variable in self._batched.model.observed_RVs

    def _chunks(self) -> Iterator[list[bool]]:
        """Put all the data through the containers, and tell which terms see rows of them.

        What the containers held before is put back in the end.
        """
        size = max(NUMBERS_PER_CALL // max(FIRST_DRAWS, self._batched.row_size), 1)
        feeds = self._batched.feeds
        before = [[c.get_value(borrow=True) for c in feed.containers] for feed in feeds]
        try:
            for i, chunk in enumerate(self._batched.chunks(size)):
                for feed, (_, arrays) in zip(feeds, chunk, strict=True):
                    feed.fill(arrays)
                yield [
                    i == 0 if term.feed is None else chunk[term.feed][0] > 0 for term in self._terms
                ]
        finally:
            for feed, values in zip(feeds, before, strict=True):
                feed.fill(values)


def _inputs(model: pymc.Model, names: Sequence[str]) -> list[Variable]:
    by_name = {variable.name: variable for variable in model.continuous_value_vars}
    return [by_name[name] for name in names]


def _total(terms: list[np.ndarray]) -> np.ndarray:
    """Add up the terms of a log density, each (n, ...)."""
    sums = [term.reshape(len(term), -1).sum(1, dtype=np.float64) for term in terms]
    return np.asarray(np.sum(sums, axis=0))


def _in_order_of_dims(term: Variable, dims: Sequence[str]) -> Variable:
    """Order the named axes of a term, if it has such, like those of its variable."""
    if not hasattr(term.type, "dims"):
        return term
    return term.transpose(*(dim for dim in dims if dim in term.type.dims), ...)
