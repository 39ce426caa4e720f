"""The theory's quantities against their closed forms on a Gaussian target, and bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import schedules, theory
from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.subsampling import LinearRegression, Subsampling
from tests.targets import GaussianTarget

target = GaussianTarget.random(4, 20.0, seed=1)
optimum = target.optimum(FullGaussian)
plain = BonnetPrice(antithetic=False)
away = FullGaussian.from_mean_covariance(target.mean + 0.5, 0.1 * np.eye(4))


def closed_form(q, step_size):
    """E d(exact step, noisy step) N / eta^2 for plain draws: the paper's appendix D."""
    ratio = np.linalg.eigvals(q.covariance @ target.precision).real
    return 0.5 * (ratio**2 / (1 - step_size + step_size * ratio)).sum()


@pytest.mark.parametrize("q", [optimum, away], ids=["optimum", "away"])
@pytest.mark.parametrize("step_size", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("n_samples", [1, 10])
def test_variance_bound_is_the_closed_form(q, step_size, n_samples):
    """V is the closed form, whatever the sample size it was measured with."""
    found = theory.gradient_variance_bound(
        q,
        target,
        plain,
        step_size=step_size,
        n_samples=n_samples,
        rng=np.random.default_rng(2),
        replicates=1000,
    )
    assert abs(found.constant - closed_form(q, step_size)) < 4 * found.standard_error * n_samples


def test_variance_by_definition():
    """At the optimum it is d / (2 N); elsewhere no more than the bound; the largest is returned."""
    arguments = dict(step_size=0.3, n_samples=5, replicates=1000)
    at_optimum = theory.gradient_variance(
        [], optimum, target, plain, rng=np.random.default_rng(3), **arguments
    )
    assert abs(at_optimum.value - 4 / 2 / 5) < 4 * at_optimum.standard_error
    with_away = theory.gradient_variance(
        away, optimum, target, plain, rng=np.random.default_rng(3), **arguments
    )
    assert with_away.value >= at_optimum.value
    ceiling = max(closed_form(q, 0.3) / 5 for q in (optimum, away))
    assert with_away.value < ceiling + 4 * with_away.standard_error


def test_antithetic_draws_have_no_variance_on_a_gaussian():
    found = theory.gradient_variance(
        [], optimum, target, BonnetPrice(), step_size=0.5, n_samples=2, rng=np.random.default_rng(4)
    )
    assert found.value < 1e-20


def test_variance_of_subsampling():
    """The same tools serve the finite-sum estimator, and V does not depend on N."""
    rng = np.random.default_rng(5)
    design = rng.standard_normal((500, 3))
    model = LinearRegression(
        design,
        design.sum(axis=1) + rng.standard_normal(500),
        noise_variance=1.0,
        prior_precision=1.0,
    )
    posterior = model.posterior(FullGaussian)
    constants = [
        theory.gradient_variance_bound(
            posterior, model, Subsampling(), step_size=0.1, n_samples=n, rng=rng, replicates=500
        )
        for n in (50, 200)
    ]
    error = np.hypot(*[found.standard_error * found.n_samples for found in constants])
    assert (
        abs(constants[0].constant - constants[1].constant) < 0.1 * constants[0].constant + 4 * error
    )


SCHEDULES = {
    "constant": dict(step_size=0.2, n_samples=3),
    "growing": dict(step_size=0.2, n_samples=schedules.growing(1.0)),
    "decreasing": dict(step_size=schedules.decreasing(), n_samples=3),
    "both": dict(step_size=schedules.decreasing(), n_samples=schedules.growing(1.0)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_error_stays_below_the_bound(name):
    """From the covariance of the target, where V = d / 2 along the whole way.

    Every whitened component of the mean then moves by itself: one run in 400 dimensions is worth
    100 runs in four, and the scatter of the components gives the standard error of their sum.
    """
    dim, T = 400, 30
    wide = GaussianTarget.random(dim, 20.0, seed=1)
    best = wide.optimum(FullGaussian)
    start = best.with_mean(wide.mean + np.sqrt(best.variance))
    bounds = theory.schedule_bound(T, variance=dim / 2, distance=best.kl(start), **SCHEDULES[name])
    iterates = [start]
    run(
        wide,
        start,
        n_iterations=T,
        estimator=plain,
        rng=np.random.default_rng(0),
        callbacks=[lambda state, info: iterates.append(state.q)],
        **SCHEDULES[name],
    )
    distances = np.array([best.kl(q) for q in iterates])
    squares = np.square([best.whiten(q.mean[np.newaxis])[0] for q in iterates])
    np.testing.assert_allclose(squares.sum(axis=1) / 2, distances, rtol=1e-6)
    error = np.sqrt(dim) * squares.std(axis=1) / 2
    assert (distances[1:] <= bounds[1:] + 3 * error[1:]).all()
    assert bounds[-1] < bounds[0] / 5


def test_closed_forms_are_no_sharper_than_the_recursion():
    common = dict(variance=2.0, distance=7.0)
    for T in (1, 5, 50, 400):
        arguments = dict(step_size=0.1, n_samples=4, **common)
        sharp = theory.schedule_bound(T, **arguments)[-1]
        assert sharp <= theory.constant_step_bound(T, **arguments) + 1e-12
        growing = theory.schedule_bound(
            T, step_size=0.1, n_samples=schedules.growing(1.5), **common
        )[-1]
        assert growing <= theory.growing_samples_bound(T, step_size=0.1, gamma=1.5, **common)
        decreasing = theory.schedule_bound(
            T + 1, step_size=schedules.decreasing(), n_samples=4, **common
        )[-1]
        assert decreasing <= theory.decreasing_step_bound(T, n_samples=4, variance=2.0)


def test_bounds_have_the_papers_rates():
    def slope(bound):
        return np.log(bound(20_000) / bound(10_000)) / np.log(2)

    noise = dict(variance=2.0)
    assert slope(
        lambda T: theory.growing_samples_bound(T, step_size=0.1, gamma=0.7, distance=5.0, **noise)
    ) == pytest.approx(-0.7, rel=0.01)
    assert slope(lambda T: theory.decreasing_step_bound(T, n_samples=3, **noise)) == pytest.approx(
        -1, rel=0.01
    )
    assert slope(
        lambda T: theory.decreasing_step_bound(T, n_samples=schedules.growing(0.5), **noise)
    ) == pytest.approx(-1.5, rel=0.01)
    assert theory.neighbourhood(0.1, 4, **noise) == pytest.approx(
        theory.constant_step_bound(10_000, step_size=0.1, n_samples=4, distance=5.0, **noise)
    )


@pytest.mark.parametrize("accuracy", [1.0, 0.01])
@pytest.mark.parametrize("max_step", [1.0, 0.1])
def test_plans_keep_their_promise(accuracy, max_step):
    start = optimum.with_mean(target.mean + 3 * np.sqrt(optimum.variance))
    distance, variance = optimum.kl(start), 4 / 2
    plans = theory.plan(accuracy, variance=variance, distance=distance, max_step=max_step)
    assert [plan.evaluations for plan in plans] == sorted(plan.evaluations for plan in plans)
    for plan in plans:
        assert plan.bound <= accuracy * (1 + 1e-9)
        assert plan.evaluations == plan.n_samples * plan.iterations
        ends = [
            run(
                target,
                start,
                n_iterations=plan.iterations,
                step_size=plan.step_size,
                n_samples=plan.n_samples,
                estimator=plain,
                rng=np.random.default_rng(seed),
            ).q
            for seed in range(20)
        ]
        distances = np.array([optimum.kl(q) for q in ends])
        assert distances.mean() < accuracy + 3 * distances.std() / np.sqrt(20)


def test_plan_for_an_estimator_without_noise():
    """Antithetic draws have V = 0 on a Gaussian, but a single draw has no pair."""
    best = theory.plan(0.01, variance=0.0, distance=100.0, min_samples=2)[0]
    assert (best.n_samples, best.iterations) == (2, 1)


def test_pooling_loses_a_degree_of_freedom():
    """With two replicates the spread around their mean is half of that around the truth."""
    found = [
        theory.gradient_variance_bound(
            optimum,
            target,
            plain,
            step_size=0.5,
            n_samples=1,
            rng=np.random.default_rng(seed),
            replicates=2,
        ).value
        for seed in range(1500)
    ]
    assert np.mean(found) == pytest.approx(4 / 2, rel=0.1)


def test_bad_input():
    with pytest.raises(ValueError, match=r"step size in \(0, 1/m\]"):
        theory.constant_step_bound(3, step_size=0.9, n_samples=1, variance=1.0, distance=1.0, m=2.0)
    with pytest.raises(ValueError, match="from T = 1 on"):
        theory.growing_samples_bound(0, step_size=0.5, gamma=1.0, variance=1.0, distance=1.0)
    with pytest.raises(ValueError, match=r"accuracy must be positive, got 0\.0"):
        theory.plan(0.0, variance=1.0, distance=1.0)
    with pytest.raises(ValueError, match="variance must not be negative"):
        theory.plan(0.1, variance=-1.0, distance=1.0)
    with pytest.raises(ValueError, match="replicates must be at least 2"):
        theory.gradient_variance(
            [], optimum, target, plain, step_size=0.5, n_samples=1, rng=None, replicates=1
        )
