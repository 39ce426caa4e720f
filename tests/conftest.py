"""What the tests share: every family, a quick fit, and functions that run uncompiled."""

from __future__ import annotations

import pymc as pm
import pytensor
import pytest

import pymc_ngvi  # noqa: F401  registers the method
from pymc_ngvi.core.families import all_families

FAMILIES = list(all_families().values())
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def fit(model, **options):
    """Fit a model by NGVI, interpreted and with a seed unless `options` say otherwise."""
    defaults = dict(method="ngvi", random_seed=1, backend="interpreted", progressbar=False)
    return pm.fit(model=model, **defaults | options)


@pytest.fixture(autouse=True, scope="session")
def _interpreted():
    """Run PyTensor functions in Python, PyMC's own too: compiling would take most of the time."""
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield
