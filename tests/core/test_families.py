"""Laws of the exponential families, for every family there is."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_ngvi.core.families import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    Expectation,
    FactorisedGaussian,
    FullGaussian,
    Natural,
    get_family,
    standard_normal,
)
from pymc_ngvi.errors import DomainError
from tests.conftest import every_family, of, represent
from tests.targets import spd_matrix


def random_member(family, dim, seed, *, scales=0.0, condition=10.0, offset=3.0):
    """Member with sds spread over 10**scales and, if full, a conditioned correlation."""
    family = of(family, dim)
    rng = np.random.default_rng(seed)
    sd = 10 ** rng.uniform(-scales / 2, scales / 2, dim)
    mean = sd * rng.uniform(-offset, offset, dim)
    if family.curvature == "full":
        return family.from_mean_covariance(mean, spd_matrix(dim, condition, rng) * np.outer(sd, sd))
    if family.curvature == "sparse":
        inverse = np.linalg.inv(spd_matrix(dim, condition, rng))
        values = family.structure.values(inverse / np.outer(sd, sd))
        # Outside the structure the inverse has entries that would be missed: weaken the others.
        weaker = 1.0 if family.structure.nnz == dim * (dim + 1) // 2 else 0.2
        values = np.where(family.structure.multiplicity == 1, values, weaker * values)
        return family.from_mean_precision(mean, values)
    variance = sd**2 * rng.uniform(1, condition, dim)
    if not family.has_mean:
        mean = np.zeros(dim)
    return family.from_mean_covariance(mean, variance)


def discrepancy(actual, expected):
    """Largest difference of means, covariances and precisions, each in its own natural units."""
    sd = np.sqrt(expected.variance)
    root = np.sqrt(np.abs(expected.diagonal(expected.precision)))
    mean = np.abs(actual.mean - expected.mean) / sd
    if expected.curvature == "sparse":
        covariance = np.abs(actual.covariance - expected.covariance) / expected.outer(sd)
        precision = np.abs(actual.precision - expected.precision) / expected.outer(root)
    elif expected.curvature == "diagonal":
        covariance = np.abs(actual.covariance / expected.covariance - 1)
        precision = np.abs(actual.precision / expected.precision - 1)
    else:
        covariance = np.abs(actual.covariance - expected.covariance) / np.outer(sd, sd)
        precision = np.abs(actual.precision - expected.precision) / np.outer(root, root)
    return max(mean.max(), covariance.max(), precision.max())


def perturb(parameter, direction, size):
    return type(parameter)(
        parameter.first + size * direction.first, parameter.second + size * direction.second
    )


def random_direction(parameter, rng):
    second = rng.standard_normal(parameter.second.shape)
    second = (second + second.T) / 2 if second.ndim == 2 else second
    scale = np.abs(parameter.second).max()
    return Natural(rng.standard_normal(parameter.first.shape) * np.sqrt(scale), second * scale)


members = {
    "dim": st.integers(1, 6),
    "seed": st.integers(0, 2**31),
    "scales": st.floats(0, 12),
    "condition": st.floats(1, 1e3),
}


@every_family
@given(**members)
@settings(max_examples=60)
def test_round_trips(family, dim, seed, scales, condition):
    q = random_member(family, dim, seed, scales=scales, condition=condition)
    family = type(q)
    routes = {
        "natural": family.from_natural(q.natural),
        "expectation": family.from_expectation(q.expectation),
        "covariance": family.from_mean_covariance(q.mean, q.covariance),
        "precision": family.from_mean_precision(q.mean, q.precision),
    }
    for route, back in routes.items():
        assert discrepancy(back, q) < 1e-10, route


@pytest.mark.parametrize("seed", range(5))
def test_round_trip_at_condition_1e12(seed):
    """Rotated: no diagonal scaling helps, and plain matrix inversion would lose twelve digits."""
    rng = np.random.default_rng(seed)
    precision = spd_matrix(20, 1e12, rng)
    q = FullGaussian.from_mean_precision(rng.standard_normal(20), precision)
    # The factor is inverted, of condition 1e6, never the matrix.
    back = FullGaussian.from_mean_covariance(q.mean, q.covariance)
    whitened = np.linalg.solve(q.factor, back.factor)
    assert np.abs(whitened - np.eye(20)).max() < 1e-3  # one ulp of the covariance is worth 1e-4
    assert q.kl(back) < 1e-7
    direct = FullGaussian.from_mean_precision(q.mean, q.precision)
    assert q.kl(direct) < 1e-20


@every_family
def test_large_dimension(family):
    q = random_member(family, 1000, 1, scales=8, condition=100.0)
    rng = np.random.default_rng(2)
    vector = rng.standard_normal(1000)
    product = q.product(q.precision, vector)
    assert np.allclose(q.solve(product), vector, rtol=1e-6, atol=1e-6 * np.sqrt(q.variance))
    assert q.kl(q) < 1e-20
    assert np.isfinite(q.entropy())
    assert q.sample(3, rng).shape == (3, 1000)


@every_family
@given(dim=st.integers(1, 5), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_gradients_of_both_potentials(family, dim, seed):
    rng = np.random.default_rng(seed)
    q = random_member(family, dim, seed)
    family = type(q)
    theta, omega = q.natural, q.expectation
    size = 1e-5
    towards = random_direction(theta, rng)
    difference = family.log_partition(perturb(theta, towards, size)) - family.log_partition(
        perturb(theta, towards, -size)
    )
    expected = towards.inner(family.grad_log_partition(theta))
    assert difference / (2 * size) == pytest.approx(expected, rel=1e-5, abs=1e-5)

    change = q.fisher_product(random_direction(theta, rng))
    scale = 0.1 * size / max(1e-3, np.abs(change.second).max() / np.abs(omega.second).max())
    difference = family.conjugate(perturb(omega, change, scale)) - family.conjugate(
        perturb(omega, change, -scale)
    )
    expected = family.grad_conjugate(omega).inner(change)
    assert difference / (2 * scale) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@every_family
def test_potentials_are_conjugate(family):
    """Fenchel-Young equality, and A* is the negative entropy against the paper's base measure."""
    q = random_member(family, 4, 3)
    family = type(q)
    both = family.log_partition(q.natural) + family.conjugate(q.expectation)
    assert both == pytest.approx(q.natural.inner(q.expectation), rel=1e-12)
    assert family.conjugate(q.expectation) == pytest.approx(
        -q.entropy() + 2 * np.log(2 * np.pi), rel=1e-12
    )


