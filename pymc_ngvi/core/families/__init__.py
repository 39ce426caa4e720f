"""Gaussian exponential families: full covariance, sparse precision, low rank, diagonal, centred."""

from __future__ import annotations

import inspect

from pymc_ngvi.arguments import did_you_mean, told
from pymc_ngvi.core.families.base import Gaussian
from pymc_ngvi.core.families.diagonal import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    FactorisedGaussian,
)
from pymc_ngvi.core.families.full import FullGaussian
from pymc_ngvi.core.families.lowrank import LowRankGaussian
from pymc_ngvi.core.families.parameters import Expectation, Natural, standard_normal
from pymc_ngvi.core.families.sparse import SparseGaussian

__all__ = [
    "CentredDiagonalGaussian",
    "DiagonalGaussian",
    "Expectation",
    "FactorisedGaussian",
    "FullGaussian",
    "Gaussian",
    "LowRankGaussian",
    "Natural",
    "SparseGaussian",
    "all_families",
    "get_family",
    "standard_normal",
]


def all_families(base: type[Gaussian] = Gaussian) -> dict[str, type[Gaussian]]:
    """Every concrete family that has a name, by name; one defined by the user as well."""
    found: dict[str, type[Gaussian]] = {}
    for family in base.__subclasses__():
        if not inspect.isabstract(family) and "name" in vars(family):
            found[family.name] = family
        found |= all_families(family)
    return found


def get_family(family: str | type[Gaussian], *others: str) -> type[Gaussian]:
    """Family by name, or the family itself; an error also lists `others`, which are no families.

    Examples
    --------
    >>> get_family("meanfield").__name__
    'DiagonalGaussian'
    """
    if isinstance(family, type) and issubclass(family, Gaussian) and not inspect.isabstract(family):
        return family
    known = {name.lower(): found for name, found in all_families().items()}
    if isinstance(family, str) and family.lower() in known:
        return known[family.lower()]
    words = [*others, *known]
    hint = did_you_mean(family.lower() if isinstance(family, str) else family, words)
    raise ValueError(f"family {told(family)} is none of {', '.join(map(repr, words))}{hint}")
