"""The number of evaluations with Hessians follows from the noise, whatever the dimension."""

from dataclasses import dataclass

import numpy as np
import pytest

from pymc_ngvi.core import designs
from pymc_ngvi.core.families import DiagonalGaussian, SparseGaussian
from pymc_ngvi.core.target import Evaluation, Target
from tests.core.sparse_targets import VaryingIntercepts
from tests.targets import fit


@dataclass(frozen=True)
class Counts(Target):
    """Log rates of independent counts, all alike: Hessians differ somewhat, given by diagonals."""

    dim: int
    count: float | np.ndarray = 12.0

    def log_density(self, draws):
        return (self.count * draws - np.exp(draws) - draws**2 / 8).sum(axis=1)

    def evaluate(self, draws, curvature):
        rates = np.exp(draws)
        hessians = None if curvature == "none" else -(rates + 0.25)
        return Evaluation(self.log_density(draws), self.count - rates - draws / 4, hessians)


@pytest.mark.parametrize("seed", range(3))
def test_evaluations_do_not_grow_with_the_number_of_components(seed):
    """What chance adds to the largest error of many asks for gradients at most."""
    few, many = (
        fit(Counts(dim), DiagonalGaussian.from_curvature(np.full(dim, 2.0), None), seed=seed)
        for dim in (200, 10_000)
    )
    assert few.status == many.status == "converged"
    assert many.state.evaluations < 1.5 * few.state.evaluations
    assert many.state.evaluations < 600


def optimum(counts):
    """Mean and variance of the best Gaussian, by the equations that it satisfies."""
    mean, variance = np.log(counts + 0.5), np.ones_like(counts)
    for _ in range(200):
        rate = np.exp(mean + variance / 2)
        mean = mean + (counts - rate - mean / 4) / (2 * rate + 0.5)
        variance = (variance + 1 / (rate + 0.25)) / 2
    return mean, variance


@pytest.mark.parametrize("seed", range(3))
def test_many_components_with_little_data_take_few_draws_and_are_accurate(seed):
    """Of each kind of component, those without a single count as well, nine in ten are."""
    dim, accuracy = 2 * designs.MANY_DIMENSIONS, 0.02
    counts = np.random.default_rng(seed).poisson(2.0, dim).astype(float)
    start = DiagonalGaussian.from_curvature(np.ones(dim), None)
    result = fit(Counts(dim, counts), start, seed=seed, accuracy=accuracy)
    assert result.status == "converged"
    assert result.state.evaluations < 250
    mean, variance = optimum(counts)
    errors = np.abs(result.q.mean - mean) / np.sqrt(variance)
    spreads = np.abs(np.log(result.q.variance / variance)) / 2
    for count in range(6):
        of_kind = counts == count
        assert (errors[of_kind] < accuracy).mean() > 0.9
        assert (spreads[of_kind] < accuracy).mean() > 0.9


@pytest.mark.parametrize("seed", range(2))
def test_large_hierarchies_take_few_draws_and_their_hubs_are_accurate(seed):
    """Leaders are found by how slowly steps close in, where few draws have little noise."""
    target = VaryingIntercepts.random(4 * designs.MANY_DIMENSIONS, 5, seed)
    zero = np.zeros(target.dim)
    hessian = target.evaluate(zero[np.newaxis], "sparse").hessian[0]
    start = SparseGaussian.on(target.structure).from_curvature(zero, hessian)
    quick = fit(target, start, seed=seed, accuracy=0.02)
    long = fit(target, start, seed=seed + 10, accuracy=0.005)
    assert quick.status == long.status == "converged"
    assert quick.state.evaluations < 600
    errors = np.abs(quick.q.mean - long.q.mean) / np.sqrt(long.q.variance)
    assert (errors < 0.02).mean() > 0.9
    assert errors[target.structure.hubs].max() < 2 * 0.02
