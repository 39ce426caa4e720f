"""A previous fit to start from: its Gaussian, or in what its model differs from this one."""

import numpy as np
import pymc as pm
import pytest

from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.interface.start import previous_gaussian
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import create_approximation

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
