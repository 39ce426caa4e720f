"""Sparse matrices do what dense ones do, on every structure."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_ngvi.core.sparse import Structure, factorise
from pymc_ngvi.core.sparse.compiled import Compiled
from pymc_ngvi.core.sparse.completion import complete
from pymc_ngvi.core.sparse.factor import inverse_derivative, raised_diagonal
from pymc_ngvi.core.sparse.levels import Levels
from pymc_ngvi.core.sparse.trees import find_levels
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
    "one": Structure(1, [], []),
    "diagonal": Structure(7, [], []),
    "chain": chain(60),
    "grid": grid(9, 11),
    "arrowhead": arrowhead(100, 4),
    "blocks": blocks(12, 5),
    "crossed": crossed(40, 15, 120, 3, seed=1),
    "full": Structure.full(40),
    "persons and items": crossed(60, 45, 60 * 45, 2, seed=3),
    "few answers": crossed(120, 40, 900, 3, seed=4),
    "random": random_structure(150, 400, seed=2),
}
WAYS = ("levels", "compiled")


def eliminated(structure, way):
    """The same structure, eliminated in the same order in one of the two ways."""
    found = Structure(structure.dim, structure.rows, structure.columns, structure.order)
    if way == "compiled":
        found.elimination = found._compiled(found.order)
    else:
        off = np.flatnonzero(found.rows != found.columns)
        places = found.order, found.rows[off], found.columns[off], off
        last = found.hubs.size
        found.elimination = find_levels(*places, last=last, most=found.dim**2, limit=found.dim)
    return found


each_structure = pytest.mark.parametrize(
    "structure",
    [eliminated(structure, way) for structure in STRUCTURES.values() for way in WAYS],
    ids=[f"{name}, {way}" for name in STRUCTURES for way in WAYS],
)
structures = st.builds(
    eliminated,
    st.builds(random_structure, st.integers(1, 30), st.integers(0, 120), st.integers(0, 2**31)),
    st.sampled_from(WAYS),
)


def check(structure, values):
    """Everything that a factor gives, against dense matrices, in correlation units."""
    dense = structure.matrix(values).toarray()
    inverse, factor = np.linalg.inv(dense), factorise(structure, values)
    sd = np.sqrt(inverse.diagonal())
    root = factor.multiply(np.eye(structure.dim)).T
    np.testing.assert_allclose(root @ root.T, dense, rtol=1e-10, atol=1e-12 * np.abs(dense).max())
    assert factor.log_det == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-12, abs=1e-10)
    units = structure.values(np.outer(sd, sd))
    assert np.abs((factor.inverse - structure.values(inverse)) / units).max() < 1e-10
    rows = np.random.default_rng(1).standard_normal((40, structure.dim)) / sd
    scale = np.abs(rows @ inverse / sd).max()
    assert np.abs((factor.solve(rows) - rows @ inverse) / sd).max() < 1e-10 * scale
    np.testing.assert_allclose(factor.solve(rows[0]), factor.solve(rows)[0], rtol=1e-12)
    for there, back in (
        (factor.solve_transposed, factor.multiply_transposed),
        (factor.solve_root, factor.multiply),
    ):
        np.testing.assert_allclose(back(there(rows)), rows, rtol=1e-8, atol=1e-8 / sd.min())
    np.testing.assert_allclose(factor.multiply_transposed(rows), rows @ root, rtol=1e-9, atol=1e-9)


@each_structure
def test_exact_on_named_structures(structure):
    check(structure, dominant(structure, seed=3))


@given(structure=structures, seed=st.integers(0, 2**31))
@settings(max_examples=60)
def test_exact_on_random_structures(structure, seed):
    check(structure, dominant(structure, seed))


@each_structure
def test_fill_is_what_elimination_leaves(structure):
    """By eliminating a dense matrix of the pattern in the structure's order."""
    pattern = structure.matrix(np.ones(structure.nnz)).toarray()[structure.order][
        :, structure.order
    ]
    for j in range(structure.dim):
        below = j + 1 + np.flatnonzero(pattern[j + 1 :, j])
        pattern[np.ix_(below, below)] = 1
    heights = np.tril(pattern, -1).astype(bool).sum(axis=0)
    assert structure.fill == heights.sum() + structure.dim
    assert structure.flops == (heights * (heights + 3) // 2).sum()


@given(structure=structures)
@settings(max_examples=100)
def test_the_order_is_a_permutation(structure):
    assert sorted(structure.order) == list(range(structure.dim))


@pytest.mark.parametrize(
    "structure",
    [chain(500), arrowhead(500, 4), blocks(50, 6)],
    ids=["chain", "arrowhead", "blocks"],
)
def test_trees_and_arrowheads_have_no_fill(structure):
    assert structure.fill == structure.nnz


def test_fill_of_a_grid_is_near_that_of_another_minimum_degree():
    structure = grid(60, 60)
    matrix = structure.matrix(dominant(structure, seed=4)).tocsc()
    other = scipy.sparse.linalg.splu(
        matrix, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )
    assert structure.fill < 1.2 * other.L.nnz


def test_values_are_those_of_the_lower_triangle_by_columns():
    structure = Structure(3, [0, 2, 2], [2, 0, 1])  # either triangle, and one of them twice
    matrix = np.array([[1.0, 0, 4], [0, 2, 5], [4, 5, 3]])
    np.testing.assert_array_equal(structure.values(matrix), [1, 4, 2, 5, 3])
    np.testing.assert_array_equal(structure.matrix(structure.values(matrix)).toarray(), matrix)
    vector = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(structure.product(structure.values(matrix), vector), matrix @ vector)
    np.testing.assert_array_equal(structure.multiplicity, [1, 2, 1, 2, 1])


@each_structure
def test_a_matrix_that_is_not_positive_definite_has_no_factor(structure):
    values = dominant(structure, seed=5)
    smallest = np.linalg.eigvalsh(structure.matrix(values).toarray())[0]
    for shift, exists in ((0.9, True), (1.1, False)):
        moved = values.copy()
        moved[structure.diagonal] -= shift * smallest
        assert (factorise(structure, moved) is not None) == exists
    for bad in (np.nan, np.inf):
        assert factorise(structure, np.where(structure.multiplicity == 1, bad, values)) is None


def test_pivots_made_of_rounding_are_not_positive_definite():
    structure, direction = Structure.full(3), np.array([1.0, 1 / 3, 0.1])
    singular = np.outer(direction, direction) + 1e-17
    assert factorise(structure, structure.values(singular)) is None


@each_structure
def test_derivative_of_the_inverse(structure):
    values = dominant(structure, seed=6)
    inverse = np.linalg.inv(structure.matrix(values).toarray())
    rng = np.random.default_rng(7)
    for size in (1e-200, 1.0, 1e200):  # it is linear, whatever the size
        direction = size * rng.standard_normal(structure.nnz)
        expected = -inverse @ (structure.matrix(direction / size).toarray()) @ inverse
        found = inverse_derivative(structure, values, direction) / size
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, structure.values(expected), rtol=1e-9, atol=1e-11 * scale)


