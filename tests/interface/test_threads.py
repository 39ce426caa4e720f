"""Threads of linear algebra."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.conftest import fit


def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(
    ("dim", "family", "during"), [(2, "auto", {1}), (300, "fullrank", {2}), (300, "sparse", {1})]
)
def test_small_matrices_take_one_thread_while_a_model_is_fitted(dim, family, during):
    with pm.Model() as model:
        x = pm.Normal("x", shape=dim)
        pm.Normal("y", x, 1.0, observed=np.zeros(dim))
    seen = []
    with threadpool_limits(limits=2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("this machine's linear algebra has one thread only")
        fit(model, family=family, callbacks=[lambda *_: seen.append(threads())])
        assert threads() == {2}
    assert all(found == during for found in seen)
    assert seen
