"""Which components bend the rest: along them, the shape of the posterior changes most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.engine.problem import Problem

#: Draws of Hessians to either side.
DRAWS = 16


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
        move = q.solve(np.eye(q.dim)[held])
        # The draws with this component at its mean, and the rest where it is then.
        central = draws - np.outer(draws[:, held] - q.mean[held], move / move[held])
        sides, lost = [], 0.0
        for sign in (1.0, -1.0):
            moved = central + sign * move / np.sqrt(move[held])
            with np.errstate(over="ignore", invalid="ignore"):
                evaluation = problem.target.average(moved, q.curvature)
            assert evaluation.hessian is not None
            sides.append(q.diagonal(evaluation.hessian))
            gradient = evaluation.gradient.mean(axis=0)
            gradient[held] = 0.0
            lost += float(gradient @ q.solve(gradient)) / 4
        change = (sides[0] - sides[1]) / (2 * scale)
        found.append(float(np.square(change).sum() / 4 + lost))
    return [value if np.isfinite(value) else 0.0 for value in found]
