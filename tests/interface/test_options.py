"""The options of a fit: what was given is kept apart from what follows from it."""

from __future__ import annotations

import warnings
from dataclasses import fields

import hypothesis.extra.numpy as hnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_ngvi as ngvi
from pymc_ngvi.errors import DomainError
from pymc_ngvi.interface.options import Options, Run
from pymc_ngvi.model.hessian import HessianFallbackWarning
from tests.conftest import fit

# Fits of a few iterations are far from the posterior.
pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.errors.UnreliableFit")


class TestGuardAndProjection:
    """Without a guard, a projection with an upper bound clips: the projection of this very fit."""

    NARROW, WIDE = ngvi.EigenvalueBounds(0.5, 2.0), ngvi.EigenvalueBounds(0.1, 10.0)

    @staticmethod
    def inference(projection):
        """One step of size 1, whose plain update has a negative precision."""
        with pm.Model() as model:
            x = pm.Flat("x")
            pm.Potential("valley", 0.1 * x**2 - 0.001 * x**4)
        return ngvi.NGVI(
            model=model,
            guard="none",
            projection=projection,
            step_size=1.0,
            n_samples=2,
            random_seed=1,
            backend="interpreted",
        )

    @pytest.mark.parametrize("before", [None, NARROW])
    def test_a_projection_of_one_fit_is_what_clips_in_it(self, before):
        approx = self.inference(before).fit(1, projection=self.WIDE, progressbar=False)
        np.testing.assert_allclose(approx.gaussian.variance, 10.0)

    def test_no_projection_in_one_fit_means_no_clipping_in_it(self):
        with pytest.raises(DomainError, match="lost positive definiteness"):
            self.inference(self.NARROW).fit(1, projection=None, progressbar=False)

    def test_the_next_fit_has_the_projection_of_the_constructor_again(self):
        inference = self.inference(self.NARROW)
        inference.fit(1, projection=self.WIDE, progressbar=False)
        approx = inference.fit(1, progressbar=False)
        np.testing.assert_allclose(approx.gaussian.variance, 2.0)


class Square(Op):
    """x**2 with a gradient, which has none itself."""

    __props__ = ("slope",)

    def __init__(self, *, slope: bool = False) -> None:
        self.slope = slope

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0] if self.slope else inputs[0] ** 2

    def pullback(self, inputs, outputs, cotangents):
        if self.slope:
            raise NotImplementedError("no second derivative")
        return [cotangents[0] * Square(slope=True)(inputs[0])]

    L_op = pullback


class Own:
    """An estimator of one's own around another, with a count of its calls."""

    name = "own"

    def __init__(self, inner):
        self.inner = inner
        self.calls = 0

    def __call__(self, target, q, n_samples, rng):
        self.calls += 1
        return self.inner(target, q, n_samples, rng)


class TestMissingHessians:
    """An estimator that needs Hessians is replaced where there are none; no other one is."""

    @staticmethod
    def two_steps(estimator):
        with pm.Model() as model:
            x = pm.Normal("x", shape=2)
            pm.Potential("squares", -Square()(x - 1.0).sum())
        return fit(model, n=2, estimator=estimator, step_size=0.5, n_samples=6)

    def fit(self, estimator):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HessianFallbackWarning)
            return self.two_steps(estimator)

    @pytest.mark.parametrize("antithetic", [True, False])
    def test_stein_takes_over_the_draws(self, antithetic):
        replaced = self.fit(ngvi.BonnetPrice(antithetic=antithetic))
        asked_for = self.fit(ngvi.Stein(antithetic=antithetic))
        assert replaced.report.estimator == "stein"
        np.testing.assert_array_equal(replaced.gaussian.mean, asked_for.gaussian.mean)

    def test_an_estimator_from_gradients_is_kept(self):
        estimator = Own(ngvi.Stein())
        assert self.fit(estimator).report.estimator == "own"
        assert estimator.calls == 3  # one to see whether it asks for Hessians

    def test_an_estimator_that_asks_for_hessians_without_saying_so_is_replaced(self):
        assert self.fit(Own(ngvi.BonnetPrice())).report.estimator == "stein"

    def test_an_estimator_that_says_so_has_no_hessian_built(self):
        """The fit warns of no fallback: nobody looked for a Hessian."""
        estimator = Own(ngvi.Stein())
        estimator.needs_hessian = False
        with warnings.catch_warnings():
            warnings.simplefilter("error", HessianFallbackWarning)
            self.two_steps(estimator)
        assert estimator.calls == 2


