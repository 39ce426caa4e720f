"""The progress bar of a fit: that of PyMC, with columns of our own."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from pymc.progress_bar import CustomProgress
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_ngvi.core.algorithm import Info, State


class ProgressBar:
    """Shows iteration, ELBO, step size, sample size and evaluations per second of a running fit.

    Parameters
    ----------
    total : int
        Iterations at most.
    enabled : bool
        Whether to show the bar. It is shown in a terminal or a notebook only.
    theme : rich.theme.Theme
    console : rich.console.Console, optional
        Console to show the bar in.
    """

    def __init__(
        self, total: int, *, enabled: bool, theme: Any, console: Console | None = None
    ) -> None:
        console = Console(theme=theme) if console is None else console
        self._total = total
        self._progress = CustomProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} iterations"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not enabled or not (console.is_terminal or console.is_jupyter),
        )

    def __enter__(self) -> ProgressBar:
        self._progress.__enter__()
        self._task = self._progress.add_task("Fitting", total=self._total, status="")
        self._begin = time.perf_counter()
        self._spent: int | None = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # a fit that stops by itself is complete
            done = self._progress.tasks[0].completed if self._progress.tasks else self._total
            self._progress.update(self._task, total=done, refresh=True)
        self._progress.__exit__(kind, error, traceback)

    def update(self, state: State, info: Info) -> None:
        """Show one more iteration."""
        elapsed = time.perf_counter() - self._begin
        if self._spent is None:
            self._spent = info.evaluations - info.n_samples
        rate = (info.evaluations - self._spent) / max(elapsed, 1e-9)
        status = (
            f"ELBO {info.elbo:,.3f}  step {info.step_size:.3g}  "
            f"samples {info.n_samples}  {rate:,.0f} evaluations/s"
        )
        if info.passes:
            status += f"  {info.passes:.2f} passes over the data"
        self._progress.update(self._task, advance=1, status=status)
