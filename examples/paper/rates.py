"""Slopes and levels of mean curves, with their errors and the predictions of the propositions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from examples.paper.common import Array


class TooFewIterationsError(ValueError):
    """A constant step does not reach its neighbourhood within the run."""


def compare(
    name: str,
    quantity: str,
    predicted: float,
    statistic: Callable[..., float],
    *curves: Array,
) -> dict[str, Any]:
    """Compare a statistic of mean curves with its prediction.

    Parameters
    ----------
    name, quantity : str
        What the row is about.
    predicted : float
    statistic : callable
        Function of one mean curve (iterations,) for each of `curves`.
    *curves : array, (runs, iterations)
        The same seeds in each.
    """
    measured, error = jackknife(statistic, *curves)
    agrees = abs(measured - predicted) <= 0.15 * (abs(predicted) or 1.0)
    return {
        "schedule": name,
        "quantity": quantity,
        "predicted": predicted,
        "measured": measured,
        "standard_error": error,
        "within_15_percent": "yes" if agrees else "no",
    }


def jackknife(statistic: Callable[..., float], *curves: Array) -> tuple[float, float]:
    """Value of a statistic of mean curves, and its standard error from leaving out single runs."""
    n = len(curves[0])
    totals = [curve.sum(axis=0) for curve in curves]
    value = statistic(*(total / n for total in totals))
    if n < 2:
        return value, np.nan
    without = [
        statistic(
            *((total - curve[i]) / (n - 1) for total, curve in zip(totals, curves, strict=True))
        )
        for i in range(n)
    ]
    return value, float(np.sqrt((n - 1) * np.var(without)))


def log_log_slope(curve: Array, first: int) -> float:
    """Slope of log curve[t] against log t from `first` to the end, at times spread evenly in log t.

    Each of these points is the mean of all values between two such times, so every value is used.
    """
    edges = np.unique(np.geomspace(first, len(curve), 25).astype(int))
    parts = [slice(a, b) for a, b in pairwise(edges)]
    times = np.arange(len(curve), dtype=float)
    log_times = [np.log(times[part]).mean() for part in parts]
    log_values = [np.log(curve[part].mean()) for part in parts]
    return float(np.polyfit(log_times, log_values, 1)[0])


def settling_time(step_size: float, iterations: int) -> int:
    """Return 10 / eta, from where on a constant step no longer depends on its start."""
    first = round(10 / step_size)
    if iterations <= first:
        raise TooFewIterationsError(
            f"{iterations} iterations do not reach the neighbourhood of step size {step_size:g}: "
            f"give more than {first}"
        )
    return first


def stationary_level(curve: Array, step_size: float) -> float:
    """Mean of the curve from `settling_time` on."""
    return float(curve[settling_time(step_size, len(curve) - 1) :].mean())
