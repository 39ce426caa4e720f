"""Draws moved to the moments of the posterior: exact where it is Gaussian, never for the worse."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_ngvi import UnreliableFit
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.results.approximation import create_approximation
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.matching import AffineMap, match_moments

MEAN, COVARIANCE = np.array([1.0, -0.5, 0.3]), np.diag([2.0, 0.7, 1.2]) + 0.4


def standard_draws(n, dim, seed):
    """Draws of the standard Gaussian with their log densities."""
    gaussian = FullGaussian.from_mean_covariance(np.zeros(dim), np.eye(dim))
    draws = np.random.default_rng(seed).standard_normal((n, dim))
    return draws, gaussian.log_density(draws)


@pytest.mark.parametrize(
    "factor", [np.ones(()), np.array([2.0, 0.5]), np.array([[2.0, 0.0], [-1.0, 0.5]])]
)
def test_a_map_gives_the_density_of_what_it_gives(factor):
    draws, log_q = standard_draws(50, 2, seed=1)
    one = AffineMap("any", np.array([0.1, 0.2]), np.array([1.0, -1.0]), factor)
    matrix = factor if factor.ndim == 2 else np.diag(np.broadcast_to(factor, 2))
    mean = one.after - matrix @ one.before
    expected = stats.multivariate_normal(mean, matrix @ matrix.T).logpdf(one(draws))
    np.testing.assert_allclose(log_q - one.log_det, expected)


def test_a_gaussian_is_matched_exactly():
    target = FullGaussian.from_mean_covariance(MEAN, COVARIANCE)
    matching = match_moments(target.log_density, *standard_draws(4000, 3, seed=2))
    # On other draws: the ratios are the same for all, as they are where p is q.
    draws, log_q = matching(*standard_draws(4000, 3, seed=3))
    importance = Importance.from_ratios(target.log_density(draws) - log_q)
    assert importance.ess > 3900
    np.testing.assert_allclose(draws.mean(axis=0), MEAN, atol=0.1)
    np.testing.assert_allclose(np.cov(draws.T), COVARIANCE, atol=0.25)


def test_an_exact_fit_is_left_alone():
    draws, log_q = standard_draws(1000, 3, seed=4)
    matching = match_moments(lambda x: -0.5 * (x**2).sum(axis=1), draws, log_q)
    assert matching.maps == ()
    assert str(matching) == "none"


def test_densities_that_cannot_be_weighed_are_left_alone():
    draws, log_q = standard_draws(100, 2, seed=5)
    assert match_moments(lambda x: np.full(len(x), np.nan), draws, log_q).maps == ()
    assert match_moments(lambda x: np.full(len(x), -np.inf), draws, log_q).maps == ()


@pytest.fixture(scope="module")
def heavy():
    """A Gaussian that is too narrow, and off, for a posterior with heavier tails."""
    with pm.Model() as model:
        pm.StudentT("x", nu=8, mu=1.0, sigma=[1.0, 2.0], shape=2)
    return create_approximation(model, FullGaussian.from_mean_covariance([0.5, 0.0], np.eye(2)))


@pytest.fixture(scope="module")
def matched(heavy):
    return heavy.sample(1000, importance="match", random_seed=6)


def test_matched_draws_are_of_the_posterior(matched):
    x = matched["posterior"]["x"].values[0]
    deviations = np.array([1.0, 2.0]) * np.sqrt(8 / 6)
    assert np.all(abs(x.mean(axis=0) - 1.0) < 4 * deviations / np.sqrt(1000))
    np.testing.assert_allclose(x.std(axis=0), deviations, rtol=0.15)


def test_matching_lowers_khat_and_says_so(heavy, matched):
    stats = matched["sample_stats"]
    with pytest.warns(UnreliableFit):
        plain = heavy.sample(1000, importance="resample", random_seed=6)["sample_stats"]
    assert stats.attrs["khat_unmatched"] == plain.attrs["khat"] > 0.6
    assert stats.attrs["khat"] < stats.attrs["khat_unmatched"] - 0.1
    assert stats.attrs["ess"] > 3 * stats.attrs["ess_unmatched"]
    assert stats.attrs["matched"] != "none"
    assert stats.attrs["resampled"] == 1
    np.testing.assert_allclose(stats["log_weight"], -np.log(1000))


def test_each_draw_has_densities_of_its_own(matched):
    x, sample_stats = matched["posterior"]["x"].values[0], matched["sample_stats"]
    expected = stats.t(8, 1.0, [1.0, 2.0]).logpdf(x).sum(axis=1)
    np.testing.assert_allclose(sample_stats["lp"].values[0], expected)
    # An affine image of a Gaussian is a Gaussian: its log density is quadratic in the draws.
    terms = np.column_stack([np.ones(1000), x, x**2, x[:, 0] * x[:, 1]])
    log_q = sample_stats["log_q"].values[0]
    fitted = terms @ np.linalg.lstsq(terms, log_q, rcond=None)[0]
    np.testing.assert_allclose(fitted, log_q)


def test_the_same_seed_matches_the_same(heavy, matched):
    again = heavy.sample(1000, importance="match", random_seed=6)
    np.testing.assert_array_equal(again["posterior"]["x"], matched["posterior"]["x"])


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
@pytest.mark.parametrize("seed", range(5))
def test_khat_is_never_worse(seed):
    with pm.Model() as model:  # a funnel, for which no affine map does much
        log_scale = pm.Normal("log_scale", 0.0, 1.0)
        pm.Normal("x", 0.0, pm.math.exp(log_scale), shape=2)
    gaussian = DiagonalGaussian.from_mean_covariance([-0.3, 0.0, 0.0], [0.5, 0.6, 0.6])
    approx = create_approximation(model, gaussian)
    attrs = approx.sample(100, importance="match", random_seed=seed)["sample_stats"].attrs
    assert attrs["khat"] <= attrs["khat_unmatched"]


def test_matched_draws_can_be_a_multitrace_and_be_replaced(heavy):
    trace = heavy.sample(
        500, importance="match", replace=True, return_inferencedata=False, random_seed=1
    )
    assert trace["x"].shape == (500, 2)
    assert len(np.unique(trace["x"][:, 0])) < 500
