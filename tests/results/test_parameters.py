"""What weights say of parameters: exact moments, honest errors, no false alarms."""

import numpy as np
import pandas
import pytest
import scipy.stats

from pymc_ngvi.core.families import standard_normal
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.parameters import (
    COLUMNS,
    Moments,
    beyond,
    describe,
    empty_table,
    make_table,
    severity,
    spread_khat,
    worst,
)


def table(**rows):
    """Make a table of (shift, its error, sd ratio, its error and perhaps its k-hat) by label."""
    columns = dict(zip(COLUMNS[3:], np.array([*rows.values()]).T, strict=False))
    ones = np.ones(len(rows))
    return make_table([*rows], [*rows], {"mean": ones, "sd": ones, **columns})


def normal_log_ratios(z, mean, sd):
    """Log N(mean, sd) - log N(0, 1) in every column of z, added up."""
    return (-(((z - mean) / sd) ** 2) / 2 - np.log(sd) + z**2 / 2).sum(axis=1)


def compared(n, seed, mean, sd, values=lambda z: z):
    z = standard_normal(n, len(mean), np.random.default_rng(seed), antithetic=True)
    importance = Importance.from_ratios(normal_log_ratios(z, mean, sd))
    return Moments([(values(z), n * np.exp(importance.log_weights))]).compare()


def test_equal_weights_say_that_nothing_is_off():
    z = standard_normal(400, 3, np.random.default_rng(1), antithetic=True)
    found = Moments([(1e6 + np.exp(z), np.ones(400))]).compare()
    np.testing.assert_allclose(found["mean"], 1e6 + np.exp(z).mean(axis=0))
    np.testing.assert_allclose(found["sd"], np.exp(z).std(axis=0))
    np.testing.assert_allclose(found["shift"], 0, atol=1e-9)
    np.testing.assert_allclose(found["sd_ratio"], 1, atol=1e-9)
    np.testing.assert_allclose(found["shift_error"], 0, atol=1e-7)


def test_estimates_and_errors_are_those_of_repeated_draws():
    """Over 200 repetitions: unbiased, and spread as widely as the errors say."""
    mean, sd = np.array([0.3, 0.0]), np.array([0.9, 0.85])
    repeats = [compared(1000, seed, mean, sd) for seed in range(200)]
    true = {"shift": mean / sd, "sd_ratio": 1 / sd}
    for name, expected in true.items():
        values = np.array([found[name] for found in repeats])
        errors = np.array([found[f"{name}_error"] for found in repeats])
        scatter = values.std(axis=0)
        assert (abs(values.mean(axis=0) - expected) < 4 * scatter / np.sqrt(200) + 0.003).all()
        # The second mean does not move: antithetic pairs cancel but for the smoothing.
        np.testing.assert_allclose(errors.mean(axis=0)[0], scatter[0], rtol=0.25)


def test_plain_errors_would_be_wrong_for_antithetic_draws():
    """A pair counts as one observation: its two values are opposite, or the same."""
    found = [compared(1000, seed, np.array([0.3]), np.array([0.9])) for seed in range(100)]
    scatter = np.std([one["shift"] for one in found])
    assert scatter < 0.5 / np.sqrt(1000)  # independent draws would give more than twice as much
    assert np.mean([one["shift_error"] for one in found]) == pytest.approx(scatter, rel=0.3)


def test_blocks_add_up():
    z = standard_normal(600, 2, np.random.default_rng(3), antithetic=True)
    weights = np.exp(0.3 * z[:, 0])
    weights /= weights.mean()
    whole = Moments([(z, weights)]).compare()
    pairs = z.reshape(2, 300, 2), weights.reshape(2, 300)
    parts = [slice(0, 100), slice(100, 300)]
    blocks = [(pairs[0][:, part].reshape(-1, 2), pairs[1][:, part].ravel()) for part in parts]
    for name, column in Moments(blocks).compare().items():
        np.testing.assert_allclose(column, whole[name], rtol=1e-8, atol=1e-12, err_msg=name)


