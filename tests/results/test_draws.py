"""Variables and log densities at many draws are what PyMC computes at each."""

import functools
import warnings

import numpy as np
import pymc as pm
import pytest

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.core.families import DiagonalGaussian
from pymc_ngvi.model import densities, vectorised
from pymc_ngvi.results.approximation import create_approximation
from tests.models import MODELS

# PyMC's own log-likelihood, the reference, refuses models with an `initval`, as "ordered" has.
OBSERVED = [
    name
    for name, build in MODELS.items()
    if build().observed_RVs and name not in ("ordered", "many_variables")
]


def near_the_start(model, n=4):
    """An approximation around the initial point, and flat draws of it."""
    point = model.initial_point(0)
    mean = np.concatenate([np.ravel(value) for value in point.values()]).astype(float)
    gaussian = DiagonalGaussian.from_mean_covariance(mean, np.full(mean.size, 0.01))
    approx = create_approximation(model, gaussian)
    return approx, gaussian.sample(n, np.random.default_rng(1))


@functools.cache
def case(name):
    """A model with an approximation and draws of it, for the tests that leave the model alone."""
    model = MODELS[name]()
    return model, *near_the_start(model)


@pytest.mark.parametrize("name", MODELS)
def test_log_density_is_that_of_the_model(name):
    model, approx, flat = case(name)
    transform = approx._transform_for(model)
    density = transform.log_density(flat)
    logp = model.compile_logp(mode=interpreted_mode())
    expected = [logp(approx.layout.unflatten(row)) for row in flat]
    # PyMC computes constants such as log(2 pi) in single precision.
    np.testing.assert_allclose(density, expected, rtol=1e-5 if name == "float32" else 1e-6)


@pytest.mark.parametrize("name", OBSERVED)
def test_log_likelihood_is_that_of_pymc(name):
    model, approx, _ = case(name)
    idata = approx.sample(4, random_seed=1, log_likelihood=True)
    ours = idata["log_likelihood"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pm.compute_log_likelihood(
            idata,
            model=model,
            extend_inferencedata=False,
            progressbar=False,
            compile_kwargs={"mode": interpreted_mode()},
        )
    assert set(ours.data_vars) == set(theirs.data_vars)
    for variable in theirs.data_vars:
        assert ours[variable].dims == theirs[variable].dims
        tolerance = 1e-4 if name == "float32" else 1e-6
        np.testing.assert_allclose(ours[variable], theirs[variable], rtol=tolerance)


def test_named_axes_keep_the_order_of_the_variable():
    dims = pytest.importorskip("pymc.dims")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pm.Model(coords={"row": list("abc"), "column": [1, 2]}) as model:
            effect = dims.Normal("effect", dims=("column",))
            y = np.arange(6.0).reshape(3, 2)
            observed = dims.as_xtensor(y, dims=("row", "column"))
            dims.Normal("y", effect, 1.0, dims=("row", "column"), observed=observed)
        approx, flat = near_the_start(model)
        likelihood = approx._transform_for(model).log_likelihood(flat)["y"]
        expected = -0.5 * (y - flat[:, np.newaxis]) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(likelihood, expected)


def test_densities_in_chunks_are_the_same(monkeypatch):
    model = MODELS["linear_regression"]()
    approx, flat = near_the_start(model, 50)
    transform = approx._transform_for(model)
    whole = transform.log_density(flat), transform.log_likelihood(flat)["y"]
    monkeypatch.setattr(vectorised, "NUMBERS_PER_CALL", 100)
    np.testing.assert_allclose(transform.log_density(flat), whole[0], rtol=1e-14)
    np.testing.assert_allclose(transform.log_likelihood(flat)["y"], whole[1], rtol=1e-14)


def test_densities_follow_set_data():
    model = MODELS["mutable_data"]()
    approx, flat = near_the_start(model)
    transform = approx._transform_for(model)
    before = transform.log_density(flat)
    with model:
        pm.set_data({"y_data": np.zeros(3), "x": np.ones(3)})
    slope = flat[:, 0]
    expected = -0.5 * (4 * slope**2 + 4 * np.log(2 * np.pi))
    np.testing.assert_allclose(transform.log_density(flat), expected)
    assert not np.allclose(before, expected)


def minibatches():
    x = pm.Minibatch(np.arange(100.0), batch_size=10)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu, 1.0, observed=x, total_size=100)
    return model


def all_the_data():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu, 1.0, observed=np.arange(100.0))
    return model


def test_densities_of_minibatches_are_asked_for():
    approx, _ = near_the_start(minibatches())
    idata = approx.sample(5, random_seed=1)
    assert list(idata["sample_stats"].data_vars) == ["log_q"]
    assert "importance=" in idata["sample_stats"].attrs["lp_missing"]


@pytest.mark.parametrize("chunk", [2**16, 48])
def test_densities_of_minibatches_are_those_of_all_the_data(monkeypatch, chunk):
    """In one chunk and in several."""
    monkeypatch.setattr(densities, "NUMBERS_PER_CALL", chunk * densities.FIRST_DRAWS)
    approx, _ = near_the_start(minibatches())
    own = approx.sample(30, log_likelihood=True, random_seed=1)
    full = approx.sample(30, model=all_the_data(), log_likelihood=True, random_seed=1)
    for group, name in [("log_likelihood", "y"), ("sample_stats", "lp")]:
        np.testing.assert_allclose(own[group][name], full[group][name], rtol=1e-12)


def test_the_full_data_can_stand_in_for_minibatches():
    approx, _ = near_the_start(minibatches())
    idata = approx.sample(30, model=all_the_data(), log_likelihood=True, random_seed=1)
    assert idata["log_likelihood"]["y"].shape == (1, 30, 100)
