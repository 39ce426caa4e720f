"""Several starts: the best is kept, poor ones cost little, and bad ends are not the last word."""

import numpy as np
import pytest

from pymc_ngvi.core.algorithm import State, drive
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.engine.search import Search
from pymc_ngvi.errors import NonFiniteError
from tests.targets import GaussianTarget, HalfSpace, LogisticTarget, engine


class TwoHills(Target):
    """Mixture of two unit Gaussians a distance apart, the second with so many times the mass."""

    dim = 1

    def __init__(self, apart=12.0, mass=20.0):
        self.centres, self.logs = np.array([0.0, apart]), np.log([1.0, mass])

    def log_density(self, draws):
        return np.logaddexp.reduce(self.logs - (draws - self.centres) ** 2 / 2, axis=1)

    def evaluate(self, draws, curvature):
        log_density = self.log_density(draws)
        weight = np.exp(self.logs - (draws - self.centres) ** 2 / 2 - log_density[:, np.newaxis])
        gradient = (weight * (self.centres - draws)).sum(axis=1)
        spread = (weight * (self.centres - draws) ** 2).sum(axis=1) - gradient**2
        hessian = (spread - 1).reshape(-1, 1, 1)
        return Evaluation(log_density, gradient[:, np.newaxis], hessian)


def at(*means):
    return State(FullGaussian.from_curvature(np.array(means, float), None))


def search(target, spare=(), max_evaluations=20_000):
    found = engine(target, accuracy=0.05, max_evaluations=max_evaluations)
    return Search(found, lambda n: list(spare)[:n])


def outcomes(found):
    return sorted(attempt.outcome for attempt in found.attempts)


def test_the_higher_of_two_hills_is_found_and_the_other_abandoned_or_told():
    found = search(TwoHills(mass=1e4))
    result = drive(found.fit([at(0.0), at(12.0), at(11.0)], 1000), at(0.0))
    assert result.status == "converged"
    assert result.q.mean[0] == pytest.approx(12, abs=0.1)
    assert outcomes(found) == ["abandoned", "best", "same"]
    assert result.state.evaluations == found.engine.evaluations


def test_hills_of_similar_height_are_both_fitted():
    found = search(TwoHills(mass=1.5))
    result = drive(found.fit([at(0.0), at(12.0)], 1000), at(0.0))
    assert result.q.mean[0] == pytest.approx(12, abs=0.1)
    assert outcomes(found) == ["best", "other"]
    best, other = (
        next(a.elbo for a in found.attempts if a.outcome == kind) for kind in ("best", "other")
    )
    assert best - other == pytest.approx(np.log(1.5), abs=0.02)


def test_a_poor_start_costs_its_warm_up_only():
    alone, among = search(TwoHills(mass=1e4)), search(TwoHills(mass=1e4))
    drive(alone.fit([at(12.0)], 1000), at(12.0))
    drive(among.fit([at(12.0), at(0.0)], 1000), at(12.0))
    assert among.engine.evaluations < alone.engine.evaluations + 300


def test_a_start_that_is_not_finite_is_replaced_by_another():
    inner = GaussianTarget(np.zeros(2), np.eye(2) * 100)
    found = search(HalfSpace(inner, wall=1.0), spare=[at(0.0, 0.0)])
    result = drive(found.fit([at(5.0, 0.0)], 1000), at(5.0, 0.0))
    assert result.status == "converged"
    assert outcomes(found) == ["best", "failed"]
    assert result.q.kl(inner.optimum(FullGaussian)) < 1e-6


def test_where_no_start_is_finite_the_first_error_is_raised():
    found = search(HalfSpace(GaussianTarget(np.zeros(2), np.eye(2)), wall=-9.0), [at(1.0, 0.0)])
    with pytest.raises(NonFiniteError, match="however close to the starting point"):
        drive(found.fit([at(0.0, 0.0)], 1000), at(0.0, 0.0))
    assert outcomes(found) == ["failed", "failed"]


def test_budgets_hold_for_all_starts_together():
    target = LogisticTarget.random(4, 60, seed=2)
    starts = [at(*point) for point in np.random.default_rng(0).normal(size=(6, 4))]
    found = search(target, max_evaluations=400)
    result = drive(found.fit(starts, 1000), starts[0])
    assert result.state.evaluations <= 400 + 6 * 64  # and the draws they are compared on
    found = search(target)
    result = drive(found.fit(starts, 7), starts[0])
    assert result.status == "max_iterations"
    assert len(result.history) == 7


def test_what_an_earlier_start_came_to_is_kept():
    found = search(TwoHills(mass=1.5))
    for state, _ in found.fit([at(12.0), at(0.0)], 1000):
        if state.q.mean[0] < 6:
            break
    assert found.best.q.mean[0] == pytest.approx(12, abs=1)
