"""Schedules are plain functions of t, checked where they are used."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import schedules
from pymc_ngvi.errors import ScheduleError


def test_decreasing_is_the_papers():
    for m in (1.0, 2.5):
        values = [schedules.decreasing(m)(t) for t in range(100)]
        np.testing.assert_allclose(values, [2 / (m * (t + 2)) for t in range(100)])
        assert all(0 < value <= 1 for value in values)


@pytest.mark.parametrize("gamma", [1 / 3, 0.5, 1.0, 1.5, 2.0])
def test_growing_is_a_power_rounded_up(gamma):
    sizes = np.array([schedules.growing(gamma)(t) for t in range(1000)])
    powers = np.arange(1, 1001) ** gamma
    assert (sizes >= powers * (1 - 1e-9)).all()
    assert (sizes < powers + 1).all()
    assert sizes[0] == 1
    assert (np.diff(sizes) >= 0).all()


def test_growing_of_exact_powers_is_exact():
    assert [schedules.growing(1 / 3)(k**3 - 1) for k in range(1, 50)] == list(range(1, 50))


def test_floor():
    assert [schedules.growing(2.0, floor=10)(t) for t in range(5)] == [10, 10, 10, 16, 25]


def test_numbers_and_callables():
    assert schedules.as_schedule(0.5, "step_size")(7) == 0.5
    double = lambda t: 2 * t  # noqa: E731
    assert schedules.as_schedule(double, "n_samples") is double
    with pytest.raises(TypeError, match="step_size must be a number or a callable"):
        schedules.as_schedule("fast", "step_size")


@pytest.mark.parametrize("value", [0, -0.1, 1.0001, np.nan, np.inf, "0.1", None])
def test_bad_step_size(value):
    with pytest.raises(ScheduleError, match=r"step_size at t = 12 is .*must lie in \(0, 1\]"):
        schedules.check_step_size(value, 12)


@pytest.mark.parametrize("value", [0, -3, 2.5, np.nan, np.inf, True, None])
def test_bad_sample_size(value):
    with pytest.raises(ScheduleError, match=r"n_samples at t = 3 is .*positive integer"):
        schedules.check_sample_size(value, 3)


def test_whole_floats_and_numpy_integers_are_sample_sizes():
    assert schedules.check_sample_size(4.0, 0) == 4
    assert schedules.check_sample_size(np.int64(4), 0) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.decreasing(0.5), "m must be at least 1"),
        (lambda: schedules.growing(-1.0), "gamma must be positive"),
        (lambda: schedules.growing(1.0, floor=0), "growing's floor"),
        (lambda: schedules.check_count("n", 2.5), "n must be a positive integer, got 2.5"),
    ],
)
def test_bad_factories(call, message):
    with pytest.raises(ValueError, match=message):
        call()
