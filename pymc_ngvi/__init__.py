"""Natural-gradient variational inference for PyMC.

Importing the package makes ``pm.fit(method="ngvi")`` work. What a name stands for is imported when
it is first used: a script that only registers the method does not wait for the rest.

The core (families, estimators, schedules, projections, guards, algorithm, theory) needs NumPy and
SciPy only and can be used on any log density with derivatives.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pymc_ngvi._version import __version__
from pymc_ngvi.interface.registration import register, unregister

if TYPE_CHECKING:
    from pymc_ngvi.core import schedules, theory
    from pymc_ngvi.core.estimators import BonnetPrice, Score, Stein
    from pymc_ngvi.core.families import (
        CentredDiagonalGaussian,
        DiagonalGaussian,
        FullGaussian,
        LowRankGaussian,
        SparseGaussian,
    )
    from pymc_ngvi.core.projections import Composition, EigenvalueBounds, Identity, NonNegativeMean
    from pymc_ngvi.core.subsampling import LinearRegression, Subsampling
    from pymc_ngvi.errors import (
        BudgetSpent,
        ClusterLostError,
        DomainError,
        EstimatorChanged,
        FileFormatError,
        NGVIError,
        NonFiniteError,
        ScheduleError,
        UnreliableFit,
    )
    from pymc_ngvi.interface.calls import fit_ngvi
    from pymc_ngvi.interface.inference import NGVI
    from pymc_ngvi.model.loader import Loader
    from pymc_ngvi.model.minibatches import full_data
    from pymc_ngvi.model.sources.parquet import Parquet
    from pymc_ngvi.results import plots
    from pymc_ngvi.results.approximation import load
    from pymc_ngvi.results.bambi import bambi_results
    from pymc_ngvi.results.comparison import compare, loo

# Where each name is found at run time, as above.
_HOMES = {
    "NGVI": "interface.inference",
    "BonnetPrice": "core.estimators",
    "BudgetSpent": "errors",
    "CentredDiagonalGaussian": "core.families",
    "ClusterLostError": "errors",
    "Composition": "core.projections",
    "DiagonalGaussian": "core.families",
    "DomainError": "errors",
    "EigenvalueBounds": "core.projections",
    "EstimatorChanged": "errors",
    "FileFormatError": "errors",
    "FullGaussian": "core.families",
    "Identity": "core.projections",
    "LinearRegression": "core.subsampling",
    "Loader": "model.loader",
    "NGVIError": "errors",
    "NonFiniteError": "errors",
    "NonNegativeMean": "core.projections",
    "Parquet": "model.sources.parquet",
    "ScheduleError": "errors",
    "Score": "core.estimators",
    "LowRankGaussian": "core.families",
    "SparseGaussian": "core.families",
    "Stein": "core.estimators",
    "Subsampling": "core.subsampling",
    "UnreliableFit": "errors",
    "bambi_results": "results.bambi",
    "compare": "results.comparison",
    "fit_ngvi": "interface.calls",
    "full_data": "model.minibatches",
    "load": "results.approximation",
    "loo": "results.comparison",
    "plots": "results",
    "schedules": "core",
    "theory": "core",
}

__all__ = [
    "NGVI",
    "BonnetPrice",
    "BudgetSpent",
    "CentredDiagonalGaussian",
    "ClusterLostError",
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
    "LowRankGaussian",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}"
    module = import_module(home)
    value = getattr(module, name, None) or import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
