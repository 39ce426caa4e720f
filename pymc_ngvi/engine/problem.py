"""What the engine works on: the problem, which stays, and the evaluations spent on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core import designs
from pymc_ngvi.core.algorithm import State
from pymc_ngvi.core.estimators import (
    BonnetPrice,
    Estimate,
    Score,
    Slope,
    Stein,
    decouple,
    estimate_each,
    pool,
)
from pymc_ngvi.core.families import Gaussian, Natural
from pymc_ngvi.core.guards import Guard, Mixed
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.projections import Identity, Projection
from pymc_ngvi.core.target import Target
from pymc_ngvi.engine import leaders
from pymc_ngvi.engine.evaluated import (
    Evaluated,
    SplitError,
    SquaredError,
    scatter,
    squared_displacement,
)
from pymc_ngvi.engine.leaders import Leaders
from pymc_ngvi.engine.secants import Secants, residual
from pymc_ngvi.engine.settings import DEFAULTS, Settings

# Numbers in the draws of one call, at most: 32 MB.
_NUMBERS_PER_CALL = 2**22


class Size(NamedTuple):
    """Size of a set of draws: those the estimator evaluates, and those of gradients alone."""

    hessians: int
    gradients: int = 0

    @property
    def total(self) -> int:
        """All draws."""
        return self.hessians + self.gradients


@dataclass(frozen=True)
class Problem:
    """What does not change during a fit.

    Attributes
    ----------
    target : Target
    estimator : BonnetPrice, Stein or Score
    guard, projection
        As in :func:`pymc_ngvi.core.algorithm.run`.
    accuracy : float
        Tolerated error of every mean, in posterior standard deviations, and of every log standard
        deviation.
    settings : Settings
    """

    target: Target
    estimator: BonnetPrice | Stein | Score
    guard: Guard
    projection: Projection
    accuracy: float
    settings: Settings = DEFAULTS

    @property
    def constrained(self) -> bool:
        """Whether there is a projection: secants and averages would leave its set."""
        return not isinstance(self.projection, Identity)

    @property
    def takes_hessians(self) -> bool:
        """Whether the estimator asks for Hessians, of which a single point shows much."""
        return bool(getattr(self.estimator, "needs_hessian", True))

    @property
    def takes_gradients(self) -> bool:
        """Whether draws of gradients alone can be added, and are cheaper than others.

        A batch of data is compared with its own Hessian at the anchor, whatever is asked for.
        """
        return isinstance(self.estimator, BonnetPrice) and not self.target.reads_batches

    def excess(self, error: SquaredError) -> float:
        """Ratio of a squared error to the one allowed; see :meth:`SquaredError.excess`."""
        return error.excess(self.accuracy, self.settings)

    def is_even(self, error: SquaredError, size: Size) -> bool:
        """Whether Hessians differ little between draws, by the error of those of this size."""
        settings = self.settings
        on_few = error.log_sd.max() * size.hessians / settings.few_draws
        by_chance = error.largest_by_chance(settings.judged_components)
        return bool(on_few < settings.most_unevenness**2 * by_chance)

    def is_telling(self, error: SquaredError, size: Size) -> bool:
        """Whether there are many Hessians, or they differ so little that a few tell all."""
        many = size.hessians >= self.settings.telling_draws or not self.takes_hessians
        return many or self.is_even(error, size)

    def longest_step(self, q: Gaussian) -> float:
        """Longest step of a level, in nats."""
        settings = self.settings
        return max(settings.longest_step, settings.longest_step_per_dimension * q.dim)

    def rounded(self, n: int, q: Gaussian) -> int:
        """Round a number of draws up to one that the designs give and the estimator can use."""
        if not self.takes_hessians:
            n = max(n, self.settings.few_draws if q.factorised else q.min_draws(q.dim))
        return designs.rounded_size(n, q.dim)

    def few(self, q: Gaussian) -> Size:
        """Draws of the warm-up: as few as show the way."""
        settings = self.settings
        low = q.dim < settings.few_dimensions
        n = settings.few_draws_in_few_dimensions if low else settings.few_draws
        return Size(self.rounded(n, q))

    def first(self, q: Gaussian) -> Size:
        """Draws of the first level: as few as show their noise."""
        if self.takes_hessians:
            return self.few(q)
        balanced = min(2 * q.min_draws(q.dim), self.settings.balanced_draws)
        return Size(self.rounded(max(self.settings.stein_draws, balanced), q))

    def rounded_size(self, size: Size, q: Gaussian) -> Size:
        """Round a size up to one that the designs give; a few gradients more tell nothing."""
        gradients = size.gradients if size.gradients >= size.hessians else 0
        return Size(
            self.rounded(size.hessians, q),
            designs.rounded_size(gradients, q.dim) if gradients else 0,
        )

    def most(self, size: Size) -> Size:
        """Most draws that may follow upon so many."""
        settings = self.settings
        return Size(
            min(settings.most_growth * size.hessians, settings.most_draws),
            min(settings.most_growth_of_gradients * size.total, settings.most_draws),
        )

    def planned(
        self, error: SquaredError, parts: SplitError | None, size: Size, most: Size
    ) -> Size:
        """Draws that reach the accuracy, at most `most`, where those of `size` have this error.

        A squared error is the sum of a part from the noise of the gradients, which is proportional
        to 1 / (all draws), and one from that of the Hessians, proportional to 1 / (draws with
        Hessians). What is allowed is divided between them as it costs least, as far as that takes
        fewer Hessians than draws in all.

        Parameters
        ----------
        error : SquaredError
        parts : SplitError or None
            The same by where it comes from, where that is known.
        size, most : Size
        """
        settings, excess = self.settings, self.excess(error)
        if excess <= 1:
            return size
        if not np.isfinite(excess):
            return Size(most.hessians)
        excess *= settings.plan_margin
        share = 0.0 if parts is None else self.slope_share(parts)
        hessians, total = (1 - share) * excess * size.hessians, share * excess * size.total
        # The cheapest division of what is allowed, where a Hessian costs so many gradients.
        price = min(max(1.0, settings.price_per_dimension * len(error.mean)), settings.most_dear)
        dear = np.sqrt(price * hessians)
        left = np.clip(dear / (dear + np.sqrt(total)), *settings.hessian_shares)
        hessians, total = hessians / left, total / (1 - left)
        divided = (price - 1) * hessians + total < price * excess * size.total
        divided = divided or self.is_even(error, size)
        if not (self.takes_gradients and divided and hessians < total):
            return Size(int(min(np.ceil(excess * size.total), most.hessians)), size.gradients)
        hessians = min(max(hessians, size.hessians), most.hessians)
        gradients = min(total - hessians, most.gradients)
        exact = designs.exact_size(len(error.mean))
        if size.total < exact:  # as many may do, or show how much less noise exact moments leave
            gradients = min(gradients, exact)
        if size.hessians < exact:
            hessians = min(hessians, exact)
        return Size(int(np.ceil(hessians)), max(0, int(np.ceil(gradients))))

    def slope_share(self, parts: SplitError) -> float:
        """Share of an error that is from the noise of the gradients."""
        of_gradients, of_hessians = self.excess(parts.of_gradients), self.excess(parts.of_hessians)
        return of_gradients / (of_gradients + of_hessians) if of_gradients else 0.0

    def asked(self, q: Gaussian, estimate: Estimate) -> SquaredError:
        """Squared length of the step an estimate asks for, less what the projection takes back."""
        if not self.constrained:
            return squared_displacement(q, residual(q, estimate))
        end = self.projection(self.guard(q, estimate, 1.0).q)
        return SquaredError(
            np.square(end.mean - q.mean) / q.variance,
            np.square(np.log(end.variance / q.variance) / 2),
            end.kl(q),
        )


@dataclass(frozen=True)
class Draws:
    """Draws common to all members evaluated on them.

    Attributes
    ----------
    replicates : sequence of array, (n, d)
        Independent sets of standard normal rows, for the estimator.
    slopes : sequence of array, (n, d)
        The same, for gradients alone.
    seed : int or None
        Seed of the batches of data that go with the draws, where the target reads any.
    """

    replicates: Sequence[Array]
    slopes: Sequence[Array] = ()
    seed: int | None = None

    def __len__(self) -> int:
        return sum(map(len, (*self.replicates, *self.slopes)))


class Budget:
    """Evaluates members on common draws, within a budget of evaluations.

    Parameters
    ----------
    problem : Problem
    max_evaluations : int
        Budget of evaluations of the target.
    rng : numpy.random.Generator

    Attributes
    ----------
    problem : Problem
        May be replaced by one with another estimator.
    evaluations : int
        Evaluations of the target spent so far, by the estimator.
    gradients : int
        Further evaluations, of gradients or log densities alone.
    most_drawn : int
        Most draws evaluated by the estimator in one set so far.
    leaders : Leaders or None
        Components that are evaluated with more care.
    """

    def __init__(self, problem: Problem, max_evaluations: int, rng: np.random.Generator) -> None:
        self.problem = problem
        self.max_evaluations = max_evaluations
        self.rng = rng
        self.evaluations = 0
        self.gradients = 0
        self.most_drawn = 0
        self.leaders: Leaders | None = None
        self._probe: Array | None = None  # common to all members at which they are measured

    @property
    def remaining(self) -> int:
        """Evaluations left in the budget."""
        return self.max_evaluations - self.evaluations - self.gradients

    def counted(self, state: State) -> State:
        """Write the evaluations spent so far to a state."""
        return replace(state, evaluations=self.evaluations, gradients=self.gradients)

    def draw(self, size: Size, dim: int) -> Draws:
        """Draw about so many standard normal rows in replicates, and the seed of their batches."""
        self.most_drawn = max(self.most_drawn, size.hessians)
        replicates = designs.replicates(size.hessians, dim, self.rng)
        slopes = designs.replicates(size.gradients, dim, self.rng) if size.gradients else ()
        reads_batches = self.problem.target.reads_batches
        seed = int(self.rng.integers(2**63)) if reads_batches else None
        return Draws(replicates, slopes, seed)

    def evaluate(self, q: Gaussian, draws: Draws) -> Evaluated:
        """Evaluate a member on common draws."""
        problem, estimator = self.problem, self._estimator(q)
        if draws.seed is not None:
            problem.target.reseed(draws.seed)
        parts, slopes = [], []
        for sets in self._together(draws.replicates):
            self.evaluations += sum(map(len, sets))
            parts += estimate_each(estimator, problem.target, q, sets)
        for sets in self._together(draws.slopes):
            self.gradients += sum(map(len, sets))
            assert isinstance(estimator, BonnetPrice)
            slopes += estimator.slopes_at(problem.target, q, sets)
        return self._judged(q, draws, parts, slopes)

    def _together(self, sets: Sequence[Array]) -> Iterator[Sequence[Array]]:
        """Divide sets of draws into those that are evaluated in one call of the target.

        Calls cost time, and draws memory: with batches of data, that of the rows they see.
        """
        numbers = sets[0].size if sets else 1
        most = 1 if self.problem.target.reads_batches else max(1, _NUMBERS_PER_CALL // numbers)
        return (sets[i : i + most] for i in range(0, len(sets), most))

    def _judged(
        self, q: Gaussian, draws: Draws, raw: Sequence[Estimate], alone: Sequence[Slope]
    ) -> Evaluated:
        """Put what the replicates gave together."""
        parts, slopes = [*raw], [*alone]
        if self.leaders is not None:
            sets = zip(parts, draws.replicates, strict=True)
            parts = [self.leaders.controlled(q, part, z) for part, z in sets]
            pairs = zip(slopes, draws.slopes, strict=True)
            slopes = [self.leaders.controlled_slope(q, slope, z) for slope, z in pairs]
        plain = pool(parts)
        share = sum(map(len, draws.slopes)) / len(draws)
        wholes = [replace(plain, gradient=slope.gradient, elbo=slope.elbo) for slope in slopes]
        if wholes:
            whole = pool(wholes)
            plain = replace(
                plain,
                gradient=(1 - share) * plain.gradient + share * whole.gradient,
                elbo=(1 - share) * plain.elbo + share * whole.elbo,
            )
        estimate = plain
        if plain.coupling is not None:
            estimate, *decoupled = decouple([plain, *parts, *wholes], plain.coupling)
            parts, wholes = decoupled[: len(parts)], decoupled[len(parts) :]
        errors = scatter(q, parts, 1 - share, 1.0)
        errors += scatter(q, wholes, share, 0.0)
        zero = np.zeros_like(q.precision)
        of_gradients = [Natural(e.first, zero) for e in errors]
        of_hessians = [Natural(np.zeros_like(e.first), e.second) for e in errors]
        behind = None
        if self.leaders is not None:
            stretched, lag = self.leaders.stretched, plain.hessian + q.precision
            estimate = replace(plain, gradient=stretched(plain.gradient, lag))
            behind = Natural(stretched(np.zeros_like(plain.gradient), lag), lag / 2)
            of_gradients = [replace(e, first=stretched(e.first, zero)) for e in of_gradients]
            of_hessians = [replace(e, first=stretched(e.first, 2 * e.second)) for e in of_hessians]
        asked = self.problem.asked(q, estimate)
        freedom = max(1, len(parts) - 1)
        noise = (of_gradients, of_hessians)
        return Evaluated(q, estimate, noise, freedom, asked, plain, (raw, alone), behind)

    def lead(self, here: Evaluated, draws: Draws, *, slow: bool = False) -> Evaluated:
        """Look for leaders at a member, or measure those that are known; return what it now is.

        They are looked for where there is noise that may be theirs, or where steps are `slow`.
        """
        problem, settings, q = self.problem, self.problem.settings, here.q
        led = q.dim >= settings.least_led and not (problem.constrained or q.factorised)
        if not (led and problem.takes_gradients):
            return here
        if self.leaders is not None:
            components = self.leaders.components
        else:
            error = here.error_of_draws(Secants(settings))
            if problem.excess(error) <= 1 and not slow:
                return here
            components = self._leading(q, leaders.candidates(q, error, settings))
        self.leaders = self._measure(q, components, self.probe(q))
        return self._judged(q, draws, *here.parts)

    def _leading(self, q: Gaussian, components: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some components that others follow."""
        found = self._measure(q, components, None)
        if found is None:
            return components[:0]
        settings, known = self.problem.settings, q.hubs() is not None
        least = settings.least_following_of_hubs if known else settings.least_following
        return components[found.lost > least]

    def _measure(
        self, q: Gaussian, components: NDArray[np.int64], z: Array | None
    ) -> Leaders | None:
        if not len(components):
            return None
        self.evaluations += 1 + 2 * len(components) * (1 if z is None else 1 + len(z))
        least = self.problem.settings.least_ratio
        return leaders.measure(self.problem.target, q, components, z, least)

    def probe(self, q: Gaussian) -> Array:
        """Return standard normal rows common to all members at which leaders are measured."""
        if self._probe is None:
            self._probe = designs.orthogonal(1, q.dim, self.rng)
        return self._probe

    def led(self, here: Evaluated, mixed: Mixed) -> Mixed:
        """Let the precision follow where a step moves leaders."""
        if self.leaders is None:
            return mixed
        if not self.leaders.is_long(here.q, mixed.q, self.problem.settings.long_way_of_leaders):
            return self.leaders.follow(here.q, mixed)
        self.evaluations += 2
        return leaders.followed(self.problem.target, here.q, mixed)

    def elbo(self, q: Gaussian, draws: Draws) -> tuple[float, float]:
        """ELBO of a member on common draws and its standard error, by log densities alone.

        It is minus infinity where one of them is not finite.
        """
        if draws.seed is not None:
            self.problem.target.reseed(draws.seed)
        z = np.concatenate([*draws.replicates, *draws.slopes])
        self.gradients += len(z)
        with np.errstate(over="ignore", invalid="ignore"):  # a step may lead too far
            ratios = self.problem.target.log_density(q.unwhiten(z)) - q.log_density_whitened(z)
        if not np.isfinite(ratios).all():
            return -np.inf, np.nan
        sizes = list(map(len, (*draws.replicates, *draws.slopes)))
        means = [part.mean() for part in np.split(ratios, np.cumsum(sizes)[:-1])]
        with np.errstate(over="ignore"):
            spread = np.std(means, ddof=1)
        return float(ratios.mean()), float(spread / np.sqrt(len(means)))

    def _estimator(self, q: Gaussian) -> BonnetPrice | Stein | Score:
        """Return the estimator; in few dimensions factorised families take Newton's step by it."""
        estimator = self.problem.estimator
        if type(estimator) is BonnetPrice and q.dim <= self.problem.settings.most_coupled:
            return BonnetPrice(antithetic=estimator.antithetic, coupled=True)
        return estimator
