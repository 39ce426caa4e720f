"""Guards: the plain update wherever it exists, and a way on where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core import guards
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.projections import Composition, EigenvalueBounds, Identity
from pymc_ngvi.errors import DomainError
from tests.conftest import FAMILIES, each_family, every_family, of, represent
from tests.core.test_families import random_member


def estimate(family, curvature):
    """A gradient, and a Hessian with these eigenvalues (a positive one is the wrong curvature)."""
    hessian = represent(of(family, 3), np.diag(curvature))
    return Estimate(np.array([1.0, -2.0, 0.5]), hessian, 0.0, 0.0, 1)


@every_family
@pytest.mark.parametrize("name", guards.GUARDS)
def test_inside_the_domain_all_are_the_plain_update(family, name):
    q = random_member(family, 3, 1)
    concave = estimate(family, [-1.0, -2.0, -3.0])
    mixed = guards.get_guard(name)(q, concave, 0.5)
    assert not mixed.active
    assert mixed.step_size == 0.5
    assert mixed.q.kl(q.mix(concave.gradient, concave.hessian, 0.5)) == pytest.approx(0, abs=1e-25)


@every_family
def test_lin_corrects(family):
    q = random_member(family, 3, 2)
    convex = estimate(family, [50.0, -2.0, 3.0])
    mixed = guards.lin(q, convex, 1.0)
    assert mixed.active
    assert mixed.step_size == 1.0
    corrected = q.mix_corrected(convex.gradient, convex.hessian, 1.0)
    assert mixed.q.kl(corrected) < 1e-20


@every_family
@pytest.mark.parametrize("guard", [guards.lin, guards.backtrack])
def test_an_update_that_only_just_stays_in_the_domain_is_not_taken(family, guard):
    """Its variance would be the reciprocal of a rounding error."""
    q = of(family, 3).from_mean_precision(np.zeros(3), represent(of(family, 3), np.eye(3)))
    nearly_singular = estimate(family, [1 - 1e-9, -1.0, -1.0])
    assert q.mix(nearly_singular.gradient, nearly_singular.hessian, 0.5).variance.max() > 1e8
    mixed = guard(q, nearly_singular, 0.5)
    assert mixed.active
    assert mixed.q.variance.max() <= 4


@every_family
def test_log_concave_targets_never_call_the_guard(family):
    q = random_member(family, 3, 6)
    for step_size in (0.01, 0.5, 1.0):
        assert not guards.lin(q, estimate(family, [-1e-6, -2.0, -3e4]), step_size).active


def test_lin_leaves_the_good_components_of_a_factorised_family_alone():
    family = next(family for family in FAMILIES if family.name == "meanfield")
    q = family.from_mean_precision(np.zeros(3), np.ones(3))
    mixed = guards.lin(q, estimate(family, [3.0, -2.0, -5.0]), 1.0)
    np.testing.assert_allclose(mixed.q.precision, [(1 + 9) / 2, 2.0, 5.0])


@every_family
def test_backtrack_shortens_the_step(family):
    q = random_member(family, 3, 3)
    convex = estimate(family, [50.0, -2.0, 3.0])
    mixed = guards.backtrack(q, convex, 1.0)
    assert mixed.active
    longer = 2 * mixed.step_size
    margin = (1 - longer) / 2
    assert q.mix(convex.gradient, convex.hessian, longer, margin=margin) is None


@every_family
def test_backtrack_gives_up_with_an_explanation(family):
    q = random_member(family, 3, 3)
    with pytest.raises(DomainError, match="rescale the parameters or start elsewhere"):
        guards.backtrack(q, estimate(family, [1e30, 1.0, 1.0]), 1.0)


@every_family
def test_lin_backtracks_where_the_correction_overflows(family):
    q = random_member(family, 3, 3)
    mixed = guards.lin(q, estimate(family, [-1e300, -2.0, 1e3]), 1e-2)
    assert np.isfinite(mixed.q.mean).all()


@every_family
def test_none_fails_and_says_what_to_do(family):
    q = random_member(family, 3, 4)
    with pytest.raises(DomainError, match=r"smallest eigenvalue -\d.*guard='lin'"):
        guards.none(q, estimate(family, [50.0, -2.0, 3.0]), 0.9)


@each_family
def test_none_with_eigenvalue_bounds_is_the_projections_job(family):
    """A precision that went through zero becomes the largest variance allowed, not the smallest."""
    q = of(family, 3).from_mean_precision(np.zeros(3), represent(of(family, 3), np.eye(3)))
    bounds = EigenvalueBounds(1e-4, 1e4)
    mixed = guards.get_guard("none", bounds)(q, estimate(family, [3.0, -2.0, -5.0]), 1.0)
    assert mixed.active
    np.testing.assert_allclose(mixed.q.variance, [1e4, 0.5, 0.2])
    inside = guards.get_guard("none", Composition(Identity(), bounds))
    composed = inside(q, estimate(family, [3.0, -2.0, -5.0]), 1.0)
    np.testing.assert_allclose(composed.q.variance, [1e4, 0.5, 0.2])


def test_lower_bound_alone_does_not_replace_the_guard():
    assert guards.get_guard("none", EigenvalueBounds(alpha=1e-4)) is guards.none


def test_unknown_guard():
    with pytest.raises(ValueError, match="guard 'linn' is none of 'lin', 'backtrack', 'none'"):
        guards.get_guard("linn")
    assert guards.get_guard(guards.lin) is guards.lin
