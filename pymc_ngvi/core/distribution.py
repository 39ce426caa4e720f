"""What a fit comes to: a distribution whose draws are made of standard normal numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array

if TYPE_CHECKING:
    from pymc_ngvi.core.families import Gaussian

LOG_TWO_PI = float(np.log(2 * np.pi))


class Distribution(ABC):
    """A distribution that maps standard normal rows to draws, and knows their densities.

    This is all that verdicts, weights, draws and files ask of what was fitted. A Gaussian is one;
    another is :class:`~pymc_ngvi.core.nested.Nested`.
    """

    #: Word by which files and reports call it.
    name: ClassVar[str]

    mean: Array

    @property
    @abstractmethod
    def kind(self) -> str:
        """Which approximation holds it: "full", "diagonal", "sparse" or "nested"."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of components d."""

    @property
    @abstractmethod
    def variance(self) -> Array:
        """Marginal variances, (d,)."""

    @abstractmethod
    def unwhiten(self, z: Array) -> Array:
        """Map standard normal rows z (n, d) to draws (n, d)."""

    @abstractmethod
    def log_density_whitened(self, z: Array) -> Array:
        """Log density (n,) of the draws `unwhiten(z)`."""

    @property
    @abstractmethod
    def gaussian(self) -> Gaussian:
        """The distribution itself where it is a Gaussian, else the one that has its moments."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by which a file keeps the distribution."""


def log_standard_normal(z: Array) -> Array:
    """Log density (n,) of standard normal rows z (n, d)."""
    return np.asarray(-0.5 * (z.shape[1] * LOG_TWO_PI + np.einsum("nd,nd->n", z, z)))
