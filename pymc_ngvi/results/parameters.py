r"""How far the mean and the sd of each parameter are off, by weights or by draws that were moved.

Where weights can be trusted, they turn draws of the fit into draws of the posterior. The same draws
with and without weights then tell, for each parameter, how far the posterior's mean is from the
fitted one, in standard deviations of the posterior, and what share of the posterior's standard
deviation the fit has.

Both are functions of weighted and of plain moments of the same draws, and so have Monte-Carlo
errors by the delta method. With weights w of mean 1, values u, weighted moments m and v, and plain
moments m' and v', a draw contributes

.. math::

    \delta m = w (u - m), \quad \delta v = w ((u - m)^2 - v), \quad
    \delta m' = u - m', \quad \delta v' = (u - m')^2 - v'

to the errors of the moments, and an antithetic pair contributes the mean of its two draws. With few
uneven weights, the two sets of moments share most of their errors, which then cancel.

What no draw of the fit reaches, no weight can tell: a variance that is mostly made in a tail beyond
the draws comes out too small, and so does its error. Draws that were moved towards the posterior
(:mod:`pymc_ngvi.core.hamiltonian`) do reach it. Their moments are compared with those of the fit;
the chain of one draw, from move to move, is one observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array

#: A mean is off where the posterior's is further from it than so many standard deviations.
MOST_SHIFT = 0.2
#: A standard deviation is off where it differs from the posterior's by more than this share of it.
MOST_SPREAD = 0.2
#: Probability that chance alone makes any parameter of an exact fit look different.
_FALSE_ALARM = 0.05

#: Columns of the table, after its index, the name of the component.
COLUMNS = ("variable", "mean", "sd", "shift", "shift_error", "sd_ratio", "sd_ratio_error")

#: A block of antithetic draws: values (2m, p), of which the last m are the partners of the first m.
Block = tuple[Array, Array]


class Moments:
    """Moments of values at draws, with and without weights, gathered block by block.

    Parameters
    ----------
    blocks : iterable of tuple
        Values (2m, p) of p quantities at m antithetic pairs, and the weights (2m,) of these draws.
        The mean of all weights is 1.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.pairs = 0
        # A variable that overflows on its own scale has moments that are NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            for values, weights in blocks:
                self._add(values, weights)

    def _add(self, values: Array, weights: Array) -> None:
        if not self.pairs:
            # Sums of squares lose digits unless values are near 0 and of order 1.
            self._location, spread = values.mean(axis=0), values.std(axis=0)
            varies = spread > 1e-14 * abs(self._location)
            self._scale = np.where(varies, spread, 1.0)
            p = values.shape[1]
            self._sums, self._products = np.zeros((5, p)), np.zeros((5, 5, p))
        u, w = (values - self._location) / self._scale, weights[:, np.newaxis]
        half = len(u) // 2
        # For each pair the means of 1, u and u^2 with weights, and of u and u^2 without. One array
        # of all five, and its products with itself, would take three times as long.
        squares = u**2
        terms = [
            (term[:half] + term[half:]) / 2
            for term in (np.broadcast_to(w, u.shape), w * u, w * squares, u, squares)
        ]
        for i, term in enumerate(terms):
            self._sums[i] += term.sum(axis=0)
            for j, other in enumerate(terms[i:], start=i):
                self._products[i, j] += np.einsum("kp,kp->p", term, other)
                self._products[j, i] = self._products[i, j]
        self.pairs += half

    def compare(self) -> dict[str, Array]:
        """Return the plain mean and sd, the shift and the ratio, and their standard errors.

        A constant has an sd of 0, and neither shift nor ratio.
        """
        one, mean_w, square_w, mean, square = self._sums / self.pairs
        zero = np.zeros_like(mean)
        variance_w, variance = square_w - mean_w**2, square - mean**2
        variance = np.where(variance < 1e-20, 0, variance)  # a constant, up to rounding
        with np.errstate(divide="ignore", invalid="ignore"):
            sd, sd_w = np.sqrt(variance), np.sqrt(variance_w)
            shift, ratio = (mean_w - mean) / sd_w, sd / sd_w
            # Coefficients of the terms in what a draw contributes to the error of each moment.
            of_mean_w = np.stack([-mean_w, one, zero, zero, zero])
            of_variance_w = np.stack([mean_w**2 - variance_w, -2 * mean_w, one, zero, zero])
            of_mean = np.stack([zero, zero, zero, one, zero])
            of_variance = np.stack([zero, zero, zero, -2 * mean, one])
            of_shift = (of_mean_w - of_mean) / sd_w - shift / (2 * variance_w) * of_variance_w
            of_ratio = ratio / 2 * (of_variance / variance - of_variance_w / variance_w)
            means, sds = self._location + self._scale * mean, self._scale * sd
        return {
            "mean": means,
            "sd": sds,
            "shift": shift,
            "shift_error": self._error(of_shift),
            "sd_ratio": ratio,
            "sd_ratio_error": self._error(of_ratio),
        }

    def _error(self, coefficients: Array) -> Array:
        """Return the standard error (p,) of the mean over pairs of a combination of the terms."""
        means = self._sums / self.pairs
        covariance = self._products / self.pairs - means[:, np.newaxis] * means
        variance = np.einsum("ip,ijp,jp->p", coefficients, covariance, coefficients)
        # Rounding may leave less than nothing where the errors cancel.
        return np.sqrt(np.maximum(variance, 0) / max(self.pairs - 1, 1))

    def errors_of_fit(self) -> tuple[Array, Array]:
        """Return the standard errors (p,) of the plain mean and of the plain sd, in sds."""
        mean, square = self._sums[3:] / self.pairs
        variance = square - mean**2
        zero, one = np.zeros_like(mean), np.ones_like(mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            of_mean = np.stack([zero, zero, zero, one, zero]) / np.sqrt(variance)
            of_sd = np.stack([zero, zero, zero, -2 * mean, one]) / (2 * variance)
        return self._error(of_mean), self._error(of_sd)


def compare_moved(
    moved: Iterable[Array], mean: Array, sd: Array, errors: tuple[Array, Array]
) -> dict[str, Array]:
    """Return what :meth:`Moments.compare` does, by draws that were moved.

    Parameters
    ----------
    moved : iterable of array, (n, p)
        Values at the same n draws after each move.
    mean, sd : array, (p,)
        Moments of the fit.
    errors : tuple of array, (p,)
        Standard errors of these, in sds.
    """
    first = second = np.zeros(())
    count = 0
    # A constant has an sd of 0, and neither shift nor ratio.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for values in moved:
            u = (values - mean) / sd
            first, second, count = first + u, second + u**2, count + 1
        first, second = first / count, second / count  # of each chain
        m = first.mean(axis=0)
        v = second.mean(axis=0) - m**2
        shift, ratio = m / np.sqrt(v), 1 / np.sqrt(v)
        of_mean, of_variance = first - m, second - 2 * m * first + m**2 - v
        of_shift = of_mean / np.sqrt(v) - shift / (2 * v) * of_variance
        of_ratio = -ratio / (2 * v) * of_variance
        root = np.sqrt(max(len(first) - 1, 1))
        return {
            "mean": mean,
            "sd": sd,
            "shift": shift,
            "shift_error": np.hypot(of_shift.std(axis=0) / root, ratio * errors[0]),
            "sd_ratio": ratio,
            "sd_ratio_error": np.hypot(of_ratio.std(axis=0) / root, ratio * errors[1]),
        }


def empty_table() -> pandas.DataFrame:
    """Return the table of a fit that was not judged."""
    return make_table([], [], {name: np.empty(0) for name in COLUMNS[1:]})


def make_table(
    labels: Sequence[str], variables: Sequence[str], columns: dict[str, Array]
) -> pandas.DataFrame:
    """Return the table of parameters.

    Parameters
    ----------
    labels : sequence of str
        Name of each component.
    variables : sequence of str
        Name of the variable of the model that it belongs to.
    columns : dict of str to array
        All other columns.
    """
    index = pandas.Index(np.array(labels, dtype=object), name="parameter")
    data = {"variable": np.array(variables, dtype=object)}
    data |= {name: np.asarray(columns[name], dtype=np.float64) for name in COLUMNS[1:]}
    return pandas.DataFrame(data, index=index)


def severity(table: pandas.DataFrame, *, moved: bool = False) -> Array:
    """By how many of its limits each parameter is off, at the least that its error allows.

    Parameters
    ----------
    table : pandas.DataFrame
    moved : bool
        Whether it is of draws that were moved. They come from the fit, and so what they say to be
        missing of an sd is less than what is, rather than more: no error is taken off it.

    Returns
    -------
    array
        Above 1 where a mean or a standard deviation is off: it is beyond its limit by more than a
        standard error, and its difference from an exact fit is no chance. The latter takes so many
        standard errors that among all parameters of an exact fit a false alarm is as unlikely as
        for one. Infinite where a value is not finite.
    """
    if table.empty:
        return np.empty(0)
    many = -scipy.special.ndtri(_FALSE_ALARM / (4 * len(table)))  # two estimates each, either way
    bound = np.stack([np.zeros(len(table)), moved & (table["sd_ratio"].to_numpy() < 1)])
    found = []
    for (estimate, error, limit), sure in zip(_estimates(table), bound, strict=True):
        least = (estimate - np.where(sure, 0.0, error)) / limit
        chance = estimate <= many * error
        found.append(np.where(chance, np.minimum(least, 1), least))
    return np.nan_to_num(np.maximum(*found), nan=np.inf, posinf=np.inf)


def beyond(table: pandas.DataFrame) -> NDArray[np.bool_]:
    """Whether the estimates of each parameter are beyond their limits, whatever their errors."""
    mean, spread = (estimate > limit for estimate, _, limit in _estimates(table))
    return mean | spread


def _estimates(table: pandas.DataFrame) -> list[tuple[Array, Array, float]]:
    """Return how far means and standard deviations are off, their errors and their limits."""
    shift, ratio = (table[name].to_numpy() for name in ("shift", "sd_ratio"))
    return [
        (abs(shift), table["shift_error"].to_numpy(), MOST_SHIFT),
        (abs(ratio - 1), table["sd_ratio_error"].to_numpy(), MOST_SPREAD),
    ]


def worst(table: pandas.DataFrame, n: int, *, moved: bool = False) -> pandas.DataFrame:
    """Return the n parameters that are off by most, beyond their errors; the worst first."""
    order = np.argsort(-severity(table, moved=moved), kind="stable")
    return table.iloc[order[:n]]


def describe(table: pandas.DataFrame) -> Iterator[str]:
    """Say of each parameter of a table by how much it is off."""
    for row in table.itertuples():
        yield (
            f"{row.Index}: mean off by {abs(row.shift):.2f} sd (±{row.shift_error:.2f}), "
            f"sd {row.sd_ratio:.2f} (±{row.sd_ratio_error:.2f}) of the posterior's"
        )
