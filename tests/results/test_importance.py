"""Laws of importance ratios: the tail they are told, and agreement with ArviZ."""

import numpy as np
import pytest

from pymc_ngvi.results.importance import Importance


def ratios_with_tail(shape: float, n: int, seed: int = 0) -> np.ndarray:
    """Log of exact Pareto draws with the given tail shape."""
    return -shape * np.log(np.random.default_rng(seed).uniform(size=n))


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_khat_is_the_shape_of_the_tail(shape):
    khats = [Importance.from_ratios(ratios_with_tail(shape, 4000, seed)).khat for seed in range(20)]
    # The spread over seeds tells the error of their mean; the prior of the fit pulls towards 0.5.
    error = np.std(khats) / np.sqrt(20)
    assert abs(np.mean(khats) - shape) < 4 * error + 0.03


def test_large_ratios_get_large_weights():
    log_ratios = np.random.default_rng(3).normal(size=500)
    weights = Importance.from_ratios(log_ratios).log_weights
    assert np.corrcoef(log_ratios, weights)[0, 1] > 0.9


def test_a_constant_added_to_the_ratios_changes_nothing():
    log_ratios = np.random.default_rng(4).normal(size=500)
    here, there = Importance.from_ratios(log_ratios), Importance.from_ratios(log_ratios - 3000)
    assert here.khat == pytest.approx(there.khat, abs=1e-6)
    assert here.ess == pytest.approx(there.ess, rel=1e-6)


def test_equal_ratios_are_a_perfect_fit():
    importance = Importance.from_ratios(-1881.0 + 1e-12 * np.random.default_rng(0).normal(size=100))
    assert importance.khat == 0
    assert importance.ess == pytest.approx(100)


@pytest.mark.parametrize("share", [0.005, 0.05, 0.3, 0.97])
def test_ratios_that_are_steps_have_weights(share):
    """As those of a density that is a constant on either side of a step."""
    upper = np.random.default_rng(2).uniform(size=1000) < share
    importance = Importance.from_ratios(np.where(upper, 2.0, 0.0))
    weights = np.exp(importance.log_weights)
    np.testing.assert_allclose(weights[upper].sum() / weights.sum(), weights[upper].sum())
    np.testing.assert_allclose(weights[upper] / weights[~upper][0], np.exp(2))
    # A step that few draws are beyond may be higher still behind it.
    assert importance.khat == (0 if upper.sum() >= 5 else np.inf)


def test_a_draw_outside_the_support_has_no_weight():
    log_ratios = np.random.default_rng(5).normal(size=500)
    log_ratios[7] = -np.inf
    importance = Importance.from_ratios(log_ratios)
    assert np.exp(importance.log_weights[7]) == pytest.approx(0, abs=1e-12)
    assert np.exp(importance.log_weights).sum() == pytest.approx(1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_ratio_that_is_no_number_is_never_a_good_fit(bad):
    log_ratios = np.zeros(100)
    log_ratios[3] = bad
    assert Importance.from_ratios(log_ratios).khat == np.inf


def test_few_draws_keep_their_ratios():
    importance = Importance.from_ratios(np.log([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(np.exp(importance.log_weights), [0.125, 0.25, 0.625])
    assert np.isnan(importance.khat)


@pytest.mark.parametrize("replace", [False, True])
def test_draws_are_chosen_as_often_as_they_weigh(replace):
    importance = Importance(np.log([0.1, 0.2, 0.7]), khat=0.0)
    rng = np.random.default_rng(6)
    chosen = [importance.resample(1, rng, replace=replace)[0] for _ in range(4000)]
    shares = np.bincount(chosen) / 4000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=4 * np.sqrt(0.25 / 4000))


def test_without_replacement_there_must_be_enough_draws():
    importance = Importance(np.array([np.log(0.5), np.log(0.5), -np.inf]), khat=0.0)
    assert list(importance.resample(2, np.random.default_rng(0))) == [0, 1]
    with pytest.raises(ValueError, match="only 2 of 3 have a weight above 0"):
        importance.resample(3, np.random.default_rng(0))