@each_structure
def test_inverse_at_chosen_pairs(structure):
    values = dominant(structure, seed=8)
    inverse = np.linalg.inv(structure.matrix(values).toarray())
    first, second = np.random.default_rng(9).integers(0, structure.dim, (2, 50))
    found = factorise(structure, values).inverse_at(first, second)
    np.testing.assert_allclose(found, inverse[first, second], rtol=1e-9, atol=1e-11)


@given(structure=structures, seed=st.integers(0, 2**31), size=st.floats(0.1, 1e6))
@settings(max_examples=60)
def test_a_raised_diagonal_makes_any_matrix_positive_definite(structure, seed, size):
    values = size * np.random.default_rng(seed).standard_normal(structure.nnz)
    ones = np.ones(structure.dim)
    raised = raised_diagonal(structure, values, ones, margin=0.1, least=0.5)
    np.testing.assert_array_equal(
        raised[structure.multiplicity == 2], values[structure.multiplicity == 2]
    )
    assert np.linalg.eigvalsh(structure.matrix(raised).toarray())[0] > 0


@each_structure
def test_a_diagonal_that_suffices_is_left_alone(structure):
    values = dominant(structure, seed=10)
    pivots = factorise(structure, values).pivots
    raised = raised_diagonal(structure, values, pivots, margin=0.5, least=0.5)
    np.testing.assert_array_equal(raised, values)


