"""The code of the documentation's pages runs, and its tables say what the code says."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_ngvi
from pymc_ngvi.interface.options import Options
from tests.models import MODELS

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs"
#: Pages that Sphinx runs when it builds them.
RUN_BY_THE_BUILD = {"quickstart.md", "results.md"}


def blocks(page):
    """Code that a page shows; what the build runs stands in a fence of another kind."""
    fence = r"^```python\n(.*?)^```"
    return re.findall(fence, (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def run(page, namespace, shorten=lambda code: code):
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        for block in blocks(page):
            exec(compile(shorten(block), page, "exec"), namespace)
    return namespace


@pytest.fixture(scope="module")
def model():
    """Return what the pages call `model`: two parameters, an exactly Gaussian posterior."""
    design = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        pm.Normal("y", design @ beta, 0.5, observed=[0.3, 1.1, 1.6])
    return model


@pytest.fixture(scope="module")
def approx(model):
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        return pm.fit(method="ngvi", random_seed=1, model=model, progressbar=False)


def test_core():
    namespace = run("core.md", {})
    assert namespace["result"].status == "max_iterations"
    assert namespace["plan"].bound <= 0.01


def test_paper():
    assert run("paper.md", {})["variance"] == 90_001


def test_fitting():
    given = {"model": MODELS["conjugate_normal"](), "pm": pm}
    namespace = run("fitting.md", given, lambda code: code.replace("refine(10)", "refine(2)"))
    assert namespace["approx"].report.status == "refined"
    assert len(namespace["tracker"]["mean"]) > 0


def test_minibatches():
    def shorten(block):
        # LOO of all rows would take a minute, and so would compiling.
        block = block.replace("50_000", "1_000").replace("20_000", "600")
        block = block.replace("        50,", "        10,")
        return block.replace('"ngvi",', '"ngvi", backend="interpreted",')

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten iterations with plain batches are no good fit
        namespace = run("minibatches.md", {}, shorten)
    assert namespace["approx"].gaussian.kl(namespace["same"].gaussian) < 0.01
    assert namespace["predicted"]["posterior_predictive"]["y"].sizes["draw"] == 20
    assert namespace["part"]["posterior_predictive"]["outcome"].shape[2] == 400


def test_scale(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    namespace = run(
        "scale.md", {}, lambda code: code.replace('"ngvi",', '"ngvi", backend="interpreted",')
    )
    namespace["client"].close()
    namespace["cluster"].close()
    here, there = namespace["approx"].gaussian, namespace["same"].gaussian
    np.testing.assert_allclose(here.mean, there.mean, rtol=1e-8)
    assert namespace["score"].n_data_points == namespace["table"].n_rows


def test_what_a_fit_of_batches_reads():
    """The line of the report that the page shows."""
    code = blocks("minibatches.md")[0].replace('"ngvi",', '"ngvi", backend="interpreted",')
    namespace = {}
    exec(compile(code, "minibatches.md", "exec"), namespace)
    (line,) = re.findall("^data .*$", str(namespace["approx"].report), re.MULTILINE)
    assert line in (PAGES / "minibatches.md").read_text()


def test_choosing(model):
    with warnings.catch_warnings():  # the parameters are correlated
        warnings.simplefilter("ignore", pymc_ngvi.UnreliableFit)
        namespace = run("choosing.md", {"model": model}, lambda code: code.replace("200,", "20,"))
    assert namespace["full"].report.elbo > namespace["diagonal"].report.elbo
    assert (namespace["approx"].gaussian.mean >= 0).all()


def test_shapes():
    def shorten(block):
        return block.replace('"ngvi",', '"ngvi", backend="interpreted", progressbar=False,')

    report = run("shapes.md", {}, shorten)["approx"].report
    assert f"{report.elbo:.2f}" == "-31.31"


@pytest.mark.parametrize("page", ["index.md", "developer.md", "report.md", "trouble.md"])
def test_fits_of_a_model(page, model, approx, capsys):
    namespace = run(page, {"model": model, "approx": approx, "pm": pm, "pymc_ngvi": pymc_ngvi})
    assert namespace["approx"].report.status == "converged"


def test_authors(model, capsys):
    """The page's function works whether or not the name is registered."""
    pymc_ngvi.unregister()
    try:
        namespace = run("authors.md", {"model": model})
    finally:
        pymc_ngvi.register()
    assert namespace["approx"].report.status == "converged"
    assert "converged, k-hat" in capsys.readouterr().out
    assert namespace["idata"]["posterior"].sizes["draw"] == 1000


