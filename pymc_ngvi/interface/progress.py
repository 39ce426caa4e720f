"""The progress of a fit: the bar of PyMC with columns of our own."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from pymc.progress_bar import CustomProgress
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_ngvi.core.algorithm import Info, State


class ProgressBar:
    """Shows what a fit is doing, from the first second to its end.

    In a terminal or a notebook it is one line: the stage, and once there are iterations their
    number, ELBO, step size, sample size and evaluations per second. Elsewhere nothing is shown.

    Parameters
    ----------
    total : int
        Iterations at most.
    enabled : bool
        Whether to show anything.
    theme : rich.theme.Theme
    console : rich.console.Console, optional
        Console to show it in.

    Examples
    --------
    >>> from pymc.progress_bar import default_progress_theme
    >>> with ProgressBar(100, enabled=False, theme=default_progress_theme) as progress:
    ...     progress.stage("building")
    ...     progress.stage("compiling")
    """

    def __init__(
        self, total: int, *, enabled: bool, theme: Any, console: Console | None = None
    ) -> None:
        live = Console(theme=theme) if console is None else console
        is_live = live.is_terminal or live.is_jupyter
        self._total = total
        self._stage = ""
        self._count = 0
        self._spent: int | None = None
        self._progress = CustomProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=live,
            disable=not enabled or not is_live,
        )

    def __enter__(self) -> ProgressBar:
        self._progress.__enter__()
        # Without a total the bar pulses: nobody knows how long building and compiling take.
        self._task = self._progress.add_task("Starting", total=None, status="")
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # a fit that stops by itself is complete
            done = self._progress.tasks[0].completed if self._progress.tasks else self._total
            self._progress.update(self._task, description="Fitted", total=done, refresh=True)
        self._progress.__exit__(kind, error, traceback)

    def stage(self, name: str) -> None:
        """Show what begins now, such as "building", "compiling" or "judging"."""
        if name == self._stage:
            return
        self._stage = name
        self._begin = time.perf_counter()
        # It is drawn at once, before work that may keep Python busy.
        self._progress.update(self._task, description=name.capitalize(), refresh=True)

    def reading(self, what: str, rows: int, of: int) -> None:
        """Show how far a pass over the data has come: `rows` read of all."""
        if self._progress.live.is_started:  # a target goes on to be used when its bar is done
            text = f"{what.replace('-', ' ')}: {rows:,} of {of:,} rows"
            self._progress.update(self._task, status=text, refresh=rows == of)

    def update(self, state: State, info: Info) -> None:
        """Show one more iteration."""
        if self._spent is None:
            self._spent = info.evaluations - info.n_samples
            begin = self._begin  # the first iteration has been running since the stage before it
            self.stage("fitting")
            self._begin = begin
            self._progress.update(self._task, total=self._total)
        rate = (info.evaluations - self._spent) / max(time.perf_counter() - self._begin, 1e-9)
        self._count += 1
        status = (
            f"{self._count} iterations  ELBO {info.elbo:,.3f}  step {info.step_size:.3g}  "
            f"samples {info.n_samples}  {rate:,.0f} evaluations/s"
        )
        if info.passes:
            status += f"  {info.passes:.2f} passes over the data"
        self._progress.update(self._task, advance=1, status=status)
