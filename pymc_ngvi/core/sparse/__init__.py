"""Sparse symmetric matrices: structure, factorisation, and Hessians from few products."""

from __future__ import annotations

from pymc_ngvi.core.sparse.colouring import Colouring
from pymc_ngvi.core.sparse.factor import Factor, factorise
from pymc_ngvi.core.sparse.low_rank import LowRankStructure
from pymc_ngvi.core.sparse.pattern import find_pattern
from pymc_ngvi.core.sparse.structure import Structure

__all__ = ["Colouring", "Factor", "LowRankStructure", "Structure", "factorise", "find_pattern"]
