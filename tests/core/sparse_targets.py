"""Sparse targets with analytic Hessians: varying intercepts, and structures to test with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit

from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation, Target


def chain(dim):
    return Structure(dim, np.arange(1, dim), np.arange(dim - 1))


def grid(height, width):
    cell = np.arange(height * width).reshape(height, width)
    rows = np.concatenate([cell[1:].ravel(), cell[:, 1:].ravel()])
    columns = np.concatenate([cell[:-1].ravel(), cell[:, :-1].ravel()])
    return Structure(cell.size, rows, columns)


def arrowhead(groups, common):
    """Groups that meet in the common components alone, which come last."""
    dim = groups + common
    rows = np.repeat(np.arange(groups, dim), dim)
    return Structure(dim, rows, np.tile(np.arange(dim), common))


def blocks(count, size):
    rows, columns = np.tril_indices(size)
    first = size * np.arange(count)[:, np.newaxis]
    return Structure(count * size, (first + rows).ravel(), (first + columns).ravel())


def crossed(first, second, observations, common, seed):
    """Two groupings that meet wherever an observation belongs to both, and common components."""
    rng = np.random.default_rng(seed)
    dim = first + second
    rows = rng.integers(0, second, observations) + first
    columns = rng.integers(0, first, observations)
    borders = np.repeat(np.arange(dim, dim + common), dim + common)
    across = np.tile(np.arange(dim + common), common)
    return Structure(
        dim + common, np.concatenate([rows, borders]), np.concatenate([columns, across])
    )


def random_structure(dim, entries, seed):
    rng = np.random.default_rng(seed)
    return Structure(dim, rng.integers(0, dim, entries), rng.integers(0, dim, entries))


def dominant(structure, seed, least=0.1):
    """Values of a random positive definite matrix on a structure, with units over two decades."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(structure.nnz)
    values[structure.diagonal] = 0
    sizes = np.asarray(abs(structure.matrix(values)).sum(axis=1)).ravel()
    values[structure.diagonal] = sizes + least * rng.uniform(0.5, 2, structure.dim)
    units = 10 ** rng.uniform(-1, 1, structure.dim)
    return values * units[structure.rows] * units[structure.columns]


@dataclass(frozen=True)
class VaryingIntercepts(Target):
    """Logistic regression with an intercept for each group, their mean and log scale, and a slope.

    The components are the intercepts (groups), the slope, the mean, and the log scale.
    """

    group: np.ndarray
    covariate: np.ndarray
    response: np.ndarray
    groups: int

    @classmethod
    def random(cls, groups, rows, seed):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(groups), rows)
        covariate = rng.standard_normal(group.size)
        eta = rng.normal(0.3, 0.8, groups)[group] + 0.5 * covariate
        return cls(group, covariate, rng.binomial(1, expit(eta)).astype(float), groups)

    @property
    def dim(self):
        return self.groups + 3

    @cached_property
    def structure(self):
        return arrowhead(self.groups, 3)

    def _sums(self, rows):
        return np.array([np.bincount(self.group, row, self.groups) for row in rows])

    def _parts(self, draws):
        intercepts, (slope, mean, log_scale) = draws[:, : self.groups], draws[:, self.groups :].T
        eta = intercepts[:, self.group] + slope[:, None] * self.covariate
        away = intercepts - mean[:, None]
        return eta, away, slope, mean, log_scale

    def log_density(self, draws):
        eta, away, slope, mean, log_scale = self._parts(draws)
        likelihood = (self.response * eta - np.logaddexp(0, eta)).sum(axis=1)
        squares = np.square(away).sum(axis=1) * np.exp(-2 * log_scale)
        prior = -(np.square(slope) + np.square(mean) + np.square(log_scale)) / 2
        return likelihood + prior - self.groups * log_scale - squares / 2

    def evaluate(self, draws, curvature):
        eta, away, slope, mean, log_scale = self._parts(draws)
        p, precision = expit(eta), np.exp(-2 * log_scale)
        weight, rest = p * (1 - p), self.response - p
        pull = away * precision[:, None]
        squares = (away * pull).sum(axis=1)
        gradient = np.hstack(
            [
                self._sums(rest) - pull,
                np.stack(
                    [
                        rest @ self.covariate - slope,
                        pull.sum(axis=1) - mean,
                        squares - self.groups - log_scale,
                    ],
                    axis=1,
                ),
            ]
        )
        hessian = None if curvature == "none" else self._hessians(weight, precision, pull, squares)
        if curvature == "full":
            hessian = np.array([self.structure.matrix(values).toarray() for values in hessian])
        elif curvature == "diagonal":
            hessian = hessian[:, self.structure.diagonal]
        return Evaluation(self.log_density(draws), gradient, hessian)

    def _hessians(self, weight, precision, pull, squares):
        n, groups = len(weight), self.groups
        own = -self._sums(weight) - precision[:, None]
        columns = np.stack(
            [
                own,
                -self._sums(weight * self.covariate),
                np.broadcast_to(precision[:, None], own.shape),
                2 * pull,
            ],
            axis=2,
        ).reshape(n, 4 * groups)  # each column is its diagonal and the three common rows
        zero = np.zeros(n)
        common = [
            -(weight @ np.square(self.covariate)) - 1,
            zero,
            zero,
            -groups * precision - 1,
            -2 * pull.sum(axis=1),
            -2 * squares - 1,
        ]
        return np.hstack([columns, np.stack(common, axis=1)])
