"""Which components bend the rest, and which of them to hold so that the rest is Gaussian."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import units
from pymc_ngvi.engine.nesting import Nesting
from pymc_ngvi.engine.problem import Problem
from pymc_ngvi.errors import DomainError, NonFiniteError

#: Draws of Hessians to either side.
DRAWS = 16
#: Components, at most, that are tried.
MOST_TRIED = 3
#: Share of the draws of the rest that are effective, with components held in the middle: where one
#: component leaves so many it suffices, and where two leave fewer they do not help either.
SUFFICIENT, LEAST = 0.5, 0.2
#: Where one leaves so many, no other one is tried.
CLEAR = 0.8


def curvature_changes(
    problem: Problem, q: Gaussian, candidates: Sequence[Split], rng: np.random.Generator
) -> list[float]:
    r"""By how much the posterior changes its shape along each of some components, in nats.

    Mean gradient g and Hessian are estimated at one standard deviation of the component to either
    side, with the rest where the fit has it there. If half the difference of the Hessians, relative
    to the precision, has the entries :math:`\delta_j` on its diagonal, then a Gaussian with one
    curvature everywhere loses about :math:`\sum_j \delta_j^2 / 4`, and about
    :math:`g' \Sigma g / 2` with means on a straight line.

    Parameters
    ----------
    problem : Problem
    q : Gaussian
    candidates : sequence of Split
        Each holds one component.
    rng : numpy.random.Generator
    """
    z = standard_normal(DRAWS, q.dim, rng, antithetic=True)
    draws, scale = q.unwhiten(z), q.diagonal(q.precision)
    found = []
    for split in candidates:
        (held,) = split.held
        move = q.solve(units(q.dim, held)[0])
        # The draws with this component at its mean, and the rest where it is then.
        central = draws - np.outer(draws[:, held] - q.mean[held], move / move[held])
        sides, lost = [], 0.0
        for sign in (1.0, -1.0):
            moved = central + sign * move / np.sqrt(move[held])
            with np.errstate(over="ignore", invalid="ignore"):
                evaluation = problem.target.average(moved, q.curvature)
            assert evaluation.hessian is not None
            sides.append(q.diagonal(evaluation.hessian[0]))
            gradient = evaluation.gradient.mean(axis=0)
            gradient[held] = 0.0
            lost += float(gradient @ q.solve(gradient)) / 4
        change = (sides[0] - sides[1]) / (2 * scale)
        found.append(float(np.square(change).sum() / 4 + lost))
    return [value if np.isfinite(value) else 0.0 for value in found]


@dataclass(frozen=True)
class Choice:
    """Which components to hold, and what it took to find that.

    Attributes
    ----------
    nesting : Nesting or None
        The fit that holds them, begun in the middle; None where no choice would do.
    evaluations, gradients : int
        What was spent on others.
    """

    nesting: Nesting | None
    evaluations: int
    gradients: int


def choose_held(
    ranked: Sequence[int],
    begin: Callable[[Sequence[int]], Nesting],
    *,
    beside: int | None = None,
) -> Choice:
    """Choose one or two components such that the rest is close to a Gaussian, given them.

    The rest is fitted with a component held at its mean, and judged by the importance ratios of
    draws from that fit. Where no single component suffices, pairs with the best one are tried. So a
    posterior that no grid would straighten is told from others by a few small fits.

    Parameters
    ----------
    ranked : sequence of int
        Components, those first that bend the rest most.
    begin : callable
        ``begin(held)`` returns the nested fit that would hold these.
    beside : int, optional
        A component that has proved not to suffice: choose another one to hold beside it.
    """
    tried: list[tuple[float, Nesting]] = []

    def efficiency(held: Sequence[int]) -> float:
        nesting, found = begin(held), 0.0
        with contextlib.suppress(NonFiniteError, DomainError, np.linalg.LinAlgError):
            found = nesting.middle().efficiency
        tried.append((found, nesting))
        return found

    if beside is None:
        for one in ranked[:MOST_TRIED]:
            if efficiency([one]) > CLEAR:
                break
    chosen = max(tried, key=lambda pair: pair[0], default=None)
    if chosen is not None and chosen[0] < SUFFICIENT:
        beside = int(chosen[1].split.held[0])
    if beside is not None:
        for one in ranked[:MOST_TRIED]:
            if one != beside and efficiency(sorted([beside, one])) > CLEAR:
                break
        chosen = max(tried, key=lambda pair: pair[0], default=None)
    good = chosen is not None and chosen[0] >= (
        SUFFICIENT if len(chosen[1].split.held) == 1 else LEAST
    )
    kept = chosen[1] if chosen is not None and good else None
    others = [nesting for _, nesting in tried if nesting is not kept]
    return Choice(
        kept,
        sum(nesting.evaluations for nesting in others),
        sum(nesting.gradients for nesting in others),
    )
