"""Walks on a grid: how far they go, and what they leave out."""

import numpy as np
import pytest

from pymc_ngvi.core.families import DiagonalGaussian
from pymc_ngvi.engine.walking import LONGEST_STRIDE, Point, walk

DROP = 8.0
ANY = DiagonalGaussian.from_mean_variance(np.zeros(1), np.ones(1))


class Hill:
    """Points whose ELBO is a function of the index, and which are foreseen or settled by others."""

    def __init__(self, elbo, foreseen=lambda index: False, settled=lambda index: True):
        self.elbo, self.foreseen, self.settled = elbo, foreseen, settled
        self.visited = []

    def __call__(self, index):
        self.visited.append(index)
        one = index[0] if len(index) == 1 else index
        settled = self.settled(one)
        return Point(ANY, self.elbo(one), settled, settled and self.foreseen(one))

    def walk(self, axes=1, most=1000):
        return walk(axes, self, lambda points: len(points) < most, DROP)


def places(points):
    return sorted(i for (i,) in points)


def test_a_bent_line_is_walked_point_by_point_to_where_it_has_fallen():
    hill = Hill(lambda i: -0.1 * i**2)
    found = places(hill.walk())
    assert found == list(range(-9, 10))  # 8 nats are lost at 9
    assert len(hill.visited) == len(found)


def test_the_higher_side_is_walked_first():
    hill = Hill(lambda i: 0.5 * i if i < 6 else 3.0 - 4 * (i - 6))
    found = places(hill.walk())
    assert min(found) == -11  # 8 nats below the top, which is 3 and not in the middle


def test_a_straight_tail_takes_longer_and_longer_strides():
    hill = Hill(lambda i: -0.1 * abs(i), foreseen=lambda i: i < 0)
    left = [i for i in places(hill.walk()) if i < 0][::-1]
    strides = -np.diff([0, *left])
    assert strides[:4].tolist() == [1, 2, 4, 8]
    assert strides.max() == LONGEST_STRIDE
    assert len(left) < 80 / 4
    assert -0.1 * abs(left[-1]) < -DROP  # it goes as far


def test_a_stride_that_was_too_long_is_halved_afterwards():
    hill = Hill(lambda i: -0.1 * abs(i), foreseen=lambda i: -8 < i < 0)
    left = [i for i in places(hill.walk()) if i < 0][::-1]
    assert left[:5] == [-1, -3, -7, -11, -15]
    assert left[5] == -16


def test_the_place_where_nothing_can_be_fitted_is_found():
    hill = Hill(lambda i: -0.1 * abs(i), foreseen=lambda i: i < 0, settled=lambda i: i > -28)
    left = [i for i in places(hill.walk()) if i < 0]
    assert min(left) == -28  # the first, as point by point
    assert len(left) < 12


def test_no_more_points_than_there_is_room_for():
    assert len(Hill(lambda i: 0.0).walk(most=7)) == 7
    assert len(Hill(lambda i: 0.0).walk(axes=2, most=7)) == 7


@pytest.mark.parametrize("slope", [0.5, 2.0])
def test_a_plane_is_walked_within_its_contour(slope):
    hill = Hill(lambda i: -slope * np.hypot(*i))
    found = hill.walk(axes=2)
    inside = [index for index in found if hill.elbo(index) >= -DROP]
    reach = int(DROP / slope) + 1
    box = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1)]
    assert set(inside) == {index for index in box if hill.elbo(index) >= -DROP}
    # All others are next to one that is inside.
    assert all(min(np.abs(np.subtract(one, two)).sum() for two in inside) <= 1 for one in found)
