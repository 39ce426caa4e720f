"""The number of evaluations with Hessians follows from the noise, whatever the dimension."""

from dataclasses import dataclass

import numpy as np
import pytest

from pymc_ngvi.core.families import DiagonalGaussian
from pymc_ngvi.core.target import Evaluation, Target
from tests.targets import fit


@dataclass(frozen=True)
class Counts(Target):
    """Log rates of independent counts, all alike: Hessians differ somewhat, given by diagonals."""

    dim: int
    count: float = 12.0

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
