"""Nested fits: exact where the rest is Gaussian, whatever the held components do to it."""

from dataclasses import dataclass

import numpy as np
import pytest

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, SparseGaussian
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.engine.bending import choose_held, curvature_changes
from pymc_ngvi.engine.nesting import DROP, Nesting
from pymc_ngvi.engine.problem import Problem
from pymc_ngvi.errors import DomainError
from tests.targets import Banana, Funnel, GaussianTarget, HalfSpace, pick


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


def test_a_budget_that_is_spent_before_the_walk_is_told():
    problem = Problem(Funnel(), BonnetPrice(), lin, Identity(), 0.05)
    rng = np.random.default_rng(1)
    nesting = Nesting(problem, poor_start(5), Split(5, [0, 1]), rng, max_evaluations=1)
    with pytest.raises(DomainError, match="the budget leaves no point"):
        nesting.fit()


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


@pytest.mark.parametrize("width", [0.0, 0.1, 0.2])
def test_what_is_left_is_the_divergence_of_the_rest(width):
    """The scale of the second funnel has in its best Gaussian 1 / (1 / width^2 + 8) as variance."""
    target = TwoFunnels(width) if width else Funnel()
    problem = Problem(target, BonnetPrice(), lin, Identity(), 0.05)
    split, start = Split(target.dim, [0]), poor_start(target.dim)
    left = [Nesting(problem, start, split, np.random.default_rng(i)).divergence() for i in range(3)]
    best = np.log1p(8 * width**2) / 2
    # The fit in the middle, on few draws, is not quite the best Gaussian.
    assert 0.8 * best - 1e-6 < min(left) <= max(left) < 1.25 * best + 0.05


def test_the_choice_does_not_depend_on_the_draws():
    """A second funnel, which bends little, is seen whatever the seed."""
    target = TwoFunnels(width=0.4)
    problem = Problem(target, BonnetPrice(), lin, Identity(), 0.05)
    for seed in range(8):

        def begin(held, seed=seed):
            return Nesting(problem, poor_start(10), Split(10, held), np.random.default_rng(seed))

        assert choose_held([0, 1, 5], begin).split.held.tolist() == [0, 5]


@dataclass(frozen=True)
class TwoFunnels(Target):
    """Two funnels beside each other; the log scale of the second has the standard deviation."""

    width: float
    dim: int = 10

    def log_density(self, draws):
        return self.evaluate(draws, "diagonal").log_density

    def evaluate(self, draws, curvature):
        wide, narrow = (Funnel().evaluate(part, "full") for part in np.split(draws, 2, axis=1))
        more, scale = 1 - 1 / self.width**2, draws[:, 5]
        gradient = np.hstack([wide.gradient, narrow.gradient])
        gradient[:, 5] += more * scale
        hessian = np.zeros((len(draws), 10, 10))
        hessian[:, :5, :5], hessian[:, 5:, 5:] = wide.hessian, narrow.hessian
        hessian[:, 5, 5] += more
        log_density = wide.log_density + narrow.log_density + more * np.square(scale) / 2
        return Evaluation(log_density, gradient, pick(hessian, curvature))


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


def test_what_many_components_add_to_the_noise_is_met_by_gradients_alone():
    """The same draws serve all points: Hessians are as many as for few components."""
    sizes = {}
    for dim in (20, 150, 400):
        q = DiagonalGaussian.from_mean_variance(np.zeros(dim), np.ones(dim))
        problem = Problem(GaussianTarget(q.mean, np.eye(dim)), BonnetPrice(), lin, Identity(), 0.05)
        nesting = Nesting(problem, q, Split(dim, [0]), np.random.default_rng(1))
        sizes[dim] = nesting._size(q, half=False)
    assert sizes[20].gradients == 0
    assert sizes[20].hessians == sizes[150].hessians == sizes[400].hessians
    assert sizes[400].gradients >= sizes[400].hessians
