"""The automatic engine on exact targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from pymc_ngvi.core.algorithm import State
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Stein
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.target import Evaluation, Target, averaging
from pymc_ngvi.engine.evaluated import squared_displacement
from pymc_ngvi.engine.secants import residual
from pymc_ngvi.errors import NonFiniteError
from tests.conftest import each_family
from tests.targets import (
    Banana,
    DoubleWell,
    Funnel,
    GaussianTarget,
    HalfSpace,
    LogisticTarget,
    PoissonTarget,
    engine,
    fit,
    pick,
)


def start(family, dim):
    return family.from_curvature(np.zeros(dim), None)


@pytest.mark.parametrize("dim", [1, 30])
def test_gaussian_target_is_exact(dim):
    target = GaussianTarget.random(dim, 1e5, seed=dim)
    result = fit(target, start(FullGaussian, dim))
    assert result.status == "converged"
    assert result.q.kl(target.optimum(FullGaussian)) < 1e-10
    assert result.state.evaluations < 1000


def test_scales_of_1e8_and_correlation_of_0_99999():
    covariance = np.array([[1.0, 0.99999], [0.99999, 1.0]]) * np.outer([1e4, 1e-4], [1e4, 1e-4])
    target = GaussianTarget(np.array([3e4, -2e-4]), np.linalg.inv(covariance))
    result = fit(target, start(FullGaussian, 2))
    assert result.status == "converged"
    assert result.q.kl(target.optimum(FullGaussian)) < 1e-6


@each_family
@pytest.mark.parametrize("estimator", [BonnetPrice(), Stein()], ids=repr)
def test_converges_within_its_accuracy(family, estimator):
    """Against a long run; every mean and log sd within the accuracy times two."""
    target = LogisticTarget.random(4, 60, seed=2)
    quick = fit(target, start(family, 4), estimator=estimator, accuracy=0.05)
    long = fit(target, start(family, 4), accuracy=0.002, seed=9, max_evaluations=200_000)
    assert quick.status == "converged"
    sd = np.sqrt(long.q.variance)
    assert np.abs((quick.q.mean - long.q.mean) / sd).max() < 0.1
    assert np.abs(np.log(quick.q.variance / long.q.variance) / 2).max() < 0.1


def test_more_accuracy_costs_more():
    target = LogisticTarget.random(4, 60, seed=2)
    spent = [
        fit(target, start(FullGaussian, 4), accuracy=accuracy).state.evaluations
        for accuracy in (0.1, 0.005, 0.0005)
    ]
    assert spent[0] <= spent[1] < spent[2]


def test_finds_its_way_from_far_below_the_mode():
    result = fit(PoissonTarget(), FullGaussian.from_mean_covariance([-30.0], [[1.0]]))
    assert result.status == "converged"
    assert result.q.mean[0] == pytest.approx(np.log(20) - 1 / 40, abs=0.02)


def test_indefinite_curvature():
    first = start(FullGaussian, 2)
    result = fit(DoubleWell(), first, accuracy=0.1, max_evaluations=5000)
    before, after = (
        BonnetPrice()(DoubleWell(), q, 10_000, np.random.default_rng(3)).elbo
        for q in (first, result.q)
    )
    assert after > before + 1


def test_a_wide_start_is_narrowed_until_finite():
    target = HalfSpace(GaussianTarget(np.zeros(2), 100 * np.eye(2)), wall=1.0)
    result = fit(target, FullGaussian.from_mean_covariance([0.0, 0.0], 1e4 * np.eye(2)))
    assert result.status == "converged"
    assert result.q.kl(target.inner.optimum(FullGaussian)) < 1e-10


def test_a_start_that_is_nowhere_finite_is_an_error():
    target = HalfSpace(GaussianTarget(np.zeros(2), np.eye(2)), wall=-1.0)
    with pytest.raises(NonFiniteError, match="however close to the starting point"):
        fit(target, start(FullGaussian, 2))


class Analytic(Target):
    """A one-dimensional log density with its first two derivatives."""

    dim = 1

    def __init__(self, *functions):
        self.functions = functions

    def log_density(self, draws):
        return self.functions[0](draws[:, 0])

    def evaluate(self, draws, curvature):
        with np.errstate(over="ignore", invalid="ignore"):
            value, first, second = (function(draws[:, 0]) for function in self.functions)
        return Evaluation(value, first[:, np.newaxis], pick(second[:, None, None], curvature))


@pytest.mark.parametrize("seed", range(5))
def test_walls_steeper_than_any_gaussian(seed):
    """A box with soft walls: steps on a few draws must not lead out of it."""
    box = Analytic(lambda x: -(x**20), lambda x: -20 * x**19, lambda x: -380 * x**18)
    start = FullGaussian.from_curvature(np.array([0.7]), None)
    q = fit(box, start, max_evaluations=5000, seed=seed).q
    assert abs(q.mean[0]) + np.sqrt(q.variance[0]) < 1

    nodes, weights = np.polynomial.hermite_e.hermegauss(20)  # exact up to the 39th power

    def elbo(q):
        draws = q.unwhiten(nodes[:, np.newaxis])
        return weights @ box.log_density(draws) / weights.sum() + q.entropy()

    assert -elbo(q) < 1e-6 * -elbo(start)


@pytest.mark.parametrize("start_at", [0.0, -30.0])
def test_a_count_of_a_million(start_at):
    """Log rate with a flat prior: the first step is a millionth of what the curvature asks for."""
    count = Analytic(lambda x: 1e6 * x - np.exp(x), lambda x: 1e6 - np.exp(x), lambda x: -np.exp(x))
    result = fit(count, FullGaussian.from_curvature(np.array([start_at]), None))
    assert result.status == "converged"
    assert result.q.mean[0] == pytest.approx(np.log(1e6), abs=1e-4)
    assert result.q.variance[0] == pytest.approx(1e-6, rel=0.02)


def test_a_warm_up_that_cannot_rise_any_more_ends():
    """At the maximum of its ELBO on too few draws, steps lower it by rounding only."""

    class Flat(GaussianTarget):
        def log_density(self, draws):
            return np.round(super().log_density(draws), 9) - 2738.0

        def evaluate(self, draws, curvature):
            inner = super().evaluate(draws, curvature)
            return Evaluation(self.log_density(draws), inner.gradient, inner.hessian)

    for seed in range(20):
        target = Flat(np.full(10, 50.0), np.eye(10))
        result = fit(target, start(FullGaussian, 10), seed=seed)
        assert result.status == "converged"
        assert len(result.history) < 50


def test_stein_warms_up_in_many_dimensions():
    target = GaussianTarget(np.full(20, 300.0), np.eye(20))
    result = fit(target, start(FullGaussian, 20), estimator=Stein())
    assert result.status == "converged"
    assert result.q.kl(target.optimum(FullGaussian)) < 1e-8


def check_errors(results, errors, *, accuracy, least):
    """At least so many fits claim to have converged, and no more than one of them is far off."""
    claimed = [abs(e) for r, e in zip(results, errors, strict=True) if r.status == "converged"]
    assert len(claimed) >= least
    assert sum(error > 3 * accuracy for error in claimed) <= 1


@pytest.mark.parametrize(("bend", "least"), [(0.5, 8), (2.0, 4)])
def test_a_slow_iteration_is_not_taken_for_settled(bend, least):
    """The mean of the first component is 0; a fit that claims to have converged is near it."""
    first = FullGaussian.from_curvature(np.array([0.7, 0.7]), None)
    results = [fit(Banana(bend), first, seed=seed, max_evaluations=20_000) for seed in range(10)]
    errors = [r.q.mean[0] / np.sqrt(r.q.variance[0]) for r in results]
    check_errors(results, errors, accuracy=0.02, least=least)


def test_a_funnel_is_not_taken_for_settled():
    results = [fit(Funnel(), accuracy=0.05, seed=s, max_evaluations=30_000) for s in range(10)]
    errors = [(r.q.mean[0] - Funnel.mean) / Funnel.sd for r in results]
    check_errors(results, errors, accuracy=0.05, least=6)


def test_a_level_and_the_averaging_after_it_do_not_take_turns_for_ever():
    """A skewed posterior in three dimensions: what one set of draws lacks, all of them have."""
    target = LogisticTarget.random(3, 8, seed=5)
    for seed in range(10):
        result = fit(target, accuracy=0.1, seed=seed)
        assert result.status == "converged"
        assert result.state.evaluations < 2000


def test_budgets():
    target = LogisticTarget.random(4, 60, seed=2)
    by_evaluations = fit(target, start(FullGaussian, 4), accuracy=1e-4, max_evaluations=3000)
    assert by_evaluations.status == "max_evaluations"
    assert by_evaluations.state.evaluations <= 3000
    by_iterations = fit(target, start(FullGaussian, 4), n=3)
    assert by_iterations.status == "max_iterations"
    assert by_iterations.state.iteration == 3


def test_every_evaluation_is_counted():
    class Counting(LogisticTarget):
        calls = 0

        def evaluate(self, draws, curvature):
            Counting.calls += len(draws)
            return super().evaluate(draws, curvature)

    inner = LogisticTarget.random(3, 40, seed=4)
    result = fit(Counting(inner.design, inner.response), start(FullGaussian, 3))
    assert result.status == "converged"
    assert result.state.evaluations == Counting.calls


def test_warm_up_never_lowers_the_elbo_on_its_draws():
    target = LogisticTarget.random(4, 60, seed=3)
    warming = engine(target).warm_up(State(start(FullGaussian, 4)), 1000)
    elbos = np.array([info.elbo for _, info in warming])
    assert len(elbos) >= 2
    assert (np.diff(elbos) >= -1e-9).all()


class Regressed(Target):
    """A linear regression with an unknown log scale of its errors, and no other prior."""

    def __init__(self, dim, n, seed):
        rng = np.random.default_rng(seed)
        self.dim = dim + 1
        self.design = rng.standard_normal((n, dim))
        self.response = self.design @ np.linspace(-20, 20, dim) + rng.standard_normal(n)

    def log_density(self, draws):
        return self.evaluate(draws, "none").log_density

    def evaluate(self, draws, curvature):
        beta, scale = draws[:, :-1], np.exp(-2 * draws[:, -1])
        left = self.response - beta @ self.design.T
        squares, along = np.square(left).sum(axis=1), left @ self.design
        value = -0.5 * squares * scale - len(self.response) * draws[:, -1]
        gradient = np.column_stack(
            [along * scale[:, np.newaxis], squares * scale - len(self.response)]
        )
        hessian = np.empty((len(draws), self.dim, self.dim))
        hessian[:, :-1, :-1] = -scale[:, np.newaxis, np.newaxis] * (self.design.T @ self.design)
        hessian[:, -1, :-1] = hessian[:, :-1, -1] = -2 * along * scale[:, np.newaxis]
        hessian[:, -1, -1] = -2 * squares * scale
        return Evaluation(value, gradient, pick(hessian, curvature))


def test_steps_at_points_are_tried_again_from_another_point():
    """At the start they lead too far; after one step by the draws they find the way."""
    far = FullGaussian.from_curvature(np.array([0.0] * 6 + [9.0]), None)
    warming = engine(Regressed(6, 100, seed=1))
    found = [info.evaluations for _, info in warming.warm_up(State(far), 1000)]
    spent = np.diff([0, *found])
    assert spent[0] > 8  # by draws
    assert np.sum(spent == 1) >= len(spent) // 2  # at points
    assert warming.evaluations <= 100


class Rows(LogisticTarget):
    """Logistic regression that counts the rows of each kind of evaluation."""

    def __init__(self, *args):
        super().__init__(*args)
        object.__setattr__(self, "counts", {"hessians": 0, "gradients": 0, "densities": 0})

    def log_density(self, draws):
        self.counts["densities"] += len(draws)
        return super().log_density(draws)

    def evaluate(self, draws, curvature):
        self.counts["gradients" if curvature == "none" else "hessians"] += len(draws)
        self.counts["densities"] -= len(draws)  # super() asks for them
        return super().evaluate(draws, curvature)


@pytest.mark.parametrize("accuracy", [0.02, 0.002])
def test_evaluations_with_and_without_hessians_are_counted_apart(accuracy):
    inner = LogisticTarget.random(10, 200, seed=4)
    target = Rows(inner.design, inner.response)
    result = fit(target, start(FullGaussian, 10), accuracy=accuracy)
    assert result.status == "converged"
    assert result.state.evaluations == target.counts["hessians"]
    assert result.state.gradients == target.counts["gradients"] + target.counts["densities"]
    assert target.counts["gradients"] > 0
    assert result.history[-1].gradients <= result.state.gradients


class Regression(LogisticTarget):
    """Logistic regression with a linear predictor of unit variance, and quick mean Hessians."""

    @classmethod
    def random(cls, dim, n, seed):
        rng = np.random.default_rng(seed)
        design = rng.standard_normal((n, dim))
        chance = expit(design.sum(axis=1) / np.sqrt(dim))
        return cls(design, rng.binomial(1, chance).astype(float))

    def average(self, draws, curvature, sets=1):
        found = self.evaluate(draws, "none")
        p = expit(draws @ self.design.T)
        weights = averaging(len(draws), sets) @ (p * (1 - p))
        hessians = np.array([-(self.design.T * w) @ self.design for w in weights])
        hessians = hessians - np.eye(self.dim) / self.prior_variance
        if curvature == "diagonal":
            hessians = np.diagonal(hessians, axis1=1, axis2=2)
        return Evaluation(found.log_density, found.gradient, hessians)

    def evaluate(self, draws, curvature):
        if curvature != "none":
            return self.average(draws, curvature, len(draws))
        p = expit(draws @ self.design.T)
        gradient = (self.response - p) @ self.design - draws / self.prior_variance
        return Evaluation(self.log_density(draws), gradient, None)


def test_evaluations_do_not_grow_with_the_dimension():
    spent = []
    for dim in (10, 40, 160):
        result = fit(Regression.random(dim, 50 * dim, seed=1), start(FullGaussian, dim))
        assert result.status == "converged"
        spent.append(result.state.evaluations)
    assert max(spent) <= 60
    assert spent[-1] <= spent[0] + 16


@each_family
def test_a_gaussian_target_takes_a_few_evaluations(family):
    """Two points, and the few draws that show that there is no noise: at most three times."""
    dim = 30
    target = GaussianTarget.random(dim, 100, seed=1)
    result = fit(target, start(family, dim))
    assert result.status == "converged"
    assert result.q.kl(target.optimum(family)) < 1e-8
    assert result.state.evaluations <= (40 if family.has_mean else 60)


def test_a_start_at_the_optimum_costs_little():
    target = Regression.random(40, 4000, seed=1)
    first = fit(target, start(FullGaussian, 40))
    second = fit(target, first.q, seed=2)
    assert second.status == "converged"
    assert second.state.evaluations <= min(33, first.state.evaluations)


def test_the_same_seed_gives_the_same_bits():
    target = LogisticTarget.random(10, 200, seed=4)
    one, two = (fit(target, start(FullGaussian, 10), seed=5) for _ in range(2))
    assert np.array_equal(one.q.mean, two.q.mean)
    assert np.array_equal(one.q.precision, two.q.precision)


def test_mean_field_in_many_dimensions_asks_for_no_whole_hessian():
    class Diagonal(Regression):
        def average(self, draws, curvature, sets=1):
            assert curvature == "diagonal"
            return super().average(draws, curvature, sets)

    target = Diagonal.random(120, 6000, seed=4)
    result = fit(target, start(DiagonalGaussian, 120))
    assert result.status == "converged"
    assert result.state.evaluations <= 60


@each_family
def test_displacement_is_the_step_an_estimate_asks_for(family):
    """To first order: compare with a tiny step of the real update."""
    q = start(family, 3)
    hessian = np.diag([-1.5, -1.1, -0.8])
    hessian = hessian if family.curvature == "full" else hessian.diagonal()
    estimate = Estimate(np.array([0.1, -0.2, 0.3]), hessian, 0.0, 0.0, 1)
    size = 1e-5
    moved = q.mix(estimate.gradient, estimate.hessian, size)
    found = squared_displacement(q, residual(q, estimate))
    mean = (moved.mean - q.mean) / size / np.sqrt(q.variance)
    log_sd = np.log(moved.variance / q.variance) / 2 / size
    np.testing.assert_allclose(found.mean, mean**2, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(found.log_sd, log_sd**2, rtol=1e-3)
    assert found.nats == pytest.approx(moved.kl(q) / size**2, rel=1e-3)


def test_an_estimator_that_changes_another_one_is_asked():
    """The engine may not take what a subclass inherits for what it does."""

    class Shifted(BonnetPrice):
        def at(self, target, q, z):
            found = super().at(target, q, z)
            return replace(found, gradient=found.gradient + target.precision @ np.ones(3))

    target = GaussianTarget.random(3, 10, seed=1)
    result = fit(target, start(FullGaussian, 3), estimator=Shifted())
    optimum = target.optimum(FullGaussian)
    np.testing.assert_allclose(result.q.mean, optimum.mean + 1, atol=1e-6)


def test_an_estimator_from_gradients_gets_the_draws_it_needs():
    """A Hessian from fewer draws than `min_draws` would be noise."""

    class Own:
        needs_hessian = False
        at = Stein().at

    target = GaussianTarget.random(30, 10, seed=1)
    state = State(FullGaussian.from_curvature(np.zeros(30), None))
    _, info = next(engine(target, estimator=Own()).fit(state, 10))
    assert info.n_samples >= FullGaussian.min_draws(30)
    _, info = next(engine(target).fit(state, 10))
    assert info.n_samples < FullGaussian.min_draws(30)
