"""Model comparison by approximations says what model comparison by NUTS says."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi._compat import PYMC_6
from tests.conftest import fit

pytestmark = [
    pytest.mark.slow,
    # k-hat of a thousand all but equal weights is mostly noise.
    pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit"),
]

RNG = np.random.default_rng(11)
X = RNG.normal(size=(300, 3))
Y = RNG.binomial(1, 1 / (1 + np.exp(-(X @ [1.0, -0.8, 0.0] + 0.3))))


def logistic(columns: int) -> pm.Model:
    """The first two slopes matter, the third does not."""
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slopes = pm.Normal("slopes", 0, 2, shape=columns)
        pm.Bernoulli("y", logit_p=intercept + X[:, :columns] @ slopes, observed=Y)
    return model


@pytest.fixture(scope="module")
def pairs():
    """Of each nested model the approximation, and draws of NUTS."""
    found = {}
    for columns in (1, 2, 3):
        with logistic(columns) as model:
            approx = fit(model)
        # JAX compiles in seconds, and PyMC 6 hands over to nutpie.
        with pytensor.config.change_flags(mode="JAX"), model:
            sampled = pm.sample(
                2000,
                tune=500,
                chains=2,
                cores=1,
                random_seed=1,
                progressbar=False,
            )
        with model:
            pm.compute_log_likelihood(sampled, progressbar=False)
        found[f"{columns} slopes"] = approx, sampled
    return found


def pointwise(elpd) -> np.ndarray:
    return (elpd.elpd_i if PYMC_6 else elpd.loo_i).values


def test_loo_of_a_logistic_regression_is_that_of_nuts(pairs):
    for approx, sampled in pairs.values():
        ours, theirs = ngvi.loo(approx, random_seed=1), az.loo(sampled, pointwise=True)
        difference = pointwise(ours) - pointwise(theirs)
        # Well below the asked two standard errors of the estimate, which are about 16.
        assert abs(difference.sum()) < 0.02 * float(theirs.se)
        assert np.abs(difference).max() < 0.05


def test_nested_models_are_ranked_as_by_nuts(pairs):
    ours = ngvi.compare({name: approx for name, (approx, _) in pairs.items()}, random_seed=1)
    theirs = az.compare({name: sampled for name, (_, sampled) in pairs.items()})
    assert list(ours.index) == list(theirs.index)
    assert ours.index[-1] == "1 slopes"
    assert np.isfinite(ours[["khat", "elbo", "elbo_se"]]).all(axis=None)
    mixed = {name: pair[i % 2] for i, (name, pair) in enumerate(pairs.items())}
    assert list(ngvi.compare(mixed, random_seed=1).index) == list(theirs.index)
