"""Single rows of data: whether a model can be evaluated at them, and which one is impossible.

A row whose likelihood is zero whatever the parameters, such as a 7 that a Bernoulli variable is
said to have shown, spoils every batch that it is in. It is looked for where a log density is not
finite, term by term and by bisection, so that any term will do, a potential too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.traversal import ancestors

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.errors import first_line
from pymc_ngvi.model.data import Feed, Rows
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.minibatches import PER_ROW
from pymc_ngvi.model.terms import MOST_TRIED, Term, Terms
from pymc_ngvi.model.variables import as_tensor

# A row is impossible if it is so at a point and at points around it, at these distances on the
# unconstrained scale: where the support depends on a parameter, some of them make it possible.
_DISTANCES = (0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0)


class RowTerms:
    """The terms of a log density that read feeds, evaluated in NumPy at chosen rows.

    Parameters
    ----------
    terms : Terms
    layout : Layout
    """

    def __init__(self, terms: Terms, layout: Layout) -> None:
        self._data = terms.data
        self._layout = layout
        self._terms = [term for term in terms if term.feed is not None]
        self._function = cache(self._compile)

    def check_shapes(self, x: Array) -> None:
        """Raise where a term cannot be evaluated at any number of rows, as chunks ask for.

        Parameters
        ----------
        x : array, (d,)
        """
        with self._data.restoring():
            for term in self._terms:
                feed = self._feed(term)
                most = min(feed.loader.batch_size, MOST_TRIED)
                for n in (most, max(most // 2, 1)):
                    held = [len(container.get_value(borrow=True)) for container in feed.containers]
                    rows = feed.cast(feed.loader.read(0, n))
                    try:
                        self._evaluate(term, x, rows)
                    except (ValueError, TypeError, AssertionError, IndexError) as error:
                        reason = self._misfit(term, x, {most, *held})
                        raise ValueError(
                            f"{term.variable.name} cannot be evaluated at {n} rows of "
                            f"{', '.join(feed.loader.arrays)}: {reason or first_line(error)}"
                        ) from error

    def _misfit(self, term: Term, x: Array, lengths: set[int]) -> str:
        """Say what in a term has a number of rows of its own, one of `lengths`."""
        above, feed = set(ancestors([term.logp])), self._feed(term)
        lacking = [
            held.name
            for held in self._data.model.data_vars
            if held in above
            and held not in feed.containers
            and np.shape(held.get_value(borrow=True))[:1] in {(n,) for n in lengths}
        ]
        if lacking:
            names = ", ".join(lacking)
            return f"it also reads rows of {names}, for which the loader has no array"
        point = self._layout.unflatten(x)
        own = [
            value.name
            for value in self._data.model.value_vars
            if value in above and np.shape(point[value.name])[:1] in {(n,) for n in lengths}
        ]
        if own:
            return f"{', '.join(own)} {PER_ROW}"
        return ""

    def check(self, x: Array, rows: Rows, where: str = "") -> None:
        """Raise where one of these rows is impossible at x (d,) and around it.

        Parameters
        ----------
        x : array, (d,)
        rows : Rows
        where : str
            What else to say of their place.

        Raises
        ------
        ValueError
            With the term, the number of the row and the data in it.
        """
        with self._data.restoring():
            for term in self._terms:
                assert term.feed is not None
                arrays = rows.arrays[term.feed]
                found = self._bisect(term, x, arrays)
                if found is None:
                    continue
                i, value = found
                row = [array[i : i + 1] for array in arrays]
                if any(self._is_finite(term, point, row) for point in _around(x)):
                    continue
                names = self._feed(term).loader.arrays
                shown = zip(list(names)[:4], row, strict=False)
                contents = ", ".join(f"{name} = {_shown(array[0])}" for name, array in shown)
                raise ValueError(
                    f"{term.variable.name} is impossible in row {rows.numbers[term.feed][i]} of "
                    f"the data{where}, where {contents}: its log density is {value}, and is not "
                    f"finite at {len(_DISTANCES)} other points either. Correct or remove the "
                    "row, or choose a distribution that allows it"
                )

    def _bisect(
        self, term: Term, x: Array, arrays: Sequence[np.ndarray]
    ) -> tuple[int, float] | None:
        """Return the first row at which a term is not finite, and its value; None if all are."""
        low, high = 0, len(arrays[0])
        if self._is_finite(term, x, arrays):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_finite(term, x, [array[low:middle] for array in arrays]):
                low = middle
            else:
                high = middle
        value = self._evaluate(term, x, [array[low:high] for array in arrays])
        return None if np.isfinite(value) else (low, value)

    def _is_finite(self, term: Term, x: Array, arrays: Sequence[np.ndarray]) -> bool:
        return bool(np.isfinite(self._evaluate(term, x, arrays)))

    def _evaluate(self, term: Term, x: Array, arrays: Sequence[np.ndarray]) -> float:
        self._feed(term).fill(arrays)
        return self._function(self._terms.index(term))(self._layout.unflatten(x))

    def _feed(self, term: Term) -> Feed:
        assert term.feed is not None
        return self._data.feeds[term.feed]

    def _compile(self, number: int) -> Callable[[Mapping[str, Any]], float]:
        inputs = self._data.model.value_vars
        flags = {"cxx": "", "traceback__limit": 0, "traceback__compile_limit": 0}
        with pytensor.config.change_flags(**flags):
            outputs = inline_inner_graphs([as_tensor(self._terms[number].logp).sum()])
            function = pytensor.function(
                inputs, outputs, mode=interpreted_mode(), on_unused_input="ignore"
            )

        def call(point: Mapping[str, Any]) -> float:
            with np.errstate(all="ignore"):
                return float(function(*(point[variable.name] for variable in inputs))[0])

        return call


def _around(x: Array) -> Iterator[Array]:
    """Points around x (d,), the same each time."""
    rng = np.random.default_rng(0)
    return (x + distance * rng.uniform(-1, 1, x.shape) for distance in _DISTANCES)


def _shown(value: Any) -> str:
    """Return a number or a short part of an array, on one line."""
    text = np.array2string(np.asarray(value), threshold=8, edgeitems=3, precision=6)
    return " ".join(text.split())
