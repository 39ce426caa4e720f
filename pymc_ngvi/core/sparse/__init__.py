"""Sparse symmetric matrices: structure, factorisation, and how to find the pattern of a Hessian."""

from __future__ import annotations

from pymc_ngvi.core.sparse.factor import Factor, factorise
from pymc_ngvi.core.sparse.structure import Structure

__all__ = ["Factor", "Structure", "factorise"]
