"""Laws of the draws: which moments are exact, which are right on average."""

import numpy as np
import pytest

from pymc_ngvi.core import designs

MANY = designs.MANY_DIMENSIONS
SHAPES = [(1, 4), (3, 4), (4, 4), (5, 20), (12, 12)]


def moments(z, order):
    """Mean of the symmetric tensor z ... z."""
    letters = "abcdefgh"[:order]
    return np.einsum(",".join(f"n{x}" for x in letters) + "->" + letters, *[z] * order) / len(z)


@pytest.mark.parametrize(("dim", "pairs"), SHAPES)
@pytest.mark.parametrize("draw", [designs.orthogonal, designs.balanced])
def test_moments_up_to_the_third_are_exact(dim, pairs, draw):
    z = draw(pairs, dim, np.random.default_rng(dim))
    np.testing.assert_allclose(moments(z, 2), np.eye(dim), atol=1e-12)
    assert np.abs(moments(z, 1)).max() < 1e-13
    assert np.abs(moments(z, 3)).max() < 1e-12


@pytest.mark.parametrize(("dim", "pairs"), [(1, 4), (3, 5)])
def test_fourth_moments_fall_short_by_a_known_factor_that_balancing_removes(dim, pairs):
    rng = np.random.default_rng(1)
    identity = np.eye(dim)
    normal = sum(
        np.einsum(f"{pair}->abcd", identity, identity) for pair in ("ab,cd", "ac,bd", "ad,bc")
    )
    for draw, factor in ((designs.orthogonal, pairs / (pairs + 2)), (designs.balanced, 1.0)):
        found = np.array([moments(draw(pairs, dim, rng), 4) for _ in range(4000)])
        error = found.std(axis=0) / np.sqrt(len(found)) + 1e-12
        assert (np.abs(found.mean(axis=0) - factor * normal) / error).max() < 4.5


@pytest.mark.parametrize(("dim", "pairs"), [(3, 64), (10, 64)])
def test_fourth_moments_of_balanced_sobol_sets(dim, pairs):
    """Nearly right, and with little more than half the spread of one set of as many pairs."""
    rng = np.random.default_rng(2)
    balanced, plain = (
        [np.square(np.square(draw(rng)).sum(axis=1)).mean() / (dim * (dim + 2)) for _ in range(300)]
        for draw in (
            lambda rng: designs.balanced(pairs, dim, rng),
            lambda rng: designs.orthogonal(2 * pairs, dim, rng),
        )
    )
    assert abs(np.mean(balanced) - 1) < 0.02
    assert np.std(balanced) < 0.6 * np.std(plain)


def test_fewer_pairs_than_dimensions_are_orthogonal():
    z = designs.orthogonal(3, 7, np.random.default_rng(0))[:3]
    np.testing.assert_allclose(z @ z.T, 7 * np.eye(3), atol=1e-12)


