"""Nested distributions: one exact density, whatever the Gaussians at the points of the grid."""

import itertools

import numpy as np
import pytest
import scipy

from pymc_ngvi.core.conditional import Conditional, Split
from pymc_ngvi.core.distribution import log_standard_normal
from pymc_ngvi.core.families import CentredDiagonalGaussian, FullGaussian
from pymc_ngvi.core.interpolation import interpolation
from pymc_ngvi.core.log_linear import LogLinear
from pymc_ngvi.core.nested import Nested
from tests.conftest import every_family, of, represent
from tests.targets import GaussianTarget

DIM = 6


def make_covariance(dim, seed):
    root = np.random.default_rng(seed).normal(size=(dim, dim))
    return root @ root.T / dim + np.eye(dim)


def nested(n_held, family=FullGaussian, seed=1):
    """A skewed marginal, and Gaussians of the rest that change along it."""
    rng = np.random.default_rng(seed)
    split = Split(DIM, [3, 1][:n_held])
    rest = split.rest.size
    family = of(family, rest)
    axes = [np.linspace(-3, 3, 7), np.linspace(-2, 2, 5)][:n_held]
    points = np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")], axis=1)
    log_marginal = -0.5 * (points**2).sum(axis=1) - 0.03 * points[:, 0] ** 3
    base = np.linalg.inv(make_covariance(rest, seed))
    members = []
    for point in points:
        mean = np.sin(point.sum() + np.arange(rest))
        precision = represent(family, np.exp(-point[0] / 2) * np.eye(rest) + base)
        members.append(family.from_mean_precision(mean if family.has_mean else 0 * mean, precision))
    scale = 0.2 * np.tril(rng.normal(size=(n_held, n_held))) + np.eye(n_held)
    shape = [axis.size for axis in axes]
    return Nested(split, rng.normal(size=n_held), scale, axes, log_marginal.reshape(shape), members)


def density_at(x, density):
    return np.exp(density.log_density(np.array([x]))[0])


class TestLogLinear:
    nodes = np.array([-1.0, 0.0, 0.5, 2.0])
    values = np.array([[0.0, 1.0, 1.0, -3.0], [2.0, -40.0, 1.0, 1.5]])

    def test_it_integrates_to_one(self):
        density = LogLinear(self.nodes, self.values, 0.5)
        for row in range(2):
            alone = LogLinear(self.nodes, self.values[[row]], 0.5)
            pieces = itertools.pairwise([-60.0, *self.nodes, 60.0])
            total = sum(scipy.integrate.quad(density_at, *ends, alone)[0] for ends in pieces)
            np.testing.assert_allclose(total, 1.0, rtol=1e-7)
            np.testing.assert_allclose(alone.log_integral[0], density.log_integral[row])

    @pytest.mark.parametrize("row", [0, 1])
    def test_quantiles_invert_the_distribution_function(self, row):
        density = LogLinear(self.nodes, self.values[[row]], 0.5)
        z = np.linspace(-7, 7, 201)
        x = density.quantile(z)
        assert (np.diff(x) > 0).all()
        # The derivative of the quantile is the density of z over that of x.
        steps = (density.quantile(z + 1e-5) - density.quantile(z - 1e-5)) / 2e-5
        expected = scipy.stats.norm.logpdf(z) - density.log_density(x)
        smooth = np.abs(x[:, None] - self.nodes).min(axis=1) > 1e-3
        np.testing.assert_allclose(np.log(steps)[smooth], expected[smooth], atol=1e-4)

    def test_rows_do_not_mix(self):
        z = np.array([-1.0, 0.7])
        together = LogLinear(self.nodes, self.values, 0.5).quantile(z)
        alone = [LogLinear(self.nodes, self.values[[i]], 0.5).quantile(z[[i]])[0] for i in (0, 1)]
        np.testing.assert_allclose(together, alone)


def test_interpolation_is_exact_for_parabolas_inside_and_sums_to_one():
    nodes = np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    t = np.linspace(-1, 1, 50)
    weights = interpolation(nodes, t)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(weights @ (nodes**2 - nodes), t**2 - t, atol=1e-12)
    np.testing.assert_allclose(interpolation(nodes, nodes), np.eye(5), atol=1e-12)
    beyond = interpolation(nodes, np.array([-3.0, 4.0, -90.0, 90.0]))
    np.testing.assert_allclose(beyond @ nodes, [-3.0, 4.0, -4.5, 5.5])


@every_family
@pytest.mark.parametrize("n_held", [1, 2])
def test_the_density_is_that_of_the_draws(n_held, family):
    """By the determinant of the derivative, and by solving back for the normal numbers."""
    q = nested(n_held, family)
    z = np.random.default_rng(2).standard_normal((20, DIM))
    log_q = q.log_density_whitened(z)
    step = 1e-5
    for row, expected in zip(z[:4], log_q, strict=False):
        ahead, behind = (q.unwhiten(row + sign * step * np.eye(DIM)) for sign in (1, -1))
        _, log_det = np.linalg.slogdet((ahead - behind) / (2 * step))
        np.testing.assert_allclose(log_standard_normal(row[None])[0] - log_det, expected, atol=1e-6)
    np.testing.assert_allclose(q.log_density(q.unwhiten(z)), log_q)


