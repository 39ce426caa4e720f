"""The finite-sum estimator: unbiased, with and without replacement, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_ngvi.core.algorithm import run
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.core.subsampling import LinearRegression, Moments, Subsampling
from pymc_ngvi.errors import NonFiniteError
from tests.conftest import each_family


def regression(n=40, dim=3):
    rng = np.random.default_rng(1)
    design = rng.standard_normal((n, dim)) + 0.5
    response = design @ np.arange(1.0, dim + 1) + rng.standard_normal(n)
    return LinearRegression(design, response, noise_variance=0.5, prior_precision=0.2)


def start(family, dim=3):
    mean = np.zeros(dim)
    return family.from_mean_covariance(
        mean, np.eye(dim) if family.curvature == "full" else np.ones(dim)
    )


@each_family
@pytest.mark.parametrize("replace", [True, False])
def test_unbiased(family, replace):
    model, q = regression(), start(family)
    exact = Subsampling(replace=False)(model, q, model.n_terms, np.random.default_rng(0))
    rng = np.random.default_rng(2)
    estimates = [Subsampling(replace=replace)(model, q, 5, rng) for _ in range(3000)]
    for name in ("gradient", "hessian", "elbo"):
        sample = np.array([getattr(estimate, name) for estimate in estimates])
        z = (sample.mean(axis=0) - getattr(exact, name)) / (sample.std(axis=0) / np.sqrt(3000))
        assert np.abs(z).max() < 4, name


def test_variance_with_and_without_replacement():
    """Without replacement the variance falls by the factor (M - N) / (M - 1)."""
    model, q = regression(), start(FullGaussian)
    rng = np.random.default_rng(3)
    variances = [
        np.var([Subsampling(replace=replace)(model, q, 20, rng).elbo for _ in range(4000)])
        for replace in (True, False)
    ]
    assert variances[1] / variances[0] == pytest.approx(20 / 39, rel=0.1)


@each_family
def test_whole_data_is_exact_in_one_step(family):
    """From the optimum itself for mean-field, whose mean moves by a Jacobi sweep a step."""
    model = regression()
    posterior = model.posterior(family)
    result = run(
        model,
        posterior if family is DiagonalGaussian else start(family),
        n_iterations=1,
        step_size=1.0,
        n_samples=1000,
        estimator=Subsampling(replace=False),
        rng=np.random.default_rng(4),
    )
    assert result.q.kl(posterior) < 1e-20
    assert result.state.evaluations == model.n_terms


def test_posterior_is_the_closed_form():
    model = regression()
    posterior = model.posterior(FullGaussian)
    precision = model.design.T @ model.design / 0.5 + 0.2 * np.eye(3)
    np.testing.assert_allclose(posterior.precision, precision)
    np.testing.assert_allclose(
        precision @ posterior.mean, model.design.T @ model.response / 0.5, rtol=1e-10
    )


def test_elbo_is_the_evidence_at_the_exact_posterior():
    model = regression()
    posterior = model.posterior(FullGaussian)
    estimate = Subsampling(replace=False)(model, posterior, 40, np.random.default_rng(0))
    marginal = 0.5 * np.eye(40) + model.design @ model.design.T / 0.2
    log_det = np.linalg.slogdet(marginal)[1]
    quadratic = model.response @ np.linalg.solve(marginal, model.response)
    evidence = -0.5 * (40 * np.log(2 * np.pi) + log_det + quadratic)
    assert estimate.elbo == pytest.approx(evidence, rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(design=[[1.0]], response=[1.0, 2.0]), "one row for each response"),
        (dict(design=[[1.0], [np.nan]], response=[1.0, 2.0]), "not finite in row 1"),
        (dict(design=[[1.0]], response=[np.inf]), "response is not finite at index 0"),
        (dict(design=[[1.0]], response=[1.0], noise_variance=0.0), "noise_variance"),
        (dict(design=[[1.0]], response=[1.0], prior_precision=np.eye(2)), "prior_precision"),
        (dict(design=[[1.0]], response=[1.0], prior_precision=-1.0), "must be positive definite"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearRegression(**{"noise_variance": 1.0, "prior_precision": 1.0} | arguments)


def test_non_finite_terms_are_reported():
    class Spoiled:
        def __init__(self):
            self.inner = regression()
            self.n_terms, self.dim = self.inner.n_terms, self.inner.dim
            self.prior = self.inner.prior

        def terms(self, q, indices):
            found = self.inner.terms(q, indices)
            return Moments(np.nan, found.gradient, found.hessian)

    with pytest.raises(NonFiniteError, match="value of a batch of 5 terms is not finite"):
        Subsampling()(Spoiled(), start(FullGaussian), 5, np.random.default_rng(0))
