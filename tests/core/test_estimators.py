"""Estimators are unbiased, agree with each other, and never average a non-finite draw."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pymc_ngvi.core import target as targets
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Score, Stein, decouple
from pymc_ngvi.core.families import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    FullGaussian,
)
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.errors import NonFiniteError
from tests.conftest import FAMILIES, each_family
from tests.targets import GaussianTarget, HalfSpace, LogisticTarget

ESTIMATORS = [
    BonnetPrice(),
    BonnetPrice(antithetic=False),
    Stein(),
    Stein(antithetic=False),
    Score(),
    Score(antithetic=False),
]
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)

logistic = LogisticTarget.random(3, 30, seed=1)


def member(family, dim=3):
    if family.curvature == "full":
        covariance = 0.3 * (np.eye(dim) + 0.5)
        return family.from_mean_covariance(np.full(dim, 0.4), covariance)
    mean = np.zeros(dim) if family.name.startswith("centred") else np.full(dim, 0.4)
    return family.from_mean_covariance(mean, np.full(dim, 0.3))


def truth(target, q):
    """Mean gradient and Hessian by Gauss-Hermite quadrature on a product grid (d = 3)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3)
    weight = np.prod(np.stack(np.meshgrid(weights, weights, weights), -1).reshape(-1, 3), axis=1)
    weight = weight / weight.sum()
    found = target.evaluate(q.unwhiten(grid), q.curvature)
    log_ratio = found.log_density - q.log_density_whitened(grid)
    return weight @ found.gradient, np.tensordot(weight, found.hessian, 1), weight @ log_ratio


@each_family
@each_estimator
def test_unbiased(family, estimator):
    """z-scores of the mean over 2000 independent estimates, for every component."""
    q = member(family)
    gradient, hessian, elbo = truth(logistic, q)
    rng = np.random.default_rng(2)
    estimates = [estimator(logistic, q, 6, rng) for _ in range(2000)]
    for name, exact in {"gradient": gradient, "hessian": hessian, "elbo": elbo}.items():
        sample = np.array([getattr(estimate, name) for estimate in estimates])
        # A symmetry makes the centred gradient exact: allow for rounding beside the noise.
        error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample)) + 1e-12
        z = (sample.mean(axis=0) - exact) / error
        assert np.abs(z).max() < 4, name


@each_family
def test_gaussian_target_is_exact_with_antithetic_draws(family):
    target = GaussianTarget.random(3, 20.0, seed=3)
    q = member(family)
    estimate = BonnetPrice()(target, q, 2, np.random.default_rng(4))
    curvature = -target.precision
    np.testing.assert_allclose(
        estimate.hessian, curvature if family.curvature == "full" else curvature.diagonal()
    )
    np.testing.assert_allclose(estimate.gradient, target.precision @ (target.mean - q.mean))


@each_family
def test_stein_has_no_variance_at_a_gaussian_optimum(family):
    if family.curvature == "full":
        target = GaussianTarget.random(3, 20.0, seed=5)
    else:
        target = GaussianTarget(np.zeros(3), np.diag([1.0, 4.0, 9.0]))
    q = target.optimum(family)
    estimate = Stein()(target, q, 4, np.random.default_rng(6))
    np.testing.assert_allclose(estimate.gradient, 0, atol=1e-12)
    np.testing.assert_allclose(estimate.hessian, -q.precision, atol=1e-12)
    assert estimate.elbo == pytest.approx(0, abs=1e-12)


@each_estimator
def test_elbo_standard_error_is_calibrated(estimator):
    q = member(FullGaussian)
    rng = np.random.default_rng(7)
    estimates = [estimator(logistic, q, 40, rng) for _ in range(500)]
    spread = np.std([estimate.elbo for estimate in estimates], ddof=1)
    claimed = np.sqrt(np.mean([estimate.elbo_se**2 for estimate in estimates]))
    assert claimed == pytest.approx(spread, rel=0.15)


@each_estimator
def test_chunks_change_nothing(estimator, monkeypatch):
    q = member(FullGaussian)
    whole = estimator(logistic, q, 25, np.random.default_rng(8))
    monkeypatch.setattr(targets, "CHUNK_SIZE", 40)
    chunked = estimator(logistic, q, 25, np.random.default_rng(8))
    np.testing.assert_allclose(chunked.hessian, whole.hessian, rtol=1e-12)
    np.testing.assert_allclose(chunked.gradient, whole.gradient, rtol=1e-12, atol=1e-12)
    assert chunked.elbo == pytest.approx(whole.elbo, rel=1e-12)


@each_estimator
def test_counts_and_seeds(estimator):
    q = member(FullGaussian)
    first = estimator(logistic, q, 5, np.random.default_rng(9))
    second = estimator(logistic, q, 5, np.random.default_rng(9))
    assert first.evaluations == 5
    np.testing.assert_array_equal(first.hessian, second.hessian)
    assert np.isnan(estimator(logistic, q, 1, np.random.default_rng(9)).elbo_se)


