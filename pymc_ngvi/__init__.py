"""Natural-gradient variational inference for PyMC.

Importing the package makes ``pm.fit(method="ngvi")`` work.

The core (families, estimators, schedules, projections, guards, algorithm, theory) needs NumPy and
SciPy only and can be used on any log density with derivatives.
"""

from pymc_ngvi._version import __version__
from pymc_ngvi.core import schedules, theory
from pymc_ngvi.core.estimators import BonnetPrice, Score, Stein
from pymc_ngvi.core.families import (
    CentredDiagonalGaussian,
    DiagonalGaussian,
    FullGaussian,
    SparseGaussian,
)
from pymc_ngvi.core.projections import Composition, EigenvalueBounds, Identity, NonNegativeMean
from pymc_ngvi.core.subsampling import LinearRegression, Subsampling
from pymc_ngvi.errors import (
    BudgetSpent,
    DomainError,
    EstimatorChanged,
    FileFormatError,
    NGVIError,
    NonFiniteError,
    ScheduleError,
    UnreliableFit,
)
from pymc_ngvi.interface.inference import NGVI, fit_ngvi
from pymc_ngvi.interface.registration import register, unregister
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.minibatches import full_data
from pymc_ngvi.model.sources import Parquet
from pymc_ngvi.results import plots
from pymc_ngvi.results.approximation import load
from pymc_ngvi.results.bambi import bambi_results
from pymc_ngvi.results.comparison import compare, loo

__all__ = [
    "NGVI",
    "BonnetPrice",
    "BudgetSpent",
    "CentredDiagonalGaussian",
    "Composition",
    "DiagonalGaussian",
    "DomainError",
    "EigenvalueBounds",
    "EstimatorChanged",
    "FileFormatError",
    "FullGaussian",
    "Identity",
    "LinearRegression",
    "Loader",
    "NGVIError",
    "NonFiniteError",
    "NonNegativeMean",
    "Parquet",
    "ScheduleError",
    "Score",
    "SparseGaussian",
    "Stein",
    "Subsampling",
    "UnreliableFit",
    "__version__",
    "bambi_results",
    "compare",
    "fit_ngvi",
    "full_data",
    "load",
    "loo",
    "plots",
    "register",
    "schedules",
    "theory",
    "unregister",
]

register()
