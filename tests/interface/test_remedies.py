"""Fits beyond one Gaussian, and what a user sees of them; eight schools are exact by quadrature."""

import warnings

import numpy as np
import pymc as pm
import pytest
import scipy

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.engine.nesting import Nesting
from pymc_ngvi.interface import fit as fitting
from pymc_ngvi.interface import nest, remedies
from pymc_ngvi.interface.nest import find_held
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import NGVINested
from pymc_ngvi.results.verdict import Verdict, judge
from tests.conftest import evaluate, fit
from tests.interface.test_recentre import schools
from tests.models import MODELS

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def exact():
    """Log evidence, and mean and sd of log tau: all else is Gaussian given tau."""
    grid = np.linspace(-12, 8, 2001)
    tau = np.exp(grid)[:, np.newaxis]
    variance = ERROR**2 + tau**2
    precision = (1 / variance).sum(axis=1) + 1 / 25
    mean = (EFFECT / variance).sum(axis=1) / precision
    squares = (EFFECT**2 / variance).sum(axis=1) - mean**2 * precision
    log_p = -0.5 * (np.log(2 * np.pi * variance).sum(axis=1) + np.log(25 * precision) + squares)
    log_p += scipy.stats.halfcauchy(scale=5).logpdf(tau[:, 0]) + grid
    evidence = scipy.special.logsumexp(log_p) + np.log(grid[1] - grid[0])
    weights = np.exp(log_p - evidence) * (grid[1] - grid[0])
    centre = weights @ grid
    return evidence, centre, np.sqrt(weights @ (grid - centre) ** 2)


@pytest.fixture(scope="module")
def model():
    return schools()


@pytest.fixture(scope="module")
def inference(model):
    return ngvi.NGVI(model=model, nested=["tau"], backend="interpreted", random_seed=1)


@pytest.fixture(scope="module")
def nested(inference):
    return inference.fit(progressbar=False)


@pytest.fixture(scope="module")
def idata(nested):
    return nested.sample(2000, random_seed=1, log_likelihood=True)


class TestNested:
    def test_eight_schools_are_exact(self, nested):
        evidence, mean, sd = exact()
        report = nested.report
        assert report.status == "converged"
        # An ELBO is a lower bound, up to the error of its estimate.
        assert evidence - 0.01 < report.elbo < evidence + 4 * report.elbo_se
        assert report.khat < 0.5
        assert report.ess > 0.99 * report.verdict_draws
        np.testing.assert_allclose(nested.distribution.mean[1], mean, atol=0.01)
        np.testing.assert_allclose(np.sqrt(nested.distribution.variance[1]), sd, rtol=0.01)
        assert not report.verdict.unreliable

    def test_the_report_tells_of_the_grid(self, nested):
        assert nested.report.family == "nested"
        assert any(note.startswith("nested in tau: grid of ") for note in nested.report.notes)
        assert "nested, 10 parameters" in str(nested.report)

    def test_draws_have_the_moments_of_the_fit(self, nested, idata):
        assert isinstance(nested, NGVINested)
        log_tau = np.log(idata["posterior"]["tau"].values.ravel())
        _, mean, sd = exact()
        z = (log_tau.mean() - mean) / (sd / np.sqrt(log_tau.size))
        assert abs(z) < 4
        assert idata["fit"].attrs["family"] == "nested"
        assert np.std(idata["sample_stats"]["log_weight"].values) < 0.1

    def test_weights_compare_and_match_as_those_of_any_fit(self, nested, idata):
        assert (np.asarray(ngvi.loo(idata).pareto_k) < 0.7).all()
        matched = nested.sample(200, random_seed=2, importance="match")
        assert matched["sample_stats"].attrs["khat"] < 0.7

    def test_a_file_gives_the_same_draws(self, nested, idata, model, tmp_path):
        nested.save(tmp_path / "fit.nc")
        loaded = ngvi.load(tmp_path / "fit.nc", model)
        assert isinstance(loaded, NGVINested)
        again = loaded.sample(2000, random_seed=1)["posterior"]["theta"]
        np.testing.assert_allclose(again.values, idata["posterior"]["theta"].values, rtol=1e-12)
        assert loaded.report.notes == nested.report.notes

    def test_pymc_sees_an_approximation(self, nested, model):
        mean, std, cov = nested.mean.eval(), nested.std.eval(), nested.cov.eval()
        np.testing.assert_allclose(mean, nested.distribution.mean)
        np.testing.assert_allclose(std**2, np.diag(cov))
        tau = evaluate(nested.sample_node(model["tau"], size=4000))
        _, centre, sd = exact()
        assert abs(np.log(tau).mean() - centre) < 4 * sd / np.sqrt(4000)
        with pytest.raises(TypeError, match="cannot be changed"):
            _change_mean(nested)

    def test_others_start_from_its_moments(self, nested, model):
        assert isinstance(nested.gaussian, FullGaussian)
        start = ngvi.NGVI(model=model, start=nested, backend="interpreted").approx
        np.testing.assert_allclose(start.gaussian.mean, nested.distribution.mean)
        assert len(nested.nuts_kwargs(chains=2)["initvals"]) == 2

    def test_it_cannot_be_refined(self, inference, nested):
        assert inference.approx is nested
        with pytest.raises(TypeError, match="cannot be refined"):
            inference.refine(10)


