"""Squared errors: what an average leaves of them, and how many draws they ask for."""

from dataclasses import replace

import numpy as np
import pytest

from pymc_ngvi.core import theory
from pymc_ngvi.engine.evaluated import SquaredError
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


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_planned_draws_reach_the_accuracy_with_little_to_spare(size):
    problem, n = engine(PoissonTarget()).problem, 100
    error = SquaredError(size * np.array([4.0, 1.0]), size * np.array([2.0, 1.0]), 3 * size, 3)
    planned = problem.planned(error, n, 10**9)
    scale = n / planned  # a squared error is proportional to 1 / n
    after = replace(
        error, mean=scale * error.mean, log_sd=scale * error.log_sd, nats=scale * error.nats
    )
    assert 0.9 < problem.excess(after) <= 1
    aim = error.nats / (1.1 * problem.excess(error))
    assert planned == theory.plan(aim, variance=error.nats * n, distance=aim)[0].n_samples
    assert problem.planned(error, n, 150) == 150
