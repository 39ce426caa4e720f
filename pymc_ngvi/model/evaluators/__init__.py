"""Evaluating a log density and its derivatives at many draws: three ways, one interface."""

from pymc_ngvi.model.evaluators.base import (
    Data,
    Evaluator,
    UnknownStructureError,
    every_second,
    joined,
)
from pymc_ngvi.model.evaluators.graphs import Batched, Looped, LoopOverDrawsError
from pymc_ngvi.model.evaluators.row_sums import RowSums

__all__ = [
    "Batched",
    "Data",
    "Evaluator",
    "LoopOverDrawsError",
    "Looped",
    "RowSums",
    "UnknownStructureError",
    "every_second",
    "joined",
]