def _change_mean(approx):
    shared = approx.params[0]
    before = shared.get_value()
    try:
        shared.set_value(before + 1)
        approx.distribution  # noqa: B018  reading it is what fails
    finally:
        shared.set_value(before)


class TestOptions:
    @pytest.mark.parametrize("value", ["tau", [], [1], {"tau": 1}, True])
    def test_what_nested_is_not(self, value):
        with pytest.raises(ValueError, match="nested must be names"):
            ngvi.NGVI(model=schools(), nested=value)

    def test_a_schedule_has_no_grid(self):
        with pytest.raises(ValueError, match="belongs to the automatic engine"):
            ngvi.NGVI(model=schools(), nested=["tau"], step_size=0.1)
        with pytest.raises(ValueError, match="remedy"):
            ngvi.NGVI(model=schools(), remedy="please")

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["sigma"], "no free variable 'sigma'; it has mu, tau, theta"),
            (["theta"], "theta together have 8 components"),
            (["mu", "tau", "theta"], "have 10 components"),
        ],
    )
    def test_variables_that_cannot_be_held(self, names, message):
        model = schools()
        with pytest.raises(ValueError, match=message):
            find_held(names, Layout(model, model.initial_point()))

    def test_something_has_to_be_left(self):
        model = MODELS["conjugate_normal"]()
        with pytest.raises(ValueError, match="no other parameters"):
            fit(model, nested=["mu"])


