"""Sums over rows: Hessians of linear predictors at the speed of linear algebra."""

from pymc_ngvi.model.separable.evaluator import RowEvaluator
from pymc_ngvi.model.separable.linear import TooLargeError
from pymc_ngvi.model.separable.row_term import block_size
from pymc_ngvi.model.separable.separable import CompiledRows, Separable, separate

__all__ = ["CompiledRows", "RowEvaluator", "Separable", "TooLargeError", "block_size", "separate"]