def test_constants_and_overflow():
    z = standard_normal(200, 1, np.random.default_rng(4), antithetic=True)
    constant, overflowing = np.full_like(z, 1 / 3), np.where(z > 2, np.inf, z)
    found = Moments([(np.hstack([constant, overflowing]), np.ones(200))]).compare()
    assert found["sd"][0] == 0
    assert np.isnan(found["shift"][1])


def test_what_is_off():
    checks = table(
        exact=(0, 0.01, 1, 0.01),
        shifted=(-0.3, 0.05, 1, 0.01),
        narrow=(0, 0.01, 0.43, 0.03),
        wide=(0, 0.01, 1.5, 0.1),
        noisy=(0.3, 0.2, 1, 0.01),
        within_an_error=(0.21, 0.02, 1, 0.01),
    )
    off = pandas.Series(severity(checks) > 1, index=checks.index)
    assert list(off[off].index) == ["shifted", "narrow", "wide"]
    assert list(checks.index[beyond(checks) & ~off]) == ["noisy", "within_an_error"]
    assert list(worst(checks, 2).index) == ["narrow", "wide"]
    (line,) = describe(worst(checks, 1))
    assert line == ("narrow: mean off by 0.00 sd (±0.01), sd 0.43 (±0.03) of the posterior's")
    assert severity(empty_table()).size == beyond(empty_table()).size == 0


def test_less_is_enough_where_the_tail_is_beyond_the_draws():
    checks = table(
        seen=(0, 0.01, 0.85, 0.02, 0.4),
        hardly_seen=(0, 0.01, 0.82, 0.02, 0.62),
        unseen=(0, 0.01, 0.85, 0.02, 0.8),
        little=(0, 0.01, 0.93, 0.02, 0.8),
        unclear=(0, 0.01, 0.88, 0.03, 0.8),
        chance=(0, 0.01, 0.88, 0.1, 0.8),
        wide=(0, 0.01, 1.12, 0.02, 0.8),
        not_looked_at=(0, 0.01, 0.88, 0.02, np.nan),
    )
    assert list(checks.index[severity(checks) > 1]) == ["hardly_seen", "unseen"]


@pytest.mark.parametrize(
    ("degrees", "variance"), [(4, 1.0), (5, 1.0), (8, 0.8), (8, 1.1), (30, 0.9)]
)
def test_students_of_which_a_fifth_of_the_sd_is_missing_are_told_from_others(degrees, variance):
    """By the weights alone, 3 in 100 of the bad ones would be called off, and none of the others.

    Of the two that are good, one sd in 20 comes out as that of a bad one does.
    """
    truth = np.sqrt(variance * (degrees - 2) / degrees)
    called = []
    for seed in range(20):
        z = standard_normal(9000, 1, np.random.default_rng(seed), antithetic=True)
        values = np.sqrt(variance) * z
        log_ratios = scipy.stats.t.logpdf(values[:, 0], degrees)
        log_ratios -= scipy.stats.norm.logpdf(values[:, 0], scale=np.sqrt(variance))
        log_weights = Importance.from_ratios(log_ratios).log_weights
        found = Moments([(values, 9000 * np.exp(log_weights))]).compare()
        found["sd_khat"] = spread_khat(values, log_ratios, log_weights)
        called.append(severity(make_table(["x"], ["x"], found))[0] > 1)
    if truth < 0.8:
        assert np.mean(called) > 0.3
    else:
        assert truth > 0.9
        assert np.mean(called) <= 0.1


def test_chance_does_not_call_any_of_500_parameters_off():
    """Errors of 0.07 sd make some of 500 exact parameters look off by more than 0.2 sd."""
    rng = np.random.default_rng(5)
    alarms = seen = 0
    for _ in range(100):
        shift, ratio = 0.07 * rng.normal(size=500), 1 + 0.05 * rng.normal(size=500)
        rows = {f"x[{i}]": (shift[i], 0.07, ratio[i], 0.05) for i in range(500)}
        checks = table(**rows)
        seen += beyond(checks).any()
        alarms += bool((severity(checks) > 1).any())
    assert seen > 80
    assert alarms <= 8