def test_extending(model):
    with warnings.catch_warnings():  # the parameters are correlated
        warnings.simplefilter("ignore", pymc_ngvi.UnreliableFit)
        namespace = run("extending.md", {"model": model})
    assert namespace["clipped"].report.estimator == "clipped"
    assert abs(namespace["boxed"].gaussian.mean).max() <= 1
    # The best variance in common: the mean of the precisions of the exact posterior.
    precision = namespace["guarded"].gaussian.precision.diagonal()
    np.testing.assert_allclose(namespace["isotropic"].gaussian.precision, precision.mean())
    # A family is known as long as its class exists; other tests want those of the package only.
    del namespace
    gc.collect()


def test_every_page_with_code_is_run():
    tested = set(re.findall(r'"(\w+\.md)"', Path(__file__).read_text())) - RUN_BY_THE_BUILD
    pages = {page.name: page.read_text() for page in PAGES.glob("*.md")}
    assert {name for name in pages if blocks(name)} <= tested
    assert {name for name, text in pages.items() if "```{code-cell}" in text} == RUN_BY_THE_BUILD


def test_gallery_is_complete():
    listed = set(re.findall(r"^gallery/(\w+)$", (PAGES / "gallery.md").read_text(), re.MULTILINE))
    assert listed == {path.stem for path in (ROOT / "examples" / "gallery").glob("*.py")}


def test_options():
    """The table of options has every keyword with its default."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", (PAGES / "options.md").read_text(), re.MULTILINE)
    keywords = inspect.signature(pymc_ngvi.NGVI.fit).parameters
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    defaults |= {
        name: keyword.default
        for name, keyword in keywords.items()
        if name != "self" and keyword.kind is not keyword.VAR_KEYWORD
    }
    assert {name for name, _ in rows} == set(defaults)
    for name, told in rows:
        # A word stands for what None, or an object of PyMC's, leaves to someone else.
        literal = isinstance(defaults[name], bool | int | float | str)
        expected = repr(defaults[name]).replace("'", '"')
        assert told == f"`{expected}`" if literal else "`" not in told, (name, told)


def modules():
    found = pkgutil.walk_packages(pymc_ngvi.__path__, "pymc_ngvi.")
    return [
        module.name
        for module in found
        if not any(part[0] == "_" for part in module.name.split("."))
    ]


def test_reference_lists_every_package():
    """The page of a package lists its modules by itself: see docs/_templates."""
    listed = re.findall(r"^   (pymc_ngvi[\w.]+)$", (PAGES / "api.md").read_text(), re.MULTILINE)
    assert set(listed) == {name for name in modules() if name.count(".") == 1}


def test_reference_lists_every_public_name():
    entry = r"^   ~pymc_ngvi\.([\w.]+)\.(\w+)$"
    listed = re.findall(entry, (PAGES / "api.md").read_text(), re.MULTILINE)
    exported = {
        name
        for name in pymc_ngvi.__all__
        if not inspect.ismodule(getattr(pymc_ngvi, name)) and name != "__version__"
    }
    assert {name for _, name in listed} == exported
    for module, name in listed:
        found = getattr(importlib.import_module(f"pymc_ngvi.{module}"), name)
        assert found is getattr(pymc_ngvi, name)


@pytest.mark.parametrize("name", modules())
def test_everything_public_is_documented(name):
    """Classes, their methods and properties, and functions have docstrings, inherited ones too."""
    module = importlib.import_module(name)
    assert module.__doc__, name
    missing = []
    for label, member in vars(module).items():
        if label.startswith("_") or getattr(member, "__module__", None) != name:
            continue
        if inspect.isfunction(member) and not inspect.getdoc(member):
            missing.append(label)
        if inspect.isclass(member):
            if not member.__doc__ or member.__doc__.startswith(f"{label}("):
                missing.append(label)
            missing += [
                f"{label}.{attribute}"
                for attribute, value in vars(member).items()
                if not attribute.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, property | classmethod))
                and not inspect.getdoc(getattr(member, attribute))
            ]
    assert not missing, missing


def test_results_are_those_measured(tmp_path, monkeypatch):
    """The tables of the benchmarks are what their program makes of the measurements."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = importlib.import_module("table")
    try:
        for path in (ROOT / "benchmarks" / "results").glob("*.csv"):
            (tmp_path / "results" / path.name).parent.mkdir(exist_ok=True)
            (tmp_path / "results" / path.name).write_text(path.read_text())
        table.write(tmp_path / "results")
    finally:
        del sys.modules["table"]
    committed = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert (tmp_path / "RESULTS.md").read_text() == committed


def test_other_packages_are_as_measured(monkeypatch):
    """The table of the page is what its program makes of the measurements."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    clients = importlib.import_module("clients")
    try:
        assert clients.table() in (PAGES / "clients.md").read_text()
    finally:
        del sys.modules["clients"]
