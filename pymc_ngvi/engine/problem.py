"""What the engine works on: the problem, which stays, and the evaluations spent on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_ngvi.core import designs
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Score, Stein, decouple, pool
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Guard
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.projections import Identity, Projection
from pymc_ngvi.core.target import Target
from pymc_ngvi.engine.evaluated import Evaluated, SquaredError, squared_displacement
from pymc_ngvi.engine.secants import residual
from pymc_ngvi.engine.settings import DEFAULTS, Settings
from pymc_ngvi.errors import NonFiniteError


@dataclass(frozen=True)
class Problem:
    """What does not change during a fit.

    Attributes
    ----------
    target : Target
    estimator : BonnetPrice, Stein or Score
    guard, projection
        As in :func:`pymc_ngvi.core.algorithm.run`.
    accuracy : float
        Tolerated error of every mean, in posterior standard deviations, and of every log standard
        deviation.
    settings : Settings
    """

    target: Target
    estimator: BonnetPrice | Stein | Score
    guard: Guard
    projection: Projection
    accuracy: float
    settings: Settings = DEFAULTS

    @property
    def constrained(self) -> bool:
        """Whether there is a projection: secants and averages would leave its set."""
        return not isinstance(self.projection, Identity)

    def excess(self, error: SquaredError) -> float:
        """Ratio of a squared error to the one allowed; see :meth:`SquaredError.excess`."""
        return error.excess(self.accuracy, self.settings)

    def longest_step(self, q: Gaussian) -> float:
        """Longest step of a level, in nats."""
        settings = self.settings
        return max(settings.longest_step, settings.longest_step_per_dimension * q.dim)

    def rounded(self, n: int, q: Gaussian) -> int:
        """Round a number of draws up to one that the designs give and the estimator can use."""
        if not getattr(self.estimator, "needs_hessian", True):
            n = max(n, q.min_draws(q.dim))
        return designs.rounded_size(n, q.dim)

    def first_size(self, q: Gaussian) -> int:
        """Draws of the first level."""
        settings, least = self.settings, q.min_draws(q.dim)
        balanced = min(2 * least, settings.balanced_draws)
        return self.rounded(max(settings.fewest_draws, least, balanced), q)

    def planned(self, error: SquaredError, n: int, most: int) -> int:
        """Draws that reach the accuracy, at most `most`, where n of them have this error.

        The squared error of n draws is proportional to 1 / n.
        """
        excess = self.excess(error)
        needed = n if excess <= 1 else self.settings.plan_margin * excess * n
        return int(np.ceil(needed)) if needed < most else most  # NaN included

    def asked(self, q: Gaussian, estimate: Estimate) -> SquaredError:
        """Squared length of the step an estimate asks for, less what the projection takes back."""
        if not self.constrained:
            return squared_displacement(q, residual(q, estimate))
        end = self.projection(self.guard(q, estimate, 1.0).q)
        return SquaredError(
            np.square(end.mean - q.mean) / q.variance,
            np.square(np.log(end.variance / q.variance) / 2),
            end.kl(q),
        )


@dataclass(frozen=True)
class Draws:
    """Draws common to all members evaluated on them.

    Attributes
    ----------
    replicates : sequence of array, (n, d)
        Independent sets of standard normal rows.
    seed : int or None
        Seed of the batches of data that go with the draws, where the target reads any.
    """

    replicates: Sequence[Array]
    seed: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self.replicates))


class Budget:
    """Evaluates members on common draws, within a budget of evaluations.

    Parameters
    ----------
    problem : Problem
    max_evaluations : int
        Budget of evaluations of the target.
    rng : numpy.random.Generator

    Attributes
    ----------
    problem : Problem
        May be replaced by one with another estimator.
    evaluations : int
        Evaluations of the target spent so far.
    most_drawn : int
        Size of the largest set of draws so far.
    """

    def __init__(self, problem: Problem, max_evaluations: int, rng: np.random.Generator) -> None:
        self.problem = problem
        self.max_evaluations = max_evaluations
        self.rng = rng
        self.evaluations = 0
        self.most_drawn = 0

    @property
    def remaining(self) -> int:
        """Evaluations left in the budget."""
        return self.max_evaluations - self.evaluations

    @property
    def estimator(self) -> BonnetPrice | Stein | Score:
        """The estimator of the problem; factorised families take Newton's step by its Hessian."""
        estimator = self.problem.estimator
        if type(estimator) is BonnetPrice:
            return BonnetPrice(antithetic=estimator.antithetic, coupled=True)
        return estimator

    def draw(self, n: int, dim: int) -> Draws:
        """Draw about n standard normal rows in replicates, and the seed of their batches."""
        self.most_drawn = max(self.most_drawn, n)
        replicates = designs.replicates(n, dim, self.rng)
        reads_batches = self.problem.target.reads_batches
        return Draws(replicates, int(self.rng.integers(2**63)) if reads_batches else None)

    def evaluate(self, q: Gaussian, draws: Draws) -> Evaluated:
        """Evaluate a member on common draws."""
        problem = self.problem
        if draws.seed is not None:
            problem.target.reseed(draws.seed)
        parts = []
        for z in draws.replicates:
            try:
                parts.append(self.estimator.at(problem.target, q, z))
            except NonFiniteError as error:
                self.evaluations += error.evaluations
                raise
            self.evaluations += parts[-1].evaluations
        estimate = plain = pool(parts)
        if plain.coupling is not None:
            estimate, *parts = decouple([plain, *parts], plain.coupling)
        return Evaluated(q, estimate, parts, problem.asked(q, estimate), plain)
