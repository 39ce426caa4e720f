"""Control variates: exact where the log density is quadratic, unbiased where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core.control_variates import Anchor, Anchored
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.target import Evaluation, Target

ROWS, DIM = 40, 3


class Sum:
    """M terms a_m (z_m'x)^2/2 + b_m (z_m'x)^3/6, of which a batch sees some, weighted."""

    def __init__(self, *, cubic: float) -> None:
        rng = np.random.default_rng(1)
        self.z = rng.standard_normal((ROWS, DIM))
        self.a = -rng.uniform(0.5, 2, ROWS)
        self.b = cubic * rng.standard_normal(ROWS)

    def __call__(self, draws, rows, curvature="full"):
        z, a, b = self.z[rows], self.a[rows], self.b[rows]
        s = draws @ z.T
        scale = ROWS / len(z)
        hessian = scale * np.einsum("nm,mi,mj->nij", a + b * s, z, z)
        return Evaluation(
            scale * (a * s**2 / 2 + b * s**3 / 6).sum(axis=1),
            scale * (a * s + b * s**2 / 2) @ z,
            {"full": hessian, "diagonal": np.einsum("nii->ni", hessian), "none": None}[curvature],
        )


def anchor_at(target, mean, curvature="full"):
    q = FullGaussian.from_mean_precision(mean, np.eye(DIM))
    return Anchor(q, target(q.mean[np.newaxis], np.arange(ROWS), curvature))


def controlled(target, anchor, draws, rows, curvature="full", at_anchor="full"):
    here = target(draws, rows, curvature)
    there = target(np.repeat(anchor.q.mean[np.newaxis], len(draws), axis=0), rows, at_anchor)
    return anchor.control(draws, here, there)


@pytest.mark.parametrize("curvature", ["full", "diagonal"])
def test_any_batch_gives_a_quadratic_exactly(curvature):
    target = Sum(cubic=0.0)
    anchor = anchor_at(target, [1.0, -1.0, 2.0])
    draws = np.random.default_rng(2).standard_normal((5, DIM))
    exact = target(draws, np.arange(ROWS), curvature)
    got = controlled(target, anchor, draws, np.array([3, 7]), curvature)
    for name in ("log_density", "gradient", "hessian"):
        np.testing.assert_allclose(getattr(got, name), getattr(exact, name), atol=1e-10)


@pytest.mark.parametrize("at_anchor", ["full", "none"])
def test_batches_are_unbiased(at_anchor):
    """Their mean over all batches of one row is that of all the data, exactly."""
    target = Sum(cubic=1.0)
    anchor = anchor_at(target, [0.1, 0.0, -0.1], at_anchor)
    draws = np.random.default_rng(2).standard_normal((5, DIM))
    exact = target(draws, np.arange(ROWS))
    each = [
        controlled(target, anchor, draws, np.array([row]), at_anchor=at_anchor)
        for row in range(ROWS)
    ]
    for name in ("log_density", "gradient", "hessian"):
        mean = np.mean([getattr(one, name) for one in each], axis=0)
        np.testing.assert_allclose(mean, getattr(exact, name), atol=1e-9)


def test_noise_is_of_third_order():
    """Ten times nearer the anchor, a log density is a thousand times less noisy."""
    target = Sum(cubic=1.0)
    anchor = anchor_at(target, np.zeros(DIM))
    far = np.random.default_rng(2).standard_normal((5, DIM))
    spread = []
    for draws in (far, far / 10):
        values = [
            controlled(target, anchor, draws, np.array([row])).log_density for row in range(ROWS)
        ]
        spread.append(np.std(values, axis=0))
    np.testing.assert_allclose(spread[0] / spread[1], 1000, rtol=1e-6)


def test_an_anchor_is_left_when_the_fit_has_moved_on():
    anchor = anchor_at(Sum(cubic=0.0), np.zeros(DIM))
    near = FullGaussian.from_mean_precision(np.full(DIM, 0.5), np.eye(DIM))
    far = FullGaussian.from_mean_precision(np.full(DIM, 3.0), np.eye(DIM))
    assert not anchor.is_far_from(near, price=100, planned=10)
    assert anchor.is_far_from(near, price=10, planned=100)
    assert anchor.is_far_from(far, price=100, planned=10)
    assert not anchor.is_far_from(anchor.q, price=10, planned=100)


def test_an_anchored_estimator_lets_the_target_follow():
    class Following(Target):
        dim = DIM
        followed: list = []

        def follow(self, q, planned):
            self.followed.append((q, planned))
            return True

        def log_density(self, draws):
            return self.evaluate(draws, "none").log_density

        def evaluate(self, draws, curvature):
            return Sum(cubic=0.0)(draws, np.arange(ROWS), curvature)

    target, q = Following(), DiagonalGaussian.from_mean_precision(np.zeros(DIM), np.ones(DIM))
    estimator = Anchored(BonnetPrice())
    estimate = estimator(target, q, 4, np.random.default_rng(1))
    assert target.followed == [(q, 4)]
    assert estimate.evaluations == 4
    assert repr(estimator) == "Anchored(BonnetPrice(antithetic=True))"
