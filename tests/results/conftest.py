"""One fit, and draws of it, for the tests that read and show them."""

from __future__ import annotations

import pytest

from tests.conftest import fit
from tests.models import MODELS


@pytest.fixture(scope="session")
def schools():
    """Twenty iterations on a model with coordinates; how good the fit is does not matter."""
    return fit(MODELS["coords_and_dims"](), n=20, n_samples=10, random_seed=3)


@pytest.fixture(scope="session")
def idata(schools):
    return schools.sample(200, random_seed=5, log_likelihood=True)