@given(structure=structures, seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_completion_inverts_the_selected_inverse(structure, seed):
    values = dominant(structure, seed, least=1.0)
    back = complete(structure, factorise(structure, values).inverse)
    units = np.sqrt(values[structure.diagonal])
    scale = units[structure.rows] * units[structure.columns]
    assert np.abs((back - values) / scale).max() < 1e-9


def test_completion_of_what_is_no_covariance():
    assert complete(Structure.full(2), np.array([1.0, 2.0, 1.0])) is None
    assert complete(Structure.full(2), np.array([1.0, 0.0, -1.0])) is None


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_structure_survives_pickling_to_the_last_bit_of_its_factors(structure):
    back = pickle.loads(pickle.dumps(structure))
    np.testing.assert_array_equal(back.order, structure.order)
    np.testing.assert_array_equal(back.rows, structure.rows)
    values = dominant(structure, seed=16)
    one, other = (factorise(each, values) for each in (structure, back))
    np.testing.assert_array_equal(one.inverse, other.inverse)


def test_bad_structures():
    with pytest.raises(ValueError, match=r"must lie in \[0, 3\)"):
        Structure(3, [3], [0])
    with pytest.raises(ValueError, match="2 rows and 1 columns"):
        Structure(3, [1, 2], [0])
    with pytest.raises(ValueError, match="no permutation"):
        Structure(3, [1], [0], order=[0, 0, 1])


@pytest.mark.parametrize(
    ("name", "way", "tail", "leaves"),
    [
        ("chain", "compiled", 0, 0),
        ("arrowhead", "compiled", 0, 0),
        ("arrowhead", "levels", 5, 99),
        ("full", "compiled", 40, 0),
        ("full", "levels", 40, 0),
        ("persons and items", "compiled", 47, 60),
        ("persons and items", "levels", 47, 60),
    ],
)
def test_full_columns_at_the_end_are_found(name, way, tail, leaves):
    """A full matrix is all tail; persons who answered every item are leaves of the items."""
    found = eliminated(STRUCTURES[name], way).elimination.tail
    assert found.size == pytest.approx(tail, abs=1)
    assert found.done.sum() == pytest.approx(leaves, abs=1)
    assert found.head + found.size == STRUCTURES[name].dim


def nested(schools, classes, common):
    """Classes in schools, both of which meet in the common components."""
    dim = schools * (classes + 1) + common
    of_class = schools + np.arange(schools * classes)
    rows = np.repeat(np.arange(dim - common, dim), dim)
    columns = np.tile(np.arange(dim), common)
    school = np.repeat(np.arange(schools), classes)
    return Structure(dim, np.concatenate([rows, of_class]), np.concatenate([columns, school]))


@pytest.mark.parametrize(
    ("structure", "way"),
    [
        (arrowhead(500, 4), Levels),
        (nested(30, 20, 5), Levels),
        (blocks(100, 6), Levels),
        (arrowhead(300, 60), Levels),
        (Structure.full(50), Levels),
        (chain(200), Compiled),
        (grid(20, 20), Compiled),
    ],
    ids=["arrowhead", "nested", "blocks", "items", "full", "chain", "grid"],
)
def test_shallow_structures_are_eliminated_by_levels(structure, way):
    """Groups, and groups of groups, need nothing compiled; chains and grids are too deep."""
    assert type(structure.elimination) is way
    check(structure, dominant(structure, seed=11))


@each_structure
def test_both_ways_have_the_same_root(structure):
    """So draws do not depend on the way, but for rounding."""
    values = dominant(structure, seed=12)
    z = np.random.default_rng(13).standard_normal((3, structure.dim))
    one, other = (factorise(eliminated(structure, way), values).solve_transposed(z) for way in WAYS)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10 * np.abs(one).max())


@each_structure
def test_divergence(structure):
    """Of two Gaussians with mean zero, against that of dense matrices."""
    values = [dominant(structure, seed) for seed in (14, 15)]
    one, other = (structure.matrix(v).toarray() for v in values)
    product = np.linalg.solve(one, other)
    expected = (np.trace(product) - structure.dim - np.linalg.slogdet(product)[1]) / 2
    found = factorise(structure, values[0]).divergence(factorise(structure, values[1]))
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-8)
