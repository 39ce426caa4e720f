"""The sparse family is the full one where the precision has its structure."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pymc_ngvi.core import algorithm
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, mean_and_error
from pymc_ngvi.core.families import FullGaussian, Natural, SparseGaussian, get_family
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import EigenvalueBounds
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.engine.secants import Secants
from tests.conftest import ALL_FAMILIES, every_family, of, represent
from tests.core.sparse_targets import VaryingIntercepts, dominant
from tests.core.test_families import random_member
from tests.core.test_sparse_matrices import STRUCTURES, each_structure


def pair(structure, seed):
    """A sparse member and the full one that it equals."""
    mean = np.random.default_rng(seed).standard_normal(structure.dim)
    values = dominant(structure, seed, least=1.0)
    q = SparseGaussian.on(structure).from_mean_precision(mean, values)
    return q, FullGaussian.from_mean_precision(mean, structure.matrix(values).toarray())


@each_structure
def test_equals_the_full_family(structure):
    (q, full), (p, full_p) = pair(structure, 1), pair(structure, 2)
    assert q.kl(p) == pytest.approx(full.kl(full_p), rel=1e-10)
    assert q.entropy() == pytest.approx(full.entropy(), rel=1e-12)
    np.testing.assert_allclose(q.variance, full.variance, rtol=1e-10)
    draws = full.sample(20, np.random.default_rng(3))
    np.testing.assert_allclose(q.log_density(draws), full.log_density(draws), rtol=1e-10)
    np.testing.assert_allclose(q.unwhiten(q.whiten(draws)), draws, rtol=1e-8, atol=1e-10)
    assert q.natural.inner(p.expectation) == pytest.approx(
        full.natural.inner(full_p.expectation), rel=1e-9
    )
    between, full_between = q.interpolate(p, 0.3), full.interpolate(full_p, 0.3)
    np.testing.assert_allclose(between.mean, full_between.mean, rtol=1e-8, atol=1e-10)


@each_structure
def test_displacements_are_those_of_the_full_family(structure):
    q, full = pair(structure, 4)
    rng = np.random.default_rng(5)
    direction = Natural(rng.standard_normal(q.dim), rng.standard_normal(structure.nnz))
    dense = Natural(direction.first, structure.matrix(direction.second).toarray())
    for found, expected in zip(q.displacement(direction), full.displacement(dense), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10 * np.max(expected))


@each_structure
def test_the_stand_in_for_the_information_is_positive_definite_and_of_its_size(structure):
    q, _ = pair(structure, 6)
    rng = np.random.default_rng(7)
    root = q.outer(np.sqrt(q.diagonal(q.precision)))
    for _ in range(20):
        first = rng.standard_normal(q.dim) * np.sqrt(q.diagonal(q.precision))
        direction = Natural(first, rng.standard_normal(structure.nnz) * root)
        exact = direction.inner(q.with_mean(np.zeros(q.dim)).fisher_product(direction))
        assert 0.1 < direction.inner(q.dual(direction)) / exact < 10


def test_draws_have_the_covariance():
    q, full = pair(STRUCTURES["grid"], 8)
    n = 40_000
    draws = q.sample(n, np.random.default_rng(9)) - q.mean
    sd = np.sqrt(full.variance)
    found, exact = draws.T @ draws / n / np.outer(sd, sd), full.covariance / np.outer(sd, sd)
    z = (found - exact) * np.sqrt(n / (1 + np.square(exact)))
    assert np.abs(z).max() < 5  # of 4950 different ones


def test_covariances_of_pairs_beyond_the_structure():
    q, full = pair(STRUCTURES["crossed"], 10)
    first, second = np.random.default_rng(11).integers(0, q.dim, (2, 40))
    found = q.covariance_between(first, second)
    np.testing.assert_allclose(found, full.covariance[first, second], rtol=1e-9, atol=1e-12)


@every_family
def test_a_flat_direction_is_found_where_there_is_one(family):
    q = random_member(family, 5, 12)
    flat = -represent(q, np.eye(5)) * np.abs(q.diagonal(q.precision)).max()
    assert q.flat_direction(flat, 0.05) is None
    third = np.zeros((5, 5))
    third[2, 2] = 1.0
    steep = flat * 1e3 + represent(q, third) * 1e3 * np.abs(q.diagonal(q.precision)).max()
    direction = q.flat_direction(steep, 0.05)
    assert np.argmax(np.abs(direction) / np.sqrt(q.variance)) == 2


def test_a_flat_direction_of_many():
    q, _ = pair(STRUCTURES["random"], 13)
    hessian = -q.precision.copy()
    assert q.flat_direction(hessian, 0.05) is None
    hessian[q.structure.diagonal[17]] += 3 * q.precision[q.structure.diagonal[17]]
    direction = q.flat_direction(hessian, 0.05)
    assert direction @ -q.product(hessian, direction) < 0.05


def test_stein_is_exact_on_enough_draws_of_a_gaussian():
    """Its residual is linear: second moments that are exact give the Hessian on the structure."""
    target = VaryingIntercepts.random(3, 4, seed=14)
    (q, full), z = pair(target.structure, 15), np.sqrt(6) * np.eye(6)
    z = np.concatenate([z, -z])
    gradient = target.evaluate(q.unwhiten(z), "none").gradient
    found = q.stein_hessian(z, gradient - q.score_whitened(z))
    draws = full.whiten(q.unwhiten(z))  # the same draws by the other root
    dense = full.stein_hessian(draws, gradient - full.score_whitened(draws))
    np.testing.assert_allclose(found, target.structure.values(dense), rtol=1e-8, atol=1e-10)


class SameDraws(BonnetPrice):
    """Evaluates sparse members at the draws that the full member with their precision has."""

    def at(self, target, q, z):
        structure = target.structure
        full = q
        if q.curvature == "sparse":
            dense = structure.matrix(q.precision).toarray()
            full = FullGaussian.from_mean_precision(q.mean, dense)
        found = target.average(full.unwhiten(z), q.curvature)
        ratio = found.log_density - full.log_density_whitened(z)
        elbo, error = mean_and_error(ratio, antithetic=True)
        return Estimate(found.gradient.mean(axis=0), found.hessian[0], elbo, error, len(z))


def test_a_fit_is_that_of_the_full_family_on_the_same_draws():
    """Steps of size 1, once shorter ones have come near."""
    target = VaryingIntercepts.random(147, 20, seed=16)
    variance = np.concatenate([np.full(147, 0.15), [0.01, 0.01, 0.005]])
    starts = [
        family.from_mean_variance(np.zeros(target.dim), variance)
        for family in (FullGaussian, SparseGaussian.on(target.structure))
    ]
    full, sparse = (
        algorithm.run(
            target,
            start,
            n_iterations=14,
            step_size=lambda t: 0.7 if t < 8 else 1.0,
            n_samples=16,
            rng=np.random.default_rng(17),
            estimator=SameDraws(),
        )
        for start in starts
    )
    assert full.trace("guard_active").sum() == sparse.trace("guard_active").sum() == 0
    sd = np.sqrt(full.q.variance)
    assert np.abs((sparse.q.mean - full.q.mean) / sd).max() < 1e-6
    np.testing.assert_allclose(sparse.q.variance, full.q.variance, rtol=1e-6)
    np.testing.assert_allclose(sparse.trace("elbo"), full.trace("elbo"), rtol=1e-8)


def test_secants_lead_to_the_solution_of_a_linear_residual():
    (optimum, _), (q, _) = pair(STRUCTURES["grid"], 19), pair(STRUCTURES["grid"], 20)

    def estimate(member):
        """A tenth of the way to the optimum, in natural parameters."""
        pull = member.product(optimum.precision, optimum.mean - member.mean)
        hessian = -(0.9 * member.precision + 0.1 * optimum.precision)
        return Estimate(0.1 * pull, hessian, 0.0, 0.0, 1)

    there = q.mix(estimate(q).gradient, estimate(q).hessian, 1.0)
    secants = Secants()
    secants.add((q, estimate(q)), (there, estimate(there)))
    assert there.kl(optimum) > 1
    assert secants.extrapolate(there, estimate(there)).kl(optimum) < 1e-8


def test_the_guard_raises_only_what_is_wrong():
    """Groups that meet in common components: one of these has the wrong curvature."""
    target = VaryingIntercepts.random(30, 5, seed=21)
    q, _ = pair(target.structure, 22)
    hessian = -q.precision.copy()
    hessian[-1] += 1.5 * q.precision[-1]  # the log scale, whose column is eliminated last
    mixed = lin(q, Estimate(np.zeros(q.dim), hessian, 0.0, 0.0, 1), 1.0)
    assert mixed.active
    changed = np.flatnonzero(mixed.q.precision != -hessian)
    assert set(q.structure.rows[changed]) <= {q.dim - 3, q.dim - 2, q.dim - 1}


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_member_to_start_from_exceeds_a_precision_of_one(size):
    for structure in STRUCTURES.values():
        hessian = size * np.random.default_rng(23).standard_normal(structure.nnz)
        q = SparseGaussian.on(structure).from_curvature(np.zeros(structure.dim), hessian)
        assert np.linalg.eigvalsh(structure.matrix(q.precision).toarray())[0] >= 1


def test_the_start_from_a_concave_curvature_is_its_negative():
    q, _ = pair(STRUCTURES["grid"], 24)
    precision = q.precision + 2 * represent(q, np.eye(q.dim))
    start = q.from_curvature(q.mean, -precision)
    np.testing.assert_allclose(start.precision, precision, rtol=1e-12)
    deviations = np.where(np.arange(q.dim) == 4, 0.5, np.nan)
    start = q.from_curvature(q.mean, -precision, deviations=deviations)
    assert start.variance[4] == pytest.approx(0.25)


def test_a_file_and_a_pickle_give_every_bit_back():
    q, _ = pair(STRUCTURES["random"], 25)
    for back in (SparseGaussian.from_arrays(q.arrays()), pickle.loads(pickle.dumps(q))):
        draws = [m.sample(5, np.random.default_rng(1)) for m in (q, back)]
        np.testing.assert_array_equal(*draws)
        assert back.log_det_precision == q.log_det_precision
        assert back.kl(q) == 0


class TestBadInput:
    def test_a_family_without_a_structure_says_what_it_needs(self):
        assert get_family("sparse") is SparseGaussian
        with pytest.raises(TypeError, match=r"SparseGaussian.on\(structure\)"):
            SparseGaussian.from_mean_precision([0.0], [1.0])

    def test_shapes(self):
        family = SparseGaussian.on(Structure(3, [1], [0]))
        with pytest.raises(
            ValueError, match=r"precision has shape \(3,\), its structure .* \(4,\)"
        ):
            family.from_mean_precision(np.zeros(3), np.ones(3))
        with pytest.raises(ValueError, match="mean has 2 components, expected 3"):
            family.from_mean_precision(np.zeros(2), np.ones(4))

    def test_eigenvalues_are_checked_but_not_clipped(self):
        family = of(next(f for f in ALL_FAMILIES if f.__name__ == "Ring"), 5)
        q = family.from_mean_precision(np.zeros(5), represent(family, np.eye(5)))
        assert EigenvalueBounds(0.5, 2.0)(q) is q
        for bounds in (EigenvalueBounds(alpha=2.0), EigenvalueBounds(beta=0.5)):
            with pytest.raises(ValueError, match="cannot clip eigenvalues"):
                bounds(q)
