"""The draws by which a fit is judged, and what they say of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas

from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.families import standard_normal
from pymc_ngvi.core.hamiltonian import move
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.draws import OwnScale
from pymc_ngvi.results.parameters import Block, Moments, compare_moved, make_table

#: How many draws are moved, how often, in how many steps each, and after how many moves they count.
FEWEST_MOVED, MOST_MOVED, MOVES, STEPS, SETTLING = 32, 256, 15, 3, 6
#: Moves of which fewer than this share are accepted lead nowhere.
LEAST_ACCEPTED = 0.6
#: Numbers in the draws that are held at a time.
NUMBERS = 2**21


class FreshDraws:
    """Antithetic draws from a distribution in blocks that are made again when they are needed.

    So they take little memory, however many draws and parameters there are. The first ones are
    kept where they take no more than one block.

    Parameters
    ----------
    q : Distribution
    rng : numpy.random.Generator
        Gives the seed of the draws: one number, however many draws are made.
    """

    def __init__(self, q: Distribution, rng: np.random.Generator) -> None:
        self.q = q
        self._seed = int(rng.integers(2**63))
        self._pairs: list[int] = []  # in each block
        self._kept: list[Array] = []  # the first blocks
        self._log_ratios = np.empty((2, 0))  # of the first draws of the pairs, and of the second

    def generator_of_moves(self) -> np.random.Generator:
        """Return the generator of what is not drawn in blocks, however many there are."""
        return np.random.default_rng([self._seed, 2**32])

    def extend(self, log_density: Callable[[Array], Array], n: int) -> Array:
        """Add blocks until there are n draws, an even number.

        Returns
        -------
        array, (n,)
            Log p - log q at all draws; the second half are the partners of the first.
        """
        most = max(NUMBERS // (2 * self.q.dim), 1)
        parts = [self._log_ratios]
        while (missing := n // 2 - sum(self._pairs)) > 0:
            size = min(missing, most)
            z = self._normal(len(self._pairs), size)
            draws = self.q.unwhiten(z)
            parts.append(_log_ratios(log_density, self.q, z, draws).reshape(2, size))
            self._pairs.append(size)
            if 2 * sum(self._pairs) * self.q.dim <= NUMBERS:
                self._kept.append(draws)
        self._log_ratios = np.concatenate(parts, axis=1)
        return self._log_ratios.ravel()

    def weighed(self, log_weights: Array) -> Iterator[Block]:
        """Make the draws of each block again, with their weights, of which the mean is 1."""
        weights = np.exp(log_weights + np.log(log_weights.size)).reshape(2, -1)
        start = 0
        for block, size in enumerate(self._pairs):
            if block < len(self._kept):
                draws = self._kept[block]
            else:
                draws = self.q.unwhiten(self._normal(block, size))
            yield draws, weights[:, start : start + size].ravel()
            start += size

    def _normal(self, block: int, size: int) -> Array:
        rng = np.random.default_rng([self._seed, block])
        return standard_normal(2 * size, self.q.dim, rng, antithetic=True)


class Check:
    """The fit beside the posterior, for each component on both of its scales.

    Parameters
    ----------
    fresh : FreshDraws
    log_weights : array, (n,)
    own : OwnScale
        The transformed variables on their own scale.
    target : ModelTarget
        Its layout names the unconstrained components.
    """

    def __init__(
        self, fresh: FreshDraws, log_weights: Array, own: OwnScale, target: ModelTarget
    ) -> None:
        self._fresh, self._own, self._target = fresh, own, target
        blocks = fresh.weighed(log_weights)
        self._moments = Moments((self._values(x), weights) for x, weights in blocks)
        self._columns = self._moments.compare()
        # Those of unconstrained components are known.
        self._columns["mean"][: fresh.q.dim] = fresh.q.mean
        self._columns["sd"][: fresh.q.dim] = np.sqrt(fresh.q.variance)

    def weighed(self) -> pandas.DataFrame:
        """Compare draws with and without weights.

        Returns
        -------
        pandas.DataFrame
            The unconstrained components, then those of transformed variables on their own scale.
            The former have the exact mean and sd of the distribution.
        """
        return self._table(self._columns)

    def moved(self, n: int) -> pandas.DataFrame | None:
        """Compare the fit with n of its draws that are moved; None where most moves are rejected.

        Returns
        -------
        pandas.DataFrame or None
            As of `weighed`.
        """
        q, rng = self._fresh.q, self._fresh.generator_of_moves()
        draws = q.unwhiten(standard_normal(n, q.dim, rng, antithetic=False))
        settled = _settled(self._target, q, draws, self._values, rng)
        if settled is None:
            return None
        errors = self._moments.errors_of_fit()
        for error in errors:
            error[: q.dim] = 0.0
        return self._table(
            compare_moved(settled, self._columns["mean"], self._columns["sd"], errors)
        )

    def _values(self, draws: Array) -> Array:
        return _on_both_scales(draws, self._own)

    def _table(self, columns: dict[str, Array]) -> pandas.DataFrame:
        return _table(columns, self._target, self._own)


def compare_with_moves(
    target: ModelTarget, q: Distribution, draws: Array, rng: np.random.Generator
) -> pandas.DataFrame | None:
    """Compare draws with some of them that are moved; None where most moves are rejected.

    Parameters
    ----------
    target : ModelTarget
    q : Distribution
        In whose coordinates they are moved.
    draws : array, (n, d)
        Independent of each other.
    rng : numpy.random.Generator

    Returns
    -------
    pandas.DataFrame or None
        As of `Check.weighed`.
    """
    own = OwnScale(target.model, target.layout)
    values = _on_both_scales(draws, own)
    first = draws[: int(min(len(draws), MOST_MOVED, max(NUMBERS / q.dim, FEWEST_MOVED)))]
    settled = _settled(target, q, first, lambda x: _on_both_scales(x, own), rng)
    if settled is None:
        return None
    root = np.sqrt(len(draws))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mean, sd = values.mean(axis=0), values.std(axis=0)
        of_sd = np.sqrt(np.mean(((values - mean) / sd) ** 4, axis=0) - 1) / 2
    errors = np.full(len(mean), 1 / root), of_sd / root
    return _table(compare_moved(settled, mean, sd, errors), target, own)


def _settled(
    target: ModelTarget,
    q: Distribution,
    draws: Array,
    values: Callable[[Array], Array],
    rng: np.random.Generator,
) -> list[Array] | None:
    """Return values at draws after each move, once settled; None where most are rejected."""
    shares, settled = [], []
    for i, (x, accepted) in enumerate(
        move(target, q.gaussian, draws, rng, moves=MOVES, steps=STEPS)
    ):
        shares.append(accepted)
        if np.mean(shares) < LEAST_ACCEPTED:
            return None
        if i >= SETTLING:
            settled.append(values(x))
    return settled


def _on_both_scales(draws: Array, own: OwnScale) -> Array:
    return np.hstack([draws, own(draws)])


def _table(columns: dict[str, Array], target: ModelTarget, own: OwnScale) -> pandas.DataFrame:
    slots = [*target.layout.slots, *own.slots()]
    labels = [label for slot in slots for label in slot.labels]
    variables = [slot.variable for slot in slots for _ in range(slot.size)]
    table = make_table(labels, variables, columns)
    # The diagonal of a correlation matrix, and other constants, are no parameters.
    return table[table["sd"] != 0]


def fresh_log_ratios(
    log_density: Callable[[Array], Array],
    q: Distribution,
    rng: np.random.Generator,
    n: int,
) -> Array:
    """Log p - log q (n,) at fresh antithetic draws from q.

    Parameters
    ----------
    log_density : callable
        Maps draws (n, d) to log p (n,).
    q : Distribution
    rng : numpy.random.Generator
    n : int
        Number of draws.
    """
    z = standard_normal(n, q.dim, rng, antithetic=True)
    return _log_ratios(log_density, q, z, q.unwhiten(z))


def _log_ratios(
    log_density: Callable[[Array], Array], q: Distribution, z: Array, draws: Array
) -> Array:
    """Log p - log q (n,) at the draws that standard normal rows z make."""
    return np.asarray(log_density(draws) - q.log_density_whitened(z))
