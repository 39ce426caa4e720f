"""The code of the documentation's pages runs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import matplotlib
import pymc as pm
import pytensor

from tests.models import MODELS

PAGES = Path(__file__).parents[1] / "docs"


def blocks(page):
    return re.findall(
        r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE
    )


def test_core():
    namespace = {}
    for block in blocks("core.md"):
        exec(compile(block, "core.md", "exec"), namespace)
    assert namespace["result"].status == "max_iterations"
    assert namespace["plan"].bound <= 0.01


def test_paper():
    namespace = {}
    for block in blocks("paper.md"):
        exec(compile(block, "paper.md", "exec"), namespace)
    assert namespace["variance"] == 90_001


def test_fitting():
    namespace = {"model": MODELS["conjugate_normal"](), "pm": pm}
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        for block in blocks("fitting.md"):
            exec(compile(block, "fitting.md", "exec"), namespace)
    assert namespace["approx"].report.status == "refined"
    assert len(namespace["tracker"]["mean"]) > 0


def test_minibatches():
    namespace = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fifty iterations with plain batches are no good fit
        for block in blocks("minibatches.md"):
            # LOO of all rows would take a minute, and so would compiling.
            shorter = block.replace("50_000", "1_000").replace("20_000", "600")
            shorter = shorter.replace('"ngvi",', '"ngvi", backend="interpreted",')
            exec(compile(shorter, "minibatches.md", "exec"), namespace)
    approx, same = namespace["approx"].gaussian, namespace["same"].gaussian
    assert approx.kl(same) < 0.01
    assert namespace["predicted"]["posterior_predictive"]["y"].sizes["draw"] == 20
    assert namespace["part"]["posterior_predictive"]["outcome"].shape[2] == 400


def test_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    namespace = {}
    with pytensor.config.change_flags(mode="FAST_COMPILE"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks("results.md"):
            # Compiled, or with as many draws of NUTS, it would take a minute.
            shorter = block.replace("pm.sample(300,", "pm.sample(30,")
            shorter = shorter.replace("nuts_kwargs(chains=2,", "nuts_kwargs(chains=2, tune=20,")
            shorter = shorter.replace('"ngvi",', '"ngvi", backend="interpreted",')
            exec(compile(shorter, "results.md", "exec"), namespace)
    assert list(namespace["table"].index) == ["dose and age", "dose"]
    assert namespace["sampled"]["posterior"].sizes["draw"] == 30
    matplotlib.pyplot.close("all")
