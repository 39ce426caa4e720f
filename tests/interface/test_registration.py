"""Registration: one more method in pm.fit, every other one untouched."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import warnings

import numpy as np
import pymc as pm
import pymc.variational
import pymc.variational.inference
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.interface.registration import _wrap
from tests.models import MODELS


@pytest.fixture
def unregistered():
    ngvi.unregister()
    yield
    ngvi.register()


def homes():
    return [pm.fit, pymc.variational.fit, pymc.variational.inference.fit]


def test_all_homes_are_wrapped_once():
    wrapped = homes()
    ngvi.register()
    assert homes() == wrapped
    assert len(set(map(id, wrapped))) == 1
    assert not hasattr(wrapped[0].__wrapped__, "__wrapped__")


def test_unregister_restores_pymc(unregistered):
    assert all(fit.__module__ == "pymc.variational.inference" for fit in homes())
    assert not any(hasattr(fit, "__wrapped__") for fit in homes())
    ngvi.unregister()
    with pytest.raises(KeyError, match="method should be one of"):
        pm.fit(method="ngvi", model=MODELS["conjugate_normal"]())


def test_signature_name_and_documentation_are_pymcs():
    original = pm.fit.__wrapped__
    assert inspect.signature(pm.fit) == inspect.signature(original)
    assert pm.fit.__name__ == "fit"
    assert pm.fit.__doc__ == original.__doc__


def test_unknown_method_names_ngvi_too():
    with pytest.raises(KeyError, match=r"method should be one of .*ngvi.*advi"):
        pm.fit(method="nope", model=MODELS["conjugate_normal"]())
    with pytest.raises(TypeError, match="method should be one of"):
        pm.fit(method=3, model=MODELS["conjugate_normal"]())


def test_name_is_case_insensitive():
    approx = pm.fit(
        method="NGVI",
        model=MODELS["conjugate_normal"](),
        random_seed=1,
        backend="interpreted",
        progressbar=False,
    )
    assert approx.report.status == "converged"


@pytest.mark.parametrize("method", ["advi", "fullrank_advi", "svgd"])
def test_other_methods_are_bit_identical(method):
    """The same run through PyMC's own function and through the wrapper."""
    results = []
    for function in (pm.fit.__wrapped__, pm.fit):
        np.random.seed(1)  # noqa: NPY002 - SVGD jitters its particles with the global generator
        with MODELS["conjugate_normal"](), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            approx = function(
                4,
                method=method,
                random_seed=1,
                progressbar=False,
                compile_kwargs={"mode": "FAST_COMPILE"},
                inf_kwargs={"n_particles": 5} if method == "svgd" else None,
            )
        results.append([parameter.get_value() for parameter in approx.params])
    for plain, wrapped in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, wrapped)


@pytest.mark.parametrize("method", ["advi", "ASVGD", "nope", 3])
def test_other_methods_get_the_very_arguments(method):
    """For ASVGD too, of which no two runs of PyMC itself are the same."""
    calls = []

    def fit(n=10000, method="advi", model=None, **kwargs):
        """Stand in for PyMC's own."""
        calls.append((n, method, model, kwargs))
        return "done"

    assert _wrap(fit)(7, method, obj_n_mc=3) == "done"
    assert calls == [(7, method, None, {"obj_n_mc": 3})]


def test_wrappers_of_others_are_left_alone():
    """One put on top of ours stays when we go; ours works on top of one."""
    ours = pm.fit

    @functools.wraps(ours)
    def on_top(*args, **kwargs):
        return ours(*args, **kwargs)

    pm.fit = on_top
    try:
        ngvi.unregister()
        assert pm.fit is on_top
        assert pymc.variational.fit is not ours
    finally:
        pm.fit = ours
        ngvi.register()
    assert homes() == [ours] * 3


def test_ngvi_through_a_wrapper_without_a_signature():
    def below(*args, **kwargs):
        return "PyMC's own"

    wrapped = _wrap(below)
    assert wrapped(10, "advi") == "PyMC's own"
    model = MODELS["conjugate_normal"]()
    arguments = dict(random_seed=1, backend="interpreted", progressbar=False)
    for approx in (
        wrapped(10, "ngvi", model, **arguments),
        wrapped(method="ngvi", model=model, **arguments),
    ):
        assert approx.report.status == "converged"


def test_errors_of_other_methods_pass():
    def fit(method="advi"):
        """Fail as a model may."""
        raise KeyError("sigma")

    with pytest.raises(KeyError, match="sigma"):
        _wrap(fit)(method="advi")


@pytest.mark.parametrize("first", ["pymc", "pymc_ngvi"])
def test_import_in_any_order(first):
    second = {"pymc": "pymc_ngvi", "pymc_ngvi": "pymc"}[first]
    code = (
        f"import {first}, {second}, importlib, inspect\n"
        "import pymc as pm, pymc.variational as v, pymc_ngvi\n"
        "importlib.reload(pymc_ngvi)\n"
        "assert pm.fit is v.fit is v.inference.fit\n"
        "assert hasattr(pm.fit, '__wrapped__') and not hasattr(pm.fit.__wrapped__, '__wrapped__')\n"
        "pymc_ngvi.unregister()\n"
        "assert not hasattr(pm.fit, '__wrapped__')\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("fine")
