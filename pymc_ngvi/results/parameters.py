r"""What importance weights say of each parameter: by how much its mean and its sd are off.

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

What no draw of the fit reaches, no weight can tell. A variance that is mostly made in a tail beyond
the draws comes out too small, and so does its error; yet the largest of the terms
:math:`w (u - m)^2` then have a heavy tail themselves. Its Pareto shape is the k-hat of a standard
deviation. Above 0.5, what is said to be missing of a standard deviation is a lower bound, and the
limit for it is lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.pareto import smooth_ratios

#: A mean is off where the posterior's is further from it than so many standard deviations.
MOST_SHIFT = 0.2
#: A standard deviation is off where it differs from the posterior's by more than this share of it.
MOST_SPREAD = 0.2
#: Draws do not reach all of the tail where the k-hat of a standard deviation is above the first of
#: these: the limit for what is missing falls, to the third from the second on. Student densities of
#: 4 to 30 degrees under Gaussians of several widths were the guide, and a censored regression whose
#: sd of 0.85 comes out as 0.88: it is not to be called off.
SEEN_TAIL, UNSEEN_TAIL, LOWERED_SPREAD = 0.5, 0.7, 0.12
#: Probability that chance alone makes any parameter of an exact fit look different.
_FALSE_ALARM = 0.05

#: Columns of the table, after its index, the name of the component.
COLUMNS = (
    *("variable", "mean", "sd", "shift", "shift_error"),
    *("sd_ratio", "sd_ratio_error", "sd_khat"),
)

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
        # For each pair the means of 1, u and u^2 with weights, and of u and u^2 without.
        terms = np.stack([np.broadcast_to(w, u.shape), w * u, w * u**2, u, u**2])
        terms = (terms[:, :half] + terms[:, half:]) / 2
        self._sums += terms.sum(axis=1)
        self._products += np.einsum("ikp,jkp->ijp", terms, terms)
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
        return {
            "mean": self._location + self._scale * mean,
            "sd": self._scale * sd,
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
        All other columns; `sd_khat` is NaN where it is missing.
    """
    index = pandas.Index(np.array(labels, dtype=object), name="parameter")
    data = {"variable": np.array(variables, dtype=object)}
    columns = {"sd_khat": np.full(len(labels), np.nan), **columns}
    data |= {name: np.asarray(columns[name], dtype=np.float64) for name in COLUMNS[1:]}
    return pandas.DataFrame(data, index=index)


def spread_khat(values: Array, log_ratios: Array, log_weights: Array) -> Array:
    """Return the Pareto shape of what draws contribute to each weighed variance.

    Parameters
    ----------
    values : array, (n, p)
    log_ratios : array, (n,)
        Log p - log q, as they are.
    log_weights : array, (n,)
        Logarithms of smoothed weights, which sum to 1.

    Returns
    -------
    array, (p,)
    """
    centred = abs(values - np.exp(log_weights) @ values)
    with np.errstate(divide="ignore"):
        terms = log_ratios[:, np.newaxis] + 2 * np.log(centred)
    return np.array([smooth_ratios(column)[1] for column in terms.T])


def narrow(table: pandas.DataFrame) -> NDArray[np.bool_]:
    """Whether each parameter is narrower than the posterior by so much that its tail matters."""
    return (1 - table["sd_ratio"] > MOST_SPREAD / 2).to_numpy()


def severity(table: pandas.DataFrame) -> Array:
    """By how many of its limits each parameter is off, at the least that its error allows.

    Returns
    -------
    array
        Above 1 where a mean or a standard deviation is off: it is beyond its limit by more than a
        standard error, and its difference from an exact fit is no chance. The latter takes so many
        standard errors that among all parameters of an exact fit a false alarm is as unlikely as
        for one. Of a standard deviation whose tail is beyond the draws, less is enough.
        Infinite where a value is not finite.
    """
    if table.empty:
        return np.empty(0)
    many = -scipy.special.ndtri(_FALSE_ALARM / (4 * len(table)))  # two estimates each, either way
    found = []
    for estimate, error, limit in _estimates(table):
        least = (estimate - error) / limit
        chance = estimate <= many * error
        found.append(np.where(chance, np.minimum(least, 1), least))
    # Where draws do not reach all of a tail, its estimate is a bound.
    khat = np.nan_to_num(table["sd_khat"].to_numpy(), nan=0.0)
    lowered = np.interp(khat, [SEEN_TAIL, UNSEEN_TAIL], [MOST_SPREAD, LOWERED_SPREAD])
    unseen = (khat > SEEN_TAIL) & ~chance
    missing = (1 - table["sd_ratio"] - table["sd_ratio_error"]) / lowered
    found[1] = np.where(unseen, np.fmax(missing, found[1]), found[1])
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


def worst(table: pandas.DataFrame, n: int) -> pandas.DataFrame:
    """Return the n parameters that are off by most, beyond their errors; the worst first."""
    order = np.argsort(-severity(table), kind="stable")
    return table.iloc[order[:n]]


def describe(table: pandas.DataFrame) -> Iterator[str]:
    """Say of each parameter of a table by how much it is off."""
    for row in table.itertuples():
        yield (
            f"{row.Index}: mean off by {abs(row.shift):.2f} sd (±{row.shift_error:.2f}), "
            f"sd {row.sd_ratio:.2f} (±{row.sd_ratio_error:.2f}) of the posterior's"
        )
