"""Moves of draws: they leave the target's distribution as it is, and lead to it."""

import numpy as np
import pytest

from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.hamiltonian import move
from pymc_ngvi.core.target import Evaluation, Target
from tests.targets import GaussianTarget

COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])


class Student(Target):
    """Independent Student components."""

    def __init__(self, degrees, dim=1):
        self.degrees, self.dim = degrees, dim

    def log_density(self, draws):
        return -(self.degrees + 1) / 2 * np.log1p(draws**2 / self.degrees).sum(axis=1)

    def evaluate(self, draws, curvature):
        gradient = -(self.degrees + 1) * draws / (self.degrees + draws**2)
        return Evaluation(self.log_density(draws), gradient, None)


def moved(target, q, draws, seed=1, moves=4, steps=3):
    rng = np.random.default_rng(seed)
    found = [*move(target, q, draws, rng, moves=moves, steps=steps)]
    return [x for x, _ in found], np.array([share for _, share in found])


def test_every_move_in_the_gaussian_that_is_the_target_is_accepted():
    """A step of any length is exact, here two thirds of a radian, in 200 dimensions."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(200, 200)) / 10
    q = FullGaussian.from_mean_covariance(rng.normal(size=200), root @ root.T + np.eye(200))
    found, accepted = moved(GaussianTarget(q.mean, q.precision), q, q.sample(20, rng))
    assert (accepted == 1).all()
    # The draws are new ones all the same.
    assert np.corrcoef(q.whiten(found[-1]).ravel(), q.whiten(found[0]).ravel())[0, 1] < 0.5


def test_draws_of_the_target_stay_draws_of_the_target():
    """Moments by z-score, in the coordinates of a Gaussian that is off in mean and covariance."""
    exact = FullGaussian.from_mean_covariance([1.0, 0.0, -1.0], COVARIANCE)
    target = GaussianTarget(exact.mean, exact.precision)
    q = DiagonalGaussian.from_mean_variance([0.5, 0.3, -1.0], [1.5, 1.5, 0.8])
    n = 20_000
    found, accepted = moved(target, q, exact.sample(n, np.random.default_rng(2)), moves=3)
    assert (accepted < 1).all()
    for x in found:
        z = exact.whiten(x)
        assert (abs(z.mean(axis=0)) < 4 / np.sqrt(n)).all()
        assert (abs(np.cov(z.T) - np.eye(3)) < 4 * np.sqrt(2 / n)).all()


def test_draws_of_a_gaussian_that_is_too_narrow_reach_the_target():
    target, q = Student(5), DiagonalGaussian.from_mean_variance([0.0], [1.0])
    found, _ = moved(target, q, q.sample(4000, np.random.default_rng(3)), moves=20)
    late = np.concatenate(found[10:])
    assert late.std() == pytest.approx(np.sqrt(5 / 3), rel=0.04)


def test_the_same_seed_gives_the_same_moves():
    target, q = Student(4, 2), DiagonalGaussian.from_mean_variance([0.0, 0.0], [1.0, 1.0])
    draws = q.sample(10, np.random.default_rng(4))
    for one, two in zip(moved(target, q, draws)[0], moved(target, q, draws)[0], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_not_accepted():
    """Beyond 1 there is nothing; the gradient there is not a number."""

    class Wall(Student):
        def evaluate(self, draws, curvature):
            found = super().evaluate(draws, curvature)
            outside = (draws > 1).any(axis=1)
            log_density = np.where(outside, np.nan, found.log_density)
            gradient = np.where(outside[:, np.newaxis], np.nan, found.gradient)
            return Evaluation(log_density, gradient, None)

    q = DiagonalGaussian.from_mean_variance([0.0], [1.0])
    inside = -abs(q.sample(500, np.random.default_rng(5)))
    found, accepted = moved(Wall(5), q, inside, moves=10)
    assert (found[-1] <= 1).all()
    assert ((accepted > 0.3) & (accepted < 1)).all()
