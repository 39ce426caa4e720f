"""Integration by parts holds for smooth targets, and tells kinks from jumps."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import smoothness
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.smoothness import Smoothness, Violation, try_identities
from pymc_ngvi.core.target import Evaluation
from tests.conftest import each_family
from tests.targets import Banana, DoubleWell, GaussianTarget, Jumping, Kinked, LogisticTarget


def standard(family, dim):
    return family.from_curvature(np.zeros(dim), None)


SMOOTH = {
    "gaussian": GaussianTarget.random(3, 20.0, seed=1),
    "logistic": LogisticTarget.random(4, 60, seed=2),
    "well": DoubleWell(),
    "banana": Banana(0.5),
}


@each_family
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_targets_have_two_derivatives(family, name):
    """Whatever the Gaussian, on 30 sets of draws each: a violation is a false alarm."""
    target = SMOOTH[name]
    q = family.from_mean_variance(np.zeros(target.dim), np.full(target.dim, 0.25))
    rng = np.random.default_rng(4)
    for _ in range(30):
        found = try_identities(target, q, 128, rng)
        assert found is not None
        assert found.derivatives == 2


@each_family
@pytest.mark.parametrize("hessians", [True, False])
def test_a_kink_takes_one_derivative_away(family, hessians):
    found = try_identities(
        Kinked([1.0, 1.0, 0.0], 0.5),
        standard(family, 3),
        256,
        np.random.default_rng(5),
        hessians=hessians,
    )
    assert found.derivatives == (1 if hessians else 2)  # gradients alone show no kink


def test_a_kink_along_one_weak_direction_of_many_is_seen():
    """Collinear predictors: what is missing is little against the precision of each component."""
    dim, rng = 20, np.random.default_rng(6)
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    precision = basis @ np.diag(np.r_[1.0, np.full(dim - 1, 1e6)]) @ basis.T
    q = FullGaussian.from_mean_precision(np.zeros(dim), precision)

    class Weak(GaussianTarget):
        def log_density(self, draws):
            return super().log_density(draws) - np.abs(draws @ basis[:, 0])

        def evaluate(self, draws, curvature):
            smooth = super().evaluate(draws, curvature)
            slope = -np.sign(draws @ basis[:, :1]) * basis[:, 0]
            return Evaluation(smooth.log_density, smooth.gradient + slope, smooth.hessian)

    found = try_identities(Weak(np.zeros(dim), precision), q, 512, rng)
    assert found.derivatives == 1
    # 2 E[delta(u)] with u standard normal is what the mean Hessian lacks.
    assert found.kinks[0].size == pytest.approx(-2 / np.sqrt(2 * np.pi), rel=0.2)


@each_family
@pytest.mark.parametrize(
    "inside", [lambda x: x[:, 0] > 0.5, lambda x: np.abs(x[:, 0]) < 0.7], ids=["step", "box"]
)
def test_a_jump_takes_both_derivatives_away(family, inside):
    target, q = Jumping(2, inside, 2.0), standard(family, 2)
    for hessians in (True, False):
        found = try_identities(target, q, 512, np.random.default_rng(7), hessians=hessians)
        assert found.derivatives == 0


def test_what_is_not_finite_is_not_judged():
    target = Jumping(1, lambda x: x[:, 0] > 0.5, -np.inf)
    with np.errstate(invalid="ignore"):
        found = try_identities(target, standard(FullGaussian, 1), 64, np.random.default_rng(8))
    assert found is None


def test_chunks_change_nothing(monkeypatch):
    target, q = SMOOTH["logistic"], standard(FullGaussian, 4)
    whole = try_identities(target, q, 100, np.random.default_rng(9))
    monkeypatch.setattr(smoothness, "CHUNK_SIZE", 40)
    parts = try_identities(target, q, 100, np.random.default_rng(9))
    for one, other in zip(whole.jumps + whole.kinks, parts.jumps + parts.kinks, strict=True):
        assert one.size == pytest.approx(other.size, rel=1e-9)


def test_few_draws_leave_the_question_open():
    assert Smoothness((), (Violation(0.1, 0.1, 0.05),)).is_open
    assert not Smoothness((), (Violation(0.01, 0.01, 0.05),)).is_open
    assert not Smoothness((), (Violation(1.0, 0.01, 0.05),)).is_open
