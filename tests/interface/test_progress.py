"""The progress bar: what it shows in a terminal, in a log, and its silence where disabled."""

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
        bar.stage("building")
        bar.stage("compiling")
        for t in range(3):
            bar.update(State(None), info(t))
        bar.stage("judging")
        bar.reading("log-densities", 5_000, 5_000)
        if fails:
            raise RuntimeError
    bar.reading("log-densities", 6_000, 6_000)
    return stream.getvalue()


def test_terminal_shows_the_fit():
    shown = show(terminal=True)
    for part in ("3 iterations", "ELBO -12.345", "step 0.25", "samples 64", "evaluations/s"):
        assert part in shown


def test_terminal_shows_the_rows_that_a_pass_has_read():
    shown = show(terminal=True)
    assert "log densities: 5,000 of 5,000 rows" in shown
    assert "6,000" not in shown


def test_terminal_shows_the_stages_in_one_line():
    shown = show(terminal=True)
    places = [shown.index(name) for name in ("Building", "Compiling", "Judging", "Fitted")]
    assert places == sorted(places)
    assert shown.count("\n") == 1  # at the end: each state is drawn over the one before


def test_a_stage_is_shown_when_it_begins():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, theme=default_progress_theme)
    with ProgressBar(10, enabled=True, theme=default_progress_theme, console=console) as bar:
        bar.stage("building")
        assert "Building" in stream.getvalue()
        assert "iterations" not in stream.getvalue()


def test_a_log_gets_nothing():
    assert show(terminal=False).strip() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_silence(terminal):
    assert not show(terminal=terminal, enabled=False).strip()


def test_an_error_passes():
    with pytest.raises(RuntimeError):
        show(terminal=True, fails=True)
