"""Squared errors: what an average leaves of them, and how many draws they ask for."""

from dataclasses import replace

import numpy as np
import pytest

from pymc_ngvi.core import designs, theory
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.engine.evaluated import SplitError, SquaredError, scatter
from pymc_ngvi.engine.problem import Size
from tests.targets import PoissonTarget, engine


def test_error_of_an_average_of_two_independent_errors():
    rng = np.random.default_rng(1)
    sds, share = np.array([[1.0, 0.5], [2.0, 0.3]]), 0.3
    first, second = (SquaredError(sd**2, sd**2, float(sd @ sd)) for sd in sds)
    draws = sds[:, np.newaxis] * rng.standard_normal((2, 100_000, 2))
    mixed = np.square((1 - share) * draws[0] + share * draws[1])
    found = first.averaged(second, share)
    np.testing.assert_allclose(found.mean, mixed.mean(axis=0), rtol=0.02)
    np.testing.assert_allclose(found.log_sd, mixed.mean(axis=0), rtol=0.02)
    assert found.nats == pytest.approx(mixed.sum(axis=1).mean(), rel=0.02)


MANY = Size(10**9, 10**9)


def of_gradients(error, share=0.99):
    """Return an error of which this share is from the noise of the gradients."""
    parts = (
        replace(error, mean=s * error.mean, log_sd=s * error.log_sd, nats=s * error.nats)
        for s in (share, 1 - share)
    )
    return SplitError(error, *parts)


def of_hessians(error):
    return of_gradients(error, 0.01)


@pytest.mark.parametrize("size", [1e-2, 1.0])
def test_planned_draws_reach_the_accuracy_with_little_to_spare(size):
    problem, n = engine(PoissonTarget()).problem, 100
    error = SquaredError(size * np.array([4.0, 1.0]), size * np.array([2.0, 1.0]), 3 * size, 3)
    planned = problem.planned(error, of_hessians(error), Size(n), MANY)
    assert planned.gradients == 0  # where it is their noise that is left, all draws have Hessians
    scale = n / planned.hessians  # a squared error is proportional to 1 / n
    assert 0.9 < problem.excess(scaled(error, scale, scale)) <= 1
    aim = error.nats / (1.1 * problem.excess(error))
    plan = theory.plan(aim, variance=error.nats * n, distance=aim)[0]
    assert planned.hessians == plan.n_samples
    assert problem.planned(error, of_hessians(error), Size(n), Size(150)).hessians == 150
    assert problem.planned(scaled(error, 1e-9, 1e-9), None, Size(n), MANY) == Size(n)


def test_gradients_are_planned_where_it_is_their_noise_that_is_left():
    problem, n = engine(PoissonTarget()).problem, designs.exact_size(2)
    error = SquaredError(np.array([0.04, 0.01]), np.array([1e-5, 1e-5]), 0.01, 3)
    hessians, gradients = problem.planned(error, of_gradients(error), Size(n), MANY)
    assert n <= hessians < gradients
    left = scaled(error, n / (hessians + gradients), n / hessians)
    assert problem.excess(left) <= 1


def test_few_draws_plan_no_more_gradients_than_have_exact_second_moments():
    """The noise of these may be much less than a plan from draws without them can know."""
    dim, n = 8, 8
    problem, exact = engine(PoissonTarget()).problem, designs.exact_size(dim)
    error = SquaredError(np.full(dim, 0.04), np.full(dim, 1e-5), 0.01, 3)
    assert problem.planned(error, of_gradients(error), Size(n), MANY).gradients == exact
    assert problem.planned(error, of_gradients(error), Size(exact), MANY).gradients > exact


def test_hubs_are_judged_by_the_noise_of_hubs():
    """Few noisy components do not vanish among many quiet ones, nor make these look noisy."""
    squares, hubs = np.full(1000, 1e-6), np.array([998, 999])
    squares[hubs] = 4e-4
    error = SquaredError(squares, squares, 0.0, freedom=1)
    assert error.excess(0.02) < 1 < replace(error, hubs=hubs).excess(0.02)
    alone = SquaredError(squares[hubs], squares[hubs], 0.0, freedom=1)
    assert replace(error, hubs=hubs).excess(0.02) == pytest.approx(alone.excess(0.02))
    assert error.plus(error).hubs is None
    assert replace(error, hubs=hubs).averaged(error, 0.5).hubs is hubs


def scaled(error, mean, log_sd):
    return replace(error, mean=mean * error.mean, log_sd=log_sd * error.log_sd, nats=0.0)


def test_scatter_of_independent_parts_is_the_error_of_their_mean():
    """Over many sets of parts, the squares add up to the variance of the mean."""
    rng, q = np.random.default_rng(2), FullGaussian.from_curvature(np.zeros(2), None)
    found, means = [], []
    for _ in range(4000):
        gradients = rng.standard_normal((4, 2)) * [1.0, 3.0]
        parts = [Estimate(g, -np.eye(2), 0.0, 0.0, 1) for g in gradients]
        found.append(sum(np.square(error.first) for error in scatter(q, parts, 0.5, 0.5)))
        means.append(0.5 * gradients.mean(axis=0))
    np.testing.assert_allclose(np.mean(found, axis=0), np.var(means, axis=0), rtol=0.1)


def test_shares_of_gradients_and_hessians_may_differ():
    """Their errors go together: over many draws, squares of the mixed sum are as foretold."""
    rng, shares = np.random.default_rng(4), (0.9, 0.4)
    root = np.array([[1.0, 0.0], [-0.8, 0.5]])
    errors, mixed = [], 0.0
    for weights in ((1 - shares[0], 1 - shares[1]), shares):
        gradients, hessians = root @ rng.standard_normal((2, 100_000))
        parts = (gradients + hessians, gradients, hessians)
        squares = [np.array([np.square(part).mean()]) for part in parts]
        errors.append(SplitError(*(SquaredError(s, s, float(s[0]), 3) for s in squares)))
        mixed = mixed + weights[0] * gradients + weights[1] * hessians
    found = errors[0].averaged(errors[1], shares).whole
    assert found.mean[0] == pytest.approx(np.square(mixed).mean(), rel=0.02)
    assert found.nats == pytest.approx(found.mean[0])


def test_gradients_are_planned_beside_uneven_hessians_where_they_cost_less():
    """What the Hessians of a few components lack is no reason to take as many for all means."""
    problem, n, dim = engine(PoissonTarget()).problem, designs.exact_size(100), 100
    uneven = np.full(dim, 1e-6)
    uneven[0] = 1e-4
    error = SquaredError(np.full(dim, 0.04), uneven, 0.01, 3)
    assert not problem.is_even(error, Size(n))
    planned = problem.planned(error, of_gradients(error), Size(n), MANY)
    assert planned.hessians < planned.gradients / 5


def test_many_components_are_as_even_as_few():
    """The largest of many estimates is large by chance alone."""
    problem, rng = engine(PoissonTarget()).problem, np.random.default_rng(5)
    for sd, most in ((0.008, 0.3), (0.02, 0.1)):
        shares = []
        for dim in (10, 100, 10_000):
            squares = sd**2 * rng.chisquare(3, (100, dim)) / 3
            errors = [SquaredError(square, square, 0.0, 3) for square in squares]
            shares.append(np.mean([problem.is_even(error, Size(8)) for error in errors]))
        assert np.ptp(shares) < most
    worse = np.full(10_000, 1e-6)
    worse[7] = 0.05**2  # one that is uneven indeed
    assert not problem.is_even(SquaredError(worse, worse, 0.0, 3), Size(8))
