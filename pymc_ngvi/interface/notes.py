"""What a fit has to say besides its numbers: notes for the report, and warnings of how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pymc_ngvi.core.algorithm import Status
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.errors import BudgetSpent, EstimatorChanged, UnreliableFit, warn


class Note(NamedTuple):
    """What a fit found of the log density: for the report, and as a warning if it is one."""

    text: str
    category: type[Warning] | None


def notes_of_engine(engine: Engine, label: Callable[[int], str], *, ends: bool) -> list[Note]:
    """Say which kinks and jumps, and which flat direction, the automatic engine has found.

    Where the log density `ends` among the draws, a fit that is squeezed in takes it for flat.
    """
    notes = [
        Note(
            f'{found}; the fit went on with estimator="{found.replacement.name}"', EstimatorChanged
        )
        for found in engine.findings
    ]
    improper = "the posterior is not proper along {}: give a proper prior"
    if engine.problem.target.reads_batches:  # which may have no row of some components
        improper = "a few batches do not show that the posterior is proper along {}: take larger"
        improper += " batches, of as many rows as parameters, or give a proper prior"
    flat = "the log density is flat along {}, as far as the fit came: give a proper prior"
    for direction, what in ((engine.improper, improper), (None if ends else engine.flat, flat)):
        if direction is not None:
            components = ", ".join(map(label, direction.components[:5]))
            notes.append(Note(what.format(components), UnreliableFit))
    return notes


def warn_of_ending(status: Status, accuracy: float, *, retried: bool) -> None:
    """Warn where the automatic engine did not converge, or only from other starts."""
    budgets = {Status.MAX_ITERATIONS: "n", Status.MAX_EVALUATIONS: "max_evaluations"}
    if status in budgets:
        warn(
            f"ngvi stopped on its budget before reaching accuracy={accuracy:g}: "
            f"raise {budgets[status]}, or go on from the result with start=",
            BudgetSpent,
        )
    elif status == Status.STALLED:
        warn(
            "ngvi found no step that improves the ELBO, from any start: the result is not an "
            "optimum. Give start=, or write the model in other parameters",
            UnreliableFit,
        )
    elif retried:
        warn("ngvi: the first start ended badly; this is the best of others, see the report")
