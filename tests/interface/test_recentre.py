"""Fits that choose how hierarchies are centred, and what a user sees of it: only better draws."""

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import DiagonalGaussian
from pymc_ngvi.interface.recentre import _carried
from pymc_ngvi.model.compilation import compile_target
from tests.conftest import evaluate, fit
from tests.models import MODELS

pytestmark = pytest.mark.filterwarnings(
    "ignore::pymc_ngvi.UnreliableFit", "ignore::pymc_ngvi.BudgetSpent"
)

QUICK = {"accuracy": 0.2, "max_evaluations": 3000}


def schools():
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": list("abcdefgh")}) as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Deterministic("best", theta.max())
        pm.Normal("y", theta, error, observed=effect, dims="school")
    return model


def many_rows():
    """Groups about which the data say all: nothing is to be changed."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(4), 30)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        theta = pm.Normal("theta", 0.0, scale, shape=4)
        y = np.array([-1.0, 0.0, 0.5, 2.0])[group] + rng.normal(size=120)
        pm.Normal("y", theta[group], 1.0, observed=y)
    return model


@pytest.fixture(scope="module")
def model():
    return schools()


@pytest.fixture(scope="module")
def approx(model):
    return fit(model, **QUICK)


@pytest.fixture(scope="module")
def idata(approx):
    return approx.sample(2000, random_seed=1, log_likelihood=True)


def test_independent_components_are_carried_without_a_matrix(model):
    """A covariance of 50,000 parameters, and the draws to estimate it, take 400 GB."""
    target = compile_target(model, backend="interpreted")
    q = DiagonalGaussian.from_mean_variance(np.full(10, 0.5), np.full(10, 0.01))
    carried = _carried(q, target, {"theta": np.zeros(8)})
    assert isinstance(carried, DiagonalGaussian)
    # theta - mu has mean 0 and variance 0.02, and is divided by tau = exp(0.5 +- 0.1).
    scale = np.exp(-1.0 + 2 * 0.01)
    np.testing.assert_allclose(carried.mean[2:], 0.0, atol=4 * np.sqrt(0.02 * scale / 1000))
    np.testing.assert_allclose(carried.variance[2:], 0.02 * scale, rtol=4 * np.sqrt(2 / 1000))


def test_the_report_says_what_was_done(approx):
    (note,) = approx.report.notes
    assert note.startswith("theta: non-centred (ELBO +")
    assert note in str(approx.report)
    assert approx.report.elbo > -31.9  # no Gaussian on the centred values is above -32.59
    np.testing.assert_array_equal(approx.centring["theta"], np.zeros(8))


def test_the_user_has_their_own_model_and_variables(model, approx, idata):
    assert approx.model is model
    assert [v.name for v in model.value_vars] == ["mu", "tau_log__", "theta"]
    assert list(idata["posterior"].data_vars) == ["mu", "tau", "theta", "best"]
    assert idata["posterior"]["theta"].dims == ("chain", "draw", "school")
    theta = idata["posterior"]["theta"]
    np.testing.assert_allclose(theta.max("school"), idata["posterior"]["best"])
    node = evaluate(approx.sample_node(model["theta"] + 0, size=2000).mean(0))
    np.testing.assert_allclose(node, theta.mean(("chain", "draw")), atol=4 * 7 / np.sqrt(1000))


def test_densities_are_those_of_the_recentred_values(model, idata):
    stats, posterior = idata["sample_stats"], idata["posterior"]
    point = {
        "mu": posterior["mu"].values[0, 0],
        "tau_log__": np.log(posterior["tau"].values[0, 0]),
        "theta": posterior["theta"].values[0, 0],
    }
    expected = model.compile_logp()(point) + 8 * point["tau_log__"]
    assert stats["lp"].values[0, 0] == pytest.approx(expected)
    assert stats.attrs["khat"] < 0.7


def test_pymc_itself_computes_the_same_elbo(approx, idata):
    difference = approx.sized_symbolic_logp - approx.symbolic_logq
    theirs = evaluate(approx.set_size_and_deterministic(difference.mean(), 500, 0))
    ours = (idata["sample_stats"]["lp"] - idata["sample_stats"]["log_q"]).values
    error = ours.std() * np.sqrt(1 / 500 + 1 / ours.size)
    assert abs(theirs - ours.mean()) < 4 * error


def test_predictions_loo_and_other_models_work(approx, idata):
    same = schools()  # PyMC 5 cannot sample a model by NUTS after it has sampled predictions
    predicted = pm.sample_posterior_predictive(idata, model=same, progressbar=False, random_seed=1)
    assert predicted["posterior_predictive"]["y"].shape == (1, 2000, 8)
    assert ngvi.loo(idata).n_data_points == 8
    again = approx.sample(5, model=schools(), random_seed=3)
    expected = approx.sample(5, random_seed=3)
    np.testing.assert_allclose(again["posterior"]["theta"], expected["posterior"]["theta"])


def test_a_saved_fit_is_the_same_fit(model, approx, tmp_path):
    approx.save(tmp_path / "fit.nc")
    loaded = ngvi.load(tmp_path / "fit.nc", schools())
    assert str(loaded.report) == str(approx.report)
    first, second = (one.sample(10, random_seed=2) for one in (approx, loaded))
    np.testing.assert_array_equal(first["posterior"]["theta"], second["posterior"]["theta"])
    np.testing.assert_allclose(
        first["sample_stats"]["lp"], second["sample_stats"]["lp"], rtol=1e-12
    )


@pytest.mark.parametrize("kind", ["approximation", "InferenceData"])
def test_another_fit_goes_on_from_it(model, approx, idata, kind):
    start = approx if kind == "approximation" else idata
    again = fit(model, start=start, n=0)
    np.testing.assert_array_equal(again.centring["theta"], approx.centring["theta"])


def test_nuts_samples_on_the_values_of_the_fit(approx):
    keywords = approx.nuts_kwargs(chains=1, tune=5, random_seed=1)
    draws = pm.sample(
        draws=5,
        cores=1,
        progressbar=False,
        random_seed=1,
        compute_convergence_checks=False,
        **keywords,
    )
    assert list(draws["posterior"].data_vars) == ["mu", "tau", "theta", "best"]
    assert draws["posterior"]["theta"].dims == ("chain", "draw", "school")


def test_the_user_may_say_how():
    plain = fit(schools(), reparametrize=False, n=0)
    assert plain.centring == {}
    assert plain.layout.names[2] == "theta[school=a]"
    half = fit(schools(), reparametrize={"theta": 0.5}, n=0)
    assert half.layout.names[2] == "theta_centring__[school=a]"
    assert half.report.notes == ()
    with pytest.raises(ValueError, match="did you mean 'theta'"):
        fit(schools(), reparametrize={"thta": 0.5})
    with pytest.raises(ValueError, match="reparametrize must be"):
        fit(schools(), reparametrize="yes")


def vectors():
    y = np.random.default_rng(1).multivariate_normal([0, 0], [[1.2, 0.3], [0.3, 1.2]], size=6)
    with pm.Model(coords={"group": range(6), "effect": ["a", "b"]}) as model:
        s = pm.HalfNormal("s", 1.0)
        cov = s**2 * np.array([[1.0, 0.5], [0.5, 1.0]])
        theta = pm.MvNormal("theta", np.zeros(2), cov=cov, dims=("group", "effect"))
        pm.Normal("y", theta, 1.0, observed=y)
    return model


def walk():
    rng = np.random.default_rng(2)
    y = np.cumsum(rng.normal(0, 0.1, 30)) + rng.normal(0, 1, 30)
    with pm.Model(coords={"time": range(30)}) as model:
        s = pm.HalfNormal("s", 1.0)
        start = pm.Normal.dist(0.0, 1.0)
        theta = pm.GaussianRandomWalk("theta", 0.0, s, init_dist=start, dims="time")
        pm.Normal("y", theta, 1.0, observed=y)
    return model


def autoregression():
    y = np.random.default_rng(2).normal(0, 1, 20)
    with pm.Model(coords={"time": range(20)}) as model:
        s = pm.HalfNormal("s", 1.0)
        start = pm.Normal.dist(0.0, 1.0)
        theta = pm.AR("theta", [0.7], sigma=s, init_dist=start, dims="time", steps=19)
        pm.Normal("y", theta, 1.0, observed=y)
    return model


@pytest.mark.parametrize("build", [vectors, walk, autoregression])
def test_the_elbo_rises_where_non_centring_helps(build):
    model = build()
    options = {"accuracy": 0.1, "max_evaluations": 1500}
    recentred, plain = (fit(model, reparametrize=how, **options) for how in ("auto", False))
    assert recentred.report.notes[0].startswith("theta: non-centred")
    assert recentred.report.elbo > plain.report.elbo + 0.5
    theta = recentred.sample(10, random_seed=1)["posterior"]["theta"]
    assert theta.dims[2:] == model.named_vars_to_dims["theta"]


def test_what_needs_no_change_is_not_changed():
    approx = fit(many_rows(), accuracy=0.1)
    plain = fit(many_rows(), accuracy=0.1, reparametrize=False)
    assert approx.centring == {}
    assert approx.report.notes == ()
    assert approx.report.elbo == pytest.approx(plain.report.elbo, abs=0.05)


def test_a_model_without_hierarchy_is_fitted_as_ever():
    build = MODELS["linear_regression"]
    automatic, plain = (fit(build(), n=2, reparametrize=how) for how in ("auto", False))
    np.testing.assert_array_equal(automatic.gaussian.mean, plain.gaussian.mean)
    assert automatic.report.evaluations == plain.report.evaluations


def test_an_approximation_seen_before_the_fit_keeps_its_values():
    inference = ngvi.NGVI(model=schools(), backend="interpreted", random_seed=1)
    seen = inference.approx
    assert inference.fit(2, progressbar=False) is seen
    assert seen.centring == {}


def test_a_schedule_runs_on_the_values_of_the_model():
    approx = fit(schools(), n=2, step_size=0.1, n_samples=4)
    assert approx.centring == {}
