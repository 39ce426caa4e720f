"""Nested fits: exact where the rest is Gaussian, whatever the held components do to it."""

import numpy as np
import pytest

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, SparseGaussian
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.engine.bending import choose_held, curvature_changes
from pymc_ngvi.engine.nesting import DROP, Nesting
from pymc_ngvi.engine.problem import Problem
from tests.targets import Banana, Funnel, GaussianTarget, HalfSpace


def nest(target, q, held, structure=None, seed=1):
    problem = Problem(target, BonnetPrice(), lin, Identity(), 0.05)
    split = Split(target.dim, held)
    return Nesting(problem, q, split, np.random.default_rng(seed), structure).fit()


def log_ratios(target, q, n=500, seed=2):
    z = np.random.default_rng(seed).standard_normal((n, q.dim))
    return target.log_density(q.unwhiten(z)) - q.log_density_whitened(z)


def poor_start(dim):
    """A fit that is far too narrow, as those of funnels are."""
    return FullGaussian.from_mean_covariance(np.full(dim, 0.3), 0.05 * np.eye(dim))


@pytest.mark.parametrize("held", [[0], [2, 1]])
def test_a_gaussian_is_found_exactly(held):
    target = GaussianTarget.random(3, 20.0, seed=3)
    found = nest(target, target.optimum(FullGaussian), held)
    ratios = log_ratios(target, found.distribution)
    assert found.complete
    # All that is left is the interpolation of a parabola by straight pieces, and its tails.
    assert abs(ratios.mean()) < 0.01
    assert ratios.std() < 0.05


@pytest.fixture(scope="module")
def funnel():
    return nest(Funnel(), poor_start(5), [0])


def test_a_funnel_is_found_where_no_gaussian_comes_near(funnel):
    target, found = Funnel(), funnel
    q = found.distribution
    ratios = log_ratios(target, q)
    np.testing.assert_allclose(ratios.mean(), 2.5 * np.log(2 * np.pi), atol=0.01)
    assert ratios.std() < 0.1
    np.testing.assert_allclose(q.mean[0], 0, atol=0.02)
    np.testing.assert_allclose(np.sqrt(q.variance[0]), 1, rtol=0.02)
    assert found.evaluations < 10_000


def test_a_banana_is_straight_given_its_long_direction():
    target, start = Banana(0.5), FullGaussian.from_mean_covariance(np.zeros(2), np.eye(2))
    ratios = log_ratios(target, nest(target, start, [0]).distribution)
    # The integral is that of two normal densities, of standard deviations 2 and 1/2.
    np.testing.assert_allclose(ratios.mean(), np.log(2 * np.pi), atol=0.02)


@pytest.mark.parametrize("family", [DiagonalGaussian, SparseGaussian])
def test_other_families_of_the_rest(family):
    target, structure = Funnel(), None
    q = DiagonalGaussian.from_mean_variance(np.zeros(5), np.full(5, 0.1))
    if family is SparseGaussian:
        structure = Structure(5, [1, 2, 3, 4], [0, 0, 0, 0])
        q = family.on(structure).from_mean_variance(q.mean, q.variance)
        target = SparseFunnel(structure)
    found = nest(target, q, [0], structure)
    np.testing.assert_allclose(
        log_ratios(target, found.distribution).mean(), 2.5 * np.log(2 * np.pi), atol=0.01
    )


def test_the_walk_ends_where_the_density_does():
    inner = GaussianTarget(np.zeros(3), np.eye(3))
    found = nest(HalfSpace(inner, 0.8), poor_start(3), [0])
    held = found.distribution.unwhiten(np.random.default_rng(3).standard_normal((2000, 3)))[:, 0]
    assert (held > 1.5).mean() < 0.01
    assert held.min() < -2


def test_the_grid_reaches_as_far_as_the_density(funnel):
    marginal = funnel.distribution.log_marginal
    assert marginal[0] < marginal.max() - DROP[0]
    assert marginal[-1] < marginal.max() - DROP[0]


def test_the_same_seed_gives_the_same_fit(funnel):
    again = nest(Funnel(), poor_start(5), [0]).distribution
    np.testing.assert_array_equal(again.log_marginal, funnel.distribution.log_marginal)
    np.testing.assert_array_equal(again.mean, funnel.distribution.mean)


def test_the_component_that_bends_the_rest_is_named():
    target = Funnel()
    # Its best Gaussian: the precision of the rest is the mean of exp(-2 scale).
    variances = np.array([target.sd**2, *[np.exp(-2 * target.sd**2)] * 4])
    q = FullGaussian.from_mean_covariance(np.zeros(5), np.diag(variances))
    problem = Problem(target, BonnetPrice(), lin, Identity(), 0.05)
    splits = [Split(5, [i]) for i in range(5)]
    changes = curvature_changes(problem, q, splits, np.random.default_rng(5))
    assert changes[0] > 2 * max(changes[1:])
    gaussian = GaussianTarget.random(3, 10.0, seed=6)
    problem = Problem(gaussian, BonnetPrice(), lin, Identity(), 0.05)
    splits = [Split(3, [i]) for i in range(3)]
    none = curvature_changes(
        problem, gaussian.optimum(FullGaussian), splits, np.random.default_rng(7)
    )
    np.testing.assert_allclose(none, 0, atol=1e-10)


def test_components_are_held_that_make_the_rest_gaussian():
    target = Funnel()
    problem = Problem(target, BonnetPrice(), lin, Identity(), 0.05)

    def begin(held):
        return Nesting(problem, poor_start(5), Split(5, held), np.random.default_rng(1))

    assert choose_held([1, 0, 2], begin).split.held.tolist() == [0]  # the first does not bend
    assert choose_held([1, 0, 2], begin, beside=2).split.held.tolist() == [0, 2]
    assert choose_held([], begin) is None


class SparseFunnel(Funnel):
    """The funnel, with its Hessian on a structure where it is asked for."""

    def __init__(self, structure):
        super().__init__()
        object.__setattr__(self, "structure", structure)

    def evaluate(self, draws, curvature):
        if curvature != "sparse":
            return super().evaluate(draws, curvature)
        found = super().evaluate(draws, "full")
        values = found.hessian[:, self.structure.rows, self.structure.columns]
        return type(found)(found.log_density, found.gradient, values)
