"""What the tests share: every family, a quick fit, and functions that run uncompiled."""

from __future__ import annotations

import gc

import numpy as np
import pymc as pm
import pytensor
import pytest
from hypothesis import settings
from pymc.pytensorf import find_rng_nodes, reseed_rngs

import pymc_ngvi  # noqa: F401  registers the method
from pymc_ngvi.core.families import SparseGaussian, all_families
from pymc_ngvi.core.sparse import Structure

# The same examples in every run: whether the suite passes is no matter of luck or of machine.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")


class Everywhere(SparseGaussian):
    """The sparse family on a structure with all entries: it must do what the full family does."""

    @classmethod
    def of(cls, dim):
        return cls.on(Structure.full(dim))


class Ring(SparseGaussian):
    """The sparse family on a ring, whose factor has entries that the precision has not."""

    @classmethod
    def of(cls, dim):
        return cls.on(Structure(dim, np.arange(dim), np.roll(np.arange(dim), 1)))


FAMILIES = [family for family in all_families().values() if family.curvature != "sparse"]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
#: Those that need a structure as well; a test calls :func:`of` to give it to them.
ALL_FAMILIES = [*FAMILIES, Everywhere, Ring]
every_family = pytest.mark.parametrize(
    "family", ALL_FAMILIES, ids=lambda family: vars(family).get("name", family.__name__.lower())
)


def of(family, dim):
    """Return the family for members of this dimension."""
    return family.of(dim) if hasattr(family, "of") else family


def represent(family, matrix):
    """Represent a symmetric matrix (d, d) as the family does."""
    if family.curvature == "full":
        return matrix
    return (
        np.diag(matrix).copy()
        if family.curvature == "diagonal"
        else family.structure.values(matrix)
    )


def fit(model, **options):
    """Fit a model by NGVI, interpreted, with a seed and one Gaussian unless `options` differ."""
    defaults = dict(method="ngvi", random_seed=1, backend="interpreted", progressbar=False)
    defaults["remedy"] = None
    return pm.fit(model=model, **defaults | options)


def evaluate(node, seed=1):
    """Evaluate a graph that PyMC draws at random in, which has no seed of its own."""
    reseed_rngs(find_rng_nodes([node]), seed)
    return node.eval()


@pytest.fixture(autouse=True, scope="session")
def _collect_seldom():
    """Look for cycles of garbage seldom: among all the graphs it took a fifth of the time."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what was imported stays
    gc.set_threshold(50_000)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _interpreted():
    """Run PyTensor functions in Python, PyMC's own too: compiling would take most of the time.

    Nor does PyTensor note where each node of a graph was made, which takes some of the rest.
    """
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx="", traceback__limit=0):
        yield
