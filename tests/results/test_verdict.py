"""The verdict on a fit: its words, its warning, and when it takes more draws."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.results.checks import FreshDraws, fresh_log_ratios
from pymc_ngvi.results.parameters import make_table
from pymc_ngvi.results.verdict import Verdict, judge
from tests.conftest import fit
from tests.models import MODELS


def checks(shift=0.0, ratio=1.0, error=0.02, size=3):
    """Make a table in which the first parameter is off."""
    columns = {"mean": np.zeros(size), "sd": np.ones(size)}
    columns |= {"shift": np.array([shift, *[0.0] * (size - 1)])}
    columns |= {"sd_ratio": np.array([ratio, *[1.0] * (size - 1)])}
    columns |= {name: np.full(size, error) for name in ("shift_error", "sd_ratio_error")}
    labels = ["psi", *(f"x[{i}]" for i in range(1, size))]
    return make_table(labels, labels, columns)


def target_of(model):
    return compile_target(model, curvature="none", backend="interpreted")


class TestWords:
    def test_words(self):
        assert "good" in str(Verdict(khat=0.2, ess=800, draws=1000))
        assert "fair" in str(Verdict(khat=0.6, ess=500, draws=1000))
        assert "unreliable" in str(Verdict(khat=0.8, ess=500, draws=1000))
        assert "unreliable" in str(Verdict(khat=0.3, ess=20, draws=1000))
        assert "unreliable" in str(Verdict(khat=np.inf, ess=1000, draws=1000))
        # Nearly equal ratios have a tail of any shape, and a weight near 1 all the same.
        tails = Verdict(khat=0.8, ess=995, draws=1000)
        assert str(tails).endswith("good but for the tails")
        assert not tails.unreliable
        assert str(Verdict(khat=0.6, ess=995, draws=1000)).endswith("fair")

    @pytest.mark.parametrize("khat", [0.2, np.nan])
    @pytest.mark.parametrize("ess", [800, np.nan])
    def test_nan_is_never_good(self, khat, ess):
        verdict = Verdict(khat=khat, ess=ess, draws=1000)
        known = not np.isnan([khat, ess]).any()
        assert verdict.weighable == known
        assert verdict.unreliable != known
        assert ("good" in str(verdict)) == known
        assert bool(verdict.warning()) != known

    def test_a_fit_that_was_not_judged_says_so(self):
        assert str(Verdict()) == "not judged"
        assert Verdict().unreliable
        assert Verdict().warning() == ""  # its status says that it was cut short
        failed = Verdict(problem="no room")
        assert str(failed) == "not judged: no room"
        assert failed.warning() == "the fit was not judged: no room"

    def test_a_parameter_that_is_off_changes_word_and_warning(self):
        verdict = Verdict(khat=0.3, ess=500, draws=1000, parameters=checks(ratio=0.43))
        assert verdict.unreliable
        assert verdict.weighable
        assert str(verdict).endswith("1 of 3 parameters off")
        warning = verdict.warning(['nested=["psi"]'], ["matched draws"])
        assert "psi: mean off by 0.00 sd (±0.02), sd 0.43 (±0.02) of the posterior's" in warning
        ways = 'nested=["psi"], or NUTS: pm.sample(**approx.nuts_kwargs())'
        assert warning.endswith(f": matched draws did not suffice; try {ways}")
        assert "\n" not in warning

    def test_weights_that_cannot_be_trusted_accuse_no_parameter(self):
        verdict = Verdict(khat=0.9, ess=300, draws=1000, parameters=checks(ratio=0.43))
        assert len(verdict.off) == 0
        assert "not close to the approximation" in verdict.warning()

    def test_a_good_word_takes_draws_that_are_nearly_all_effective(self):
        few = Verdict(khat=0.17, ess=720, draws=1000, parameters=checks(ratio=0.91))
        assert few.unclear
        assert not Verdict(khat=0.17, ess=900, draws=1000, parameters=checks(ratio=0.91)).unclear
        assert not Verdict(khat=0.17, ess=720, draws=1000, parameters=checks(ratio=0.43)).unclear

    def test_a_parameter_that_overflows_is_off(self):
        verdict = Verdict(khat=0.3, ess=500, draws=1000, parameters=checks(shift=np.nan))
        assert list(verdict.off.index) == ["psi"]


class TestDraws:
    def test_blocks_are_made_again(self, monkeypatch):
        """However small the blocks are, draws come again with the ratios they had."""
        monkeypatch.setattr("pymc_ngvi.results.checks.NUMBERS", 50)
        q = FullGaussian.from_mean_covariance([1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]])
        fresh = FreshDraws(q, np.random.default_rng(1))
        first = fresh.extend(lambda x: x[:, 0], 30)
        ratios = fresh.extend(lambda x: x[:, 0], 100)
        np.testing.assert_array_equal(ratios.reshape(2, 50)[:, :15], first.reshape(2, 15))
        blocks = list(fresh.weighed(ratios))
        assert len(blocks) == 5
        for x, weights in blocks:
            expected = np.exp(x[:, 0] - q.log_density(x)) * 100
            np.testing.assert_allclose(weights, expected)
            np.testing.assert_allclose(x + np.roll(x, len(x) // 2, axis=0), [[2.0, 4.0]] * len(x))

    def test_more_draws_are_taken_if_it_is_unclear_and_the_fit_cost_more(self, monkeypatch):
        monkeypatch.setattr("pymc_ngvi.results.verdict.VERDICT_DRAWS", 200)
        model = MODELS["scalar_parameter"]()
        # A variance of a third leaves ratios whose tail has a shape of 2/3.
        q = DiagonalGaussian.from_mean_covariance([0.635], [0.11])
        target = target_of(model)
        assert judge(target, q, np.random.default_rng(1)).draws == 1800  # which is cheap here
        monkeypatch.setattr("pymc_ngvi.results.verdict._CHEAP", 0)
        monkeypatch.setattr("pymc_ngvi.results.verdict.FEWEST_DRAWS", 200)
        draws = [
            judge(target, q, np.random.default_rng(1), spent=spent).draws
            for spent in (0, 600, 100_000)
        ]
        assert draws == [200, 600, 1800]
        close = DiagonalGaussian.from_mean_covariance([0.635], [0.34])
        assert judge(target, close, np.random.default_rng(1), spent=100_000).draws == 200

    def test_the_same_seed_gives_the_same_verdict(self):
        target, q = (
            target_of(MODELS["scalar_parameter"]()),
            DiagonalGaussian.from_mean_covariance([0.9], [0.4]),
        )
        one, two = (judge(target, q, np.random.default_rng(3)) for _ in range(2))
        assert one == two
        assert one.parameters.equals(two.parameters)


class TestParameters:
    def test_each_component_is_there_on_both_scales(self):
        q = DiagonalGaussian.from_mean_covariance(np.zeros(9), np.full(9, 0.1))
        target = target_of(MODELS["coords_and_dims"]())
        table = judge(target, q, np.random.default_rng(1)).parameters
        assert list(table.index[:3]) == [f"beta[school={s}]" for s in ("Eton", "Harrow", "Rugby")]
        assert "scale_log__[school=Eton, term=1]" in table.index
        assert "scale[school=Rugby, term=2]" in table.index
        assert len(table) == 3 + 6 + 6
        assert set(table["variable"]) == {"beta", "scale"}

    def test_the_fitted_moments_are_those_of_the_fit(self):
        approx = fit(MODELS["linear_regression"]())
        table = approx.report.parameters
        np.testing.assert_array_equal(table["mean"][:5], approx.gaussian.mean)
        np.testing.assert_allclose(table["sd"][:5], np.sqrt(approx.gaussian.variance))
        m, v = approx.gaussian.mean[4], approx.gaussian.variance[4]
        assert table["mean"]["sigma"] == pytest.approx(np.exp(m + v / 2), rel=0.01)

    def test_a_shift_is_told_with_its_error(self):
        """The posterior is Beta(9, 5); on the log-odds scale its moments are polygammas."""
        q = DiagonalGaussian.from_mean_covariance([0.9], [0.25])
        table = judge(
            target_of(MODELS["scalar_parameter"]()), q, np.random.default_rng(1)
        ).parameters
        from scipy.special import polygamma

        mean = polygamma(0, 9) - polygamma(0, 5)
        sd = np.sqrt(polygamma(1, 9) + polygamma(1, 5))
        row = table.loc["p_logodds__"]
        assert row["shift"] == pytest.approx((mean - 0.9) / sd, abs=4 * row["shift_error"])
        assert row["sd_ratio"] == pytest.approx(0.5 / sd, abs=4 * row["sd_ratio_error"])
        own, beta_sd = table.loc["p"], np.sqrt(9 * 5 / (14**2 * 15))
        shift = (9 / 14 - own["mean"]) / beta_sd
        assert own["shift"] == pytest.approx(shift, abs=4 * own["shift_error"] + 0.01)

    def test_constants_are_no_parameters(self):
        """The diagonal of a correlation matrix is none, where PyMC gives the whole matrix."""
        with pm.Model() as model:
            pm.LKJCorr("corr", n=2, eta=2)
        q = DiagonalGaussian.from_mean_covariance([0.0], [0.1])
        table = judge(target_of(model), q, np.random.default_rng(1)).parameters
        assert (table["sd"] > 0).all()
        assert np.isfinite(table["sd_ratio"]).all()

    def test_a_density_that_overflows_has_no_table(self):
        with pm.Model() as model:
            x = pm.Normal("x", 0, 1)
            pm.Potential("wall", pt.switch(x > 1, -np.inf, 0.0))
        q = DiagonalGaussian.from_mean_covariance([0.0], [1.0])
        verdict = judge(target_of(model), q, np.random.default_rng(1))
        assert verdict.khat == np.inf
        assert verdict.parameters.empty
        assert verdict.unreliable


def test_a_fit_that_is_off_warns_and_names_the_parameter():
    """Three steps of 0.2 go half of the way to the posterior N(0.7, 0.5), from one sd off."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("psi"), 1, observed=1.4)
        pm.Normal("other")
    with pytest.warns(ngvi.UnreliableFit, match=r"off in psi: mean off by 0\.5.*\"resample\""):
        report = fit(model, n=3, step_size=0.2).report
    assert report.khat < 0.7
    assert "1 of 2 parameters off" in str(report)
    assert str(report).count("mean off by") == report._repr_html_().count("mean off by") == 1
    psi, other = report.parameters.loc["psi"], report.parameters.loc["other"]
    assert psi["shift"] == pytest.approx(0.8**3, abs=4 * psi["shift_error"])
    assert other["shift"] == pytest.approx(0, abs=4 * other["shift_error"])