class TestRemedies:
    def test_a_good_fit_is_left_alone(self):
        approx = fit(MODELS["linear_regression"](), remedy="auto")
        assert approx.report.family == "fullrank"
        assert approx.importance is None

    def test_a_bad_fit_is_nested_by_the_default_call(self, model):
        approx = ngvi.NGVI(model=model, backend="interpreted", random_seed=1).fit(progressbar=False)
        assert isinstance(approx, NGVINested)
        assert isinstance(approx, pm.FullRank)
        assert approx.report.evaluations < 5_000  # one Gaussian alone spends 14,000
        assert approx.report.elbo > exact()[0] - 0.05
        assert "nested in tau" in approx.report.notes[-1]

    def test_an_early_verdict_changes_nothing_of_a_good_fit(self, monkeypatch):
        monkeypatch.setattr(remedies, "JUDGED_EARLY", 60)
        verdicts = []
        monkeypatch.setattr(fitting, "judge", lambda *a, **k: verdicts.append(1) or judge(*a, **k))
        build = MODELS["linear_regression"]
        automatic, plain = (fit(build(), remedy=how) for how in ("auto", None))
        assert len(verdicts) == 3  # one of them early
        np.testing.assert_array_equal(automatic.gaussian.mean, plain.gaussian.mean)
        np.testing.assert_array_equal(automatic.gaussian.precision, plain.gaussian.precision)
        assert automatic.report.evaluations == plain.report.evaluations

    def test_all_costs_are_counted_whatever_is_kept(self, model, monkeypatch):
        poor = Verdict(elbo=-1e9, khat=2.0, ess=1.0, draws=1000)
        monkeypatch.setattr(nest, "judge", lambda *a, **k: poor)
        options = {"max_evaluations": 1500, "reparametrize": False}
        with (
            pytest.warns(ngvi.UnreliableFit, match="nested in tau"),
            pytest.warns(ngvi.BudgetSpent),
        ):
            approx = fit(model, remedy="auto", **options)
        assert not isinstance(approx, NGVINested)
        assert approx.report.evaluations > approx.history[-1].evaluations + 500

    @pytest.mark.parametrize("limit", ["n", "callback"])
    def test_who_ends_the_fit_gets_what_was_fitted(self, model, limit):
        def stop(approx, losses, i):
            if i >= 3:
                raise StopIteration

        options = {"n": 3} if limit == "n" else {"callbacks": [stop]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ngvi.UnreliableFit)
            warnings.simplefilter("ignore", ngvi.BudgetSpent)
            approx = fit(model, remedy="auto", **options)
        assert not isinstance(approx, NGVINested)
        assert approx.report.status in ("max_iterations", "stopped_by_callback")

    def test_an_interrupted_grid_leaves_the_gaussian(self, model, monkeypatch):
        def interrupt(self):
            raise KeyboardInterrupt

        monkeypatch.setattr(Nesting, "fit", interrupt)
        with pytest.warns(ngvi.UnreliableFit):
            approx = fit(model, remedy="auto")
        assert not isinstance(approx, NGVINested)
        assert approx.report.status == "interrupted"
        assert approx.report.elbo > -32.0  # it was judged before

    def test_a_nested_fit_outlives_an_interrupt_of_what_follows(self, model, monkeypatch):
        poor = Verdict(elbo=-31.3, khat=2.0, ess=1.0, draws=1000)
        monkeypatch.setattr(nest, "judge", lambda *a, **k: poor)
        original = fitting.Fit.resume

        def resume(self, progress):
            self.callbacks = [interrupt]
            original(self, progress)

        def interrupt(approx, losses, i):
            raise KeyboardInterrupt

        monkeypatch.setattr(fitting.Fit, "resume", resume)
        with pytest.warns(ngvi.UnreliableFit):
            approx = fit(model, remedy="auto")
        assert isinstance(approx, NGVINested)
        assert approx.report.status == "interrupted"

    def test_who_names_a_family_gets_it(self, model):
        options = {"family": "fullrank", "max_evaluations": 1500, "reparametrize": False}
        with pytest.warns(ngvi.UnreliableFit), pytest.warns(ngvi.BudgetSpent):
            approx = fit(model, remedy="auto", **options)
        assert not isinstance(approx, NGVINested)

    def test_the_warning_names_what_would_help_in_order(self, model):
        with pytest.warns(ngvi.UnreliableFit) as caught, pytest.warns(ngvi.BudgetSpent):
            fit(model, reparametrize=False, max_evaluations=1500)
        (message,) = (str(w.message) for w in caught if w.category is ngvi.UnreliableFit)
        ways = ['reparametrize="auto"', 'nested=["tau"]', 'importance="match"', "nuts_kwargs"]
        places = [message.index(way) for way in ways]
        assert places == sorted(places)

    def test_centring_is_not_named_where_it_was_chosen(self, model):
        with pytest.warns(ngvi.UnreliableFit) as caught:
            fit(model, accuracy=0.1)
        (message,) = (str(w.message) for w in caught if w.category is ngvi.UnreliableFit)
        assert "reparametri" not in message
        assert 'nested=["tau"]' in message

    def test_it_says_that_nothing_helped(self):
        """A posterior with a wall on four sides, which neither a grid nor a map can bend away."""
        with pm.Model() as model:
            pm.Exponential("x", 1.0, shape=4, default_transform=None)
            pm.Potential("soft", -50 * pm.math.maximum(-model["x"], 0).sum())
        with pytest.warns(ngvi.UnreliableFit, match="did not suffice"):
            approx = fit(model, remedy="auto", max_evaluations=2000)
        assert not isinstance(approx, NGVINested)

    @pytest.mark.filterwarnings("ignore::pymc_ngvi.BudgetSpent")
    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_draws_that_miss_a_tail_are_not_relied_on_because_they_are_matched(self, seed):
        """Half of the sd is beyond the draws: weights are even, matched or not."""
        with pm.Model() as model:
            pm.ExGaussian("v", mu=0, sigma=0.2, nu=3)
        with pytest.warns(ngvi.UnreliableFit, match="the fit is off in v"):
            approx = fit(model, remedy="auto", random_seed=seed, max_evaluations=4000)
        assert approx.importance is None

    def test_matched_draws_are_relied_on(self):
        with pm.Model() as model:
            pm.Gumbel("v", mu=0, beta=1)
        approx = fit(model, remedy="auto")
        report = approx.report
        assert approx.importance == "match"
        assert len(report.verdict.off)
        assert not report.verdict.unreliable
        assert "that sample() matches" in str(report)
        draws = approx.sample(1000, random_seed=1)["posterior"]["v"]
        assert abs(float(draws.std()) / (np.pi / np.sqrt(6)) - 1) < 0.2

    def test_matched_draws_do_not_hide_how_the_fit_ended(self):
        with pm.Model() as model:
            pm.Gumbel("v", mu=0, beta=1)
        with pytest.warns(ngvi.BudgetSpent):
            approx = fit(model, remedy="auto", accuracy=1e-4, max_evaluations=300)
        assert approx.importance == "match"

    def test_what_takes_minutes_is_named_and_not_tried(self, model, monkeypatch):
        monkeypatch.setattr(remedies, "MOST_NUMBERS_NESTED", 10)
        monkeypatch.setattr(remedies, "MOST_NUMBERS_MATCHED", 10)
        with pytest.warns(ngvi.UnreliableFit) as caught:
            approx = fit(model, remedy="auto", accuracy=0.1)
        assert not isinstance(approx, NGVINested)
        assert approx.importance is None
        (message,) = (str(w.message) for w in caught if w.category is ngvi.UnreliableFit)
        assert "did not suffice" not in message
        assert 'nested=["tau"]' in message
        assert "sample(importance=" in message


@pytest.mark.filterwarnings("ignore::pymc_ngvi.BudgetSpent")
def test_of_two_parameters_one_is_left():
    """A pair of axes would leave nothing to fit a Gaussian of."""
    x = np.linspace(-2, 2, 40)
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b")  # without a maximum
        pm.Bernoulli("y", logit_p=a + b * x, observed=(x > 0).astype(int))
    with pytest.warns(ngvi.UnreliableFit):
        approx = fit(model, remedy="auto")
    assert approx.report.verdict.unreliable


def test_an_interrupt_of_the_early_verdict_is_told(monkeypatch):
    """The budget is not spent: whoever is told to raise it waits longer for the same."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "judge", stop)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        approx = fit(schools(), remedy="auto", reparametrize=False)
    assert approx.report.status == "interrupted"
    assert not any(issubclass(warning.category, ngvi.BudgetSpent) for warning in caught)
