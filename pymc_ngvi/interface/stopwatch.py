"""Where the time of a fit goes: into building functions, fitting, and judging."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

Stage: TypeAlias = Literal["build", "fit", "verdict"]


class Builds(Protocol):
    """What builds functions when they are first needed, and knows how long that took."""

    @property
    def building_seconds(self) -> float:
        """Time spent so far on building."""


class Stopwatch:
    """Tells the time of a fit by its stages.

    What watched targets build while another stage runs counts as building, and a stage inside
    another one as its own: every second is counted once.

    Attributes
    ----------
    seconds : dict of str to float
        What was spent on "build", "fit" and "verdict".
    """

    def __init__(self) -> None:
        self.seconds: dict[Stage, float] = {"build": 0.0, "fit": 0.0, "verdict": 0.0}
        self._watched: list[tuple[Builds, float]] = []
        self._found = 0.0  # what targets have built, as far as it was counted

    def watch(self, target: Builds) -> None:
        """Count what this target builds from now on as building."""
        self._watched.append((target, target.building_seconds))

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Count the time of the context for a stage."""
        begin, counted = time.perf_counter(), sum(self.seconds.values())
        built, found = self._built, self._found
        try:
            yield
        finally:
            inside = sum(self.seconds.values()) - counted
            own = time.perf_counter() - begin - inside
            building = self._built - built - (self._found - found)
            self._found += building
            self.seconds["build"] += building
            self.seconds[stage] += own - building

    @property
    def _built(self) -> float:
        return sum(target.building_seconds - before for target, before in self._watched)
