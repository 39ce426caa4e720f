"""Step-size and sample-size schedules: plain functions of the iteration t, counted from 0.

Any callable of t is a schedule, and a number is a constant schedule. It may be called with the same
t more than once, so it must depend on t alone. The values are checked where they are used: a step
size must lie in (0, 1], a sample size must be a positive integer.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import TypeAlias

from pymc_ngvi.arguments import check_callable, check_count, is_positive_integer, told
from pymc_ngvi.errors import ScheduleError, first_line

StepSchedule: TypeAlias = Callable[[int], float]
SampleSchedule: TypeAlias = Callable[[int], int]

#: More draws than this no memory holds.
MOST_SAMPLES = 2**31


def constant(value: float) -> Callable[[int], float]:
    """Return the same value at every iteration.

    Examples
    --------
    >>> constant(0.01)(1000)
    0.01
    """
    return lambda t: value


def decreasing(m: float = 1.0) -> StepSchedule:
    r"""Decreasing step sizes :math:`\eta_t = 1 / (m (t/2 + 1))`.

    With m = 1 these are 1, 2/3, 1/2, ...: the paper's decreasing schedule, under which the iterates
    converge without a growing sample size.

    Parameters
    ----------
    m : float
        Relative strong convexity of the objective; at least 1, so that the first step is at most 1.

    Examples
    --------
    >>> [round(decreasing()(t), 3) for t in range(4)]
    [1.0, 0.667, 0.5, 0.4]
    """
    if not m >= 1:
        raise ScheduleError(f"decreasing(m={m}): m must be at least 1, as the first step is 1 / m")
    return lambda t: 1 / (m * (t / 2 + 1))


def growing(gamma: float = 1.0, floor: int = 1) -> SampleSchedule:
    r"""Growing sample sizes :math:`N_t = \max(N, \lceil (t+1)^\gamma \rceil)`.

    Parameters
    ----------
    gamma : float
        Rate of growth, positive.
    floor : int
        Smallest sample size N; 1 gives the plain :math:`(t+1)^\gamma`.

    Examples
    --------
    >>> [growing(gamma=1.0, floor=3)(t) for t in range(5)]
    [3, 3, 3, 4, 5]
    """
    if not gamma > 0:
        raise ScheduleError(f"growing(gamma={gamma}): gamma must be positive")
    check_count("growing's floor", floor)
    # A power such as 8 ** (1/3) may exceed its integer value by a rounding error.
    return lambda t: max(floor, math.ceil((t + 1) ** gamma * (1 - 1e-12)))


def capped(sizes: int | SampleSchedule, most: int) -> SampleSchedule:
    """Limit a sample size to `most`, or to its first value if that is larger.

    Examples
    --------
    >>> [capped(growing(gamma=1.0, floor=2), 4)(t) for t in range(6)]
    [2, 2, 3, 4, 4, 4]
    """
    schedule = as_schedule(sizes, "n_samples")
    return lambda t: min(schedule(t), max(most, schedule(0)))  # type: ignore[return-value]


def as_schedule(value: float | Callable[[int], float], name: str) -> Callable[[int], float]:
    """Turn a number into a constant schedule and leave a callable as it is."""
    if callable(value):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return constant(value)
    raise TypeError(f"{name} must be a number or a callable of the iteration t, got {told(value)}")


def check_first(step_size: object, n_samples: object) -> None:
    """Raise where a schedule, a number or a callable, has no valid value at t = 0.

    None is a schedule that was not given.
    """
    given = {"step_size": (step_size, check_step_size), "n_samples": (n_samples, check_sample_size)}
    for name, (value, check) in given.items():
        if value is None:
            continue
        schedule = as_schedule(value, name)  # type: ignore[arg-type]
        check_callable(name, schedule, "t")
        try:
            first = schedule(0)
        except Exception as error:
            message = f"{name} {told(value)} fails at t = 0: {first_line(error)}"
            raise ScheduleError(message) from error
        check(first, 0)


def check_step_size(value: float, t: int) -> float:
    """Return the step size if it lies in (0, 1], or raise naming t and the value."""
    if not (isinstance(value, numbers.Real) and 0 < value <= 1):
        raise ScheduleError(f"step_size at t = {t} is {told(value)}; it must lie in (0, 1]")
    return float(value)


def check_sample_size(value: float, t: int) -> int:
    """Return the sample size if it is a positive integer, or raise naming t and the value."""
    if not (is_positive_integer(value) and value <= MOST_SAMPLES):
        raise ScheduleError(
            f"n_samples at t = {t} is {told(value)}; it must be a positive integer, at most "
            f"{MOST_SAMPLES}"
        )
    return int(value)
