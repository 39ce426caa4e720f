"""Algorithm 1: exact where theory says exact, and never losing what it had."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import schedules
from pymc_ngvi.core.algorithm import init, run, step
from pymc_ngvi.core.estimators import BonnetPrice, Stein
from pymc_ngvi.core.families import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    FullGaussian,
)
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import EigenvalueBounds, Identity, NonNegativeMean
from pymc_ngvi.errors import DomainError, NonFiniteError, ScheduleError
from tests.conftest import each_family
from tests.targets import DoubleWell, GaussianTarget, HalfSpace, LogisticTarget, PoissonTarget


def start(family, dim, variance=1.0):
    identity = np.eye(dim) if family.curvature == "full" else np.ones(dim)
    return family.from_mean_covariance(np.zeros(dim), variance * identity)


@pytest.mark.parametrize(("dim", "condition"), [(1, 1.0), (5, 1e3), (50, 1e6)])
@pytest.mark.parametrize("guard", ["lin", "backtrack", "none"])
def test_gaussian_target_in_one_step(dim, condition, guard):
    """The first law: eta = 1 and one antithetic pair land on the exact posterior."""
    target = GaussianTarget.random(dim, condition, seed=dim)
    result = run(
        target,
        start(FullGaussian, dim, 0.1),
        n_iterations=1,
        step_size=1.0,
        n_samples=2,
        guard=guard,
        rng=np.random.default_rng(1),
    )
    posterior = target.optimum(FullGaussian)
    error = np.abs(result.q.mean - target.mean) / np.sqrt(posterior.variance)
    assert error.max() < 1e-9
    assert np.abs(result.q.precision - target.precision).max() < 1e-9 * condition
    assert result.q.kl(posterior) < 1e-9


def test_meanfield_fixed_point_on_a_correlated_gaussian():
    """The solution keeps the mean and the diagonal of the precision."""
    target = GaussianTarget.random(6, 30.0, seed=2)
    optimum = target.optimum(DiagonalGaussian)
    rng = np.random.default_rng(3)
    stays = run(target, optimum, n_iterations=1, step_size=1.0, n_samples=2, rng=rng)
    assert stays.q.kl(optimum) < 1e-20
    comes = run(
        target, start(DiagonalGaussian, 6), n_iterations=3000, step_size=0.2, n_samples=2, rng=rng
    )
    assert comes.q.kl(optimum) < 1e-9


def test_centred_fixed_point_on_a_correlated_gaussian():
    target = GaussianTarget.random(6, 30.0, seed=4)
    result = run(
        target,
        start(CentredDiagonalGaussian, 6),
        n_iterations=1,
        step_size=1.0,
        n_samples=2,
        rng=np.random.default_rng(5),
    )
    np.testing.assert_allclose(result.q.precision, target.precision.diagonal(), rtol=1e-12)
    assert not result.q.mean.any()


@each_family
@pytest.mark.parametrize("estimator", [BonnetPrice(), Stein()], ids=repr)
def test_converges_on_a_logistic_regression(family, estimator):
    """Both estimators end at the same optimum, within the noise of a decreasing schedule."""
    target = LogisticTarget.random(3, 60, seed=6)
    ends = [
        run(
            target,
            start(family, 3),
            n_iterations=150,
            step_size=schedules.decreasing(),
            n_samples=schedules.growing(floor=60),
            estimator=chosen,
            rng=np.random.default_rng(7 + i),
        )
        for i, chosen in enumerate([estimator, BonnetPrice(antithetic=False)])
    ]
    assert ends[0].q.kl(ends[1].q) < 0.01
    assert ends[0].trace("elbo")[-20:].mean() > ends[0].trace("elbo")[0]


def test_info_tells_what_happened():
    target = LogisticTarget.random(2, 30, seed=8)
    result = run(
        target,
        start(FullGaussian, 2),
        n_iterations=6,
        step_size=schedules.decreasing(),
        n_samples=schedules.growing(gamma=1.0, floor=3),
        rng=np.random.default_rng(9),
    )
    np.testing.assert_array_equal(result.trace("iteration"), range(6))
    np.testing.assert_allclose(result.trace("step_size"), [2 / (t + 2) for t in range(6)])
    np.testing.assert_array_equal(result.trace("n_samples"), [3, 3, 3, 4, 5, 6])
    np.testing.assert_array_equal(result.trace("evaluations"), np.cumsum([3, 3, 3, 4, 5, 6]))
    assert (result.trace("kl") > 0).all()
    assert not result.trace("projection_active").any()
    assert result.history[-1].kl == result.state.q.kl(result.state.previous)
    assert result.status == "max_iterations"
    assert result.state.iteration == 6
    assert not result.trace("guard_active").any()


def test_info_elbo_is_of_the_member_the_iteration_started_from():
    target = GaussianTarget.random(4, 5.0, seed=10)
    optimum = target.optimum(FullGaussian)
    result = run(
        target, optimum, n_iterations=2, step_size=1.0, n_samples=4, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(result.trace("elbo"), 0, atol=1e-10)


def test_guard_activity_is_seen_and_the_fit_survives():
    """Between the wells the Hessian has the wrong sign: the bare update leaves the domain."""
    arguments = dict(n_iterations=60, step_size=0.5, n_samples=8)
    target, q = DoubleWell(), start(FullGaussian, 2, 0.01)
    message = r"iteration \d: the precision lost.*eigenvalue -.*guard='lin'"
    with pytest.raises(DomainError, match=message) as error:
        run(target, q, **arguments, guard="none", rng=np.random.default_rng(11))
    assert error.value.result.status == "failed"
    assert len(error.value.result.history) == error.value.result.state.iteration > 0
    for guard in ("lin", "backtrack"):
        result = run(target, q, **arguments, guard=guard, rng=np.random.default_rng(11))
        assert result.trace("guard_active").any()
        assert np.isfinite(result.q.mean).all()
        assert np.median(result.trace("elbo")[-20:]) > result.trace("elbo")[0]


def test_projection_activity_is_seen():
    target = GaussianTarget(np.array([-2.0, 3.0]), np.diag([1e-3, 1e3]))
    result = run(
        target,
        start(DiagonalGaussian, 2),
        n_iterations=1,
        step_size=1.0,
        n_samples=2,
        projection=EigenvalueBounds(0.01, 100),
        rng=np.random.default_rng(12),
    )
    np.testing.assert_allclose(result.q.variance, [100, 0.01])
    assert result.trace("projection_active").all()
    clipped = run(
        target,
        start(DiagonalGaussian, 2),
        n_iterations=1,
        step_size=1.0,
        n_samples=2,
        projection=NonNegativeMean(),
        rng=np.random.default_rng(12),
    )
    np.testing.assert_allclose(clipped.q.mean, [0, 3], atol=1e-12)


def test_start_is_projected():
    bounds = EigenvalueBounds(beta=4.0)
    assert init(start(FullGaussian, 2, 1e6), bounds).q.variance.max() <= 4.0
    result = run(
        GaussianTarget.random(2, 2.0, 0),
        start(FullGaussian, 2, 1e6),
        n_iterations=1,
        step_size=0.1,
        n_samples=2,
        projection=bounds,
        rng=np.random.default_rng(0),
    )
    assert result.state.previous.variance.max() <= 4.0


def test_any_callable_projects():
    fixed = start(FullGaussian, 2)
    result = run(
        GaussianTarget.random(2, 2.0, 0),
        fixed,
        n_iterations=3,
        step_size=1.0,
        n_samples=2,
        projection=lambda q: fixed,
        rng=np.random.default_rng(0),
    )
    assert result.q is fixed


@each_family
def test_same_seed_same_bits(family):
    target = LogisticTarget.random(3, 20, seed=13)
    first, second = (
        run(
            target,
            start(family, 3),
            n_iterations=5,
            step_size=0.5,
            n_samples=7,
            rng=np.random.default_rng(14),
        )
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.q.mean, second.q.mean)
    np.testing.assert_array_equal(first.q.precision, second.q.precision)


def test_a_run_in_two_parts_is_the_same_run():
    target = LogisticTarget.random(3, 20, seed=15)
    arguments = dict(step_size=schedules.decreasing(), n_samples=schedules.growing(floor=4))
    rng = np.random.default_rng(16)
    whole = run(target, start(FullGaussian, 3), n_iterations=9, rng=rng, **arguments)
    rng = np.random.default_rng(16)
    part = run(target, start(FullGaussian, 3), n_iterations=4, rng=rng, **arguments)
    rest = run(target, part.state, n_iterations=5, rng=rng, **arguments)
    np.testing.assert_array_equal(whole.q.mean, rest.q.mean)
    assert rest.state.evaluations == whole.state.evaluations
    assert rest.history[0].iteration == 4


@each_family
def test_averaging_averages_the_natural_parameters(family):
    target = LogisticTarget.random(3, 20, seed=17)
    seen = []
    result = run(
        target,
        start(family, 3),
        n_iterations=6,
        step_size=0.3,
        n_samples=5,
        averaging=True,
        callbacks=[lambda state, info: seen.append(state.q.natural)],
        rng=np.random.default_rng(18),
    )
    np.testing.assert_allclose(
        result.q.natural.second, np.mean([theta.second for theta in seen], axis=0), rtol=1e-10
    )
    np.testing.assert_allclose(
        result.q.natural.first, np.mean([theta.first for theta in seen], axis=0), rtol=1e-8
    )


def test_a_stale_average_is_not_returned():
    target = GaussianTarget.random(2, 2.0, seed=1)
    arguments = dict(step_size=0.2, n_samples=2)
    rng = np.random.default_rng(2)
    first = run(
        target, start(FullGaussian, 2), n_iterations=3, averaging=True, rng=rng, **arguments
    )
    second = run(target, first.state, n_iterations=100, rng=rng, **arguments)
    assert second.q is second.state.q


def test_averaging_reduces_the_noise():
    target = GaussianTarget.random(5, 10.0, seed=19)
    optimum = target.optimum(FullGaussian)
    errors = {
        averaging: np.mean(
            [
                optimum.kl(
                    run(
                        target,
                        optimum,
                        n_iterations=100,
                        step_size=0.5,
                        n_samples=2,
                        estimator=BonnetPrice(antithetic=False),
                        averaging=averaging,
                        rng=np.random.default_rng(seed),
                    ).q
                )
                for seed in range(8)
            ]
        )
        for averaging in (False, True)
    }
    assert errors[True] < errors[False] / 5


class TestStopping:
    arguments = dict(n_iterations=50, step_size=0.1, n_samples=2)
    target = GaussianTarget.random(2, 2.0, seed=20)

    def test_callback_stops(self):
        def stop_at_three(state, info):
            if state.iteration == 3:
                raise StopIteration

        result = run(
            self.target,
            start(FullGaussian, 2),
            callbacks=[stop_at_three],
            rng=np.random.default_rng(0),
            **self.arguments,
        )
        assert result.status == "stopped_by_callback"
        assert result.state.iteration == len(result.history) == 3

    def test_interrupt_returns_the_last_good_state(self):
        class Interrupting(GaussianTarget):
            calls = 0

            def evaluate(self, draws, curvature):
                Interrupting.calls += 1
                if Interrupting.calls == 5:
                    raise KeyboardInterrupt
                return super().evaluate(draws, curvature)

        result = run(
            Interrupting(self.target.mean, self.target.precision),
            start(FullGaussian, 2),
            rng=np.random.default_rng(0),
            **self.arguments,
        )
        assert result.status == "interrupted"
        assert result.state.iteration == len(result.history) == 4
        assert np.isfinite(result.q.mean).all()

    def test_late_failure_keeps_what_was_fitted(self):
        def fail_late(state, info):
            if state.iteration == 7:
                raise RuntimeError("disk full")

        with pytest.raises(RuntimeError, match="disk full") as error:
            run(
                self.target,
                start(FullGaussian, 2),
                callbacks=[fail_late],
                rng=np.random.default_rng(0),
                **self.arguments,
            )
        assert error.value.result.state.iteration == 7


class TestNonFinite:
    def test_a_step_too_far_is_halved(self):
        """Far below the mode there is slope and no curvature: a full step jumps into overflow."""
        result = run(
            PoissonTarget(),
            FullGaussian.from_mean_covariance([-12.0], [[1.0]]),
            n_iterations=60,
            step_size=0.99,
            n_samples=10,
            rng=np.random.default_rng(21),
        )
        assert result.trace("retreats").sum() > 0
        assert result.q.mean == pytest.approx(np.log(20), abs=0.1)
        spent = result.trace("n_samples").sum() + 10 * result.trace("retreats").sum()
        assert result.state.evaluations == spent

    def test_the_last_step_is_not_returned_where_the_target_is_not_finite(self):
        """No further draws judge it, so its mean is looked at."""
        result = run(
            PoissonTarget(),
            FullGaussian.from_mean_covariance([-8.0], [[1.0]]),
            n_iterations=1,
            step_size=0.99,
            n_samples=10,
            rng=np.random.default_rng(21),
        )
        assert np.isfinite(PoissonTarget().log_density(result.q.mean[None])).all()

    def test_a_rejected_step_does_not_enter_the_average(self):
        means = []
        result = run(
            PoissonTarget(),
            FullGaussian.from_mean_covariance([-8.0], [[1.0]]),
            n_iterations=30,
            step_size=0.99,
            n_samples=10,
            averaging=True,
            callbacks=[lambda state, info: means.append(state.previous.mean[0])],
            rng=np.random.default_rng(21),
        )
        assert max(means) < 709  # those the target was finite at
        theta = [result.state.average.natural.second[0, 0]]
        assert np.isfinite(theta).all()
        assert result.q.mean[0] < max(means)

    def test_a_bad_start_is_an_error(self):
        target = HalfSpace(GaussianTarget(np.zeros(2), np.eye(2)), wall=-50.0)
        with pytest.raises(
            NonFiniteError, match=r"iteration 0.*log density.*at the start"
        ) as error:
            run(
                target,
                start(FullGaussian, 2),
                n_iterations=3,
                step_size=0.5,
                n_samples=4,
                rng=np.random.default_rng(22),
            )
        assert error.value.result.state.iteration == 0
        assert error.value.draws.shape == (4, 2)

    def test_giving_up_names_the_iteration_and_keeps_the_state(self):
        class TurnsBad(GaussianTarget):
            calls = 0

            def evaluate(self, draws, curvature):
                TurnsBad.calls += 1
                found = super().evaluate(draws, curvature)
                if TurnsBad.calls > 3:
                    found.gradient[:] = np.inf
                return found

        with pytest.raises(NonFiniteError, match=r"iteration 3: .*gradient.*halvings") as error:
            run(
                TurnsBad(np.zeros(2), np.eye(2)),
                start(FullGaussian, 2),
                n_iterations=9,
                step_size=0.1,
                n_samples=2,
                rng=np.random.default_rng(23),
            )
        assert error.value.result.state.iteration == 3
        assert np.isfinite(error.value.result.q.mean).all()


class TestBadInput:
    target = GaussianTarget(np.zeros(2), np.eye(2))

    def run(self, family=FullGaussian, **arguments):
        defaults = dict(n_iterations=9, step_size=0.5, n_samples=2, rng=np.random.default_rng(0))
        return run(self.target, start(family, 2), **defaults | arguments)

    def test_schedules_are_checked_at_both_ends_before_any_work(self):
        with pytest.raises(ScheduleError, match=r"step_size at t = 8 is 0.0"):
            self.run(step_size=lambda t: 1 - t / 8)
        with pytest.raises(ScheduleError, match=r"n_samples at t = 0 is 0"):
            self.run(n_samples=lambda t: t)

    def test_schedules_are_checked_as_they_are_used(self):
        with pytest.raises(ScheduleError, match=r"step_size at t = 4 is 2.0") as error:
            self.run(step_size=lambda t: 2.0 if t == 4 else 0.5)
        assert error.value.result.state.iteration == 4

    @pytest.mark.parametrize("n", [0, -1, 2.5])
    def test_iterations(self, n):
        with pytest.raises(ValueError, match="n_iterations must be a positive integer"):
            self.run(n_iterations=n)

    def test_projection_and_family(self):
        with pytest.raises(ValueError, match="NonNegativeMean does not fit family 'fullrank'"):
            self.run(projection=NonNegativeMean())

    def test_dimensions_and_generator(self):
        with pytest.raises(ValueError, match="target has 2 dimensions, the start has 3"):
            run(
                self.target,
                start(FullGaussian, 3),
                n_iterations=1,
                step_size=0.5,
                n_samples=2,
                rng=np.random.default_rng(0),
            )
        with pytest.raises(TypeError, match="rng must be a"):
            self.run(rng=None)

    def test_a_target_that_is_none(self):
        with pytest.raises(TypeError, match=r"a target is a subclass of .*Target, not object"):
            run(
                object(),
                start(FullGaussian, 3),
                n_iterations=1,
                step_size=0.5,
                n_samples=2,
                rng=np.random.default_rng(0),
            )

    def test_a_step_checks_its_sizes(self):
        arguments = dict(
            target=self.target, estimator=BonnetPrice(), guard=lin, projection=Identity()
        )
        state = init(start(FullGaussian, 2))
        rng = np.random.default_rng(0)
        with pytest.raises(ScheduleError, match=r"step_size at t = 0 is 3\.0"):
            step(state, rng, step_size=3.0, n_samples=2, **arguments)
        with pytest.raises(ScheduleError, match="n_samples at t = 0 is 0"):
            step(state, rng, step_size=0.5, n_samples=0, **arguments)

    def test_guard(self):
        with pytest.raises(ValueError, match="guard 'max'"):
            self.run(guard="max")
