"""Natural-gradient variational inference for PyMC.

The core (families, estimators, schedules, projections, guards, algorithm, theory) needs NumPy and
SciPy only and can be used on any log density with derivatives.
"""

from pymc_ngvi import schedules, theory
from pymc_ngvi.errors import DomainError, NGVIError, NonFiniteError, ScheduleError
from pymc_ngvi.estimators import BonnetPrice, Stein
from pymc_ngvi.families import CentredDiagonalGaussian, DiagonalGaussian, FullGaussian
from pymc_ngvi.projections import Composition, EigenvalueBounds, Identity, NonNegativeMean
from pymc_ngvi.subsampling import LinearRegression, Subsampling

__version__ = "0.1.0.dev0"

__all__ = [
    "BonnetPrice",
    "CentredDiagonalGaussian",
    "Composition",
    "DiagonalGaussian",
    "DomainError",
    "EigenvalueBounds",
    "FullGaussian",
    "Identity",
    "LinearRegression",
    "NGVIError",
    "NonFiniteError",
    "NonNegativeMean",
    "ScheduleError",
    "Stein",
    "Subsampling",
    "schedules",
    "theory",
]