def test_log_ratios_of_an_exact_fit_are_constant():
    target = target_of(MODELS["conjugate_normal"]())
    precision = 0.25 + 12
    mean = (1.0 * 0.25 + 4 * (0.3 + 1.1 + 0.7)) / precision
    q = FullGaussian.from_mean_covariance([mean], [[1 / precision]])
    ratios = fresh_log_ratios(target.log_density, q, np.random.default_rng(1), 10)
    np.testing.assert_allclose(ratios, ratios[0])


def student(degrees):
    with pm.Model() as model:
        pm.StudentT("heavy", nu=degrees, mu=0.0, sigma=1.0)
        pm.Normal("other")
    return target_of(model)


class TestMoves:
    """Draws that are moved where weights leave doubt."""

    def test_an_sd_is_off_though_weights_do_not_say_so(self):
        """The fit has 0.71 of the sd; weights say that it is within the limit."""
        q = DiagonalGaussian.from_mean_variance([0.0, 0.0], [1.0, 1.0])
        verdict = judge(student(4.0), q, np.random.default_rng(1), spent=100_000)
        heavy, other = verdict.parameters.loc["heavy"], verdict.parameters.loc["other"]
        assert verdict.moved
        assert heavy["sd_ratio"] < 0.8
        assert other["sd_ratio"] == pytest.approx(1, abs=4 * other["sd_ratio_error"])
        assert list(verdict.off.index) == ["heavy"]

    @pytest.mark.parametrize(
        ("degrees", "variance"), [(4, 1.0), (8, 0.7), (8, 1.1), (30, 0.9), (4, 1.6)]
    )
    def test_students_of_which_a_fifth_of_the_sd_is_missing_are_told_from_others(
        self, degrees, variance
    ):
        """Those of 0.71 and 0.72 of the sd are warned of; none of 0.89 and more is called off.

        A single draw in the tail may leave weights that cannot be trusted: that warns, too.
        """
        truth = np.sqrt(variance * (degrees - 2) / degrees)
        q = DiagonalGaussian.from_mean_variance([0.0, 0.0], [variance, 1.0])
        target = student(float(degrees))
        called = []
        for seed in range(10):
            verdict = judge(target, q, np.random.default_rng(seed), spent=100_000)
            called.append(verdict.unreliable if truth < 0.8 else len(verdict.off) > 0)
        if truth < 0.8:
            assert all(called)
        else:
            assert truth > 0.88
            assert not any(called)

    def test_they_follow_a_ridge_that_no_weight_reaches(self):
        """In a funnel whose neck was fitted, the wide part is far away from all draws."""
        with pm.Model() as model:
            scale = pm.Normal("log_scale", 0.0, 1.0)
            pm.Normal("x", 0.0, pt.exp(scale / 2), shape=3)
        q = DiagonalGaussian.from_mean_variance([-0.3, 0.0, 0.0, 0.0], [0.45, 0.8, 0.8, 0.8])
        verdict = judge(target_of(model), q, np.random.default_rng(1), spent=100_000)
        assert verdict.unreliable
        if verdict.weighable:
            assert verdict.moved
            assert "log_scale" in verdict.off.index

    def test_a_good_fit_is_not_moved(self):
        model = MODELS["conjugate_normal"]()
        report = fit(model).report
        assert report.moved_draws == report.verdict.moved == 0

    def test_they_take_no_more_than_can_be_afforded(self, monkeypatch):
        monkeypatch.setattr("pymc_ngvi.results.verdict._CHEAP", 0)
        monkeypatch.setattr("pymc_ngvi.results.verdict.FEWEST_DRAWS", 1000)
        q = DiagonalGaussian.from_mean_variance([0.0, 0.0], [1.0, 1.0])
        target, evaluated = student(4.0), []
        evaluate = target.evaluate

        def counted(draws, curvature):
            evaluated.append(len(draws))
            return evaluate(draws, curvature)

        monkeypatch.setattr(target, "evaluate", counted)
        verdict = judge(target, q, np.random.default_rng(1), spent=0)
        assert not verdict.moved
        assert not evaluated
        spent = 6000
        verdict = judge(target, q, np.random.default_rng(1), spent=spent)
        assert verdict.moved
        # A gradient counts as three log densities.
        assert 3 * sum(evaluated) <= 1.05 * target.hessian_price * spent / 3

    def test_moves_that_are_rejected_leave_it_to_the_weights(self, monkeypatch):
        monkeypatch.setattr("pymc_ngvi.results.checks.LEAST_ACCEPTED", 1.1)
        q = DiagonalGaussian.from_mean_variance([0.0, 0.0], [1.0, 1.0])
        verdict = judge(student(4.0), q, np.random.default_rng(1), spent=100_000)
        assert not verdict.moved
        assert verdict.parameters.loc["heavy", "sd_ratio"] > 0.8

    def test_moved_draws_tell_whether_a_large_khat_is_about_tails_only(self):
        edge = {"khat": 0.72, "ess": 900, "draws": 1000}
        assert Verdict(**edge, parameters=checks()).unreliable
        assert Verdict(**edge, parameters=checks()).doubtful
        moved = Verdict(**edge, moved=500, parameters=checks())
        assert not moved.unreliable
        assert str(moved).endswith("good but for the tails")
        bad = Verdict(**edge, moved=500, parameters=checks(ratio=0.7))
        assert bad.unreliable
        assert list(bad.off.index) == ["psi"]

    def test_moved_draws_decide_where_there_are_no_weights_to_use(self):
        poor = {"khat": 0.9, "ess": 50, "draws": 1000}
        assert Verdict(**poor, parameters=checks()).unreliable
        good = Verdict(**poor, moved=500, parameters=checks())
        assert not good.unreliable
        assert not good.weighable
        assert str(good).endswith("no parameter off, but no weights to use")
        assert good.warning() == ""
        bad = Verdict(**poor, moved=500, parameters=checks(ratio=0.7))
        assert bad.unreliable
        assert "the fit is off in psi" in bad.warning()

    def test_many_parameters_that_are_nearly_right_are_told_from_one_that_is_not(self):
        """Each of 400 skewed components costs a few thousandths of a nat, and no weight is left."""
        with pm.Model() as model:
            pm.Gamma("x", 20.0, 1.0, shape=400)
        target = target_of(model)
        # The best Gaussian of the logarithm of a gamma variable of shape a has the variance 1 / a.
        mean, variance = np.full(400, np.log(20.0) - 1 / 40), np.full(400, 1 / 20)
        q = DiagonalGaussian.from_mean_variance(mean, variance)
        full = FullGaussian.from_mean_covariance(mean, np.diag(variance))
        verdict = judge(target, full, np.random.default_rng(1), spent=100_000)
        assert not verdict.weighable
        assert verdict.moved
        assert not verdict.unreliable
        variance[7] *= 0.6**2
        narrow = FullGaussian.from_mean_covariance(mean, np.diag(variance))
        verdict = judge(target, narrow, np.random.default_rng(1), spent=100_000)
        assert [name.rpartition("[")[2] for name in verdict.off.index] == ["7]", "7]"]
        # Without correlations in the fit nothing would tell whether they are right.
        verdict = judge(target, q, np.random.default_rng(1), spent=100_000)
        assert verdict.unreliable
        assert not verdict.moved

    def test_where_they_are_called_for(self):
        def doubtful(khat=0.3, ess=900, **off):
            return Verdict(khat=khat, ess=ess, draws=1000, parameters=checks(**off)).doubtful

        assert not doubtful()
        assert doubtful(ratio=0.93)
        assert doubtful(ess=700)
        assert not doubtful(ratio=0.5)  # that is clear
        assert doubtful(khat=0.9, ess=300)
        assert doubtful(khat=0.9)
        assert not doubtful(khat=np.inf, ess=0)
        assert not Verdict(khat=np.nan, ess=np.nan, draws=1000, parameters=checks()).doubtful
