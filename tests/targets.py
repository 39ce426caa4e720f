"""Exact targets: log densities whose derivatives, and often whose optimum, are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit

from pymc_ngvi.core.algorithm import State, drive
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.engine.problem import Problem


def spd_matrix(dim, condition, rng):
    """Random symmetric positive definite matrix with this condition number."""
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    values = np.geomspace(1, condition, dim) if dim > 1 else np.array([condition])
    return (basis * values) @ basis.T


def pick(hessians, curvature):
    if curvature == "none":
        return None
    return hessians if curvature == "full" else np.einsum("nii->ni", hessians)


@dataclass(frozen=True)
class GaussianTarget(Target):
    """Log density of N(mean, inv(precision)), normalised: its optimum has an ELBO of 0."""

    mean: np.ndarray
    precision: np.ndarray

    @classmethod
    def random(cls, dim, condition, seed):
        rng = np.random.default_rng(seed)
        return cls(rng.uniform(-5, 5, dim), spd_matrix(dim, condition, rng))

    @property
    def dim(self):
        return len(self.mean)

    def log_density(self, draws):
        centred = draws - self.mean
        quadratic = np.einsum("ni,ni->n", centred @ self.precision, centred)
        return 0.5 * (self._log_det - self.dim * np.log(2 * np.pi) - quadratic)

    def evaluate(self, draws, curvature):
        shape = (len(draws), self.dim, self.dim)
        return Evaluation(
            self.log_density(draws),
            (self.mean - draws) @ self.precision,
            pick(np.broadcast_to(-self.precision, shape), curvature),
        )

    @cached_property
    def _log_det(self):
        return np.linalg.slogdet(self.precision)[1]

    def optimum(self, family: type[Gaussian]):
        """Solution of the variational problem in this family (the LERC solution)."""
        if family.curvature == "full":
            return family.from_mean_precision(self.mean, self.precision)
        mean = self.mean if family.has_mean else np.zeros(self.dim)
        return family.from_mean_precision(mean, self.precision.diagonal())


@dataclass(frozen=True)
class LogisticTarget(Target):
    """Logistic regression with a N(0, prior_variance I) prior: log-concave, not Gaussian."""

    design: np.ndarray
    response: np.ndarray
    prior_variance: float = 25.0

    @classmethod
    def random(cls, dim, n, seed):
        rng = np.random.default_rng(seed)
        design = rng.standard_normal((n, dim))
        return cls(design, rng.binomial(1, expit(design @ np.ones(dim))).astype(float))

    @property
    def dim(self):
        return self.design.shape[1]

    def log_density(self, draws):
        eta = draws @ self.design.T
        likelihood = (self.response * eta - np.logaddexp(0, eta)).sum(axis=1)
        return likelihood - np.square(draws).sum(axis=1) / (2 * self.prior_variance)

    def evaluate(self, draws, curvature):
        p = expit(draws @ self.design.T)
        gradient = (self.response - p) @ self.design - draws / self.prior_variance
        weights = p * (1 - p)
        hessian = -np.einsum("nm,mi,mj->nij", weights, self.design, self.design, optimize=True)
        hessian = hessian - np.eye(self.dim) / self.prior_variance
        return Evaluation(self.log_density(draws), gradient, pick(hessian, curvature))


@dataclass(frozen=True)
class DoubleWell(Target):
    """Log density -(x^2 - 1)^2 summed over components: convex between the wells."""

    dim: int = 2

    def log_density(self, draws):
        return -np.square(np.square(draws) - 1).sum(axis=1)

    def evaluate(self, draws, curvature):
        gradient = -4 * draws * (np.square(draws) - 1)
        diagonal = 4 - 12 * np.square(draws)
        hessian = diagonal[:, :, None] * np.eye(self.dim)
        return Evaluation(self.log_density(draws), gradient, pick(hessian, curvature))


@dataclass(frozen=True)
class HalfSpace(Target):
    """A Gaussian target that is not finite beyond a wall, in the part of it that is named."""

    inner: GaussianTarget
    wall: float
    part: str = "log_density"

    @property
    def dim(self):
        return self.inner.dim

    def log_density(self, draws):
        return self.evaluate(draws, "none").log_density

    def evaluate(self, draws, curvature):
        inside = self.inner.evaluate(draws, curvature)
        arrays = {
            "log_density": inside.log_density.copy(),
            "gradient": inside.gradient.copy(),
            "hessian": None if inside.hessian is None else inside.hessian.copy(),
        }
        if arrays[self.part] is not None:
            arrays[self.part][draws[:, 0] > self.wall] = np.nan
        return Evaluation(**arrays)


@dataclass(frozen=True)
class PoissonTarget(Target):
    """Log rate of a Poisson count under a wide prior: overflows a few hundred above the mode."""

    count: float = 20.0
    prior_precision: float = 1e-6
    dim: int = 1

    def log_density(self, draws):
        return self.evaluate(draws, "none").log_density

    def evaluate(self, draws, curvature):
        x = draws[:, 0]
        with np.errstate(over="ignore", invalid="ignore"):
            rate = np.exp(x)
            value = self.count * x - rate - self.prior_precision * x**2 / 2
            gradient = (self.count - rate - self.prior_precision * x)[:, None]
            hessian = (-rate - self.prior_precision)[:, None, None]
        return Evaluation(value, gradient, pick(hessian, curvature))


@dataclass(frozen=True)
class Funnel(Target):
    """Four components whose common log scale is standard normal; its best Gaussian is known."""

    dim: int = 5
    mean: float = 0.0
    sd: float = 1 / 3

    def log_density(self, draws):
        scale, rest = draws[:, 0], draws[:, 1:]
        squares = np.square(rest).sum(axis=1) * np.exp(-2 * scale)
        return -np.square(scale) / 2 - (self.dim - 1) * scale - squares / 2

    def evaluate(self, draws, curvature):
        scale, rest = draws[:, :1], draws[:, 1:]
        precision = np.exp(-2 * scale)
        squares = np.square(rest).sum(axis=1, keepdims=True) * precision
        gradient = np.hstack([-scale - (self.dim - 1) + squares, -rest * precision])
        hessian = -precision[:, :, np.newaxis] * np.eye(self.dim)
        hessian[:, 0, 0] = -1 - 2 * squares[:, 0]
        hessian[:, 0, 1:] = hessian[:, 1:, 0] = 2 * rest * precision
        return Evaluation(self.log_density(draws), gradient, pick(hessian, curvature))


@dataclass(frozen=True)
class Banana(Target):
    """Two components, the second around a multiple of the first squared; symmetric in the first."""

    bend: float
    dim: int = 2

    def log_density(self, draws):
        x, y = draws.T
        return -np.square(x) / 8 - 2 * np.square(y - self.bend * np.square(x))

    def evaluate(self, draws, curvature):
        x, y = draws.T
        off = y - self.bend * np.square(x)
        gradient = np.stack([-x / 4 + 8 * self.bend * x * off, -4 * off], axis=1)
        hessian = np.empty((len(draws), 2, 2))
        hessian[:, 0, 0] = -0.25 + 8 * self.bend * (off - 2 * self.bend * np.square(x))
        hessian[:, 0, 1] = hessian[:, 1, 0] = 8 * self.bend * x
        hessian[:, 1, 1] = -4.0
        return Evaluation(self.log_density(draws), gradient, pick(hessian, curvature))


class Kinked(Target):
    """A standard normal times exp(-|direction' x| / scale), with derivatives almost everywhere."""

    def __init__(self, direction, scale):
        self.direction, self.scale = np.asarray(direction, float), scale
        self.dim = len(self.direction)

    def log_density(self, draws):
        return -0.5 * np.square(draws).sum(1) - np.abs(draws @ self.direction) / self.scale

    def evaluate(self, draws, curvature):
        slope = -np.sign(draws @ self.direction)[:, None] * self.direction / self.scale
        hessian = np.broadcast_to(-np.eye(self.dim), (len(draws), self.dim, self.dim))
        return Evaluation(self.log_density(draws), slope - draws, pick(hessian, curvature))

    may_have_kinks = True

    def kinks(self, draws):
        return ["abs"]


class Jumping(GaussianTarget):
    """A Gaussian target whose log density is higher by `height` where `inside` is true."""

    def __init__(self, dim, inside, height):
        super().__init__(np.zeros(dim), np.eye(dim))
        object.__setattr__(self, "extra", lambda draws: height * inside(draws))

    def log_density(self, draws):
        return super().log_density(draws) + self.extra(draws)

    may_have_kinks = True

    def kinks(self, draws):
        return ["switch"]


def engine(target, *, seed=1, estimator=None, accuracy=0.02, max_evaluations=50_000):
    """The automatic engine with the default guard and no projection."""
    problem = Problem(target, estimator or BonnetPrice(), lin, Identity(), accuracy)
    return Engine(problem, max_evaluations, np.random.default_rng(seed))


def fit(target, start=None, n=10_000, *, family=FullGaussian, **arguments):
    """Fit by the automatic engine from a member, by default the standard one of the family."""
    state = State(family.from_curvature(np.zeros(target.dim), None) if start is None else start)
    return drive(engine(target, **arguments).fit(state, n), state)
