"""Cross-validation: exact where it can be computed, ArviZ's on draws of NUTS elsewhere."""

import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.results.approximation import create_approximation
from tests.conftest import fit
from tests.models import MODELS


def elpd_of(result) -> float:
    return float(result.elpd if PYMC_6 else result.elpd_loo)


def pointwise_of(result) -> np.ndarray:
    return (result.elpd_i if PYMC_6 else result.loo_i).values


X = np.random.default_rng(3).normal(size=(60, 3))
Y = X @ [1.0, -0.5, 0.0] + 0.8 * np.random.default_rng(4).normal(size=60)


def gaussian_regression(columns: int = 3, y=Y, x=X) -> pm.Model:
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, 2.0, shape=columns)
        pm.Normal("y", x[:, :columns] @ slopes, 0.8, observed=y)
    return model


def exact_posterior(x, y) -> FullGaussian:
    precision = x.T @ x / 0.64 + np.eye(x.shape[1]) / 4
    mean = np.linalg.solve(precision, x.T @ y / 0.64)
    return FullGaussian.from_mean_precision(mean, precision)


def exact_loo(x, y) -> np.ndarray:
    """Log predictive density of each observation given all the others, in closed form."""
    terms = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        posterior = exact_posterior(x[rest], y[rest])
        variance = x[i] @ posterior.covariance @ x[i] + 0.64
        residual = y[i] - x[i] @ posterior.mean
        terms.append(-0.5 * (np.log(2 * np.pi * variance) + residual**2 / variance))
    return np.array(terms)


def approximation(columns: int = 3, *, shift: float = 0.0, widen: float = 1.0):
    """The exact posterior, or one that is off it by so many deviations and wider."""
    q = exact_posterior(X[:, :columns], Y)
    mean = q.mean + shift * np.sqrt(q.variance)
    wide = FullGaussian.from_mean_covariance(mean, widen * q.covariance)
    return create_approximation(gaussian_regression(columns), wide)


@pytest.mark.parametrize("off", [{}, {"shift": 0.3, "widen": 1.5}], ids=["exact", "off"])
def test_loo_is_exact_on_a_conjugate_model(off):
    approx = approximation(**off)
    runs = np.array([pointwise_of(ngvi.loo(approx, random_seed=seed)) for seed in range(8)])
    totals = runs.sum(1)
    error = totals.std(ddof=1) / np.sqrt(len(totals))
    exact = exact_loo(X, Y)
    assert abs(totals.mean() - exact.sum()) < 4 * error + 0.005
    np.testing.assert_allclose(runs.mean(0), exact, atol=0.02)


def test_loo_of_batches_is_that_of_all_rows():
    """Row by row in partitions, or by ArviZ from the log-likelihood of all rows at all draws."""
    with pm.Model() as model:
        x, y = pm.Minibatch(X, Y, batch_size=10)
        slopes = pm.Normal("slopes", 0.0, 2.0, shape=3)
        pm.Normal("y", x @ slopes, 0.8, observed=y, total_size=60)
    approx = create_approximation(model, exact_posterior(X, Y))
    found = ngvi.loo(approx, draws=500, random_seed=1)
    expected = ngvi.loo(approx.sample(500, random_seed=1, log_likelihood=True))
    # ArviZ 0 takes one draw more for the tail.
    tolerance = 1e-6 if PYMC_6 else 1e-3
    np.testing.assert_allclose(pointwise_of(found), pointwise_of(expected), rtol=tolerance)
    for name in ("se", "n_samples", "n_data_points", "good_k", "p" if PYMC_6 else "p_loo"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=3e-2), name
    assert str(found).splitlines()[0] == str(expected).splitlines()[0]


def test_ignoring_the_approximation_would_be_wrong():
    idata = approximation(shift=0.3, widen=1.5).sample(2000, random_seed=1, log_likelihood=True)
    exact = exact_loo(X, Y).sum()
    plain = elpd_of(az.loo(idata))
    corrected = elpd_of(ngvi.loo(idata))
    assert abs(corrected - exact) < 0.1
    assert abs(plain - exact) > 0.5


def test_resampled_draws_are_corrected_already():
    approx = approximation(shift=0.3, widen=1.5)
    idata = approx.sample(2000, random_seed=1, log_likelihood=True, importance="resample")
    assert elpd_of(ngvi.loo(idata)) == pytest.approx(exact_loo(X, Y).sum(), abs=0.25)


def test_both_lines_of_arviz_give_the_same():
    """The number, on the draws of one seed, that the other line gives too."""
    result = ngvi.loo(approximation(shift=0.3, widen=1.5), random_seed=1)
    # The two fit the tails of the weights a little differently; the Monte-Carlo error is 0.02.
    assert elpd_of(result) == pytest.approx(-73.6408, abs=5e-4)
    assert result.n_data_points == 60
    assert "elpd_loo" in str(result)


def test_the_true_model_is_ranked_first():
    models = {"all": approximation(3), "two": approximation(2), "one": approximation(1)}
    table = ngvi.compare(models, random_seed=1)
    assert list(table.index[-1:]) == ["one"]
    exact = {name: exact_loo(X[:, :k], Y).sum() for name, k in zip(models, (3, 2, 1), strict=True)}
    assert list(table.index) == sorted(exact, key=exact.get, reverse=True)
    assert table["weight"].sum() == pytest.approx(1)
    assert {"rank", "se", "khat", "elbo", "elbo_se"} <= set(table.columns)


