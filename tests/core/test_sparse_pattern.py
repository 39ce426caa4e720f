"""The pattern of a Hessian is found from products, and its colours give back every value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_ngvi.core.sparse import Colouring, Structure, find_pattern
from pymc_ngvi.core.sparse.colouring import agrees, probe
from tests.core.sparse_targets import (
    arrowhead,
    blocks,
    chain,
    crossed,
    dominant,
    grid,
    random_structure,
)

STRUCTURES = {
    "chain": chain(700),
    "grid": grid(25, 30),
    "arrowhead": arrowhead(600, 4),
    "blocks": blocks(100, 6),
    "crossed": crossed(600, 200, 2500, 3, seed=1),
    "items": arrowhead(1500, 60),
    "random": random_structure(800, 1500, seed=2),
}
each_structure = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)


class Hessian:
    """Products with a matrix on a structure that differs from point to point; counts them."""

    def __init__(self, structure, *, vanishing=0.0, units=0.0, seed=1):
        rng = np.random.default_rng(seed)
        self.structure, self.vanishing, self.count = structure, vanishing, 0
        scale = 10 ** rng.uniform(-units / 2, units / 2, structure.dim)
        self.values = dominant(structure, seed) * scale[structure.rows] * scale[structure.columns]

    def at(self, point):
        rng = np.random.default_rng(int(1e6 * abs(point[0])))
        values = self.values * rng.uniform(0.5, 2, self.values.size)
        gone = rng.uniform(size=values.size) < self.vanishing
        return np.where(gone & (self.structure.multiplicity == 2), 0.0, values)

    def __call__(self, points, vectors):
        self.count += len(points)
        seen, found = {}, []
        for point, vector in zip(points, vectors, strict=True):
            key = point[0]
            if key not in seen:
                seen[key] = self.structure.matrix(self.at(point))
            found.append(seen[key] @ vector)
        return np.array(found)


def found_by(hessian, n_points=3, seed=3):
    rng = np.random.default_rng(seed)
    return find_pattern(hessian, rng.standard_normal((n_points, hessian.structure.dim)), rng)


def same(first, second):
    return np.array_equal(first.rows, second.rows) and np.array_equal(first.start, second.start)


@each_structure
@pytest.mark.parametrize("units", [0.0, 6.0])
def test_pattern_is_exact_with_fewer_products_than_columns(structure, units):
    hessian = Hessian(structure, units=units)
    assert same(found_by(hessian), structure)
    assert hessian.count < structure.dim


@given(dim=st.integers(2, 60), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_small_patterns_are_exact_or_dense(dim, seed):
    structure = random_structure(dim, dim, seed)
    found = found_by(Hessian(structure), seed=seed)
    assert Colouring(structure).count >= dim if found is None else same(found, structure)


@pytest.mark.parametrize("name", ["grid", "arrowhead"])
def test_entries_that_vanish_at_some_points_are_found_at_others(name):
    structure = STRUCTURES[name]
    assert same(found_by(Hessian(structure, vanishing=0.3), n_points=16), structure)


def test_a_dense_hessian_is_given_up_early():
    hessian = Hessian(Structure.full(400))
    assert found_by(hessian) is None
    assert hessian.count <= 400
    assert found_by(Hessian(Structure.full(40))) is None


def test_one_point_verifies_nothing():
    with pytest.raises(ValueError, match="verified at other points: got 1"):
        found_by(Hessian(chain(10)), n_points=1)


def test_products_that_are_not_finite():
    with pytest.raises(ValueError, match="not finite"):
        find_pattern(lambda points, vectors: vectors * np.nan, np.ones((2, 5)), None)


@each_structure
def test_colours_give_every_value_back(structure):
    colouring = Colouring(structure)
    values = np.array([dominant(structure, seed) for seed in range(3)])
    products = np.array([(structure.matrix(v) @ colouring.seeds.T).T for v in values])
    np.testing.assert_array_equal(colouring.recover(products), values)


@given(dim=st.integers(1, 40), entries=st.integers(0, 200), seed=st.integers(0, 2**31))
@settings(max_examples=60)
def test_colours_of_random_structures_give_every_value_back(dim, entries, seed):
    structure = random_structure(dim, entries, seed)
    colouring, values = Colouring(structure), dominant(structure, seed)
    products = (structure.matrix(values) @ colouring.seeds.T).T
    np.testing.assert_array_equal(colouring.recover(products[np.newaxis])[0], values)


@pytest.mark.parametrize(
    ("structure", "most"),
    [
        (arrowhead(10_000, 4), 5),
        (chain(1000), 3),
        (grid(60, 60), 7),
        (blocks(100, 6), 6),
        (arrowhead(2000, 100), 101),
        (Structure(50, [], []), 1),
    ],
    ids=["arrowhead", "chain", "grid", "blocks", "items", "diagonal"],
)
def test_few_colours(structure, most):
    assert Colouring(structure).count <= most


@pytest.mark.parametrize("units", [0.0, 8.0])
def test_a_product_tells_a_wrong_matrix(units):
    hessian = Hessian(STRUCTURES["crossed"], units=units)
    structure, values = hessian.structure, hessian.values
    vector = probe(structure, values, np.random.default_rng(4))
    product = structure.product(values, vector)
    assert agrees(structure, values, vector, product * (1 + 1e-9))
    size = np.sqrt(np.abs(values[structure.diagonal]))
    for place in np.flatnonzero(structure.multiplicity == 2)[::200]:
        wrong = values.copy()
        wrong[place] += 1e-2 * size[structure.rows[place]] * size[structure.columns[place]]
        assert not agrees(structure, wrong, vector, product)
