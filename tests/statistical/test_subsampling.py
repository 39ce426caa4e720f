"""Fits of batches with control variates: as accurate as those of all the data, in a few passes."""

from __future__ import annotations

import os

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from examples.paper import gas_turbine
from pymc_ngvi.core.families import FullGaussian
from tests.conftest import fit

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    not os.environ.get(gas_turbine.VARIABLE),
    reason=f"the gas-turbine data is not in the project; {gas_turbine.VARIABLE} names its folder",
)
def test_three_passes_over_the_gas_turbine_data():
    design, response = gas_turbine.emissions(None)
    rows, dim = design.shape
    exact = ngvi.LinearRegression(design, response, noise_variance=1.0, prior_precision=1 / 5)
    with pm.Model() as model:
        z, y = pm.Minibatch(design, response, batch_size=100)
        x = pm.Normal("x", 0, np.sqrt(5), shape=dim)
        pm.Normal("y", z @ x, 1, observed=y, total_size=rows)
    for seed in range(3):
        approx = fit(model, random_seed=seed, backend="interpreted")
        assert approx.report.passes < 3
        assert exact.posterior(FullGaussian).kl(approx.gaussian) < 0.01 * dim


def test_logistic_regression():
    rng = np.random.default_rng(1)
    rows, dim = 50_000, 6
    x = rng.standard_normal((rows, dim)) + 0.5 * rng.standard_normal((rows, 1))
    y = rng.binomial(1, 1 / (1 + np.exp(-x @ np.linspace(-1, 1, dim)))).astype("int32")

    def build(x, y, **total):
        with pm.Model() as model:
            slopes = pm.Normal("slopes", 0, 5, shape=dim)
            pm.Bernoulli("y", logit_p=x @ slopes, observed=y, **total)
        return model

    reference = fit(build(x, y), backend=None, accuracy=0.005).gaussian
    model = build(*pm.Minibatch(x, y, batch_size=100), total_size=rows)
    for seed in range(5):
        approx = fit(model, random_seed=seed, backend="interpreted")
        error = (approx.gaussian.mean - reference.mean) / np.sqrt(reference.variance)
        assert abs(error).max() < 0.02
        assert abs(np.log(approx.gaussian.variance / reference.variance) / 2).max() < 0.02
        assert approx.report.passes < 5
        assert approx.report.khat < 0.7 or approx.report.verdict.only_tails
