"""A model that reads batches of its data, as a target with noise, and ways to have less of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc

from pymc_ngvi.core.control_variates import Anchor
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.model.minibatches import Batched
from pymc_ngvi.model.target import FullDensity, ModelTarget, Reading

# Numbers in a chunk of rows, and in the derivatives of each with respect to each parameter: 30 MB.
_CHUNK_NUMBERS = 2**22
_LARGEST_CHUNK = 2**16
# Draws evaluated together, and so batches that are in memory at a time.
_DRAWS_AT_A_TIME = 32
#: Draws whose log density is estimated from one batch, where nothing else is asked for.
DRAWS_A_BATCH = 25
# Batches by which the noise of a log density is estimated.
_NOISE_BATCHES = 10
#: Standard deviation, in nats, that batches may add to the logarithm of an importance ratio.
MOST_NOISE = 0.1
# Rows that are few.
_FEW_ROWS = 20_000
# Numbers kept of batches at the anchor, so that they need not be evaluated there again.
_KEPT_NUMBERS = 2**23


class BatchTarget(ModelTarget):
    """A compiled model of which every evaluation of a draw sees a batch of its own.

    Without an anchor the batches are plain. With one they are control variates: see
    :mod:`pymc_ngvi.core.control_variates`.

    Parameters
    ----------
    batched : Batched
        Where the batches enter.
    *args, **kwargs
        As for :class:`~pymc_ngvi.model.target.ModelTarget`.

    Attributes
    ----------
    controlled : bool
        Whether `follow` may place anchors.
    anchor : Anchor or None
        The current one.
    anchors : int
        Anchors placed so far.
    rows : int
        Rows read so far, those of anchors included.
    """

    reads_batches = True

    def __init__(self, batched: Batched, model: pymc.Model, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, batched=batched, **kwargs)
        self.batched = batched
        self._reset(0, controlled=True)

    @property
    def passes(self) -> float:
        """Rows read so far, in passes over the data."""
        return self.rows / self.batched.n_rows

    @property
    def reading(self) -> Reading:
        """What was read of the data since `begin`."""
        return Reading(self.batched.n_rows, self.batched.batch_size, self.rows, self.anchors)

    @property
    def price(self) -> float:
        """Cost of reading all the data once, as a number of evaluations."""
        return self.batched.n_rows / self.batched.batch_size

    @property
    def current(self) -> bool:
        """Whether the data are still those in the model's containers."""
        return self.batched.current

    def begin(self, rng: np.random.Generator, *, controlled: bool) -> None:
        """Prepare for a new fit: no anchor, and no row read."""
        self._reset(int(rng.integers(2**63)), controlled=controlled)

    def _reset(self, seed: int, *, controlled: bool) -> None:
        self.controlled = controlled
        self.anchor: Anchor | None = None
        self.anchors = self.rows = 0
        self._seed: int | None = None
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Let the batches drawn from now on follow from `seed`."""
        if seed != self._seed:
            self._kept: dict[tuple[int, int], Evaluation] = {}
        self._seed, self._drawn = seed, 0
        for i, feed in enumerate(self.batched.feeds):
            feed.loader.reseed(seed + i)

    def follow(self, q: Gaussian, planned: int) -> bool:
        """Place a new anchor at the mean of q, where that pays.

        Parameters
        ----------
        q : Gaussian
        planned : int
            Evaluations that are to follow.

        Returns
        -------
        bool
            Whether there is a new one.
        """
        if not self.controlled:
            return False
        if self.anchor is not None and not self.anchor.is_far_from(q, self.price, planned):
            return False
        return self.place_anchor(q)

    def place_anchor(self, q: Gaussian | None) -> bool:
        """Move the anchor to the mean of `q`, or remove it; does nothing without control variates.

        There is no anchor where the log density of all the data is not finite.
        """
        if self.controlled:
            self.anchor = None if q is None else self._anchor_at(q)
            self._kept = {}
        return self.anchor is not None

    def _anchor_at(self, q: Gaussian) -> Anchor | None:
        """Evaluate all the data at the mean of `q`."""
        full = self.evaluate_fully(q.mean[np.newaxis], self._richest_curvature)
        parts = [full.log_density, full.gradient, *([] if full.hessian is None else [full.hessian])]
        self.anchors += 1
        return Anchor(q, full) if all(np.isfinite(part).all() for part in parts) else None

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d), each few of them estimated from a batch.

        Draws share a batch, as its derivatives at the anchor would take most of the time.
        """
        return self._controlled_density(draws, self.anchor)

    def _controlled_density(self, draws: Array, anchor: Anchor | None) -> Array:
        draws = self._as_draws(draws)
        parts = []
        for start in range(0, len(draws), DRAWS_A_BATCH):
            part = draws[start : start + DRAWS_A_BATCH]
            data = self._common_data()
            value = self._density(part, itertools.repeat(data))
            if anchor is not None:
                here = Evaluation(value, np.zeros(part.shape), None)
                at = self._as_draws(anchor.q.mean[np.newaxis])
                there = self._evaluate(at, self._richest_curvature, [data])
                value = anchor.control(part, here, there).log_density
            parts.append(value)
        return np.concatenate(parts)

    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d), each estimated from a batch."""
        parts = []
        for part, data in self._with_batches(self._as_draws(draws)):
            here = self._evaluate(part, curvature, data)
            if self.anchor is not None:
                here = self.anchor.control(part, here, self._at_anchor(data))
            parts.append(here)
        return Evaluation(
            np.concatenate([part.log_density for part in parts]),
            np.concatenate([part.gradient for part in parts]),
            None if curvature == "none" else np.concatenate([part.hessian for part in parts]),
        )

    def of_all_data(self, q: Gaussian, rng: np.random.Generator) -> FullDensity:
        """Return the log density of all the data, for draws from `q`.

        Where the anchor leaves too much noise, a small data set is evaluated in full, and a large
        one through a new anchor at the mean of `q`. The fit keeps that anchor only if it uses
        control variates.
        """
        anchor, noise = self.anchor, np.inf
        if anchor is not None:
            noise = self._noise(q, rng, anchor)
        if noise > MOST_NOISE and self.small:
            return FullDensity(self.full_log_density)
        if noise > MOST_NOISE:
            anchor = self._anchor_at(q)
            if anchor is not None:
                noise = self._noise(q, rng, anchor)
            if self.controlled:
                self.anchor, self._kept = anchor, {}
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
        """Whether all the data are so few that densities may be computed from all of them."""
        return self.batched.n_rows <= _FEW_ROWS

    def full_log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d), of all the data, chunk by chunk."""
        draws = self._as_draws(draws)
        return np.asarray(
            sum(self._density(draws, itertools.repeat(data)) for data in self._chunks())
        )

    def evaluate_fully(self, draws: Array, curvature: str) -> Evaluation:
        """Log density, gradient and Hessian at draws (n, d), of all the data, chunk by chunk."""
        draws = self._as_draws(draws)
        parts = (
            self._evaluate(draws, curvature, itertools.repeat(data)) for data in self._chunks()
        )
        total = next(parts)
        for part in parts:
            total.log_density[:] += part.log_density
            total.gradient[:] += part.gradient
            if total.hessian is not None and part.hessian is not None:
                total.hessian[:] += part.hessian
        return total

    def _at_anchor(self, data: list[tuple[Any, ...]]) -> Evaluation:
        """Evaluate the batches of the last draws at the anchor, once for each seed."""
        assert self.anchor is not None
        which = (self._drawn, len(data))
        if which in self._kept:
            return self._kept[which]
        at = np.repeat(self.anchor.q.mean[np.newaxis], len(data), axis=0)
        there = self._evaluate(at, self._richest_curvature, data)
        if (len(self._kept) + 1) * _DRAWS_AT_A_TIME * self.dim**2 < _KEPT_NUMBERS:
            self._kept[which] = there
        return there

    def _with_batches(self, draws: Array) -> Iterator[tuple[Array, list[tuple[Any, ...]]]]:
        """Draws a few at a time, each with a fresh batch."""
        for start in range(0, len(draws), _DRAWS_AT_A_TIME):
            part = draws[start : start + _DRAWS_AT_A_TIME]
            yield part, [self._common_data() for _ in part]

    def _common_data(self) -> tuple[Any, ...]:
        """Draw one batch."""
        self._drawn += 1
        self.rows += self.batched.batch_size
        data: list[Any] = [_ONE]
        for feed in self.batched.feeds:
            data += [_ONE, *feed.cast(feed.loader.draw())]
        return tuple(data)

    def _chunks(self) -> Iterator[tuple[Any, ...]]:
        """All the data in chunks, each with the weights that make them add up to the whole."""
        numbers = max(self.dim, self.batched.row_size)
        size = min(max(_CHUNK_NUMBERS // numbers, 1), _LARGEST_CHUNK)
        for i, chunk in enumerate(self.batched.chunks(size)):
            data: list[Any] = [_ONE if i == 0 else _ZERO]
            for feed, (share, arrays) in zip(self.batched.feeds, chunk, strict=True):
                data += [np.array(share), *feed.cast(arrays)]
                self.rows += round(share * feed.loader.n_rows)
            yield tuple(data)


_ONE, _ZERO = np.array(1.0), np.array(0.0)
