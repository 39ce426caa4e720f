r"""Leaders: the few components on which many others depend, such as the scale of a hierarchy.

When a leader a moves, the others follow: their means along the direction :math:`u_a` in which they
keep their distance from their conditional means, and their precision by the derivative
:math:`T_a = \partial_{u_a} \nabla^2 f`. Natural-gradient steps see the first and not the second.
With S the precision of the leaders under q, the ELBO whose precision follows has the curvature

.. math:: C = S - K, \qquad K_{ab} = \tfrac12 \mathrm{tr}(T_a \Sigma T_b \Sigma),

in the means of the leaders. Where the data say little about the others, C is a small part of S:
steps by S take S / C iterations, and the noise of the gradient grows as much in the solution. Here

- leaders take Newton's step, by C. Its solution is the same;
- their gradient loses the noise that the squares of all the others make in it. To second order
  this is :math:`\tfrac12 \delta' T_a \delta` with :math:`\delta = x - \mu`. Its mean is known,
  :math:`\tfrac12 \mathrm{tr}(T_a \Sigma)`: the difference is a control variate, unbiased for any T;
- the precision follows a step, by T, or after a long one by the Hessians at both of its ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_ngvi.core.estimators import Estimate, Slope
from pymc_ngvi.core.families import Gaussian, Natural
from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.core.linalg import Array, units
from pymc_ngvi.core.target import Target
from pymc_ngvi.engine.evaluated import SquaredError
from pymc_ngvi.engine.settings import Settings

#: Points about the mean are so many standard deviations of a leader away from it.
_STEP = 0.5


@dataclass(frozen=True)
class Leaders:
    """Leaders as they were measured at one member.

    Attributes
    ----------
    components : array of int, (k,)
    mean : array, (k,)
        Their means where they were measured.
    information : array, (k, k)
        S.
    directions : array, (k, d)
        u.
    derivatives, bends : array, (k, ...)
        T, and the second derivative of the Hessian along each direction, at the mean; in the
        family's representation.
    beyond : array, (k, k, k)
        What the leaders' own part of T is under q, beyond that at the mean.
    spreads : array, (k, ...)
        How the covariance answers each T: the Fisher information times it.
    stretch : array, (k, k)
        S inv(C), by which Newton's step is longer; indefinite curvature counts as its absolute
        value.
    ratios : array, (k,)
        Eigenvalues of inv(S) C, smallest first.
    lost : array, (k,)
        Part of the curvature S of each leader that K takes; more than 1 where C is negative.
    """

    components: NDArray[np.int64]
    mean: Array
    information: Array
    directions: Array
    derivatives: Array
    bends: Array
    beyond: Array
    spreads: Array
    stretch: Array
    ratios: Array
    lost: Array

    def controlled(self, q: Gaussian, part: Estimate, z: Array) -> Estimate:
        """Take noise from an estimate from draws `q.unwhiten(z)`, by control variates."""
        moves = q.unwhiten(z) - q.mean
        own, covariances = moves[:, self.components], self._covariances(q)
        between = covariances[:, self.components]
        # The leaders' own spread bends all of the Hessian, that of the others the leaders' part.
        spread = np.square(own).mean(axis=0) - between.diagonal()
        hessian = part.hessian - np.tensordot(spread, self.bends, axes=1) / 2
        known = []
        for bend in self.bends:
            bent = np.array([q.product(bend, direction) for direction in self.directions])
            known.append(
                2 * np.sum(bent * covariances) - np.sum(bent @ self.directions.T * between)
            )
        others = self._excess(q, self.bends, moves - own @ self.directions)
        change = np.zeros(q.dim)
        change[self.components] = -others - np.array(known) / 2
        return replace(
            part,
            gradient=self._controlled(q, part.gradient, moves, between),
            hessian=q.plus_diagonal(hessian, change),
        )

    def _covariances(self, q: Gaussian) -> Array:
        """Covariances (k, d) of the leaders with all components under q."""
        return np.array([q.solve(unit) for unit in units(q.dim, self.components)])

    def controlled_slope(self, q: Gaussian, part: Slope, z: Array) -> Slope:
        """Take noise from a slope from draws `q.unwhiten(z)`, by control variates."""
        moves = q.unwhiten(z) - q.mean
        between = self._covariances(q)[:, self.components]
        return replace(part, gradient=self._controlled(q, part.gradient, moves, between))

    def _controlled(self, q: Gaussian, gradient: Array, moves: Array, between: Array) -> Array:
        own = moves[:, self.components]
        block = own.T @ own / len(own) - between
        noise = self._excess(q, self.derivatives, moves)
        noise += np.einsum("abc,bc->a", self.beyond, block) / 2
        controlled = gradient.copy()
        controlled[self.components] -= noise
        return np.asarray(controlled)

    def stretched(self, gradient: Array, lag: Array) -> Array:
        """Return the gradient (d,) whose natural-gradient step is Newton's for the leaders.

        Parameters
        ----------
        gradient : array, (d,)
            Mean gradient, or an error of it.
        lag : array
            Precision plus mean Hessian: how far the precision is from following the Hessian.
        """
        along = self.directions @ gradient
        behind = np.array([np.sum(spread * lag) for spread in self.spreads]) / 4
        stretched = gradient.copy()
        stretched[self.components] += self.stretch @ (along + behind) - along
        return np.asarray(stretched)

    @staticmethod
    def _excess(q: Gaussian, matrices: Array, moves: Array) -> Array:
        """Mean of half the squares in each matrix (k, ...) beyond their expectation, (k,)."""
        squares = [
            np.mean([move @ q.product(matrix, move) for move in moves]) for matrix in matrices
        ]
        return np.asarray(np.array(squares) - q.relative_trace(matrices)) / 2

    def distance(self, q: Gaussian, mean: Array) -> float:
        """Largest way of a leader from where they were measured, in standard deviations."""
        return float(np.max(np.abs(mean) * np.sqrt(self.information.diagonal())))

    def is_far_from(self, q: Gaussian, most: float) -> bool:
        """Whether q has moved away from where they were measured."""
        return self.distance(q, q.mean[self.components] - self.mean) > most

    def follow(self, before: Gaussian, mixed: Mixed) -> Mixed:
        """Let the precision follow a short step, by T."""
        way = (mixed.q.mean - before.mean)[self.components]
        change = np.tensordot(way, self.derivatives, axes=1)
        member = mixed.q.with_precision(mixed.q.precision - change)
        return mixed if member is None else replace(mixed, q=member)

    def is_long(self, before: Gaussian, after: Gaussian, most: float) -> bool:
        """Whether a step moves them far."""
        return self.distance(before, (after.mean - before.mean)[self.components]) > most


def measure(
    target: Target, q: Gaussian, components: NDArray[np.int64], z: Array | None, least_ratio: float
) -> Leaders | None:
    """Measure leaders at a member, by Hessians at draws moved along their directions.

    Parameters
    ----------
    target : Target
    q : Gaussian
    components : array of int, (k,)
    z : array, (n, d), or None
        Standard normal rows, independent of those that are to be corrected. Without them, only
        Hessians about the mean are evaluated.
    least_ratio : float
        Smaller parts C of S count as this much.

    Returns
    -------
    Leaders or None
        None where a Hessian is not finite.
    """
    k = len(components)
    zero = np.zeros(q.dim)
    covariances = np.array([q.solve(unit) for unit in units(q.dim, components)])
    information = np.linalg.inv(covariances[:, components])
    directions = information @ covariances
    step = _STEP / np.sqrt(information.diagonal())
    scale = step.reshape(-1, *[1] * (q.precision.ndim))
    shifts = step[:, np.newaxis] * directions
    with np.errstate(over="ignore", invalid="ignore"):
        points = q.mean + np.concatenate([shifts, -shifts, zero[np.newaxis]])
        found = target.evaluate(points, q.curvature).hessian
        assert found is not None
        above, below, here = found[:k], found[k:-1], found[-1]
        changes, bends = (above - below) / (2 * scale), (above + below - 2 * here) / scale**2
        beyond = np.zeros((k, k, k))
        if z is not None:
            draws = q.unwhiten(z)
            moved = np.concatenate([draws + shift for shift in (*shifts, *-shifts)])
            means = target.average(moved, q.curvature, 2 * k).hessian
            assert means is not None
            blocks = np.array([_block(q, mean, components) for mean in means])
            own = np.array([_block(q, change, components) for change in changes])
            beyond = (blocks[:k] - blocks[k:]) / (2 * step.reshape(k, 1, 1)) - own
    if not all(np.isfinite(array).all() for array in (changes, bends, beyond)):
        return None
    centred = q.with_mean(zero)
    spreads = np.array([centred.fisher_product(Natural(zero, t)).second for t in changes])
    follow = np.array([[np.sum(change * spread) / 4 for spread in spreads] for change in changes])
    curvature = information - (follow + follow.T) / 2
    ratios, vectors = scipy.linalg.eigh(curvature, information)
    weights = 1 / np.maximum(np.abs(ratios), least_ratio)
    stretch = information @ (vectors * weights) @ vectors.T
    return Leaders(
        components,
        q.mean[components],
        information,
        directions,
        changes,
        bends,
        beyond,
        spreads,
        stretch,
        ratios,
        follow.diagonal() / information.diagonal(),
    )


def _block(q: Gaussian, matrix: Array, components: NDArray[np.int64]) -> Array:
    """Leaders' own part (k, k) of a matrix in the family's representation."""
    return np.array([q.product(matrix, unit)[components] for unit in units(q.dim, components)])


def candidates(q: Gaussian, error: SquaredError, settings: Settings) -> NDArray[np.int64]:
    """Return components that may lead.

    These are the ones that are connected with many others. Where nothing is known of connections,
    or there are too many of them, those whose gradient has by far the most noise.
    """
    known = q.hubs()
    among = np.arange(q.dim) if known is None else known
    noisiest = among[np.argsort(-error.mean[among], kind="stable")]
    if known is None:
        noisy = settings.noise_of_leaders * np.median(error.mean)
        noisiest = noisiest[error.mean[noisiest] > noisy]
    return np.sort(noisiest[: settings.most_leaders])


def followed(target: Target, before: Gaussian, mixed: Mixed) -> Mixed:
    """Let the precision follow a long step, by the Hessians at both of its ends."""
    ends = np.stack([before.mean, mixed.q.mean])
    with np.errstate(over="ignore", invalid="ignore"):
        hessians = target.evaluate(ends, before.curvature).hessian
        assert hessians is not None
        precision = mixed.q.precision - before.symmetrise(hessians[1] - hessians[0])
    member = mixed.q.with_precision(precision) if np.isfinite(precision).all() else None
    return mixed if member is None else replace(mixed, q=member)
