"""Which family a fit takes where the user leaves it open, and whether it fits in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pymc_ngvi.core.families import FullGaussian, Gaussian, LowRankGaussian, SparseGaussian
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.interface.options import Options
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.report import FEW_PARAMETERS

# A sparse factor is taken where it saves at least this factor of the work of a dense one: sparse
# operations run at a tenth of the speed of dense ones.
_GAIN = 10
# The same for sparse matrices with rows of low rank, where the work is that of dense matrices.
_GAIN_OF_LOW_RANK = 2
# They are taken for so many parameters at least: with fewer, dense matrices cost seconds, and allow
# nested fits.
_FEWEST_LOW_RANK = 1000
# Dense matrices that a fit holds at a time: precisions, factors, Hessians of replicates, secants.
_MATRICES = 16


@dataclass(frozen=True)
class Choice:
    """A family, and why it was chosen; no reason where the user named it."""

    family: type[Gaussian]
    reason: str = ""


def choose_family(options: Options, target: ModelTarget) -> Choice:
    """Return the family of a fit, bound to the structure of the target where it is sparse.

    Raises
    ------
    ValueError
        Where the Hessian has no sparse structure and "sparse" was asked for, or where a dense
        covariance would not fit in memory.
    """
    choice = _choose(options, target) if options.family == "auto" else _named(options, target)
    if not choice.family.factorised and choice.family.curvature == "full":
        _check_memory(target.dim)
    choice.family.load()
    return choice


def _named(options: Options, target: ModelTarget) -> Choice:
    family = options.parts.family
    if issubclass(family, SparseGaussian) and not family.is_bound():
        return Choice(_bound(family, target))
    return Choice(family)


def _choose(options: Options, target: ModelTarget) -> Choice:
    if target.dim <= FEW_PARAMETERS:
        return Choice(FullGaussian, "few parameters")
    if options.projection is not None or options.parts.needs_hessian is False:
        return Choice(FullGaussian, "the projection or the estimator asks for it")
    structure = target.structure
    if structure is None:
        return Choice(FullGaussian, target.no_structure)
    work = target.dim**3 / 3
    if rank := structure.rank:
        if target.dim < _FEWEST_LOW_RANK or structure.flops * _GAIN_OF_LOW_RANK > work:
            return Choice(FullGaussian, f"the Hessian is dense, by {rank:,} of its rows of data")
        reason = f"the Hessian is sparse but for {rank:,} rows of data"
        return Choice(LowRankGaussian.on(structure), reason)
    if structure.flops * _GAIN > work:
        fill = structure.fill / (target.dim * (target.dim + 1) / 2)
        return Choice(FullGaussian, f"the factor of the sparse Hessian fills {fill:.0%}")
    return Choice(SparseGaussian.on(structure), f"{_share(structure)} of the Hessian is not zero")


def _share(structure: Structure) -> str:
    entries = 2 * structure.nnz - structure.dim
    return f"{entries / structure.dim**2:.2g}"


def _bound(family: type[SparseGaussian], target: ModelTarget) -> type[SparseGaussian]:
    """Return a family on the structure of a target; raise where that is of another kind."""
    structure = _required(family, target)
    if family.suits(structure):
        return family.on(structure)
    raise ValueError(
        f'family="{family.name}" is not possible for this model: '
        + (
            'its Hessian is sparse but for some rows. Use family="lowrank"'
            if structure.rank
            else 'its Hessian has no rows of low rank. Use family="sparse"'
        )
    )


def _required(family: type[SparseGaussian], target: ModelTarget) -> Structure:
    """Return the structure of a target, looked for at any size; raise where it has none."""
    structure = target.find_structure()
    if structure is None:
        raise ValueError(
            f'family="{family.name}" is not possible for this model: {target.no_structure}. Use '
            'family="fullrank", or "meanfield" where that takes too much memory'
        )
    return structure


def _check_memory(dim: int) -> None:
    """Raise where the dense matrices of a fit would not fit in memory."""
    needed = 8 * dim**2 * _MATRICES
    try:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return
    if needed > available:
        raise ValueError(
            f"a full covariance of {dim:,} parameters takes about {needed / 2**30:,.0f} GB, and "
            f'this machine has {available / 2**30:,.0f} GB: use family="meanfield", or a model '
            "whose Hessian is sparse"
        )
