"""Leaders: their curvature is exact, control variates are unbiased, and fits need few draws."""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np
import pytest

from pymc_ngvi.core import designs
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian, SparseGaussian
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.engine.leaders import measure
from tests.targets import fit

STEPS = 120


class Walk(Target):
    """Poisson counts whose log rate is a random walk; the first component is its log scale."""

    def __init__(self, steps=STEPS, scale=0.1, seed=0):
        rng = np.random.default_rng(seed)
        self.dim = steps + 1
        self.counts = rng.poisson(np.exp(1 + scale * rng.standard_normal(steps).cumsum()))

    @cached_property
    def structure(self):
        following = np.arange(2, self.dim)
        rows = np.concatenate([np.arange(1, self.dim), following])
        return Structure(self.dim, rows, np.concatenate([np.zeros(self.dim - 1), following - 1]))

    def log_density(self, draws):
        return self.evaluate(draws, "none").log_density

    def evaluate(self, draws, curvature):
        log_scale, x = draws[:, :1], draws[:, 1:]
        weight, steps = np.exp(-2 * log_scale), np.diff(x, axis=1)
        squares, n = weight[:, 0] * np.square(steps).sum(axis=1), steps.shape[1]
        rate, apart = np.exp(x), (log_scale[:, 0] + 1) / 0.25
        density = -squares / 2 - n * log_scale[:, 0] - (log_scale[:, 0] + 1) * apart / 2
        density += (self.counts * x - rate).sum(axis=1) - np.square(x[:, 0]) / 8
        pull = np.zeros_like(x)
        pull[:, :-1] += weight * steps
        pull[:, 1:] -= weight * steps
        own = self.counts - rate
        own[:, 0] -= x[:, 0] / 4
        gradient = np.column_stack([squares - n - apart, pull + own])
        if curvature == "none":
            return Evaluation(density, gradient, None)
        hessian = np.zeros((len(draws), self.dim, self.dim))
        hessian[:, 0, 0] = -2 * squares - 4
        hessian[:, 0, 1:] = hessian[:, 1:, 0] = -2 * pull
        i = np.arange(1, self.dim)
        ends = np.full(x.shape, 2.0)
        ends[:, [0, -1]] = 1.0
        hessian[:, i, i] = -weight * ends - rate
        hessian[:, 1, 1] -= 0.25
        hessian[:, i[1:], i[:-1]] = hessian[:, i[:-1], i[1:]] = weight
        if curvature == "sparse":
            hessian = np.array([self.structure.values(one) for one in hessian])
        return Evaluation(density, gradient, hessian)


WALK = Walk()


FAMILIES = {"full": FullGaussian, "sparse": SparseGaussian.on(WALK.structure)}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@cache
def fitted():
    return fit(WALK, FAMILIES["sparse"].from_curvature(np.zeros(WALK.dim), None), accuracy=0.1)


def member(family):
    """Return a member near the optimum."""
    q = fitted().q
    matrix = WALK.structure.matrix(q.precision).toarray()
    return family.from_mean_precision(q.mean, matrix if family is FullGaussian else q.precision)


def leaders(q, seed=1):
    z = designs.orthogonal(1, q.dim, np.random.default_rng(seed))
    return measure(WALK, q, np.array([0]), z, least_ratio=1e-6)


@each_family
def test_the_curvature_that_is_left_is_that_of_the_elbo_whose_precision_follows(family):
    q = member(family)
    found = leaders(q)
    dense = member(FullGaussian)
    (direction,), step = found.directions, 1e-4
    np.testing.assert_allclose(direction, dense.covariance[0] / dense.covariance[0, 0], atol=1e-9)
    ends = q.mean + np.outer([step, -step], direction)
    above, below = WALK.evaluate(ends, "full").hessian
    follow = dense.covariance @ (above - below) / (2 * step)
    ratio = 1 - 0.5 * np.trace(follow @ follow) * dense.covariance[0, 0]
    assert found.ratios[0] == pytest.approx(ratio, abs=0.01)
    assert found.stretch[0, 0] == pytest.approx(1 / abs(found.ratios[0]))


@each_family
@pytest.mark.parametrize("elsewhere", [False, True])
def test_control_variates_are_unbiased_and_take_most_of_the_noise(family, elsewhere):
    """Also where the leaders were measured at another member."""
    q, rng = member(family), np.random.default_rng(3)
    found = leaders(
        family.from_mean_precision(q.mean + 0.02, 1.2 * q.precision) if elsewhere else q
    )
    gradients, curvatures = [], []
    for _ in range(200):
        z = np.repeat(rng.standard_normal((1, q.dim)), 2, axis=0) * [[1], [-1]]
        plain = BonnetPrice().at(WALK, q, z)
        controlled = found.controlled(q, plain, z)
        (slope,) = BonnetPrice().slopes_at(WALK, q, [z])
        slope = found.controlled_slope(q, slope, z)
        assert slope.gradient[0] == pytest.approx(controlled.gradient[0], abs=1e-6)
        gradients.append((plain.gradient[0], controlled.gradient[0]))
        curvatures.append((q.diagonal(plain.hessian)[0], q.diagonal(controlled.hessian)[0]))
    for values in (gradients, curvatures):
        plain, controlled = np.array(values).T
        change = controlled - plain
        assert abs(change.mean()) < 4 * change.std() / np.sqrt(len(change))
        assert controlled.std() < 0.4 * plain.std()


@each_family
def test_a_member_that_asks_for_no_step_still_asks_for_none(family):
    q = member(family)
    zero = np.zeros(q.dim)
    np.testing.assert_array_equal(leaders(q).stretched(zero, np.zeros_like(q.precision)), 0)


def test_a_random_walk_takes_few_evaluations():
    """The data say little of its scale: without leaders, 20,000 evaluations did not suffice."""
    assert fitted().status == "converged"
    assert fitted().state.evaluations < 1000
