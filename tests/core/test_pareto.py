"""Pareto smoothing: ArviZ's, without importing it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.pareto import fit_pareto, smooth_ratios


@pytest.mark.parametrize("n", [30, 100, 1000, 4000])
@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 3.0])
def test_agrees_with_arviz(n, scale):
    ratios = scale * np.random.default_rng(n).standard_normal(n)
    weights, khat = smooth_ratios(ratios)
    if PYMC_6:
        from arviz_stats.base import array_stats

        expected, expected_khat = array_stats.psislw(-ratios)
        tolerance = 1e-7
    else:  # ArviZ 0 takes one draw more where the length of the tail is not a whole number
        from arviz import psislw

        expected, expected_khat = psislw(ratios)
        tolerance = 1e-7 if n < 225 else 0.1
    assert khat == pytest.approx(float(expected_khat), abs=tolerance)
    np.testing.assert_allclose(
        weights - logsumexp(weights), expected - logsumexp(expected), atol=tolerance
    )


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.7, 1.5])
def test_the_shape_of_a_pareto_tail_is_found(shape):
    uniform = np.random.default_rng(3).random(20_000)
    numbers = np.sort(np.expm1(-shape * np.log1p(-uniform)) / shape)
    found, scale = fit_pareto(numbers)
    error = (1 + abs(shape)) / np.sqrt(len(numbers))
    assert abs(found - shape) < 4 * error
    assert scale == pytest.approx(1.0, abs=0.05)


def test_equal_ratios_have_no_tail():
    weights, khat = smooth_ratios(np.repeat([0.0, -1.0], 500))
    assert khat == np.inf
    np.testing.assert_array_equal(weights, np.repeat([0.0, -1.0], 500))


def test_smoothing_keeps_the_order_and_raises_no_weight_above_the_largest():
    ratios = np.random.default_rng(5).standard_t(2, size=1000)
    weights, _ = smooth_ratios(ratios)
    assert weights.max() <= 0
    assert (np.diff(weights[np.argsort(ratios)]) >= 0).all()
