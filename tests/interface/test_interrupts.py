"""Ctrl-C never loses what was fitted, whenever it comes."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from pymc_ngvi import UnreliableFit
from pymc_ngvi.interface import fit as fitting
from pymc_ngvi.interface.interrupts import Shield
from tests.conftest import fit
from tests.models import MODELS


@pytest.fixture(autouse=True)
def _listening():
    """Ctrl-C raises, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def pressing(function):
    """The function, with Ctrl-C pressed once, just before its work."""
    pressed = []

    def wrapped(*args, **kwargs):
        if not pressed:
            pressed.append(True)
            press()
        return function(*args, **kwargs)

    return wrapped


@pytest.fixture(scope="module")
def whole():
    return fit(MODELS["linear_regression"]())


def test_before_the_result_is_written(whole, monkeypatch):
    """The approximation holds the fit, not the start, and has a report."""
    monkeypatch.setattr(fitting.Fit, "_keep", pressing(fitting.Fit._keep))
    with pytest.warns(UnreliableFit, match="not judged"):
        approx = fit(MODELS["linear_regression"]())
    np.testing.assert_array_equal(approx.gaussian.mean, whole.gaussian.mean)
    assert approx.report.status == "converged"
    assert len(approx.hist) == len(whole.hist)


@pytest.mark.parametrize("what", ["judge", "Report"])
def test_during_the_verdict_and_the_report(whole, what, monkeypatch):
    if what == "judge":
        monkeypatch.setattr(fitting, what, pressing(fitting.judge))
        with pytest.warns(UnreliableFit, match="not judged"):
            approx = fit(MODELS["linear_regression"]())
    else:
        monkeypatch.setattr(fitting.Fit, "_report", pressing(fitting.Fit._report))
        approx = fit(MODELS["linear_regression"]())
        assert approx.report.khat == whole.report.khat
    np.testing.assert_array_equal(approx.gaussian.mean, whole.gaussian.mean)
    assert approx.report is not None


def test_during_the_iterations():
    def interrupt(approx, losses, i):
        if i == 3:
            press()

    approx = fit(MODELS["linear_regression"](), callbacks=[interrupt])
    assert approx.report.status == "interrupted"
    np.testing.assert_allclose(approx.mean.eval(), approx.gaussian.mean)


def test_a_shield_holds_back_until_it_is_lifted():
    seen = []
    with Shield() as shield:
        press()
        seen.append("held")
        with pytest.raises(KeyboardInterrupt), shield.lifted():
            seen.append("never")
        with pytest.raises(KeyboardInterrupt), shield.lifted():
            press()
    assert seen == ["held"]
    with pytest.raises(KeyboardInterrupt):
        press()


def test_the_handler_of_the_caller_is_used_and_restored():
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    try:
        handler = signal.getsignal(signal.SIGINT)
        with Shield() as shield, shield.lifted():
            press()
        assert received == [True]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone():
    handlers = []

    def run():
        with Shield():
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]
