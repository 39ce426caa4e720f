"""A direction without curvature is named, and is no convergence."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core.algorithm import State, drive
from pymc_ngvi.core.estimators import BonnetPrice, Stein
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from tests.targets import GaussianTarget, engine


class Flat(GaussianTarget):
    """Improper: its precision is zero along some directions."""

    _log_det = 0.0


@pytest.mark.parametrize("estimator", [BonnetPrice(), Stein()], ids=repr)
@pytest.mark.parametrize("dim", [1, 3, 120])
def test_an_improper_component(estimator, dim):
    target = Flat(np.zeros(dim), np.diag(np.r_[np.ones(dim - 1), 0.0]))
    fitted = engine(target, estimator=estimator)
    state = State(FullGaussian.from_curvature(np.zeros(dim), None))
    result = drive(fitted.fit(state, 10_000), state)
    assert result.status == "improper"
    assert fitted.improper.components == (dim - 1,)
    # Found on the few draws of the warm-up, before anything overflows.
    assert result.state.evaluations < 60 * fitted.problem.few(state.q).total
    assert result.q.variance.max() < 1e60


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian])
def test_an_improper_sum(family):
    """Of two components only the sum is known; mean-field is proper all the same."""
    target = Flat(np.zeros(3), np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))
    fitted = engine(target)
    state = State(family.from_curvature(np.zeros(3), None))
    result = drive(fitted.fit(state, 10_000), state)
    if family is FullGaussian:
        assert result.status == "improper"
        assert set(fitted.improper.components) == {0, 1}
    else:
        assert result.status == "converged"


def test_a_wide_posterior_is_not_improper():
    target = GaussianTarget(np.array([1e12, 0.0]), np.diag([1e-28, 1.0]))
    state = State(FullGaussian.from_curvature(np.zeros(2), None))
    result = drive(engine(target).fit(state, 10_000), state)
    assert result.status == "converged"
    assert np.sqrt(result.q.variance[0]) == pytest.approx(1e14)