def test_fits_bring_their_elbo_and_khat():
    model = gaussian_regression()
    with model:
        fitted = pm.fit(method="ngvi", random_seed=1, backend="interpreted", progressbar=False)
    # A model that was sampled: the same draws, without a trace of where they come from.
    posterior = approximation(2).sample(500, random_seed=2, log_likelihood=True)
    sampled = drawn_by_a_sampler(posterior)
    table = ngvi.compare({"fitted": fitted, "sampled": sampled}, random_seed=1)
    assert table.loc["fitted", "elbo"] == pytest.approx(fitted.report.elbo)
    assert table.loc["fitted", "khat"] == fitted.report.khat
    assert table.loc["fitted", "effective"] == pytest.approx(1, abs=0.01)
    assert table.loc["sampled", ["khat", "effective", "elbo", "elbo_se"]].isna().all()


def drawn_by_a_sampler(idata):
    groups = {
        name: {key: value.values for key, value in idata[name].data_vars.items()}
        for name in ("posterior", "log_likelihood")
    }
    return az.from_dict(groups) if PYMC_6 else az.from_dict(**groups)


def test_arviz_compares_the_same_objects():
    idata = {k: approximation(k).sample(500, random_seed=1, log_likelihood=True) for k in (1, 3)}
    from_draws = az.compare({"one": idata[1], "three": idata[3]})
    from_loo = az.compare({"one": ngvi.loo(idata[1]), "three": ngvi.loo(idata[3])})
    assert list(from_draws.index) == list(from_loo.index) == ["three", "one"]


@pytest.mark.parametrize("evaluated", [True, False], ids=["evaluated before", "only after"])
def test_predictions_do_not_stand_in_the_way(evaluated):
    expected = elpd_of(ngvi.loo(approximation(), random_seed=1))
    approx = approximation()
    idata = approximation().sample(30, random_seed=1)
    if evaluated:
        approx.sample(30, random_seed=1)
    # PyMC 5.28 changes the model here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.sample_posterior_predictive(idata, model=approx.model, progressbar=False)
    assert elpd_of(ngvi.loo(approx, random_seed=1)) == expected


def test_missing_data_leaves_the_observed_part_out():
    model = MODELS["missing_data"]()
    # The exact posterior of the mean and of both missing values, given 0.4 and -0.3.
    noise = 1 / 0.36
    precision = np.diag([1 + 4 * noise, noise, noise])
    precision[0, 1:] = precision[1:, 0] = -noise
    mean = 0.1 * noise / (1 + 2 * noise)
    q = FullGaussian.from_mean_precision(np.full(3, mean), precision)
    result = ngvi.loo(create_approximation(model, q), random_seed=1)
    assert result.n_data_points == 2


def test_several_observed_variables_have_to_be_named():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("height", mu, 1, observed=np.zeros(30))
        pm.Normal("weight", mu, 1, observed=np.zeros(20))
    q = FullGaussian.from_mean_covariance([0.0], [[1 / 51]])
    approx = create_approximation(model, q)
    with pytest.raises(ValueError, match=r"observes height, weight: .* var_name="):
        ngvi.loo(approx)
    assert ngvi.loo(approx, var_name="weight").n_data_points == 20
    with pytest.raises(ValueError, match="did you mean 'height'"):
        ngvi.loo(approx, var_name="hight")


def test_what_cannot_be_compared_is_refused():
    idata = approximation().sample(50, random_seed=1)
    with pytest.raises(TypeError, match=r"sample\(log_likelihood=True\)"):
        ngvi.loo(idata)
    with pytest.raises(TypeError, match="not list"):
        ngvi.loo([1, 2])
    with pytest.raises(ValueError, match="two models or more"):
        ngvi.compare({"one": idata})
    shorter = create_approximation(
        gaussian_regression(y=Y[:50], x=X[:50]), exact_posterior(X[:50], Y[:50])
    )
    with pytest.raises(ValueError, match="a has 60 observations and b has 50"):
        ngvi.compare({"a": approximation(), "b": shorter}, random_seed=1)
    scaled = create_approximation(gaussian_regression(y=2 * Y), exact_posterior(X, 2 * Y))
    with pytest.raises(ValueError, match="a and b were fitted to different observations"):
        ngvi.compare({"a": approximation(), "b": scaled}, random_seed=1)


def test_draws_without_a_density_are_refused():
    idata = approximation().sample(50, random_seed=1, log_likelihood=True)
    stats = idata["sample_stats"]
    del stats["lp"]
    with pytest.raises(TypeError, match="no log density of the model"):
        ngvi.loo(idata)


def test_influential_observations_are_counted():
    y = Y.copy()
    y[0] += 40
    approx = create_approximation(gaussian_regression(y=y), exact_posterior(X, y))
    with pytest.warns(UserWarning, match=r"loo: \d+ of 60 observations have a Pareto k above"):
        ngvi.loo(approx, random_seed=1)


def test_nearly_equal_weights_are_no_cause_for_concern():
    """Estimates agree with k-hats above 0.7 too, where more than 80% of the draws are effective."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    with pm.Model() as model:
        a, b, s = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2), pm.HalfNormal("s", 1)
        pm.Normal("y", a + b * x, s, observed=1 + x + rng.normal(size=40))
    approx = fit(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [pointwise_of(ngvi.loo(approx, random_seed=seed)) for seed in range(3)]
    assert np.ptp(found, axis=0).max() < 0.1


def test_wrong_arguments_are_named():
    approx = approximation()
    with pytest.raises(ValueError, match=r"draws must be at least 25 .* got 10"):
        ngvi.loo(approx, draws=10)
    with pytest.raises(TypeError, match="dictionary of models by name"):
        ngvi.compare([approx, approx])


def test_a_model_without_observations_has_none_to_leave_out():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 3, 2), 1, observed=np.array([]))
    draws = ngvi.fit_ngvi(
        model=model, draws=100, random_seed=1, log_likelihood=True, progressbar=False
    )
    with pytest.raises(ValueError, match="y has no observations to leave out"):
        ngvi.loo(draws)
