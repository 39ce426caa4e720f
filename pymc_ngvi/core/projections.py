r"""Bregman projections onto sets of Gaussians.

Each solves, for its set C of expectation parameters,

.. math:: \mathrm{proj}_C(\omega) = \arg\min_{\omega' \in C} d_{A^*}(\omega', \omega)
          = \arg\min_{q' \in C} \mathrm{KL}(q', q).

A projection is any callable from a member of a family to a member of the same family. Given a
member that lies in the set already, it returns that same object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np

from pymc_ngvi.arguments import check_callable, told
from pymc_ngvi.core.families import Gaussian

Projection: TypeAlias = Callable[[Gaussian], Gaussian]


@final
class Identity:
    r""":math:`\arg\min_{\omega'} d_{A^*}(\omega', \omega) = \omega`: no constraint."""

    def __call__(self, q: Gaussian) -> Gaussian:
        return q

    def __repr__(self) -> str:
        return "Identity()"


@final
class EigenvalueBounds:
    r""":math:`\arg\min_{\alpha I \preceq \Sigma' \preceq \beta I} d_{A^*}(\omega', \omega)`.

    Clips the eigenvalues of the covariance to [alpha, beta] and keeps the mean.

    The lower bound alone gives a convex set in omega. A finite upper bound does not (unless the
    family is centred): mixing, in omega, two members of the set with distant means gives a Gaussian
    whose covariance contains the spread of the means. The point returned is then still the unique
    minimiser, but the paper's convergence results, which assume a convex C, do not cover it.

    Clipping an indefinite "covariance" would set its negative eigenvalues to alpha, although a
    precision that has just passed zero means a very large variance. With `guard="none"` the update
    is therefore clipped in the spectrum of the precision, where such directions get beta.

    Parameters
    ----------
    alpha, beta : float
        Bounds, 0 <= alpha <= beta. The defaults are no bounds.

    Examples
    --------
    >>> from pymc_ngvi.core.families import DiagonalGaussian
    >>> q = DiagonalGaussian.from_mean_covariance([0.0, 0.0, 0.0], [1e-6, 1.0, 1e6])
    >>> EigenvalueBounds(1e-4, 1e4)(q).variance
    array([1.e-04, 1.e+00, 1.e+04])
    """

    def __init__(self, alpha: float = 0.0, beta: float = np.inf) -> None:
        if not (0 <= alpha <= beta and beta > 0):
            raise ValueError(f"EigenvalueBounds needs 0 <= alpha <= beta, got {alpha} and {beta}")
        self.alpha = float(alpha)
        self.beta = float(beta)

    def __call__(self, q: Gaussian) -> Gaussian:
        return q.clip_precision(*self.precision_bounds)

    @property
    def precision_bounds(self) -> tuple[float, float]:
        """The same bounds for the precision: 1 / beta and 1 / alpha."""
        return 1 / self.beta, 1 / self.alpha if self.alpha > 0 else np.inf

    def __repr__(self) -> str:
        return f"EigenvalueBounds(alpha={self.alpha:g}, beta={self.beta:g})"


@final
class NonNegativeMean:
    r""":math:`\arg\min_{\mu' \ge 0} d_{A^*}(\omega', \omega)`, for factorised families.

    Replaces the negative components of the mean by zero and keeps the variances. The set is convex
    in omega. With cross-covariances the minimiser would move the other components too, so clipping
    is not the projection, and full covariance is refused.
    """

    def check(self, family: type[Gaussian]) -> None:
        """Raise an error where the projection does not fit the family."""
        if not family.factorised:
            raise ValueError(
                f"NonNegativeMean does not fit family {family.name!r}: with cross-covariances, "
                "clipping the mean is not the Bregman projection. Use family='meanfield', or a "
                "positive transform of the variable."
            )

    def __call__(self, q: Gaussian) -> Gaussian:
        self.check(type(q))
        return q.with_mean(np.maximum(q.mean, 0.0)) if q.mean.min() < 0 else q

    def __repr__(self) -> str:
        return "NonNegativeMean()"


@final
class Composition:
    """Several projections, one after the other.

    On the diagonal families the projections of this module act on different parts of the parameter,
    and their composition is the projection onto the intersection of their sets. In general the
    result only lies in the last set.
    """

    def __init__(self, *projections: Projection) -> None:
        for projection in projections:
            if not callable(projection):
                raise TypeError(f"{told(projection)} is not callable: a projection maps q to q")
        self.projections = projections

    def check(self, family: type[Gaussian]) -> None:
        """Raise an error where one of the projections does not fit the family."""
        for projection in self.projections:
            check_projection(projection, family)

    @property
    def precision_bounds(self) -> tuple[float, float]:
        """The tightest of the bounds that the projections put on the precision."""
        bounds = [getattr(part, "precision_bounds", (0.0, np.inf)) for part in self.projections]
        return max((low for low, _ in bounds), default=0.0), min(
            (high for _, high in bounds), default=np.inf
        )

    def __call__(self, q: Gaussian) -> Gaussian:
        for projection in self.projections:
            q = projection(q)
        return q

    def __repr__(self) -> str:
        return f"Composition({', '.join(map(repr, self.projections))})"


def check_projection(projection: Projection, family: type[Gaussian]) -> None:
    """Raise an error, before any evaluation, where a projection does not fit the family."""
    if not callable(projection):
        raise TypeError(f"projection {told(projection)} is not callable: a projection maps q to q")
    if isinstance(projection, type):
        raise TypeError(
            f"projection {told(projection)} is a class: give an instance, such as "
            "EigenvalueBounds(1e-4, 1e4)"
        )
    check_callable("projection", projection, "q")
    check = getattr(projection, "check", None)
    if check is not None:
        check(family)
