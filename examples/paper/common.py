"""What the experiments share: what the command line chooses, schedules, and repeated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from pymc_ngvi import schedules

Array = NDArray[np.float64]
Rows = list[dict[str, Any]]
Generators = Sequence[np.random.Generator]
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Settings:
    """What the command line chooses."""

    runs: int
    iterations: int
    seed: int
    output: Path
    data: Path | None = None
    paper: bool = False
    progress: bool = True

    def generators(self) -> Generators:
        """Make a generator for each run; variants that are compared use the same seeds."""
        return [np.random.default_rng(self.seed + run) for run in range(self.runs)]

    def track(self, steps: range, title: str) -> Iterable[int]:
        """Go through the steps, with a progress bar unless it is switched off."""
        return track(steps, description=f"{title:<44}", disable=not self.progress)


@dataclass(frozen=True)
class Schedule:
    """A step size and a sample size, each a number or a function of the iteration."""

    name: str
    label: str
    step_size: Any
    n_samples: Any

    def samples_used(self, n_iterations: int) -> Array:
        """Count the samples spent before iteration t, for t = 0, ..., n_iterations."""
        counts = schedules.as_schedule(self.n_samples, "n_samples")
        return np.concatenate([[0], np.cumsum([counts(t) for t in range(n_iterations)])])


def four_schedules(step_size: float, n_samples: int) -> list[Schedule]:
    """Pair a constant or decreasing step size with constant or growing samples, as in the paper."""
    constant, falling = f"$\\eta_t = {step_size:g}$", r"$\eta_t = 2/(t+2)$"
    fixed, growing = f"$N_t = {n_samples}$", "$N_t = t+1$"
    decreasing, more = schedules.decreasing(), schedules.growing(1.0)
    return [
        Schedule("constant step, constant N", f"{constant}, {fixed}", step_size, n_samples),
        Schedule("constant step, growing N", f"{constant}, {growing}", step_size, more),
        Schedule("decreasing step, constant N", f"{falling}, {fixed}", decreasing, n_samples),
        Schedule("decreasing step, growing N", f"{falling}, {growing}", decreasing, more),
    ]


def repeat(
    settings: Settings, title: str, one_run: Callable[[np.random.Generator], Outcome]
) -> list[Outcome]:
    """Run once for every seed."""
    generators = settings.generators()
    return [one_run(generators[i]) for i in settings.track(range(settings.runs), title)]
