"""A model that reads batches of its data, as a target with noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.control_variates import Anchor
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation, averaging
from pymc_ngvi.model.data import Rows
from pymc_ngvi.model.evaluators import Data, every_second, joined
from pymc_ngvi.model.loaded_target import LoadedTarget
from pymc_ngvi.model.passes import LogDensity, Result, Work
from pymc_ngvi.model.target import CURVATURES, MOST_NOISE, FullDensity, Reading

# Draws evaluated together. Each has a batch of its own, so this is how many are held in memory.
_DRAWS_AT_A_TIME = 32
#: Number of draws that share a batch where only log densities are asked for.
DRAWS_A_BATCH = 25
# Number of batches from which the noise of a log density is estimated.
_NOISE_BATCHES = 10
# Up to so many rows, the log density of all the data is computed and not estimated.
_FEW_ROWS = 20_000
# Numbers kept of evaluations at the anchor, so that they need not be repeated.
_KEPT_NUMBERS = 2**23


@dataclass
class Batches:
    """What changes in the course of a fit."""

    controlled: bool  # whether the fit uses control variates
    seed: int  # of the current sequence of batches
    drawn: int = 0  # batches since that seed was set
    rows: int = 0  # read so far, those for anchors included
    anchor: Anchor | None = None  # None for plain batches
    anchors: int = 0  # placed so far
    #: Evaluations of batches at the anchor, by `drawn` after the last of them and their number.
    kept: dict[tuple[int, int], Evaluation] = field(default_factory=dict)

    def restart(self, seed: int) -> None:
        """Note that the batches drawn from now on follow from `seed`."""
        if seed != self.seed:
            self.kept = {}
        self.seed, self.drawn = seed, 0

    def move(self, anchor: Anchor | None) -> None:
        """Replace the anchor."""
        self.anchor, self.kept = anchor, {}


class BatchTarget(LoadedTarget):
    """A compiled model of which every evaluation of a draw sees a batch of its own.

    Without an anchor the batches are plain. With one they are control variates: see
    :mod:`pymc_ngvi.core.control_variates`.

    Parameters
    ----------
    *args
        As for :class:`~pymc_ngvi.model.target.ModelTarget`.
    """

    reads_batches = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._batches = Batches(controlled=True, seed=0)
        self._begun, self._looked_at = False, 0  # rows in search of the structure, before any fit
        self._data.reseed(0)

    @property
    def passes(self) -> float:
        """Rows of data read so far, as a multiple of all rows."""
        return self._batches.rows / self._data.n_rows

    @property
    def reading(self) -> Reading:
        """What was read of the data since `begin`."""
        batches, data = self._batches, self._data
        return Reading(data.n_rows, data.batch_size, batches.rows, batches.anchors)

    @property
    def price(self) -> float:
        """Cost of reading all the data once, as a number of evaluations."""
        return self._data.n_rows / self._data.batch_size

    @property
    def numbers(self) -> int:
        """Numbers that the log density of one draw goes through: those of a batch."""
        return self._data.batch_size

    def begin(self, rng: np.random.Generator, *, controlled: bool) -> None:
        """Prepare for a new fit, with no anchor and no row read.

        Before anything is compiled, raise where the model does not fit its data: where it cannot be
        evaluated at any number of rows, or a row in memory is impossible. Rows on disk, and those
        of large data, are looked at where a log density that has read them is not finite.
        """
        self._check_data()
        # Finding out how to evaluate reads a batch, which must not be one of the fit's.
        assert self._richest_curvature
        # A pass that found the structure, by which the family was chosen, is one of this fit.
        rows, self._looked_at = self._looked_at, 0
        self._batches = Batches(controlled, seed=int(rng.integers(2**63)), rows=rows)
        self._begun = True
        self._data.reseed(self._batches.seed)

    def _look_for_structure(self, too_full: float = 1.0) -> Structure | None:
        before = self._batches.rows
        found = super()._look_for_structure(too_full)
        if not self._begun:
            self._looked_at += self._batches.rows - before
        return found

    def reseed(self, seed: int) -> None:
        """Restart the sequence of batches from `seed`."""
        self._batches.restart(seed)
        self._data.reseed(seed)

    def follow(self, q: Gaussian, planned: int) -> bool:
        """Move the anchor to the mean of `q`, where that pays for `planned` evaluations."""
        anchor = self._batches.anchor
        if not self._batches.controlled:
            return False
        if anchor is not None and not anchor.is_far_from(q, self.price, planned):
            return False
        return self.place_anchor(q)

    def place_anchor(self, q: Gaussian | None) -> bool:
        """Move the anchor to the mean of `q`, or remove it; does nothing without control variates.

        The anchor is also removed where the log density of all the data is not finite at that mean.
        """
        if self._batches.controlled:
            self._batches.move(None if q is None else self._anchor_at(q))
        return self._batches.anchor is not None

    def _anchor_at(self, q: Gaussian) -> Anchor | None:
        """Evaluate all the data at the mean of `q`; None where something is not finite there."""
        curvature = self._curvature_at_anchor(q)
        full = self.evaluate_fully(q.mean[np.newaxis], curvature)
        parts = [full.log_density, full.gradient, *([] if full.hessian is None else [full.hessian])]
        self._batches.anchors += 1
        if all(np.isfinite(part).all() for part in parts):
            return Anchor(q, full, self._functions.structure if curvature == "sparse" else None)
        self._look_for_bad_rows(q.mean)
        return None

    def _curvature_at_anchor(self, q: Gaussian) -> str:
        """Return the form of Hessians at the mean of `q`: on the structure where `q` allows it."""
        curvature, dense = self._richest_curvature, q.curvature == "full"
        sparse = curvature == "full" and not dense and self._functions.structure is not None
        return "sparse" if sparse else curvature

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d), estimated from one batch for every few draws."""
        return self._controlled_density(draws, self._batches.anchor)

    def _controlled_density(self, draws: Array, anchor: Anchor | None) -> Array:
        # Draws share a batch because its derivatives at the anchor take most of the time.
        draws = self._as_draws(draws)
        parts = []
        for start in range(0, len(draws), DRAWS_A_BATCH):
            part = draws[start : start + DRAWS_A_BATCH]
            rows = self._draw_rows()
            value = self._functions.density(part, rows)
            if anchor is not None:
                here = Evaluation(value, np.zeros(part.shape), None)
                there = self._at_mean(anchor, [rows])
                value = anchor.control(part, here, there).log_density
            parts.append(value)
        return np.concatenate(parts)

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d), each estimated from a batch."""
        draws = self._as_draws(draws)
        parts = []
        for start in range(0, len(draws), _DRAWS_AT_A_TIME):
            part = draws[start : start + _DRAWS_AT_A_TIME]
            drawn = [self._draw() for _ in part]
            here, there = self._evaluate_batches(part, curvature, [r.arguments for r in drawn])
            for i in np.flatnonzero(~np.isfinite(here.log_density))[:1]:
                self._row_terms.check(part[i], drawn[i])
            anchor = self._batches.anchor
            if anchor is not None and there is not None:
                here = anchor.control(part, here, there)
            parts.append(here)
        return joined(parts)

    def _evaluate_batches(
        self, draws: Array, curvature: str, data: list[Data]
    ) -> tuple[Evaluation, Evaluation | None]:
        """Evaluate each draw on a batch of its own, and the batches at the anchor if there is one.

        The latter are recalled where these batches, drawn last, were evaluated there before.
        """
        batches, which = self._batches, (self._batches.drawn, len(data))
        if batches.anchor is None or which in batches.kept:
            return self._evaluate_each(draws, curvature, data), batches.kept.get(which)
        here, there = self._evaluate_twice(batches.anchor, draws, curvature, data)
        size = 0 if there.hessian is None else there.hessian.size
        if (len(batches.kept) + 1) * size < _KEPT_NUMBERS:
            batches.kept[which] = there
        return here, there

    def _evaluate_twice(
        self, anchor: Anchor, draws: Array, curvature: str, data: list[Data]
    ) -> tuple[Evaluation, Evaluation]:
        """Evaluate each draw on a batch of its own, and the batches at the anchor."""
        if anchor.structure is None or curvature == "none":
            return self._evaluate_each(draws, curvature, data), self._at_mean(anchor, data)
        # One after the other, so that the matrices of each batch are built once.
        means = np.broadcast_to(anchor.q.mean, draws.shape)
        both = self._as_draws(np.stack([draws, means], axis=1).reshape(-1, self.dim))
        found = self._evaluate_each(both, "sparse", [rows for rows in data for _ in range(2)])
        here, there = every_second(found, 0), every_second(found, 1)
        if curvature == "diagonal":
            assert here.hessian is not None
            here = replace(here, hessian=anchor.structure.diagonal_of(here.hessian))
        return here, there

    def _at_mean(self, anchor: Anchor, data: list[Data]) -> Evaluation:
        at = self._as_draws(np.repeat(anchor.q.mean[np.newaxis], len(data), axis=0))
        return self._evaluate_each(at, anchor.curvature, data)

    def _evaluate_each(self, draws: Array, curvature: str, data: list[Data]) -> Evaluation:
        """Evaluate each draw on rows of its own."""
        check_choice("curvature", curvature, CURVATURES)
        if curvature != "none":
            self._ensure_hessian()
        return self._functions.evaluate_each(draws, curvature, data)

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set."""
        found = self.evaluate(draws, curvature)
        assert found.hessian is not None
        means = np.tensordot(averaging(len(draws), sets), found.hessian, axes=1)
        return replace(found, hessian=means)

    def of_all_data(self, q: Gaussian, rng: np.random.Generator) -> FullDensity:
        """Return the log density of all the data, for draws from `q`.

        It is estimated from batches if the current anchor leaves little noise. Otherwise all the
        data are evaluated at every draw if they have few rows, and if they have many, batches are
        taken with a new anchor at the mean of `q`. The fit goes on with that anchor only if it uses
        control variates.
        """
        anchor, noise = self._batches.anchor, np.inf
        if anchor is not None:
            noise = self._noise(q, rng, anchor)
        if noise > MOST_NOISE and self.small:
            return FullDensity(self._full_log_density)
        if noise > MOST_NOISE:
            anchor = self._anchor_at(q)
            if anchor is not None:
                noise = self._noise(q, rng, anchor)
            if self._batches.controlled:
                self._batches.move(anchor)
        return FullDensity(
            lambda draws: self._controlled_density(draws, anchor), noise, DRAWS_A_BATCH
        )

    def _noise(self, q: Gaussian, rng: np.random.Generator, anchor: Anchor) -> float:
        """Estimate the standard deviation that batches leave in the log density at draws of q."""
        draws = q.sample(_NOISE_BATCHES * DRAWS_A_BATCH, rng)
        once, twice = (self._controlled_density(draws, anchor) for _ in range(2))
        return float(np.sqrt(np.mean(np.square(once - twice)) / 2))

    @property
    def small(self) -> bool:
        """Whether the rows are so few that log densities are computed from all of them."""
        return self._data.n_rows <= _FEW_ROWS

    def _full_log_density(self, draws: Array) -> Array:
        return self._pass(LogDensity(self._as_draws(draws), self._chunk_size))

    def _pass(self, work: Work[Result]) -> Result:
        """Do a piece of work on all the data, and count their rows."""
        self._batches.rows += self._data.n_rows
        return super()._pass(work)

    def _draw_rows(self) -> Data:
        """Draw one batch, as arguments of a compiled function."""
        return self._draw().arguments

    def _draw(self) -> Rows:
        rows = self._data.draw()
        self._batches.drawn += 1
        self._batches.rows += rows.count
        return rows
