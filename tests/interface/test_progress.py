"""The progress bar: what it shows in a terminal, and its silence elsewhere."""

from __future__ import annotations

import io

import pytest
from pymc.progress_bar import default_progress_theme
from rich.console import Console

from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.interface.progress import ProgressBar


def info(t):
    return Info(t, -12.345, 0.1, 0.25, 64, 0.5, False, False, 0, 64 * (t + 1))


def show(*, terminal, enabled=True, fails=False):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=200, theme=default_progress_theme)
    bar = ProgressBar(10, enabled=enabled, theme=default_progress_theme, console=console)
    with bar:
        for t in range(3):
            bar.update(State(None), info(t))
        if fails:
            raise RuntimeError
    return stream.getvalue()


def test_terminal_shows_the_fit():
    shown = show(terminal=True)
    for part in ("3 iterations", "ELBO -12.345", "step 0.25", "samples 64", "evaluations/s"):
        assert part in shown


@pytest.mark.parametrize("arguments", [dict(terminal=False), dict(terminal=True, enabled=False)])
def test_silence(arguments):
    assert not show(**arguments).strip()


def test_an_error_passes():
    with pytest.raises(RuntimeError):
        show(terminal=True, fails=True)