@pytest.mark.parametrize("draw", [designs.orthogonal, designs.balanced])
def test_the_partner_of_a_row_is_half_the_rows_further_on(draw):
    z = draw(5, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(z[: len(z) // 2], -z[len(z) // 2 :])


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 10, 26, 150])
@pytest.mark.parametrize("n", [16, 64, 100, 1000])
def test_replicates_are_independent_equal_and_as_many_as_announced(dim, n):
    z = designs.replicates(n, dim, np.random.default_rng(0))
    assert len(z) in (2, 4, 8)
    assert len({replicate.shape for replicate in z}) == 1
    size = sum(map(len, z))
    assert size == designs.rounded_size(n, dim) == designs.rounded_size(size, dim)
    assert n <= size <= max(n + 4 * len(z), 16 * max(dim, 4))
    assert not np.array_equal(z[0], z[1])


def test_directions_are_uniform():
    """A fixed direction sees the same distribution as every other: no axis is preferred."""
    rng = np.random.default_rng(3)
    z = np.concatenate([designs.orthogonal(4, 4, rng)[:4] for _ in range(5000)])
    along_axis, along_diagonal = z[:, 0] ** 4, (z.sum(axis=1) / 2) ** 4
    error = np.hypot(along_axis.std(), along_diagonal.std()) / np.sqrt(len(z))
    assert abs(along_axis.mean() - along_diagonal.mean()) < 4 * error


@pytest.mark.parametrize("dim", [1, 3, 4, 6, 10])
def test_sets_with_exact_second_moments_are_balanced_unless_they_say_so(dim):
    """Their scatter is small, and does not show fourth moments that are wrong."""
    for n in range(8, 200, 8):
        _, pairs, balanced = designs.replicate_size(n, dim)
        assert balanced or pairs < dim or not designs.is_balanced(n, dim)
    assert designs.is_balanced(2 * 4 * designs.FEWEST_PAIRS, dim)


@pytest.mark.parametrize("draw", [designs.orthogonal, designs.balanced])
@pytest.mark.parametrize("pairs", [2, 4, 16])
def test_in_many_dimensions_second_moments_of_each_coordinate_are_exact(pairs, draw):
    z = draw(pairs, MANY, np.random.default_rng(pairs))
    np.testing.assert_allclose(np.square(z).mean(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(z[: len(z) // 2], -z[len(z) // 2 :])


@pytest.mark.parametrize("pairs", [2, 4, 16])
def test_balanced_moments_in_many_dimensions_are_right_on_average(pairs):
    """Of one coordinate, and of two of them."""
    rng = np.random.default_rng(pairs)
    first, second = np.split(designs.balanced(pairs, 40 * MANY, rng), 2, axis=1)
    for values, expected in (
        (first**4, 3.0),
        (first**2 * second**2, 1.0),
        (first * second, 0.0),
        (first**3 * second, 0.0),
    ):
        of_pairs = values.mean(axis=0)
        error = of_pairs.std() / np.sqrt(len(of_pairs))
        assert abs(of_pairs.mean() - expected) < 4 * error + 1e-12


@pytest.mark.parametrize("n", [16, 64, 256])
def test_functions_of_one_coordinate_have_little_noise_in_many_dimensions(n):
    """Less than a fifth of that of independent pairs; what is missed is less than what is left."""
    z = designs.replicates(n, 20 * MANY, np.random.default_rng(n))
    means = np.mean([np.exp(0.5 * replicate).mean(axis=0) for replicate in z], axis=0)
    missed, noise = abs(means.mean() - np.exp(0.125)), means.std()
    assert noise < np.sqrt((np.cosh(0.25) - 1) * np.exp(0.25) / n) / 5
    assert missed < noise / 2


def test_scatter_of_replicates_tells_their_noise_in_many_dimensions():
    z = np.array(designs.replicates(64, 20 * MANY, np.random.default_rng(5)))
    means = np.exp(0.5 * z).mean(axis=1)
    measured = np.sqrt(np.square(means.std(axis=0, ddof=1)).mean() / len(z))
    assert measured == pytest.approx(means.mean(axis=0).std(), rel=0.05)


@pytest.mark.parametrize("n", [1, 8, 9, 16, 60, 64, 200, 1000, 3000])
def test_sizes_in_many_dimensions(n):
    z = designs.replicates(n, MANY, np.random.default_rng(0))
    size = sum(map(len, z))
    assert len(z) >= 2
    assert len({replicate.shape for replicate in z}) == 1
    assert size == designs.rounded_size(n, MANY) == designs.rounded_size(size, MANY)
    assert max(n, 8) <= size < n + max(8, len(z[0]))
    assert designs.is_balanced(size, MANY) == (size > designs.exact_size(MANY))


@pytest.mark.parametrize("dim", [1, 4, 5, 8, 20])
def test_replicates_have_exact_second_moments_from_the_exact_size_on(dim):
    for n in range(1, 10 * dim + 32):
        size = designs.rounded_size(n, dim)
        exact = all(
            np.allclose(moments(z, 2), np.eye(dim))
            for z in designs.replicates(n, dim, np.random.default_rng(n))
        )
        assert exact == (size >= designs.exact_size(dim))
