"""A target with some of its components held at fixed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse.structure import Structure
from pymc_ngvi.core.target import Evaluation, Target


class Split:
    """The components of a vector (d,) in two parts: those that are held, and the rest.

    Parameters
    ----------
    dim : int
        Number of components d.
    held : sequence of int
        Indices of those that are held.
    """

    def __init__(self, dim: int, held: ArrayLike) -> None:
        self.dim = dim
        self.held: NDArray[np.intp] = np.asarray(held, np.intp)
        self.rest: NDArray[np.intp] = np.setdiff1d(np.arange(dim), self.held)

    def join(self, held: Array, rest: Array) -> Array:
        """Return rows (n, d) from rows, or a single vector, of held values and rows of the rest."""
        whole = np.empty((len(rest), self.dim))
        whole[:, self.held], whole[:, self.rest] = held, rest
        return whole

    def structure(self, structure: Structure) -> tuple[Structure, NDArray[np.intp]]:
        """Return the structure of the rest, and which values of the whole one are its values."""
        place = np.full(self.dim, -1)
        place[self.rest] = np.arange(self.rest.size)
        rows, columns = place[structure.rows], place[structure.columns]
        # The order of the rest is kept, and with it the order of the values.
        kept = np.flatnonzero((rows >= 0) & (columns >= 0))
        order = place[structure.order]
        inner = Structure(self.rest.size, rows[kept], columns[kept], order[order >= 0])
        return inner, kept


class Conditional(Target):
    """The log density of the rest of a target's components, given the values of some.

    It is not normalised: its integral over the rest is the marginal density of the held values.

    Parameters
    ----------
    target : Target
        One that holds all its data.
    split : Split
    values : array, (k,)
        Values of the held components.
    structure : Structure, optional
        Where the Hessian of the target has entries, if Hessians are evaluated on a structure.
    """

    def __init__(
        self, target: Target, split: Split, values: Array, structure: Structure | None = None
    ) -> None:
        self.target, self.split, self.values = target, split, np.asarray(values, float)
        self.dim = int(split.rest.size)
        self._structure = structure

    @property
    def may_have_kinks(self) -> bool:
        """Whether the log density may have kinks or jumps."""
        return self.target.may_have_kinks

    def kinks(self, draws: Array) -> Sequence[str]:
        """Name what may give the log density a kink or a jump between draws (n, d)."""
        return self.target.kinks(self._whole(draws))

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d) of the rest."""
        return self.target.log_density(self._whole(draws))

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density and derivatives at draws (n, d) of the rest."""
        return self._of_rest(self.target.evaluate(self._whole(draws), curvature), curvature)

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set."""
        return self._of_rest(self.target.average(self._whole(draws), curvature, sets), curvature)

    def _whole(self, draws: Array) -> Array:
        return self.split.join(self.values, draws)

    def _of_rest(self, whole: Evaluation, curvature: str) -> Evaluation:
        rest, hessian = self.split.rest, whole.hessian
        if hessian is not None and curvature == "full":
            hessian = hessian[..., rest[:, np.newaxis], rest]
        elif hessian is not None:
            hessian = hessian[..., self._kept if curvature == "sparse" else rest]
        return replace(whole, gradient=whole.gradient[:, rest], hessian=hessian)

    @cached_property
    def _kept(self) -> NDArray[np.intp]:
        assert self._structure is not None
        return self.split.structure(self._structure)[1]
