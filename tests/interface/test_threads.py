"""Threads of linear algebra."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.conftest import fit


def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(("dim", "during"), [(2, {1}), (300, {2})])
def test_a_small_model_takes_one_thread_while_it_is_fitted(dim, during):
    with pm.Model() as model:
        x = pm.Normal("x", shape=dim)
        pm.Normal("y", x, 1.0, observed=np.zeros(dim))
    seen = []
    with threadpool_limits(limits=2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("this machine's linear algebra has one thread only")
        fit(model, callbacks=[lambda *_: seen.append(threads())])
        assert threads() == {2}
    assert all(found == during for found in seen)
    assert seen
