"""Measurements in fresh processes: what ends them, and what is kept of them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def process(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import process

    return process


@pytest.fixture
def script(tmp_path):
    """Write the file of a measurement whose function has the given lines."""

    def write(lines: str) -> str:
        path = tmp_path / "measured.py"
        path.write_text(
            f"import os, sys, subprocess, time\nsys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
            "import process\n\ndef measure(**case):\n    yield {'first': 1}\n"
            + textwrap.indent(textwrap.dedent(lines), "    ")
            + "    yield {'last': 1}\n\nprocess.answer(measure)\n"
        )
        return str(path)

    return write


@pytest.fixture
def limit(process, script, monkeypatch):
    """CPU seconds that no process needs to start; a busy machine may give them out slowly."""
    monkeypatch.setattr(process, "PATIENCE", 1000)
    return 10 * process.measure(script("pass\n"), {}, limit=60)["cpu_s"]


def test_waiting_is_not_work(process, script, limit):
    waited = limit + 2
    row = process.measure(script(f"time.sleep({waited})\n"), {}, limit=limit)
    assert row["problem"] == ""
    assert row["last"] == 1
    assert row["cpu_s"] <= row["process_s"] - waited


@LINUX
def test_work_beyond_the_limit_is_ended_and_what_was_told_is_kept(process, script, limit):
    row = process.measure(script("while True: pass\n"), {}, limit=limit)
    assert row["problem"] == f"not done after {limit:g} s of CPU"
    assert row["first"] == 1
    assert "last" not in row
    assert limit < row["cpu_s"] <= row["process_s"]


@LINUX
def test_work_of_a_child_counts(process, script, limit):
    lines = "subprocess.run([sys.executable, '-c', 'while True: pass'])\n"
    row = process.measure(script(lines), {}, limit=limit)
    assert row["problem"] == f"not done after {limit:g} s of CPU"


def test_a_process_that_only_waits_is_ended_by_the_clock(process, script, limit, monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 2)
    row = process.measure(script("time.sleep(3600)\n"), {}, limit=limit)
    assert row["problem"] == f"not done after {2 * limit:g} s by the clock"
    assert "last" not in row


def test_a_failure_is_named_by_its_error(process, script, capsys):
    row = process.measure(script("raise ValueError('no such thing')\n"), {}, limit=60)
    assert row["problem"] == "ValueError: no such thing"
    assert row["first"] == 1
    lines = "raise FloatingPointError('not a number\\nTry something else.')\n"
    row = process.measure(script(lines), {}, limit=60)
    assert row["problem"] == "FloatingPointError: not a number"


def test_a_row_that_is_removed_is_measured_again(process, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "RESULTS", tmp_path)
    table = process.Table("rows", ("model", "seed"), ("model", "seed", "error"))
    for model, seed in (("a", 1), ("a", 2), ("b", 1)):
        table.add({"model": model, "seed": seed, "error": 0.5})
    table = process.Table("rows", ("model", "seed"), ("model", "seed", "error"))
    table.remove(model="a", seed=1)
    table.remove(model="c", seed=1)
    assert not table.has(model="a", seed=1)
    assert table.has(model="a", seed=2)
    assert table.has(model="b", seed=1)
    assert [(row["model"], row["seed"]) for row in process.read(table.path)] == [
        ("a", "2"),
        ("b", "1"),
    ]
