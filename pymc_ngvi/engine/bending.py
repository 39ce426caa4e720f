"""Which components bend the rest, and which of them to hold so that the rest is Gaussian."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from pymc_ngvi.core import designs
from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import units
from pymc_ngvi.engine.nesting import Nesting
from pymc_ngvi.engine.problem import Problem
from pymc_ngvi.errors import DomainError, NonFiniteError

#: Draws of Hessians to either side; in many dimensions fewer, as the sum over components shows it.
DRAWS, DRAWS_IN_MANY = 16, 4
#: Components, at most, that are tried.
MOST_TRIED = 4
#: Nats by which the rest is no Gaussian, with components held in the middle: where one component
#: leaves so few no pair is tried, and a choice that leaves more does not help.
SUFFICIENT, MOST = 0.1, 0.5
#: Where a choice leaves so few, no other one is tried; of pairs, where it leaves so few.
CLEAR, CERTAIN = 0.05, 0.03


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
    if q.dim >= designs.MANY_DIMENSIONS:
        z = designs.orthogonal(DRAWS_IN_MANY // 2, q.dim, rng)
    else:
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


def choose_held(
    ranked: Sequence[int],
    begin: Callable[[Sequence[int]], Nesting],
    *,
    beside: int | None = None,
) -> Nesting | None:
    """Choose one or two components such that the rest is close to a Gaussian, given them.

    The rest is fitted with a component held at its mean, and judged by the divergence that is left
    (:meth:`~pymc_ngvi.engine.nesting.Nesting.divergence`). Where no single component suffices,
    pairs are tried, those with the best one first. So a posterior that no grid would straighten is
    told from others by a few small fits.

    Parameters
    ----------
    ranked : sequence of int
        Components, those first that bend the rest most.
    begin : callable
        ``begin(held)`` returns the nested fit that would hold these.
    beside : int, optional
        A component that has proved not to suffice: choose another one to hold beside it.

    Returns
    -------
    Nesting or None
        The nested fit, begun in the middle; None where no choice would do.
    """
    tried = ranked[:MOST_TRIED]
    pairs = list(itertools.combinations(tried, 2))
    if beside is not None:
        return _best([pair for pair in pairs if beside in pair], begin, CERTAIN)[1]
    left, single = _best([(one,) for one in tried], begin)
    if left <= SUFFICIENT:
        return single
    # Any two that go on from the same one can leave the rest Gaussian in the middle: try them all.
    first = tried[:1] if single is None else single.split.held.tolist()
    with_first = [pair for pair in pairs if first[0] in pair]
    of_pair, pair = _best(with_first, begin, CERTAIN)
    if of_pair > SUFFICIENT:
        others = [one for one in pairs if one not in with_first]
        of_pair, pair = min((of_pair, pair), _best(others, begin), key=lambda found: found[0])
    return pair if of_pair < left else single


def _best(
    choices: Sequence[Sequence[int]],
    begin: Callable[[Sequence[int]], Nesting],
    clear: float = CLEAR,
) -> tuple[float, Nesting | None]:
    """Return the first clear choice, or the best, with what it leaves; None above the most."""
    best: tuple[float, Nesting | None] = (MOST, None)
    for held in choices:
        nesting, left = begin(sorted(held)), np.inf
        with contextlib.suppress(NonFiniteError, DomainError, np.linalg.LinAlgError):
            left = nesting.divergence()
        if left < best[0]:
            best = left, nesting
        if left < clear:
            break
    return best