def test_hessian_is_symmetrised():
    class Skewed(LogisticTarget):
        def evaluate(self, draws, curvature):
            found = super().evaluate(draws, curvature)
            return Evaluation(found.log_density, found.gradient, found.hessian + np.tri(3))

    target = Skewed(logistic.design, logistic.response)
    hessian = BonnetPrice()(target, member(FullGaussian), 3, np.random.default_rng(0)).hessian
    np.testing.assert_array_equal(hessian, hessian.T)


def test_target_without_a_hessian():
    class Gradients(LogisticTarget):
        def evaluate(self, draws, curvature):
            return super().evaluate(draws, "none")

    target = Gradients(logistic.design, logistic.response)
    with pytest.raises(TypeError, match="use the Stein estimator"):
        BonnetPrice()(target, member(FullGaussian), 3, np.random.default_rng(0))


def test_overflow_of_the_sum_is_reported():
    class Huge(LogisticTarget):
        def evaluate(self, draws, curvature):
            found = super().evaluate(draws, curvature)
            return Evaluation(found.log_density, np.full_like(draws, 1e308), found.hessian)

    target = Huge(logistic.design, logistic.response)
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError, match="overflow when summed"):
        BonnetPrice()(target, member(FullGaussian), 4, np.random.default_rng(0))


def test_errors_survive_pickling():
    error = NonFiniteError("not finite", np.ones((2, 3)), 7)
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == "not finite"
    assert back.evaluations == 7
    np.testing.assert_array_equal(back.draws, error.draws)


@pytest.mark.parametrize(
    ("part", "name"),
    [("log_density", "log density"), ("gradient", "gradient"), ("hessian", "Hessian")],
)
def test_non_finite_draws_are_reported(part, name):
    target = HalfSpace(GaussianTarget(np.zeros(3), np.eye(3)), wall=0.4, part=part)
    q = member(FullGaussian)
    with pytest.raises(NonFiniteError, match=rf"{name} is not finite at \d+ of 8 draws") as caught:
        BonnetPrice()(target, q, 8, np.random.default_rng(10))
    assert (caught.value.draws[:, 0] > 0.4).all()
    assert caught.value.evaluations == 8
    if part != "hessian":
        with pytest.raises(NonFiniteError, match=name):
            Stein()(target, q, 8, np.random.default_rng(10))


def test_diagonal_families_ask_for_the_diagonal_only():
    asked = []

    class Recording(LogisticTarget):
        def evaluate(self, draws, curvature):
            asked.append(curvature)
            return super().evaluate(draws, curvature)

    target = Recording(logistic.design, logistic.response)
    for family in FAMILIES:
        BonnetPrice()(target, member(family), 2, np.random.default_rng(11))
    Stein()(target, member(FullGaussian), 2, np.random.default_rng(11))
    assert asked == [family.curvature for family in FAMILIES] + ["none"]


class TestCoupled:
    """The whole Hessian for a family that needs its diagonal only."""

    def test_newton_step_finds_the_mean_of_a_correlated_gaussian_at_once(self):
        target = GaussianTarget.random(4, 1e4, seed=3)
        q = DiagonalGaussian.from_mean_precision(np.zeros(4), np.ones(4))
        estimate = BonnetPrice(coupled=True)(target, q, 8, np.random.default_rng(0))
        np.testing.assert_allclose(estimate.coupling, -target.precision)
        np.testing.assert_allclose(estimate.hessian, -target.precision.diagonal())
        (decoupled,) = decouple([estimate], estimate.coupling)
        stepped = q.mix(decoupled.gradient, decoupled.hessian, 1.0)
        assert stepped.kl(target.optimum(DiagonalGaussian)) < 1e-10
        slow = q.mix(estimate.gradient, estimate.hessian, 1.0)
        assert slow.kl(target.optimum(DiagonalGaussian)) > 1

    def test_an_indefinite_hessian_gives_an_ascent_direction(self):
        coupling = np.array([[-1.0, 3.0], [3.0, -1.0]])
        estimate = Estimate(np.array([1.0, 2.0]), coupling.diagonal(), 0.0, 0.0, 1, coupling)
        (decoupled,) = decouple([estimate], coupling)
        assert decoupled.gradient @ estimate.gradient > 0

    @pytest.mark.parametrize("family", [FullGaussian, CentredDiagonalGaussian])
    def test_families_without_use_for_it_are_left_alone(self, family):
        target = GaussianTarget.random(3, 10, seed=1)
        precision = np.eye(3) if family.curvature == "full" else np.ones(3)
        q = family.from_mean_precision(np.zeros(3), precision)
        estimate = BonnetPrice(coupled=True)(target, q, 4, np.random.default_rng(0))
        assert estimate.coupling is None