@pytest.mark.parametrize("n_held", [1, 2])
def test_moments_are_those_of_the_draws(n_held):
    q, n = nested(n_held), 40_000
    draws = q.unwhiten(np.random.default_rng(3).standard_normal((n, DIM)))
    z = (draws.mean(axis=0) - q.mean) / np.sqrt(q.variance / n)
    assert np.abs(z).max() < 4
    np.testing.assert_allclose(draws.var(axis=0), q.variance, rtol=0.05)
    np.testing.assert_allclose(np.diag(q.covariance), q.variance, rtol=1e-10)
    np.testing.assert_allclose(np.cov(draws.T), q.covariance, atol=0.06)
    np.testing.assert_allclose(q.gaussian.mean, q.mean)


def test_many_components_have_moments_without_a_matrix(monkeypatch):
    q, exact = nested(1), nested(1).variance
    monkeypatch.setattr("pymc_ngvi.core.nested._DENSE", 2)
    np.testing.assert_allclose(q.variance, exact, rtol=0.5)
    assert q.gaussian.factorised


@every_family
def test_arrays_give_the_same_draws_back(family):
    q = nested(1, family)
    again = Nested.from_arrays(q.arrays(), type(q.members[0]))
    z = np.random.default_rng(4).standard_normal((5, DIM))
    np.testing.assert_allclose(again.unwhiten(z), q.unwhiten(z), rtol=1e-13)


def test_many_draws_are_handled_in_parts(monkeypatch):
    q = nested(2)
    z = np.random.default_rng(5).standard_normal((50, DIM))
    whole = q.unwhiten(z), q.log_density_whitened(z)
    monkeypatch.setattr("pymc_ngvi.core.nested._NUMBERS", 300)
    np.testing.assert_allclose(q.unwhiten(z), whole[0], rtol=1e-12)
    np.testing.assert_allclose(q.log_density_whitened(z), whole[1], rtol=1e-12)


@every_family
@pytest.mark.parametrize("held", [[2], [4, 0]])
def test_conditionals_have_the_density_of_the_whole(family, held):
    bound = of(family, DIM)
    precision = represent(bound, np.linalg.inv(make_covariance(DIM, 6)) + np.eye(DIM))
    mean = np.arange(DIM) / 3 if bound.has_mean else np.zeros(DIM)
    q, split = bound.from_mean_precision(mean, precision), Split(DIM, held)
    values = np.array([0.7, -0.4])[: len(held)]
    rest = np.random.default_rng(7).normal(size=(9, split.rest.size))
    difference = q.log_density(split.join(values, rest))
    difference -= q.conditional(split, values).log_density(rest)
    np.testing.assert_allclose(difference, difference[0])  # the density of the held values
    if family is not CentredDiagonalGaussian:
        marginal = np.linalg.inv(_dense(q))[np.ix_(held, held)]
        expected = scipy.stats.multivariate_normal(mean[held], marginal).logpdf(values)
        np.testing.assert_allclose(difference, expected)


@every_family
def test_the_diagonal_of_the_root_has_the_determinant(family):
    bound = of(family, DIM)
    precision = represent(bound, np.linalg.inv(make_covariance(DIM, 8)) + np.eye(DIM))
    q = bound.from_mean_precision(np.zeros(DIM), precision)
    np.testing.assert_allclose(np.log(q.root_diagonal).sum(), -q.log_det_precision / 2)
    root = (q.unwhiten(np.eye(DIM)) - q.mean).T
    np.testing.assert_allclose(root.diagonal(), q.root_diagonal)


@pytest.mark.parametrize("curvature", ["full", "diagonal", "none"])
def test_a_conditional_target_has_the_derivatives_of_the_whole(curvature):
    target, split = GaussianTarget(np.arange(4.0), make_covariance(4, 9)), Split(4, [1])
    conditional = Conditional(target, split, np.array([0.3]))
    draws = np.random.default_rng(10).normal(size=(5, 3))
    whole, part = (
        target.evaluate(split.join(np.array([0.3]), draws), curvature),
        conditional.evaluate(draws, curvature),
    )
    np.testing.assert_array_equal(part.log_density, whole.log_density)
    np.testing.assert_array_equal(part.gradient, whole.gradient[:, [0, 2, 3]])
    if curvature == "none":
        assert part.hessian is None
    elif curvature == "full":
        np.testing.assert_array_equal(part.hessian, whole.hessian[:, [0, 2, 3]][:, :, [0, 2, 3]])
    else:
        np.testing.assert_array_equal(part.hessian, whole.hessian[:, [0, 2, 3]])


def _dense(q):
    matrix = q.precision
    if q.curvature == "full":
        return matrix
    return np.diag(matrix) if q.factorised else q.structure.matrix(matrix).toarray()
