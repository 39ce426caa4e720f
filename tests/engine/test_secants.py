"""Laws of secants: on a linear residual they lead to the solution."""

import numpy as np

from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, Natural
from pymc_ngvi.engine.secants import Secants, residual
from pymc_ngvi.engine.settings import DEFAULTS
from tests.conftest import each_family


def linear_estimate(q, optimum, factor):
    """Estimate whose residual is (1 - factor) times the way to the optimum, in natural parameters.

    Iterated with step 1 it closes in by `factor`.
    """
    way_second = (optimum.precision - q.precision) * (1 - factor)
    shift = optimum.mean - q.mean
    product = q.product(optimum.precision, shift)
    return Estimate((1 - factor) * product, -(q.precision + way_second), 0.0, 0.0, 1)


def members(family, dim=3):
    def matrix(values):
        return np.diag(values) if family.curvature == "full" else np.asarray(values)

    mean = np.arange(1.0, dim + 1) if family.has_mean else np.zeros(dim)
    optimum = family.from_mean_precision(1e3 * mean, matrix([2.0, 3.0, 4.0]))
    start = family.from_mean_precision(1e3 * mean + np.sign(mean), matrix([2.5, 2.0, 5.0]))
    return start, optimum


@each_family
def test_one_secant_removes_a_slow_contraction(family):
    q, optimum = members(family)
    there = q.mix(*_step(linear_estimate(q, optimum, 0.9)), 1.0)
    secants = Secants()
    secants.add(
        (q, linear_estimate(q, optimum, 0.9)), (there, linear_estimate(there, optimum, 0.9))
    )
    plain = there.mix(*_step(linear_estimate(there, optimum, 0.9)), 1.0)
    found = secants.extrapolate(there, linear_estimate(there, optimum, 0.9))
    assert plain.kl(optimum) > 0.01
    assert found.kl(optimum) < 1e-10


@each_family
def test_errors_of_the_residual_are_amplified_to_errors_of_the_solution(family):
    q, optimum = members(family)
    estimate = linear_estimate(q, optimum, 0.9)
    there = q.mix(*_step(estimate), 1.0)
    later = linear_estimate(there, optimum, 0.9)
    secants = Secants()
    secants.add((q, estimate), (there, later))
    along = residual(there, later)
    (way,) = secants.solve(there, [along])
    np.testing.assert_allclose(way.first, 10 * along.first, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(way.second, 10 * along.second, rtol=1e-6, atol=1e-9)


def test_nothing_is_known_before_the_first_step():
    q, optimum = members(FullGaussian)
    direction = Natural(np.ones(3), np.eye(3))
    assert Secants().solve(q, [direction]) == [direction]
    estimate = linear_estimate(q, optimum, 0.5)
    plain = q.mix(*_step(estimate), 1.0)
    assert Secants().extrapolate(q, estimate).kl(plain) < 1e-12


def test_a_combination_outside_the_family_is_none():
    q = DiagonalGaussian.from_mean_precision([0.0], [1.0])
    there = DiagonalGaussian.from_mean_precision([0.0], [0.9])
    secants = Secants()
    # The residual hardly falls while the precision does: the solution seems far below zero.
    secants.add(
        (q, Estimate(np.zeros(1), np.array([-0.90]), 0, 0, 1)),
        (there, Estimate(np.zeros(1), np.array([-0.801]), 0, 0, 1)),
    )
    assert secants.extrapolate(there, Estimate(np.zeros(1), np.array([-0.801]), 0, 0, 1)) is None


def test_repeated_steps_do_no_harm():
    q, optimum = members(FullGaussian)
    estimate = linear_estimate(q, optimum, 0.9)
    there = q.mix(*_step(estimate), 1.0)
    later = linear_estimate(there, optimum, 0.9)
    secants = Secants()
    for _ in range(2 * DEFAULTS.n_secants):
        secants.add((q, estimate), (there, later))
    assert secants.extrapolate(there, later).kl(optimum) < 1e-8


def _step(estimate):
    return estimate.gradient, estimate.hessian
