"""What the algorithm fits: a log density with derivatives, and the data behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pymc_ngvi.core.linalg import Array

if TYPE_CHECKING:
    from pymc_ngvi.core.families import Gaussian

#: Hessians are evaluated in chunks of about this many numbers (32 MiB), then summed.
CHUNK_SIZE = 2**22


@dataclass(frozen=True)
class Evaluation:
    """The target at n draws.

    Attributes
    ----------
    log_density : array, (n,)
    gradient : array, (n, d)
    hessian : array or None
        (n, d, d) where the full Hessian was asked for, (n, d) for its diagonal, None for neither.
    """

    log_density: Array
    gradient: Array
    hessian: Array | None


def averaging(n: int, sets: int) -> Array:
    """Matrix (sets, n) whose product with values of n draws is the mean of each set of them."""
    return np.kron(np.eye(sets), np.full((1, n // sets), sets / n))


class Target(ABC):
    """A log density with derivatives, up to a constant, on all of R^d.

    A target of your own subclasses this class and gives `dim`, `log_density` and `evaluate`.

    The other members are for targets that read their data in batches. A target that holds all its
    data keeps the defaults: it has no batches to draw, needs no anchor, and counts no passes.

    Attributes
    ----------
    dim : int
        Number of components d.
    reads_batches : bool
        Whether each evaluation sees a batch of the data, and so has noise of its own.
    """

    dim: int
    reads_batches: ClassVar[bool] = False

    @property
    def may_have_kinks(self) -> bool:
        """Whether the log density may have kinks or jumps, so that `kinks` is worth asking."""
        return False

    def kinks(self, draws: Array) -> Sequence[str]:
        """Name what may give the log density a kink or a jump between draws (n, d)."""
        return ()

    @property
    def passes(self) -> float:
        """Rows of data read so far, as a multiple of all rows."""
        return 0.0

    @abstractmethod
    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d)."""

    @abstractmethod
    def evaluate(self, draws: Array, curvature: str) -> Evaluation:
        """Log density and derivatives at draws (n, d).

        Parameters
        ----------
        draws : array, (n, d)
        curvature : {"full", "diagonal", "none"}
            Which part of the Hessian to give.
        """

    def average(self, draws: Array, curvature: str, sets: int = 1) -> Evaluation:
        """Log densities and gradients at draws (n, d), and the mean Hessian of each set of them.

        A mean costs less than the Hessians where these are sums over rows of data, and takes the
        memory of one of them.

        Parameters
        ----------
        draws : array, (n, d)
            Sets of equal size, one after the other.
        curvature : {"full", "diagonal"}
        sets : int
            Number of sets.

        Returns
        -------
        Evaluation
            Its `hessian` has an axis of sets in place of that of draws.
        """
        size, parts = max(1, CHUNK_SIZE // self.dim**2), []
        means = averaging(len(draws), sets)
        for start in range(0, len(draws), size):
            part = self.evaluate(draws[start : start + size], curvature)
            if part.hessian is None:
                raise TypeError("the target returned no Hessian: use the Stein estimator")
            with np.errstate(invalid="ignore"):  # a Hessian that is not finite is told later
                mean = np.tensordot(means[:, start : start + size], part.hessian, axes=1)
            parts.append(replace(part, hessian=mean))
        return Evaluation(
            np.concatenate([part.log_density for part in parts]),
            np.concatenate([part.gradient for part in parts]),
            np.sum([part.hessian for part in parts], axis=0),
        )

    def reseed(self, seed: int) -> None:  # noqa: B027  nothing to do is the rule, not an omission
        """Restart the sequence of batches from `seed`."""

    def follow(self, q: Gaussian, planned: int) -> bool:
        """Move the anchor of the control variates to the mean of `q`, where the gain is worth it.

        Parameters
        ----------
        q : Gaussian
        planned : int
            Number of evaluations that are to follow.

        Returns
        -------
        bool
            Whether the anchor moved.
        """
        return False

    def place_anchor(self, q: Gaussian | None) -> bool:
        """Move the anchor to the mean of `q`, or remove it; does nothing without control variates.

        Returns
        -------
        bool
            Whether there is an anchor now.
        """
        return False
