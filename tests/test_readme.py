"""The README's code runs as it stands there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytensor
import pytest

from pymc_ngvi._compat import PYMC_6

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^( *)```python\n(.*?)^ *```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "block", [textwrap.dedent(code) for _, code in BLOCKS], ids=range(len(BLOCKS))
)
def test_code(block, capsys):
    # Interpreted by default: the point is the code, not the backend.
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    if "print" in block:
        for line in ("converged", "fullrank, 3 parameters, bonnet-price", "slope[dose]"):
            assert line in printed
    if PYMC_6:  # the line the README shows the output of
        for line in printed.splitlines():
            # Times differ by machine, and the last digit of k-hat by backend.
            if not line.startswith(("time", "k-hat")):
                assert line in TEXT


def test_there_are_blocks():
    assert len(BLOCKS) == 2


def test_links_lead_somewhere():
    root = Path(__file__).parents[1]
    links = re.findall(r"\]\((?!https?://)([^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (root / link).exists()] == []


def test_numbers_are_those_that_were_measured(monkeypatch):
    """`python benchmarks/run.py table` brings the README up to date."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import facts
    from process import RESULTS

    told = TEXT.split(facts.BEGIN)[1].split(facts.END)[0]
    assert told.strip() == facts.measured(RESULTS)
