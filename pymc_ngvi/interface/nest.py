"""Nested fits that start from a Gaussian: which variables to hold, the fit itself, its verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Status
from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.nested import MOST_HELD
from pymc_ngvi.engine.bending import choose_held, curvature_changes
from pymc_ngvi.engine.nesting import NestedFit, Nesting
from pymc_ngvi.engine.problem import Problem
from pymc_ngvi.errors import DomainError, NonFiniteError
from pymc_ngvi.interface.fit import Fit
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import NGVIApproximation, create_approximation
from pymc_ngvi.results.report import Report
from pymc_ngvi.results.verdict import judge

#: A variable is worth a grid if the curvature of the rest changes along it by so many nats.
LEAST_CHANGE = 0.02


def find_held(names: Sequence[str], layout: Layout) -> Split:
    """Return the split of the flat vector by the variables that are to be held.

    Raises
    ------
    ValueError
        There is no such variable, they have more than two components, or nothing else is left.
    """
    slots = {name: slot for slot in layout for name in (slot.name, slot.variable)}
    unknown = [name for name in names if name not in slots]
    if unknown:
        known = ", ".join(slot.variable for slot in layout)
        raise ValueError(f"nested: the model has no free variable {unknown[0]!r}; it has {known}")
    places = {slots[name].start: slots[name] for name in names}
    held = [i for slot in places.values() for i in range(slot.start, slot.stop)]
    if not 1 <= len(held) <= MOST_HELD:
        raise ValueError(
            f"nested: a grid has one axis or {MOST_HELD}, and {', '.join(names)} together have "
            f"{len(held)} components"
        )
    if len(held) == layout.dim:
        raise ValueError("nested: the model has no other parameters, of which to fit a Gaussian")
    return Split(layout.dim, held)


class Nester:
    """Makes nested fits from a fit of one Gaussian, and counts what they cost.

    Parameters
    ----------
    fit : Fit
        That of the Gaussian, by the automatic engine.
    progress : ProgressBar
    """

    def __init__(self, fit: Fit, progress: ProgressBar) -> None:
        self.fit, self.progress = fit, progress
        self._begun: list[Nesting] = []

    @property
    def evaluations(self) -> int:
        """Evaluations of the target by all nested fits, those included that were given up."""
        return sum(nesting.evaluations for nesting in self._begun)

    @property
    def gradients(self) -> int:
        """Further evaluations, of gradients or log densities alone."""
        return sum(nesting.gradients for nesting in self._begun)

    @property
    def possible(self) -> bool:
        """Whether there can be a nested fit."""
        options, target = self.fit.prepared.options, self.fit.prepared.target
        engine = options.automatic and options.projection is None and not target.reads_batches
        return engine and self.fit.state.q.can_be_nested

    def ranked(self) -> list[str]:
        """Names of scalar variables, those first along which the curvature changes most."""
        layout = self._layout
        scalars = [slot for slot in layout if slot.size == 1 and layout.dim > 1]
        if not (self.possible and scalars and self._problem.takes_hessians):
            return [slot.variable for slot in scalars if self.possible]
        splits = [Split(layout.dim, [slot.start]) for slot in scalars]
        rng = np.random.default_rng(0)
        changes = curvature_changes(self._problem, self.fit.state.q, splits, rng)
        order = np.argsort(changes)[::-1]
        return [scalars[i].variable for i in order if changes[i] > LEAST_CHANGE]

    def nest_in(self, names: Sequence[str]) -> NGVIApproximation:
        """Fit on a grid of these variables."""
        # Who names variables wants their grid, whatever the budget of its Gaussian.
        nesting = self._begin(find_held(names, self._layout).held.tolist(), sys.maxsize)
        return self._completed(nesting)

    def attempts(self) -> Iterator[tuple[str, NGVIApproximation | None]]:
        """Yield nested fits in one or two variables that leave the rest close to a Gaussian.

        The next one is made where the last did not suffice: the caller ends the iteration.

        Yields
        ------
        names : str
            Of the variables.
        approx : NGVIApproximation or None
            None where the fit failed.
        """
        starts = {slot.variable: slot.start for slot in self._layout}
        ranked = [starts[name] for name in self.ranked()]
        self.progress.stage("nesting")
        with self.fit.stopwatch.timed("fit"):
            nesting = self._first_choice(ranked)
        while nesting is not None:
            try:
                approx = self._completed(nesting)
            except (NonFiniteError, DomainError, np.linalg.LinAlgError):
                approx = None
            yield self._named(nesting), approx
            held = nesting.split.held
            spent = self.evaluations >= self.fit.prepared.options.max_evaluations
            if held.size > 1 or self._is_small or spent:
                return
            with self.fit.stopwatch.timed("fit"):
                nesting = choose_held(ranked, self._begin, beside=held[0])

    def _first_choice(self, ranked: Sequence[int]) -> Nesting | None:
        """Return the nested fit in the best choice of one or two components."""
        groups = [[one] for one in ranked] if self._is_small else [ranked]
        return next(filter(None, (choose_held(group, self._begin) for group in groups)), None)

    @property
    def _is_small(self) -> bool:
        """Whether a grid of two axes would leave nothing to fit a Gaussian of."""
        return self._layout.dim <= MOST_HELD

    @property
    def _layout(self) -> Layout:
        return self.fit.prepared.target.layout

    @property
    def _problem(self) -> Problem:
        assert self.fit.search is not None
        return self.fit.search.engine.problem

    def _named(self, nesting: Nesting) -> str:
        slots = {i: slot for slot in self._layout for i in range(slot.start, slot.stop)}
        return " and ".join(dict.fromkeys(slots[i].variable for i in nesting.split.held))

    def _begin(self, held: Sequence[int], budget: int | None = None) -> Nesting:
        """Return the nested fit holding these components, by default in what is left to spend."""
        q, prepared = self.fit.state.q, self.fit.prepared
        if budget is None:
            budget = prepared.options.max_evaluations - self.evaluations
        split, structure = Split(q.dim, held), prepared.target.structure
        nesting = Nesting(self._problem, q, split, prepared.rng, structure, budget)
        self._begun.append(nesting)
        return nesting

    def _completed(self, nesting: Nesting) -> NGVIApproximation:
        """Fit on the whole grid, judge, and report."""
        prepared, gaussian = self.fit.prepared, self.fit.approx
        self.progress.stage("nesting")
        with self.fit.stopwatch.timed("fit"):
            nested = nesting.fit()
        approx = create_approximation(
            gaussian.model,
            nested.distribution,
            layout=self._layout,
            centring=gaussian.centring,
        )
        approx.take_records(gaussian)
        self.progress.stage("judging")
        with self.fit.stopwatch.timed("verdict"):
            spent = nested.evaluations
            verdict = judge(prepared.target, nested.distribution, prepared.rng, spent=spent)
        assert gaussian.report is not None
        report = gaussian.report.judged(verdict)
        approx.report = self._report(report, gaussian.report.elbo, nesting, nested)
        return approx

    def _report(self, report: Report, before: float, nesting: Nesting, nested: NestedFit) -> Report:
        """Say in the report of a nested fit how it was made, but not what it cost."""
        grid = " x ".join(str(axis.size) for axis in nested.distribution.axes)
        gain = report.elbo - before
        note = f"nested in {self._named(nesting)}: grid of {grid} (ELBO {gain:+.2f})"
        return replace(
            report,
            status=Status.CONVERGED if nested.complete else Status.MAX_EVALUATIONS,
            family=nested.distribution.name,
            notes=(*report.notes, note),
        )
