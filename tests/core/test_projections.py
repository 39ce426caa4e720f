"""Projections: in the set, idempotent, Pythagorean on convex sets, and a numerical argmin."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_ngvi.core.families import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    FullGaussian,
)
from pymc_ngvi.core.projections import (
    Composition,
    EigenvalueBounds,
    Identity,
    NonNegativeMean,
    check_projection,
)
from tests.conftest import FAMILIES
from tests.core.test_families import random_member

BOUNDS = [EigenvalueBounds(0.5, 2.0), EigenvalueBounds(alpha=0.5), EigenvalueBounds(beta=2.0)]
CASES = [(family, bounds) for family in FAMILIES for bounds in BOUNDS]
CASES += [(family, Identity()) for family in FAMILIES]
CASES += [
    (DiagonalGaussian, NonNegativeMean()),
    (DiagonalGaussian, Composition(EigenvalueBounds(0.5, 2.0), NonNegativeMean())),
    (CentredDiagonalGaussian, NonNegativeMean()),
]
each_case = pytest.mark.parametrize(
    ("family", "projection"), CASES, ids=[f"{f.name}-{p!r}" for f, p in CASES]
)


def in_set(q, projection):
    if isinstance(projection, Composition):
        return all(in_set(q, part) for part in projection.projections)
    if isinstance(projection, EigenvalueBounds):
        covariance = q.covariance
        values = covariance if covariance.ndim == 1 else np.linalg.eigvalsh(covariance)
        return projection.alpha - 1e-9 <= values.min() and values.max() <= projection.beta + 1e-9
    return not isinstance(projection, NonNegativeMean) or q.mean.min() >= 0


@each_case
@given(seed=st.integers(0, 2**31), dim=st.integers(1, 5))
@settings(max_examples=25)
def test_in_the_set_and_idempotent(family, projection, seed, dim):
    q = random_member(family, dim, seed, scales=2.0)
    projected = projection(q)
    assert in_set(projected, projection)
    assert projection(projected) is projected


@each_case
def test_members_of_the_set_are_left_alone(family, projection):
    identity = np.eye(3) if family.curvature == "full" else np.ones(3)
    q = family.from_mean_covariance(np.zeros(3), identity)
    assert projection(q) is q


CONVEX = [
    (family, projection)
    for family, projection in CASES
    if getattr(projection, "beta", np.inf) == np.inf and not isinstance(projection, Composition)
]


@pytest.mark.parametrize(
    ("family", "projection"), CONVEX, ids=[f"{f.name}-{p!r}" for f, p in CONVEX]
)
@given(seed=st.integers(0, 2**30), dim=st.integers(1, 4))
@settings(max_examples=40)
def test_pythagorean_inequality_on_convex_sets(family, projection, seed, dim):
    """d(w, x) >= d(w, proj x) + d(proj x, x) for every w in the set."""
    q = random_member(family, dim, seed, scales=2.0)
    inside = projection(random_member(family, dim, seed + 1, scales=2.0))
    projected = projection(q)
    slack = inside.kl(q) - inside.kl(projected) - projected.kl(q)
    assert slack >= -1e-9 * (1 + inside.kl(q))


def test_upper_bound_is_not_convex_in_omega():
    """Two members of the set, and their mixture in omega, which is not one."""
    bounds = EigenvalueBounds(beta=2.0)
    left, right = (FullGaussian.from_mean_covariance([m], [[1.0]]) for m in (-5.0, 5.0))
    assert bounds(left) is left
    assert bounds(right) is right
    w, v = left.expectation, right.expectation
    middle = type(w)((w.first + v.first) / 2, (w.second + v.second) / 2)
    assert not in_set(FullGaussian.from_expectation(middle), bounds)


def test_lower_bound_is_convex_in_omega():
    bounds = EigenvalueBounds(alpha=0.5)
    rng = np.random.default_rng(0)
    for seed in range(50):
        p, q = (bounds(random_member(FullGaussian, 3, 2 * seed + i, scales=2)) for i in (0, 1))
        w, v, share = p.expectation, q.expectation, rng.uniform()
        mixed = type(w)(
            share * w.first + (1 - share) * v.first, share * w.second + (1 - share) * v.second
        )
        assert in_set(FullGaussian.from_expectation(mixed), bounds)


@pytest.mark.parametrize("bounds", BOUNDS, ids=repr)
def test_full_eigenvalue_bounds_are_the_argmin(bounds):
    """Minimise KL(q', q) over covariances Q diag(v) Q', v in the bounds, Q a rotation."""
    q = FullGaussian.from_mean_covariance([1.0, -1.0], [[4.0, 1.5], [1.5, 0.7]])
    projected = bounds(q)

    def build(parameters):
        angle, first, second, *mean = parameters
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        values = np.clip([first, second], max(bounds.alpha, 1e-6), min(bounds.beta, 1e6))
        return FullGaussian.from_mean_covariance(mean, (rotation * values) @ rotation.T)

    box = [(0, np.pi), *[(max(bounds.alpha, 1e-6), min(bounds.beta, 50))] * 2, (-3, 3), (-3, 3)]
    best = min(
        (
            scipy.optimize.minimize(
                lambda x: build(x).kl(q), [angle, 1.0, 1.5, 0.0, 0.0], bounds=box
            )
            for angle in (0.1, 0.8, 1.5, 2.5)
        ),
        key=lambda found: found.fun,
    )
    assert projected.kl(q) <= best.fun + 1e-9
    assert projected.kl(q) == pytest.approx(best.fun, abs=1e-5)
    np.testing.assert_allclose(projected.mean, q.mean)


def test_diagonal_projections_are_the_argmin():
    q = DiagonalGaussian.from_mean_covariance([-1.0, 2.0, -0.3], [5.0, 1.0, 0.1])
    projection = Composition(EigenvalueBounds(0.5, 2.0), NonNegativeMean())
    found = scipy.optimize.minimize(
        lambda x: DiagonalGaussian.from_mean_covariance(x[:3], x[3:]).kl(q),
        np.ones(6),
        bounds=[(0, 5)] * 3 + [(0.5, 2.0)] * 3,
    )
    projected = projection(q)
    np.testing.assert_allclose(found.x[:3], projected.mean, atol=1e-4)
    np.testing.assert_allclose(found.x[3:], projected.variance, atol=1e-3)


def test_clipping_the_mean_is_not_the_projection_with_cross_covariance():
    """Why NonNegativeMean refuses full covariance: the argmin moves the other component too."""
    q = FullGaussian.from_mean_covariance([-1.0, 1.0], [[1.0, 0.8], [0.8, 1.0]])
    clipped = q.with_mean(np.array([0.0, 1.0]))
    better = q.with_mean(np.array([0.0, 1.8]))  # the regression of the second on the first
    assert better.kl(q) < clipped.kl(q) - 0.1
    with pytest.raises(ValueError, match="NonNegativeMean does not fit family 'fullrank'"):
        NonNegativeMean()(q)
    with pytest.raises(ValueError, match="meanfield"):
        check_projection(Composition(Identity(), NonNegativeMean()), FullGaussian)


def test_condition_1e12():
    values = np.geomspace(1e-6, 1e6, 8)
    basis, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
    q = FullGaussian.from_mean_covariance(np.zeros(8), (basis * values) @ basis.T)
    projected = EigenvalueBounds(1e-4, 1e4)(q)
    found = np.linalg.eigvalsh(projected.covariance)
    assert found[0] == pytest.approx(1e-4, rel=1e-3)
    assert found[-1] == pytest.approx(1e4, rel=1e-9)
    assert EigenvalueBounds(1e-4, 1e4)(projected) is projected


@pytest.mark.parametrize("seed", range(20))
def test_a_lower_bound_leaves_large_variances_alone(seed):
    """Standard deviations over ten orders: the precision's own eigenvalues would lose them."""
    rng = np.random.default_rng(seed)
    sd = 10 ** rng.uniform(-5, 5, 5)
    correlation = np.full((5, 5), 0.5) + 0.5 * np.eye(5)
    q = FullGaussian.from_mean_covariance(np.zeros(5), correlation * np.outer(sd, sd))
    projected = EigenvalueBounds(alpha=q.variance.min())(q)
    assert projected.variance.max() == pytest.approx(q.variance.max(), rel=1e-4)


@pytest.mark.parametrize("bad", [(-1, 2), (2, 1), (0, 0), (np.nan, 1)])
def test_bad_bounds(bad):
    with pytest.raises(ValueError, match="EigenvalueBounds needs"):
        EigenvalueBounds(*bad)


def test_not_callable():
    with pytest.raises(TypeError, match="not callable"):
        check_projection(3, FullGaussian)
    with pytest.raises(TypeError, match="not callable"):
        Composition(Identity(), 3)
