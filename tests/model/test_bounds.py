"""Bounds that expressions keep whatever their inputs."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.traversal import io_toposort

from pymc_ngvi.model.bounds import Bounds

x = pt.vector("x", shape=(4,))

EXPRESSIONS = {
    "exp": pt.exp(x),
    "chance": pt.sigmoid(x),
    "interval": pt.sigmoid(x) * 3.0 - (1 - pt.sigmoid(x)),
    "selected": pt.softplus(x)[[0, 2]],
    "negative": -pt.sqr(x) - 1.0,
    "product": pt.exp(x) * -2.0,
    "mixed signs": pt.sigmoid(x) * pt.constant([-1.0, 2.0, 0.0, 1.0]),
    "broadcast": pt.abs(x)[:, None] + pt.constant(np.arange(3.0)),
    "unknown": pt.cumsum(pt.exp(x)),
    "nothing": x,
}


def found(variable):
    bounds = Bounds()
    for node in io_toposort([], [variable]):
        bounds.add(node)
    return bounds


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(values=st.lists(st.floats(-30, 30), min_size=4, max_size=4))
@settings(max_examples=20)
def test_no_value_is_beyond_the_bounds(name, values):
    variable = EXPRESSIONS[name]
    low, high = found(variable).of(variable)
    value = _function(name)(np.array(values))
    assert (value >= low).all()
    assert (value <= high).all()


_FUNCTIONS = {}


def _function(name):
    if name not in _FUNCTIONS:
        _FUNCTIONS[name] = pytensor.function([x], EXPRESSIONS[name], mode="FAST_COMPILE")
    return _FUNCTIONS[name]


@pytest.mark.parametrize(
    ("comparison", "decided"),
    [
        (pt.ge(pt.exp(x), 0), True),
        (pt.gt(pt.exp(x), 0), True),
        (pt.le(EXPRESSIONS["interval"], 3.0), True),
        (pt.lt(EXPRESSIONS["negative"], 0), True),
        (pt.eq(x, -np.inf), True),
        (pt.ge(pt.exp(x), 1), False),
        (pt.ge(x, 0), False),
        (pt.le(pt.sigmoid(x), 0.5), False),
        (pt.ge(EXPRESSIONS["mixed signs"], 0), False),
        (pt.ge(pt.exp(x), pt.constant(np.nan)), False),
    ],
)
def test_a_comparison_is_decided_where_bounds_say_so(comparison, decided):
    assert found(comparison).decide(comparison.owner) == decided
