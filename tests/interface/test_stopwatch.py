"""The time of a fit by its stages: every second is counted once."""

import contextlib
from dataclasses import dataclass

import pytest

from pymc_ngvi.interface import stopwatch as module
from pymc_ngvi.interface.stopwatch import Stopwatch


@dataclass
class Builder:
    building_seconds: float = 0.0


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def build(self, target, seconds):
        self.now += seconds
        target.building_seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_what_is_built_on_the_way_counts_as_building(clock):
    watch, target = Stopwatch(), Builder(5.0)  # built before it was watched
    watch.watch(target)
    with watch.timed("fit"):
        clock.now += 2.0
        clock.build(target, 3.0)
    with watch.timed("verdict"):
        clock.build(target, 1.0)
        clock.now += 0.5
    assert watch.seconds == {"build": 4.0, "fit": 2.0, "verdict": 0.5}


def test_a_stage_inside_another_one_is_counted_once(clock):
    watch, target, other = Stopwatch(), Builder(), Builder()
    watch.watch(target)
    with watch.timed("fit"):
        clock.build(target, 1.0)
        with watch.timed("build"):
            clock.now += 2.0  # a graph, which no target counts
            clock.build(other, 3.0)
            watch.watch(other)
            clock.build(other, 4.0)
        clock.now += 5.0
        clock.build(other, 6.0)
    assert watch.seconds == {"build": 16.0, "fit": 5.0, "verdict": 0.0}
    assert sum(watch.seconds.values()) == clock.now - 100.0


def test_a_stage_that_fails_is_counted(clock):
    watch = Stopwatch()
    with contextlib.suppress(ValueError), watch.timed("fit"):
        clock.now += 2.0
        raise ValueError
    assert watch.seconds["fit"] == 2.0
