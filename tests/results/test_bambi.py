"""bambi: a fit by its own `fit`, and draws that its own methods read rightly."""

import numpy as np
import pymc as pm
import pytest

import pymc_ngvi as ngvi

bambi = pytest.importorskip("bambi")
pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def model():
    """A regression whose predictor is far from zero, with a slope for each group."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), 12)
    x = rng.uniform(10, 20, group.size)
    y = 100 + (5 + rng.normal(size=4)[group]) * x + rng.normal(0, 5, group.size)
    kind = rng.choice(["a", "b"], group.size)
    data = pd.DataFrame({"x": x, "y": y, "kind": kind, "group": [f"g{i}" for i in group]})
    return bambi.Model("y ~ x + kind + (0 + x | group)", data)


@pytest.fixture(scope="module")
def approx(model):
    return model.fit(
        inference_method="vi",
        method="ngvi",
        n=3,
        step_size=0.5,
        estimator="stein",
        random_seed=1,
        backend="interpreted",
        progressbar=False,
    )


def test_fit_of_bambi_gives_the_approximation(approx):
    assert isinstance(approx, pm.FullRank)
    assert approx.report.iterations == 3


def test_bambi_predicts_what_the_model_says(model, approx):
    """The linear predictor of each draw, by PyMC's model and by bambi from coefficients."""
    draws = approx.sample(50, random_seed=1)
    expected = draws["posterior"]["mu"].values.copy()
    centred = draws["posterior"]["Intercept"].values.copy()
    idata = ngvi.bambi_results(model, draws)
    names = set(idata["posterior"].data_vars)
    assert not any(name.endswith("_offset") for name in names)
    assert {"Intercept", "x", "kind", "x|group", "sigma"} <= names
    model.predict(idata)
    np.testing.assert_allclose(idata["posterior"]["mu"].values, expected, rtol=1e-10)
    # Without the correction the same prediction is off by the mean of the slopes times 15.
    assert np.abs(idata["posterior"]["Intercept"].values - centred).min() > 40


def test_the_intercept_is_not_changed_twice(model, approx):
    idata = ngvi.bambi_results(model, approx.sample(5, random_seed=1))
    with pytest.raises(ValueError, match="as bambi returns them already"):
        ngvi.bambi_results(model, idata)


def test_what_is_no_bambi_model_is_refused(approx):
    with pytest.raises(TypeError, match="model: Model is not a bambi model that was fitted"):
        ngvi.bambi_results(approx.model, approx.sample(5))
