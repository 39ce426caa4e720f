"""The log density of a model at many draws, in all and by observation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from pytensor.graph.basic import Variable

from pymc_ngvi.model.terms import Terms
from pymc_ngvi.model.variables import as_tensor
from pymc_ngvi.model.vectorised import FIRST_DRAWS, NUMBERS_PER_CALL, DrawFunction

Values = dict[str, np.ndarray]

# A log-likelihood of more numbers than this, which take 4 GB, is refused.
_MOST_NUMBERS = 2**29


class Densities:
    """Log densities of all the data, at draws of the unconstrained variables.

    The draws are given as values (n, ...) by the names of the unconstrained variables. Data that
    the model reads in batches go through it in chunks.

    Parameters
    ----------
    terms : Terms
    names : sequence of str
        Names of the unconstrained variables.
    """

    def __init__(self, terms: Terms, names: Sequence[str]) -> None:
        self._terms = terms
        model = terms.data.model
        dims = model.named_vars_to_dims
        outputs = [
            terms.scaled(term, _elementwise(term.logp, dims.get(term.variable.name, ())))
            for term in terms
        ]
        by_name = {variable.name: variable for variable in model.continuous_value_vars}
        inputs = [by_name[name] for name in names]
        self._function = DrawFunction("log densities", inputs, outputs)
        # Neither the rows of a chunk nor the terms at the first draws are more than one call holds.
        self._chunk = max(NUMBERS_PER_CALL // max(FIRST_DRAWS, terms.data.row_size), 1)

    def total(self, values: Values) -> np.ndarray:
        """Log density (n,) of the joint model, Jacobian included."""
        inputs = list(values.values())
        density = np.zeros(len(inputs[0]))
        data = self._terms.data
        with data.restoring():
            for rows in data.chunks(self._chunk):
                data.fill(rows)
                total = partial(_total, weights=self._terms.weights(rows))
                density += self._function(inputs, reduce=total)[0]
        return density

    def by_observation(self, values: Values) -> Values:
        """Log-likelihood (n, ...) of each observation, by the name of the observed variable."""
        inputs = list(values.values())
        data = self._terms.data
        _check_size(data.n_rows, len(inputs[0]))
        observed = {t.variable.name: i for i, t in enumerate(self._terms) if t.observed}
        parts: dict[str, list[np.ndarray]] = {name: [] for name in observed}
        with data.restoring():
            for rows in data.chunks(self._chunk):
                data.fill(rows)
                terms = self._function(
                    inputs, reduce=lambda terms: [terms[i] for i in observed.values()]
                )
                weights = self._terms.weights(rows)
                factors = self._terms.unscaling(rows)
                for (name, i), term, factor in zip(observed.items(), terms, factors, strict=True):
                    if weights[i]:
                        parts[name].append(term if factor == 1 else factor * term)
        return {
            name: part[0] if len(part) == 1 else np.concatenate(part, axis=1)
            for name, part in parts.items()
        }


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
