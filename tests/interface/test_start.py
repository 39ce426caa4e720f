"""A previous fit to start from: its Gaussian, or in what its model differs from this one."""

import re

import numpy as np
import pymc as pm
import pytest

from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.interface.start import previous_gaussian
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import create_approximation
from tests.conftest import fit

GAUSSIAN = FullGaussian.from_mean_covariance([1.0, 2.0, 3.0], np.diag([1.0, 2.0, 3.0]))


def build(name: str = "slopes") -> pm.Model:
    with pm.Model() as model:
        pm.HalfNormal("scale")
        pm.Normal(name, shape=2)
    return model


def approximation():
    return create_approximation(build(), GAUSSIAN)


STARTS = {
    "approximation": (approximation, "the approximation"),
    "InferenceData": (lambda: approximation().sample(5), "the fit in the InferenceData"),
    "approximation of PyMC": (lambda: pm.FullRank(model=build()), "the approximation"),
}


@pytest.mark.parametrize(("start", "words"), STARTS.values(), ids=STARTS)
def test_a_start_of_another_model_is_told_in_what_it_differs(start, words):
    other = build("effects")
    layout = Layout(other, other.initial_point())
    message = rf"start: {words} is of another model than this one: .*slopes"
    with pytest.raises(ValueError, match=message):
        previous_gaussian(start(), layout)


@pytest.mark.parametrize("kind", ["approximation", "InferenceData"])
def test_the_gaussian_of_a_previous_fit(kind):
    same = build()
    found = previous_gaussian(STARTS[kind][0](), Layout(same, same.initial_point()))
    np.testing.assert_array_equal(found.mean, GAUSSIAN.mean)
    np.testing.assert_allclose(found.covariance, GAUSSIAN.covariance)


def test_data_of_other_lengths_are_named():
    with pm.Model() as model:
        x = pm.Data("x", np.arange(5.0))
        slope = pm.Normal("slope")
        pm.Normal("y", slope * x, 1, observed=np.arange(5.0))
    approx = fit(model)
    with model:
        pm.set_data({"x": np.zeros(3)})
    shapes = r"shapes: y \(5,\), x \(3,\)"
    with pytest.raises(ValueError, match=rf"cannot be computed at the start: .* {shapes}"):
        fit(model)
    with pytest.raises(Exception) as raised:  # noqa: PT011  any operation may fail
        approx.sample(5, log_likelihood=True)
    assert re.search(shapes, " ".join(raised.value.__notes__))
    assert "log_q" in approx.sample(5)["sample_stats"]


@pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")
def test_a_whole_number_is_an_integer():
    assert len(fit(build(), n_starts=2.0, accuracy=0.5).report.starts) == 2


def test_a_start_of_another_shape_is_named():
    with pm.Model() as model:
        pm.HalfNormal("x", shape=2)
    with pytest.raises(ValueError, match=r"start: x has shape \(3,\), the model asks for \(2,\)"):
        fit(model, start={"x": [1.0, 2.0, 3.0]})


def test_an_initial_value_on_the_boundary_is_left():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", initval=0.0)
        pm.Normal("y", scale, 1, observed=np.array([1.0, 3.0, 2.0]))
    with pytest.warns(UserWarning, match="initial value of scale_log__ is -inf .* boundary"):
        report = fit(model).report
    assert report.status == "converged"
