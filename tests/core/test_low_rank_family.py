"""The family of low rank is the full one where the precision has its structure."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import (
    FullGaussian,
    LowRankGaussian,
    Natural,
    SparseGaussian,
    get_family,
)
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.sparse import LowRankStructure, Structure
from pymc_ngvi.core.target import Evaluation, Target
from tests.core.sparse_targets import dominant

DIM = 9
BASES = {
    "diagonal": Structure(DIM, [], []),
    "chain": Structure(DIM, np.arange(1, DIM), np.arange(DIM - 1)),
    "arrow": Structure(DIM, np.full(DIM - 1, DIM - 1), np.arange(DIM - 1)),
}
each = pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
each_rank = pytest.mark.parametrize("rank", [1, 3])


def structure_of(base, rank):
    rows = np.random.default_rng(rank).standard_normal((rank, base.dim))
    return LowRankStructure(base, rows)


def values_of(structure, seed):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 2.0, len(structure.factor))
    return np.concatenate([dominant(structure.base, seed, least=1.0), weights])


def pair(structure, seed):
    """A member and the full one that it equals."""
    mean = np.random.default_rng(seed).standard_normal(structure.dim)
    values = values_of(structure, seed)
    q = LowRankGaussian.on(structure).from_mean_precision(mean, values)
    return q, FullGaussian.from_mean_precision(mean, structure.dense(values))


@each
@each_rank
def test_equals_the_full_family(base, rank):
    structure = structure_of(base, rank)
    (q, full), (p, full_p) = pair(structure, 1), pair(structure, 2)
    assert q.kl(p) == pytest.approx(full.kl(full_p), rel=1e-9)
    assert q.entropy() == pytest.approx(full.entropy(), rel=1e-12)
    np.testing.assert_allclose(q.variance, full.variance, rtol=1e-10)
    draws = full.sample(20, np.random.default_rng(3))
    np.testing.assert_allclose(q.log_density(draws), full.log_density(draws), rtol=1e-10)
    np.testing.assert_allclose(q.unwhiten(q.whiten(draws)), draws, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(q.solve(draws[0]), full.solve(draws[0]), rtol=1e-9, atol=1e-12)
    assert q.natural.inner(p.expectation) == pytest.approx(
        full.natural.inner(full_p.expectation), rel=1e-9
    )
    between, full_between = q.interpolate(p, 0.3), full.interpolate(full_p, 0.3)
    np.testing.assert_allclose(between.mean, full_between.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        q.covariance_between([0, 2], [5, 2]), full.covariance[[0, 2], [5, 2]], rtol=1e-9, atol=1e-12
    )


@each
@each_rank
def test_its_root_is_one(base, rank):
    q, full = pair(structure_of(base, rank), 4)
    root = q.unwhiten(np.eye(DIM)) - q.mean
    np.testing.assert_allclose(root.T @ root, full.covariance, rtol=1e-9, atol=1e-12)
    z = np.random.default_rng(5).standard_normal((4, DIM))
    np.testing.assert_allclose(
        q.score_whitened(z), -(q.unwhiten(z) - q.mean) @ full.precision, rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(q.whiten_gradients(z), z @ root.T, rtol=1e-8, atol=1e-10)


@each
@each_rank
def test_displacements_are_those_of_the_full_family(base, rank):
    structure = structure_of(base, rank)
    q, full = pair(structure, 6)
    rng = np.random.default_rng(7)
    for kept in (1, 0), (0, 1), (1, 1):
        second = rng.standard_normal(structure.nnz)
        second *= np.repeat(kept, [base.nnz, rank])
        direction = Natural(rng.standard_normal(DIM), second)
        dense = Natural(direction.first, structure.dense(second))
        moves = zip(q.displacement(direction), full.displacement(dense), strict=True)
        for found, expected in moves:
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10 * np.max(expected))


@each
@each_rank
def test_parameters_invert_each_other(base, rank):
    q, _ = pair(structure_of(base, rank), 8)
    family = type(q)
    for again in (family.from_natural(q.natural), family.from_expectation(q.expectation)):
        np.testing.assert_allclose(again.mean, q.mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(again.precision, q.precision, rtol=1e-5, atol=1e-7)
    p, _ = pair(q.structure, 9)
    assert family.bregman(q.expectation, p.expectation) == pytest.approx(q.kl(p), rel=1e-5)
    for again in (pickle.loads(pickle.dumps(q)), family.from_arrays(q.arrays())):
        np.testing.assert_array_equal(again.precision, q.precision)
        np.testing.assert_allclose(again.variance, q.variance, rtol=1e-14)


@each
def test_the_guard_keeps_the_domain(base):
    structure = structure_of(base, 2)
    q, _ = pair(structure, 10)
    estimate = type("", (), {"gradient": np.ones(DIM), "hessian": 5 * np.abs(q.precision)})()
    mixed = lin(q, estimate, 1.0)
    assert mixed.active
    assert np.linalg.eigvalsh(structure.dense(mixed.q.precision))[0] > 0


@each
def test_a_start_follows_the_curvature(base):
    structure = structure_of(base, 2)
    values = values_of(structure, 11)
    _, weights = structure.split(values)
    q = LowRankGaussian.on(structure).from_curvature(np.zeros(DIM), -values)
    np.testing.assert_allclose(q.structure.split(q.precision)[1], weights)
    lowest = np.linalg.eigvalsh(structure.dense(q.precision))[0]
    assert lowest > 0.99
    np.testing.assert_allclose(q.diagonal(q.precision), structure.dense(q.precision).diagonal())


class Wide(Target):
    """A linear regression on more predictors than rows, with a Gaussian prior."""

    def __init__(self, structure, y):
        self.structure, self.y, self.dim = structure, y, structure.dim
        self._values = np.concatenate([np.full(self.dim, 2.0), np.full(len(y), 3.0)])

    def log_density(self, draws):
        error = draws @ self.structure.factor.T - self.y
        return -np.square(draws).sum(axis=1) - 1.5 * np.square(error).sum(axis=1)

    def evaluate(self, draws, curvature):
        error = draws @ self.structure.factor.T - self.y
        gradient = -2 * draws - 3 * error @ self.structure.factor
        hessian = np.tile(-self._values, (len(draws), 1)) if curvature == "sparse" else None
        return Evaluation(self.log_density(draws), gradient, hessian)


def test_one_step_is_exact_on_a_wide_regression():
    structure = structure_of(Structure(30, [], []), 4)
    target = Wide(structure, np.arange(4.0))
    q = LowRankGaussian.on(structure).from_mean_variance(np.zeros(30), np.ones(30))
    estimate = BonnetPrice()(target, q, 4, np.random.default_rng(0))
    after = lin(q, estimate, 1.0).q
    precision = structure.dense(target._values)
    np.testing.assert_allclose(structure.dense(after.precision), precision, rtol=1e-9, atol=1e-9)
    mean = np.linalg.solve(precision, 3 * structure.factor.T @ target.y)
    np.testing.assert_allclose(after.mean, mean, rtol=1e-8, atol=1e-10)


def test_is_found_by_its_name_and_asks_for_rows():
    assert get_family("lowrank") is LowRankGaussian
    with pytest.raises(TypeError, match="no rows"):
        LowRankGaussian.on(Structure(3, [], []))


def test_a_structure_tells_its_kind():
    base = Structure(4, [1, 2, 3], [0, 1, 2])
    wide = LowRankStructure(base, np.ones((2, 4)))
    assert (base.rank, wide.rank) == (0, 2)
    # The same entries, but matrices have two numbers more.
    assert not base.has_places_of(wide)
    assert not wide.has_places_of(base)
    for family, own, other in ((SparseGaussian, base, wide), (LowRankGaussian, wide, base)):
        assert family.suits(own)
        assert not family.suits(other)
        assert family.structure is None
        assert family.on(own).structure is own


def test_one_member_alone_keeps_a_matrix_as_large_as_its_rows():
    """A fit has several members at a time, of which one is asked for its Fisher information."""
    structure = structure_of(BASES["chain"], 3)
    (q, full), (p, full_p) = pair(structure, 1), pair(structure, 2)
    rng = np.random.default_rng(8)
    direction = Natural(rng.standard_normal(DIM), rng.standard_normal(structure.nnz))
    dense = Natural(direction.first, structure.dense(direction.second))
    for member, other in ((q, full), (p, full_p), (q, full), (q, full)):
        found, expected = member.fisher_product(direction), other.fisher_product(dense)
        np.testing.assert_allclose(found.first, expected.first, rtol=1e-8)
        np.testing.assert_allclose(
            found.second[structure.diagonal], expected.second.diagonal(), rtol=1e-7
        )
        assert [one.factor._kept is not None for one in (q, p)] == [member is q, member is p]
