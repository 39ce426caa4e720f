"""Errors of the package: each says what went wrong, where, and what to do about it."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NGVIError(Exception):
    """Base class of the errors raised while fitting.

    Attributes
    ----------
    result : Result or None
        What had been fitted when the error was raised, set by
        :func:`pymc_ngvi.core.algorithm.drive`, so that a late failure does not lose the fit.
    """

    result: Any = None


class DomainError(NGVIError):
    """An update left the family's domain: the new precision is not positive definite."""


class NonFiniteError(NGVIError):
    """The target returned a non-finite log density, gradient or Hessian.

    Parameters
    ----------
    message : str
        What was not finite, and where.
    draws : array, (k, d)
        The draws at which it happened.
    evaluations : int
        How many evaluations of the target were spent before the error.
    """

    def __init__(self, message: str, draws: NDArray[np.float64], evaluations: int = 0) -> None:
        super().__init__(message)
        self.draws = draws
        self.evaluations = evaluations

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.draws, self.evaluations)


class ScheduleError(NGVIError, ValueError):
    """A step size is outside (0, 1], or a sample size is not a positive integer."""


class ClusterLostError(NGVIError):
    """The cluster that passes over the data is gone, or its workers die of the work."""


class FileFormatError(ValueError):
    """A file is not a saved approximation, or is damaged."""


class UnreliableFit(UserWarning):
    """The fit is not close to the posterior, as no Gaussian of its family is."""


class EstimatorChanged(UserWarning):
    """The estimator that was asked for is wrong for this log density, and another one was used."""


class BudgetSpent(UserWarning):
    """The fit used up its iterations or evaluations before it reached its accuracy."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and attribute the warning to the first caller outside this package."""
    level, frame = 2, sys._getframe(1)
    # Functions that a context manager decorates are called by contextlib.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "pymc_ngvi",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def first_line(error: BaseException) -> str:
    """Shorten an error to its type and the first line of its message."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