@every_family
def test_gradients_are_the_parameters(family):
    q = random_member(family, 4, 4)
    family = type(q)
    omega = family.grad_log_partition(q.natural)
    theta = family.grad_conjugate(q.expectation)
    np.testing.assert_allclose(omega.second, q.expectation.second, rtol=1e-10)
    np.testing.assert_allclose(omega.first, q.expectation.first, rtol=1e-10)
    np.testing.assert_allclose(theta.second, q.natural.second, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(theta.first, q.natural.first, rtol=1e-10, atol=1e-12)


@every_family
@given(dim=st.integers(1, 5), seed=st.integers(0, 2**30), condition=st.floats(1, 1e4))
@settings(max_examples=50)
def test_bregman_is_kl(family, dim, seed, condition):
    family = of(family, dim)
    p = random_member(family, dim, seed, condition=condition)
    q = random_member(family, dim, seed + 1, condition=condition)
    kl = p.kl(q)
    assert kl >= 0
    bregman = family.bregman(p.expectation, q.expectation)
    assert bregman == pytest.approx(kl, rel=1e-9, abs=1e-9)
    theta_side = (
        family.log_partition(q.natural)
        - family.log_partition(p.natural)
        - (q.natural - p.natural).inner(p.expectation)
    )
    assert theta_side == pytest.approx(kl, rel=1e-9, abs=1e-9)


@every_family
def test_kl_of_close_members_keeps_its_digits(family):
    """A relative change of 1e-9 is worth about 1e-18 nats, far below rounding of the terms."""
    q = random_member(family, 3, 5)
    family = type(q)
    near = family.from_mean_precision(q.mean, q.precision * (1 + 1e-9))
    assert q.kl(near) == pytest.approx(3 * 1e-18 / 4, rel=0.2)


@every_family
def test_density_and_sampling_agree_with_scipy(family):
    q = random_member(family, 3, 6)
    root = q.unwhiten(np.eye(3)) - q.mean
    dense = root.T @ root
    reference = scipy.stats.multivariate_normal(q.mean, dense)
    draws = q.sample(20_000, np.random.default_rng(7))
    np.testing.assert_allclose(q.log_density(draws[:50]), reference.logpdf(draws[:50]), rtol=1e-10)
    assert q.entropy() == pytest.approx(reference.entropy(), rel=1e-12)
    np.testing.assert_allclose(q.unwhiten(q.whiten(draws[:50])), draws[:50], rtol=1e-9, atol=1e-9)
    whitened = q.whiten(draws)
    assert abs(whitened.mean(axis=0) * np.sqrt(20_000)).max() < 4
    moments = np.cov(whitened.T) - np.eye(3)
    assert abs(moments * np.sqrt(20_000 / 2)).max() < 4.5


@every_family
def test_score_is_the_gradient_of_the_log_density(family):
    q = random_member(family, 3, 8)
    z = np.random.default_rng(9).standard_normal((1, 3))
    x, size = q.unwhiten(z), 1e-6
    numeric = [
        (q.log_density(x + size * e) - q.log_density(x - size * e))[0] / (2 * size)
        for e in np.eye(3)
    ]
    np.testing.assert_allclose(q.score_whitened(z)[0], numeric, rtol=1e-6, atol=1e-7)


@every_family
def test_fisher_information_is_the_covariance_of_the_statistic(family):
    q = random_member(family, 2, 10)
    family = type(q)
    rng = np.random.default_rng(11)
    draws = q.sample(200_000, rng)
    if family.curvature == "full":
        second = np.einsum("ni,nj->nij", draws, draws).reshape(len(draws), -1)
    elif family.curvature == "sparse":
        second = np.array([family.outer(draw) for draw in draws]) * family.structure.multiplicity
    else:
        second = np.square(draws)
    first = draws if family.has_mean else draws[:, :0]
    direction = random_direction(q.natural, rng)
    along = np.hstack([first, second]) @ np.concatenate([direction.first, direction.second.ravel()])
    predicted = q.fisher_product(direction)
    information = direction.inner(predicted)
    sample = along.var()
    error = np.std(np.square(along - along.mean())) / np.sqrt(len(along))
    assert abs(sample - information) < 4 * error


@every_family
def test_fisher_information_is_the_derivative_of_theta_to_omega(family):
    q = random_member(family, 3, 12)
    family = type(q)
    direction = random_direction(q.natural, np.random.default_rng(13))
    size = 1e-6
    ahead = family.grad_log_partition(perturb(q.natural, direction, size))
    behind = family.grad_log_partition(perturb(q.natural, direction, -size))
    product = q.fisher_product(direction)
    scale = np.abs(product.second).max()
    np.testing.assert_allclose(
        (ahead.second - behind.second) / (2 * size), product.second, rtol=1e-5, atol=1e-6 * scale
    )
    np.testing.assert_allclose(
        (ahead.first - behind.first) / (2 * size), product.first, rtol=1e-5, atol=1e-6 * scale
    )


@every_family
def test_mixing_is_linear_in_the_natural_parameter(family):
    """`mix` is theta+ = (1 - eta) theta + eta (g - H mu, H / 2), as in the paper."""
    q = random_member(family, 3, 14)
    family = type(q)
    rng = np.random.default_rng(15)
    gradient = rng.standard_normal(3)
    hessian = represent(family, -spd_matrix(3, 5.0, rng))
    product = q.product(hessian, q.mean)
    mixed = q.mix(gradient, hessian, 0.3)
    theta, target = q.natural, Natural(gradient - product, hessian / 2)
    if not family.has_mean:
        target = Natural(np.empty(0), target.second)
    np.testing.assert_allclose(mixed.natural.second, 0.7 * theta.second + 0.3 * target.second)
    np.testing.assert_allclose(
        mixed.natural.first, 0.7 * theta.first + 0.3 * target.first, rtol=1e-10
    )


@every_family
def test_interpolation_is_linear_in_the_natural_parameter(family):
    family = of(family, 3)
    p, q = random_member(family, 3, 16), random_member(family, 3, 17)
    between = p.interpolate(q, 0.25)
    np.testing.assert_allclose(
        between.natural.second, 0.75 * p.natural.second + 0.25 * q.natural.second
    )
    np.testing.assert_allclose(
        between.natural.first, 0.75 * p.natural.first + 0.25 * q.natural.first, rtol=1e-10
    )
    assert p.interpolate(q, 1.0).kl(q) < 1e-20


@every_family
@given(seed=st.integers(0, 2**31), step_size=st.floats(1e-3, 1.0), size=st.floats(0, 1e4))
@settings(max_examples=50)
def test_corrected_update_stays_in_the_domain(family, seed, step_size, size):
    """Lin's correction holds for any symmetric Hessian, however indefinite."""
    q = random_member(family, 4, seed)
    rng = np.random.default_rng(seed)
    hessian = size * random_direction(q.natural, rng).second
    corrected = q.mix_corrected(rng.standard_normal(4), hessian, step_size)
    assert corrected is not None
    assert np.isfinite(corrected.log_det_precision)


def test_corrected_update_is_the_formula():
    q = random_member(FullGaussian, 3, 18)
    hessian = np.diag([5.0, -1.0, 9.0])
    change = -hessian - q.precision
    expected = q.precision + 0.4 * change + 0.08 * change @ q.covariance @ change
    corrected = q.mix_corrected(np.ones(3), hessian, 0.4)
    np.testing.assert_allclose(corrected.precision, expected, rtol=1e-9)
    np.testing.assert_allclose(
        corrected.mean, q.mean + 0.4 * np.linalg.solve(expected, np.ones(3)), rtol=1e-9
    )


@every_family
def test_plain_update_reports_leaving_the_domain(family):
    q = random_member(family, 3, 19)
    hessian = represent(q, np.eye(3))
    assert q.mix(np.zeros(3), 1e3 * hessian, 1.0) is None
    assert q.mix(np.zeros(3), np.full_like(hessian, np.nan), 1.0) is None
    assert q.mix(np.zeros(3), np.where(hessian > 0, -np.inf, 0.0), 1.0) is None


def test_antithetic_draws():
    z = standard_normal(7, 2, np.random.default_rng(0), antithetic=True)
    np.testing.assert_array_equal(z[:3], -z[4:])
    assert standard_normal(1, 2, np.random.default_rng(0), antithetic=True).shape == (1, 2)


@every_family
def test_same_seed_same_bits(family):
    q = random_member(family, 5, 20)
    first, second = (q.sample(9, np.random.default_rng(21)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


class TestBadInput:
    def test_not_positive_definite(self):
        with pytest.raises(DomainError, match=r"precision is not positive definite .*-1"):
            FullGaussian.from_mean_precision([0, 0], [[1, 2], [2, 1]])
        with pytest.raises(DomainError, match="covariance is not positive definite"):
            FullGaussian.from_mean_covariance([0, 0], [[1, 2], [2, 1]])
        with pytest.raises(DomainError, match=r"covariance .* eigenvalue -2"):
            DiagonalGaussian.from_mean_covariance([0, 0], [1, -2])

    def test_shapes(self):
        with pytest.raises(ValueError, match=r"precision has shape \(2, 2\)"):
            FullGaussian.from_mean_precision([0, 0, 0], np.eye(2))
        with pytest.raises(ValueError, match="mean must be a non-empty vector"):
            FullGaussian.from_mean_precision([[0.0]], np.eye(1))
        with pytest.raises(ValueError, match="precision has shape"):
            DiagonalGaussian.from_mean_precision([0, 0], [1, 1, 1])

    def test_not_symmetric(self):
        with pytest.raises(ValueError, match="not symmetric"):
            FullGaussian.from_mean_precision([0, 0], [[1, 0.5], [0, 1]])

    def test_not_finite(self):
        with pytest.raises(ValueError, match="mean is not finite at index 1"):
            DiagonalGaussian.from_mean_precision([0, np.nan], [1, 1])
        with pytest.raises(ValueError, match="not finite"):
            FullGaussian.from_mean_precision([0, 0], [[1, 0], [0, np.inf]])

    def test_centred_family_refuses_a_mean(self):
        with pytest.raises(ValueError, match=r"mean of a centred family is zero: got 2 at index 1"):
            CentredDiagonalGaussian.from_mean_precision([0, 2], [1, 1])

    def test_expectation_outside_the_domain(self):
        with pytest.raises(DomainError):
            DiagonalGaussian.from_expectation(Expectation(np.array([2.0]), np.array([1.0])))

    @every_family
    def test_draws_and_means_of_the_wrong_size(self, family):
        q = random_member(family, 3, 1)
        for draws in (np.zeros(3), np.zeros((2, 1)), np.zeros((2, 4))):
            with pytest.raises(ValueError, match=r"expected \(n, 3\)"):
                q.log_density(draws)
        with pytest.raises(ValueError, match=r"mean has 2 components, expected 3|shape"):
            q.with_mean(np.zeros(2))

    @every_family
    def test_parameters_outside_the_domain(self, family):
        family = of(family, 2)
        theta = random_member(family, 2, 1).natural
        outside = Natural(theta.first, -theta.second)
        for function in (family.log_partition, family.from_natural):
            with pytest.raises(DomainError):
                function(outside)

    def test_members_are_immutable(self):
        q = random_member(FullGaussian, 2, 1)
        for array in (q.mean, q.precision, q.factor):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1.0

    def test_unknown_family(self):
        with pytest.raises(ValueError, match="did you mean 'fullrank'"):
            get_family("full_rank")
        assert get_family("MeanField") is DiagonalGaussian
        assert get_family(FullGaussian) is FullGaussian


def test_pivots_made_of_rounding_are_not_positive_definite():
    """Exactly singular, but each rounding error is a positive pivot."""
    direction = np.array([1.0, 1 / 3, 0.1])
    with pytest.raises(DomainError):
        FullGaussian.from_mean_precision(np.zeros(3), np.outer(direction, direction) + 1e-17)


@every_family
def test_stein_hessian_is_symmetric(family):
    q = random_member(family, 3, 22)
    rng = np.random.default_rng(23)
    hessian = q.stein_hessian(rng.standard_normal((5, 3)), rng.standard_normal((5, 3)))
    np.testing.assert_array_equal(hessian, hessian.T)


def test_a_family_of_tied_variances_needs_its_projection_only():
    """Every law follows from `symmetrise`: here two pairs of components, each with one variance."""

    class Pairs(FactorisedGaussian):
        @classmethod
        def symmetrise(cls, matrix):
            return np.repeat(matrix.reshape(2, 2).mean(axis=1), 2)

    rng = np.random.default_rng(24)
    p, q = (Pairs.from_mean_covariance(rng.normal(size=4), rng.uniform(1, 3, 4)) for _ in "pq")
    assert len(set(q.precision)) == 2
    for back in (Pairs.from_natural(q.natural), Pairs.from_expectation(q.expectation)):
        assert discrepancy(back, q) < 1e-12
    assert Pairs.bregman(p.expectation, q.expectation) == pytest.approx(p.kl(q), rel=1e-9)
    direction = Natural(rng.normal(size=4), Pairs.symmetrise(rng.normal(size=4)))
    ahead, behind = (
        Pairs.grad_log_partition(perturb(q.natural, direction, size)) for size in (1e-6, -1e-6)
    )
    product = q.fisher_product(direction)
    np.testing.assert_allclose((ahead.first - behind.first) / 2e-6, product.first, rtol=1e-6)
    np.testing.assert_allclose((ahead.second - behind.second) / 2e-6, product.second, rtol=1e-6)
    hessian = q.stein_hessian(rng.normal(size=(9, 4)), rng.normal(size=(9, 4)))
    assert len(set(q.mix_corrected(np.ones(4), hessian, 0.5).precision)) == 2


@every_family
def test_the_member_to_start_from_has_the_absolute_curvature(family):
    family = of(family, 2)
    hessian = np.array([[-4.0, 1.0], [1.0, 9.0]])
    given = represent(family, hessian)
    q = family.from_curvature(np.array([1.0, 2.0]), given)
    if family.curvature == "full":
        values = np.linalg.eigvalsh(hessian)
        np.testing.assert_allclose(np.linalg.eigvalsh(q.precision), np.sort(np.abs(values)))
    elif family.curvature == "sparse":  # the absolute curvature of one after the other
        np.testing.assert_allclose(
            family.structure.matrix(q.precision).toarray(), [[4, -1], [-1, 9]], atol=1.0
        )
    else:
        np.testing.assert_allclose(q.precision, [4, 9])
    deviations = np.array([np.nan, 0.5])
    q = family.from_curvature(np.array([1.0, 2.0]), given, deviations=deviations)
    assert q.variance[1] == pytest.approx(0.25)


def test_full_members_go_on_along_coefficients_and_log_scales():
    """Where both are straight lines, as in a funnel, the next member is exact."""
    rng = np.random.default_rng(3)
    unit, slope = np.tril(rng.normal(size=(2, 4, 4)), -1)
    bend, start, way = rng.normal(size=(3, 4))

    def at(t):
        factor = (np.eye(4) + unit + t * slope) * np.exp(t * bend)
        return FullGaussian.from_mean_precision(start + t * way, factor @ factor.T)

    found = at(0.5).continued(at(0.0), 0.8)
    np.testing.assert_allclose(found.mean, at(0.9).mean)
    np.testing.assert_allclose(found.precision, at(0.9).precision)


def test_independent_members_go_on_along_log_scales():
    first = DiagonalGaussian.from_mean_variance([0.0, 1.0], [1.0, 4.0])
    second = DiagonalGaussian.from_mean_variance([1.0, 1.0], [2.0, 1.0])
    found = second.continued(first, 2.0)
    np.testing.assert_allclose(found.mean, [3.0, 1.0])
    np.testing.assert_allclose(found.variance, [8.0, 1 / 16])
    far = second.continued(first, 100.0)
    np.testing.assert_allclose(
        far.variance, [2.0 * 100, 1.0 / 100]
    )  # scales change tenfold at most