def test_none_of_a_keyword_leaves_the_word_to_inf_kwargs():
    with pm.Model() as model:
        pm.Normal("x")
    seeds = [fit(model, random_seed=None, inf_kwargs={"random_seed": seed}).seed for seed in (3, 4)]
    assert seeds == [3, 4]


class TestNoIterations:
    """``n=0`` is PyMC's way to ask for the approximation as it starts."""

    SCHEDULES = pytest.mark.parametrize(
        "schedule", [{}, {"step_size": 0.5, "n_samples": 4}], ids=["automatic", "schedule"]
    )

    @staticmethod
    def inference(**options):
        with pm.Model() as model:
            x = pm.Normal("x", shape=2)
            pm.Normal("y", x, 0.5, observed=[3.0, 4.0])
        return ngvi.NGVI(model=model, backend="interpreted", random_seed=1, **options)

    @SCHEDULES
    def test_the_approximation_is_the_start(self, schedule):
        """As PyMC's own tests have it: the mean is `start`, the deviations are `start_sigma`."""
        inference = self.inference(start={"x": [1.0, 2.0]}, start_sigma={"x": 0.3}, **schedule)
        approx = inference.fit(0, progressbar=False)
        np.testing.assert_allclose(approx.gaussian.mean, [1, 2])
        np.testing.assert_allclose(approx.gaussian.variance, 0.3**2)
        assert approx.hist.shape == (0,)
        assert approx.history == []
        assert approx.report.status == "initialised"
        assert approx.report.iterations == approx.report.evaluations == 0
        assert "not judged" in str(approx.report)
        assert approx.sample(5, random_seed=1)["posterior"]["x"].shape == (1, 5, 2)

    @SCHEDULES
    def test_refine_goes_on_as_a_fit_would_have(self, schedule):
        refined, fitted = self.inference(**schedule), self.inference(**schedule)
        refined.fit(0, progressbar=False)
        refined.refine(5, progressbar=False)
        fitted.fit(5, progressbar=False)
        np.testing.assert_array_equal(refined.approx.gaussian.mean, fitted.approx.gaussian.mean)
        assert refined.approx.report.status == fitted.approx.report.status
        assert len(refined.hist) == len(fitted.hist) > 0

    def test_it_is_saved(self, tmp_path):
        approx = self.inference().fit(0, progressbar=False)
        approx.save(tmp_path / "start.nc")
        loaded = ngvi.load(tmp_path / "start.nc", model=approx.model)
        assert loaded.report.status == "initialised"
        np.testing.assert_array_equal(loaded.gaussian.mean, approx.gaussian.mean)


# Whatever is given for an option is taken, or refused by the name of the option.

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([10**400, 2**63, 1e-300, 1e300, np.float32(0.5), np.int8(1)]),
    st.floats(),
    st.complex_numbers(),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.binary(max_size=3), st.dates()
)
PARTS = st.sampled_from(
    [
        *(int, object, ngvi, print, len, slice(3), ..., pm.Model, np.float64, ngvi.Stein),
        *(lambda: 0, lambda *_: None, lambda t: t, lambda t: 1 / t, lambda *_: 1j, object()),
        *(np.random.default_rng(1), np.random.RandomState(1), pm.Normal.dist()),
    ]
)
ARRAYS = hnp.arrays(
    st.sampled_from(["f8", "i4", "O", "U2", "M8[s]"]), hnp.array_shapes(min_dims=0, max_side=3)
)
JUNK = st.recursive(
    LEAVES | PARTS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.frozensets(LEAVES, max_size=2),
        st.dictionaries(LEAVES | st.just("x") | st.just("mode"), inner, max_size=2),
    ),
    max_leaves=4,
)
OTHERS = ["model", "backend", "compile_kwargs", "loader", "inf_kwargs"]


class Reached(Exception):
    """All checks are done, and compiling would begin."""


with pm.Model() as MODEL:
    pm.Normal("x", shape=2)


def stop(*_, **__):
    raise Reached("compiling begins")


@pytest.mark.parametrize(
    "name", [field.name for kind in (Options, Run) for field in fields(kind)] + OTHERS
)
@given(value=JUNK)
@settings(max_examples=20)
def test_any_value_of_an_option_is_taken_or_refused_by_name(name, value):
    keywords = dict(model=MODEL, backend="interpreted", progressbar=False) | {name: value}
    named = rf"{name}|has no option" if name == "inf_kwargs" else name
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("pymc_ngvi.interface.inference.prepare", stop)
        patch.setattr("pymc_ngvi.model.compiler.Compiler.function", stop)
        with pytest.raises((Reached, TypeError, ValueError), match=f"compiling begins|{named}"):
            pm.fit(method="ngvi", **keywords)
