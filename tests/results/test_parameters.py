"""What weights say of parameters: exact moments, honest errors, no false alarms."""

import numpy as np
import pandas
import pytest

from pymc_ngvi.core.families import standard_normal
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.parameters import (
    COLUMNS,
    Moments,
    beyond,
    compare_moved,
    describe,
    empty_table,
    make_table,
    severity,
    worst,
)


def table(**rows):
    """Make a table of (shift, its error, sd ratio and its error) by label."""
    columns = dict(zip(COLUMNS[3:], np.array([*rows.values()]).T, strict=True))
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


def test_what_moved_draws_find_missing_of_an_sd_is_a_lower_bound():
    checks = table(
        narrow=(0, 0.01, 0.78, 0.04),
        wide=(0, 0.01, 1.22, 0.04),
        shifted=(0.22, 0.04, 1, 0.01),
        chance=(0, 0.01, 0.78, 0.15),
        within=(0, 0.01, 0.81, 0.01),
    )
    assert not (severity(checks) > 1).any()
    assert list(checks.index[severity(checks, moved=True) > 1]) == ["narrow"]
    assert list(worst(checks, 1, moved=True).index) == ["narrow"]


def chains(n, moves, mean, sd, seed):
    """Chains that forget half of where they were in each move, around a mean with an sd."""
    rng = np.random.default_rng(seed)
    z, found = rng.normal(size=(n, len(mean))), []
    for _ in range(moves):
        z = 0.5 * z + np.sqrt(0.75) * rng.normal(size=z.shape)
        found.append(np.array(mean) + np.array(sd) * z)
    return found


def test_moved_draws_tell_the_shift_and_the_ratio_with_honest_errors():
    """Over 200 repetitions: unbiased, and spread as widely as the errors say."""
    mean, sd, exact = np.array([1.0, 5.3]), np.array([2.0, 0.5]), (np.zeros(2), np.zeros(2))
    repeats = [
        compare_moved(chains(100, 6, [1.6, 5.3], [2.5, 0.5], seed), mean, sd, exact)
        for seed in range(200)
    ]
    for name, expected in {"shift": [0.6 / 2.5, 0], "sd_ratio": [0.8, 1]}.items():
        values = np.array([found[name] for found in repeats])
        errors = np.array([found[f"{name}_error"] for found in repeats])
        scatter = values.std(axis=0)
        assert (abs(values.mean(axis=0) - expected) < 4 * scatter / np.sqrt(200) + 0.003).all()
        np.testing.assert_allclose(errors.mean(axis=0), scatter, rtol=0.2)


def test_errors_of_the_fit_count_beside_those_of_moved_draws():
    moved = chains(100, 6, [0.0, 0.0], [1.0, 1.0], 1)
    errors = np.array([0.0, 0.3]), np.array([0.0, 0.2])
    found = compare_moved(moved, np.zeros(2), np.ones(2), errors)
    assert found["shift_error"][0] < 0.1 < 0.3 < found["shift_error"][1]
    assert found["sd_ratio_error"][0] < 0.1 < found["sd_ratio_error"][1]


def test_errors_of_the_fit_are_those_of_repeated_draws():
    found, values = [], []
    for seed in range(200):
        u = 3 + 2 * np.random.default_rng(seed).normal(size=(400, 1))
        moments = Moments([(u, np.ones(400))])
        found.append(np.ravel(moments.errors_of_fit()))
        values.append([u.mean() / 2, np.log(u.std())])
    np.testing.assert_allclose(np.mean(found, axis=0), np.std(values, axis=0), rtol=0.2)


def test_constants_and_overflow_among_moved_draws():
    moved = [np.array([[1 / 3, np.inf], [1 / 3, 0.5]])]
    zero = np.zeros(2)
    found = compare_moved(moved, np.array([1 / 3, 0.0]), np.array([0.0, 1.0]), (zero, zero))
    assert np.isnan(found["shift"]).all()


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
