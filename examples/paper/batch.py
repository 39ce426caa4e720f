r"""All runs at once where the posterior is Gaussian: one array for the runs of an experiment.

In the coordinates :math:`u = F'(x - \mu_*)`, with :math:`F F'` the precision of the solution, the
solution is N(0, I), and the natural parameters :math:`(\xi, I + \Delta)` of the runs move by

.. math::

    \xi_+ = (1-\eta)\,\xi + \eta\,\hat\xi, \qquad
    \Delta_+ = (1-\eta)\,\Delta + \eta\,\hat\Delta,

where :math:`(\hat\xi, \hat\Delta)` is the error of the estimate :math:`g^N`. These are the
iterations of :func:`pymc_ngvi.core.algorithm.run` without a guard: a test compares the two, seed by
seed. Schedules with the same samples use the same draws, which are therefore drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from examples.paper.common import Array, Generators, Schedule, Settings
from pymc_ngvi import schedules
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.linalg import solve_lower
from pymc_ngvi.core.subsampling import LinearRegression

START_VARIANCE = 10.0


class Errors(Protocol):
    """Errors of the estimates of all runs, in the coordinates of the module."""

    def draw(self, n_samples: int, generators: Generators) -> Array:
        """Draw what an iteration needs from the generator of each run."""

    def of(self, drawn: Array, factor: Array) -> tuple[Array, Array | float]:
        """Errors (runs, d) and (runs, d, d), where the precisions have the Cholesky `factor`."""


class SampledMean:
    r"""Bonnet-Price on a Gaussian target: only the mean of the draws enters.

    Its Hessian is exact, so the precision is the same for all runs and `factor` is (1, d, d).

    Parameters
    ----------
    dim : int
    one_draw : bool
        Draw the mean of N standard normals, which is N(0, I/N), instead of all N of them.
    """

    def __init__(self, dim: int, *, one_draw: bool) -> None:
        self.dim = dim
        self.one_draw = one_draw

    def draw(self, n_samples: int, generators: Generators) -> Array:
        """Means (runs, d) of standard normal rows."""
        if self.one_draw:
            z = np.array([rng.standard_normal(self.dim) for rng in generators])
            return np.asarray(z / np.sqrt(n_samples))
        rows = np.empty((n_samples, self.dim))
        weights = np.full(n_samples, 1 / n_samples)
        return np.array([weights @ rng.standard_normal(out=rows) for rng in generators])

    def of(self, drawn: Array, factor: Array) -> tuple[Array, float]:
        """Errors of the first parameter; the second has none."""
        return -solve_lower(factor[0], drawn.T, transpose=True).T, 0.0


class SampledRows:
    """Batches of a linear regression, with replacement.

    Parameters
    ----------
    regression : LinearRegression
    solution : FullGaussian
        Its posterior.
    """

    def __init__(self, regression: LinearRegression, solution: FullGaussian) -> None:
        factor, prior = solution.factor, regression.prior_precision
        design = solve_lower(factor, regression.design.T).T
        residuals = regression.response - regression.design @ solution.mean
        self.table = np.column_stack([design, residuals]) / regression.noise_variance**0.5
        self.prior = solve_lower(factor, solve_lower(factor, prior).T)
        self.pull = -solve_lower(factor, prior @ solution.mean)

    def draw(self, n_samples: int, generators: Generators) -> Array:
        """Sum all products of covariates and residual over the batch: (runs, d + 1, d + 1)."""
        total = len(self.table)
        rows = np.empty((n_samples, self.table.shape[1]))
        sums = []
        for rng in generators:
            self.table.take(rng.integers(total, size=n_samples), axis=0, out=rows, mode="clip")
            sums.append(rows.T @ rows)
        return np.array(sums) * (total / n_samples)

    def of(self, drawn: Array, factor: Array) -> tuple[Array, Array]:
        """Errors of both parameters."""
        identity = np.eye(len(self.prior))
        return self.pull + drawn[:, :-1, -1], self.prior + drawn[:, :-1, :-1] - identity


def distances(
    errors: Errors, optimum: FullGaussian, all_schedules: Sequence[Schedule], settings: Settings
) -> dict[str, Array]:
    """d(omega_*, omega_t) in nats at t = 0, ..., iterations: (runs, iterations + 1) a schedule.

    The mean starts uniformly in [-5, 5]^d, the covariance at 10 I.
    """
    found: dict[str, Array] = {}
    for n_samples in dict.fromkeys(schedule.n_samples for schedule in all_schedules):
        group = [schedule for schedule in all_schedules if schedule.n_samples == n_samples]
        found |= _together(errors, optimum, group, settings)
    return {schedule.name: found[schedule.name] for schedule in all_schedules}


def _together(
    errors: Errors, optimum: FullGaussian, group: Sequence[Schedule], settings: Settings
) -> dict[str, Array]:
    """Run schedules that differ in their step size alone."""
    generators = settings.generators()
    runs = [_Runs(optimum, schedule, settings.iterations) for schedule in group]
    starts = np.array([rng.uniform(-5, 5, optimum.dim) for rng in generators])
    for each in runs:
        each.start(starts)
    counts = schedules.as_schedule(group[0].n_samples, "n_samples")
    title = "; ".join(schedule.name for schedule in group)
    for t in settings.track(range(settings.iterations), title):
        drawn = errors.draw(int(counts(t)), generators)
        for each in runs:
            each.step(t, errors, drawn)
    return {each.name: each.kept for each in runs}


class _Runs:
    """State of all runs of one schedule, and their distances from the solution so far."""

    kept: Array
    first: Array
    second: Array
    factor: Array

    def __init__(self, optimum: FullGaussian, schedule: Schedule, iterations: int) -> None:
        self.optimum, self.name, self.iterations = optimum, schedule.name, iterations
        self.step_size = schedules.as_schedule(schedule.step_size, "step_size")

    def start(self, means: Array) -> None:
        """Start from means (runs, d) and the covariance 10 I."""
        root, dim = self.optimum.factor, self.optimum.dim
        precision = solve_lower(root, solve_lower(root, np.eye(dim)).T) / START_VARIANCE
        self.first = (means - self.optimum.mean) @ root @ precision
        self.second = (precision - np.eye(dim))[np.newaxis]
        self.kept = np.empty((len(means), self.iterations + 1))
        self._record(0)

    def step(self, t: int, errors: Errors, drawn: Array) -> None:
        """Mix the estimates into the natural parameters."""
        eta = self.step_size(t)
        first, second = errors.of(drawn, self.factor)
        self.first = (1 - eta) * self.first + eta * first
        self.second = (1 - eta) * self.second + eta * second
        self._record(t + 1)

    def _record(self, t: int) -> None:
        # KL(N(0, I), N(m, inv(L L'))), in which no term of the sums is negative.
        dim = self.second.shape[-1]
        self.factor = np.linalg.cholesky(self.second + np.eye(dim))
        diagonal = np.square(np.diagonal(self.factor, axis1=-2, axis2=-1))
        spread = (diagonal - 1 - np.log(diagonal)).sum(axis=-1)
        spread += np.square(np.tril(self.factor, -1)).sum(axis=(-2, -1))
        if len(self.factor) == 1:
            whitened = solve_lower(self.factor[0], self.first.T).T
        else:
            whitened = np.linalg.solve(self.factor, self.first[..., np.newaxis])[..., 0]
        self.kept[:, t] = 0.5 * (spread + np.square(whitened).sum(axis=-1))
