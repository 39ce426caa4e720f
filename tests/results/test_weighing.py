"""Importance weights of draws: what they mend, and when they say that they cannot."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_ngvi import UnreliableFit
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.results.approximation import create_approximation
from tests.models import MODELS


@pytest.fixture(scope="module")
def exact():
    """The posterior of the conjugate model: precision 1/4 + 3/0.25."""
    precision = 0.25 + 12
    mean = (1.0 * 0.25 + 4 * (0.3 + 1.1 + 0.7)) / precision
    gaussian = FullGaussian.from_mean_covariance([mean], [[1 / precision]])
    return create_approximation(MODELS["conjugate_normal"](), gaussian)


@pytest.fixture(scope="module")
def off():
    """A Gaussian that is off the posterior, which is Beta(9, 5), by half a deviation."""
    gaussian = DiagonalGaussian.from_mean_covariance([0.9], [0.49])
    return create_approximation(MODELS["scalar_parameter"](), gaussian)


BETA_MEAN, BETA_DEVIATION = 9 / 14, np.sqrt(9 * 5 / (14**2 * 15))


def test_ratios_of_an_exact_fit_are_the_evidence(exact):
    idata = exact.sample(100, random_seed=1)
    stats = idata["sample_stats"]
    # The evidence of a conjugate normal model, as a multivariate normal of the data.
    covariance = 0.25 * np.eye(3) + 4.0
    residual = np.array([0.3, 1.1, 0.7]) - 1.0
    evidence = -0.5 * (
        3 * np.log(2 * np.pi)
        + np.linalg.slogdet(covariance)[1]
        + residual @ np.linalg.solve(covariance, residual)
    )
    np.testing.assert_allclose(stats["lp"] - stats["log_q"], evidence, rtol=1e-8)
    np.testing.assert_allclose(stats["log_weight"], -np.log(100), rtol=1e-9)
    assert stats.attrs["khat"] == 0
    assert stats.attrs["ess"] == pytest.approx(100)


def test_densities_are_on_the_unconstrained_scale(off):
    idata = off.sample(20, random_seed=1)
    x = idata["unconstrained_posterior"]["p_logodds__"].values[0]
    p = idata["posterior"]["p"].values[0]
    # Log density of Beta(2, 2) and Binomial(10, p) at 7, with the Jacobian p (1 - p).
    expected = np.log(6 * 120) + 9 * np.log(p) + 5 * np.log1p(-p)
    np.testing.assert_allclose(idata["sample_stats"]["lp"].values[0], expected)
    log_q = -0.5 * ((x - 0.9) ** 2 / 0.49 + np.log(2 * np.pi * 0.49))
    np.testing.assert_allclose(idata["sample_stats"]["log_q"].values[0], log_q)


def test_weights_mend_a_fit_that_is_off(off):
    idata = off.sample(4000, importance="psis", random_seed=1)
    p = idata["posterior"]["p"].values[0]
    weights = np.exp(idata["sample_stats"]["log_weight"].values[0])
    assert weights.sum() == pytest.approx(1)
    error = BETA_DEVIATION / np.sqrt(idata["sample_stats"].attrs["ess"])
    assert abs(weights @ p - BETA_MEAN) < 4 * error
    assert abs(p.mean() - BETA_MEAN) > 10 * error
    assert idata["sample_stats"].attrs["khat"] < 0.7
    assert idata["sample_stats"].attrs["importance"] == "psis"


@pytest.mark.parametrize("replace", [False, True])
def test_resampled_draws_need_no_weights(off, replace):
    idata = off.sample(1000, importance="resample", replace=replace, random_seed=2)
    p = idata["posterior"]["p"].values[0]
    stats = idata["sample_stats"]
    assert abs(p.mean() - BETA_MEAN) < 4 * BETA_DEVIATION / np.sqrt(1000)
    assert p.std() == pytest.approx(BETA_DEVIATION, rel=0.1)
    assert (np.unique(p).size == 1000) == (not replace)
    np.testing.assert_allclose(stats["log_weight"], -np.log(1000))
    assert stats.attrs["resampled"] == 1
    assert stats.attrs["weighed_draws"] == 10_000
    # Each draw keeps the densities that are its own.
    x = idata["unconstrained_posterior"]["p_logodds__"].values[0]
    expected = off.gaussian.log_density(x[:, np.newaxis])
    np.testing.assert_allclose(stats["log_q"].values[0], expected)


def test_the_same_seed_resamples_the_same(off):
    first, second = (off.sample(50, importance="resample", random_seed=7) for _ in range(2))
    np.testing.assert_array_equal(first["posterior"]["p"], second["posterior"]["p"])


def test_resampling_can_give_a_multitrace(off):
    trace = off.sample(50, importance="resample", return_inferencedata=False, random_seed=7)
    assert trace["p"].shape == (50,)


@pytest.mark.parametrize("importance", ["psis", "resample"])
def test_weights_that_cannot_help_are_announced(importance):
    with pm.Model() as model:
        pm.StudentT("x", nu=1.2, mu=0, sigma=1, shape=2)
    narrow = DiagonalGaussian.from_mean_covariance(np.zeros(2), np.full(2, 0.5))
    approx = create_approximation(model, narrow)
    approx.sample(500, random_seed=1)  # nobody asked for weights: nothing to say
    with pytest.warns(UnreliableFit, match="cannot correct this fit"):
        idata = approx.sample(500, importance=importance, random_seed=1)
    assert idata["sample_stats"].attrs["khat"] > 0.7


def test_weights_of_too_few_draws_are_announced(off):
    with pytest.warns(UnreliableFit, match="10 draws are too few to tell"):
        off.sample(10, importance="psis", random_seed=1)


def test_a_density_with_a_step_gives_draws():
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Potential("step", pt.switch(a > 0.5, 2.0, 0.0))
    approx = create_approximation(model, DiagonalGaussian.from_mean_covariance([0.0], [1.0]))
    stats = approx.sample(1000, random_seed=1)["sample_stats"]
    assert stats.attrs["khat"] == 0
    assert len(np.unique(stats["log_weight"].values.round(9))) == 2


def test_unknown_words_are_refused(off):
    with pytest.raises(ValueError, match="did you mean 'resample'"):
        off.sample(5, importance="resampel")
    with pytest.raises(ValueError, match="no place for weights"):
        off.sample(5, importance="psis", return_inferencedata=False)
    with pytest.raises(ValueError, match="no place for weights"):
        off.sample(5, log_likelihood=True, return_inferencedata=False)
    with pytest.raises(ValueError, match="belongs to"):
        off.sample(5, replace=True)
