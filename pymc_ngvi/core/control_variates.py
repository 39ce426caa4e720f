r"""Control variates: batches estimate only the remainder of a quadratic expansion at an anchor.

For a log density f of which a batch U shows :math:`f_U`, with :math:`E[f_U] = f`, and its second
order expansion :math:`T_a f` at an anchor a,

.. math:: \hat f_U(x) = f_U(x) + T_a f(x) - T_a f_U(x)

is as unbiased as :math:`f_U` itself, and so are its gradient and Hessian. Its noise is that of the
third order in x - a. Near the mode of M rows, :math:`x - a` is of order :math:`M^{-1/2}`, so where
the noise of plain batches is many posterior standard deviations, the noise that is left is a small
part of one. The cost is one pass over the data for :math:`T_a f`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_ngvi.core.estimators import Estimate, Estimator
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.sparse import Structure
from pymc_ngvi.core.target import Evaluation

#: KL divergence, per dimension, of a member from the one at the anchor beyond which a new anchor is
#: needed: the control variates then hardly reduce the noise.
FAR = 2.0
#: The same where a pass over the data costs less than the evaluations that are to follow, so that
#: even a small gain pays for it.
NOTICEABLE = 0.01


@dataclass(frozen=True)
class Anchor:
    """The log density of all the data at a point, with its derivatives.

    Attributes
    ----------
    q : Gaussian
        The member whose mean is the anchor.
    full : Evaluation
        The target at that one point. Without a Hessian the expansion is of first order.
    structure : Structure, optional
        Where Hessians at the anchor are values (nnz,) on one; by default they are dense.
    """

    q: Gaussian
    full: Evaluation
    structure: Structure | None = None

    @property
    def curvature(self) -> str:
        """What batches have to give at the anchor: Hessians of the same form, or none."""
        if self.full.hessian is None:
            return "none"
        return "full" if self.structure is None else "sparse"

    def is_far_from(self, q: Gaussian, price: float, planned: int) -> bool:
        """Whether q is so far from the anchor that a new one pays.

        Parameters
        ----------
        q : Gaussian
        price : float
            Cost of a pass over the data, in evaluations of a batch.
        planned : int
            Number of evaluations that are to follow.
        """
        return q.kl(self.q) > q.dim * (NOTICEABLE if price < planned else FAR)

    def control(self, draws: Array, here: Evaluation, there: Evaluation) -> Evaluation:
        """Subtract the expansion of each batch from its evaluation, and add that of all the data.

        Parameters
        ----------
        draws : array, (n, d)
        here : Evaluation
            A batch at each draw.
        there : Evaluation
            The same batches at the anchor.
        """
        away = draws - self.q.mean
        slope = self.full.gradient - there.gradient
        value = here.log_density + (self.full.log_density - there.log_density)
        value = value + (slope * away).sum(axis=1)
        if self.full.hessian is None or there.hessian is None:
            return Evaluation(value, here.gradient + slope, here.hessian)
        curvature = self.full.hessian - there.hessian
        bend, hessian = self._products(curvature, away), here.hessian
        if hessian is not None:
            diagonal = hessian.shape[1:] == away.shape[1:] != curvature.shape[1:]
            hessian = hessian + (self._diagonals(curvature) if diagonal else curvature)
        return Evaluation(
            value + 0.5 * (bend * away).sum(axis=1), here.gradient + slope + bend, hessian
        )

    def _products(self, matrices: Array, vectors: Array) -> Array:
        """Multiply n matrices, or one, by as many vectors (n, d)."""
        if self.structure is None:
            return np.asarray(np.einsum("nij,nj->ni", matrices, vectors))
        if len(matrices) == 1:
            return np.asarray(self.structure.matrix(matrices[0]) @ vectors.T).T
        pairs = zip(matrices, vectors, strict=True)
        return np.stack([self.structure.product(*pair) for pair in pairs])

    def _diagonals(self, matrices: Array) -> Array:
        if self.structure is None:
            return np.asarray(np.einsum("nii->ni", matrices))
        return self.structure.diagonal_of(matrices)


class Anchored:
    """An estimator that lets the target place a new anchor before each estimate.

    Parameters
    ----------
    estimator : Estimator
        The estimator to use.
    """

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator

    def __repr__(self) -> str:
        return f"Anchored({self.estimator!r})"

    def __call__(
        self, target: Any, q: Gaussian, n_samples: int, rng: np.random.Generator
    ) -> Estimate:
        """Estimate from fresh draws, with control variates at an anchor near q."""
        target.follow(q, n_samples)
        return self.estimator(target, q, n_samples, rng)
