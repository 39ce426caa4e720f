"""One fit: run the iterations, judge the result, report. `prepare` comes before it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from pymc_ngvi.core import algorithm, schedules
from pymc_ngvi.core.algorithm import Info, Iterations, Result, State, Status
from pymc_ngvi.core.control_variates import Anchored
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.engine.derivatives import Finding, examine
from pymc_ngvi.engine.problem import Problem
from pymc_ngvi.engine.search import Search
from pymc_ngvi.engine.settings import DEFAULTS, Settings
from pymc_ngvi.errors import NonFiniteError, UnreliableFit, first_line, warn
from pymc_ngvi.interface.interrupts import Shield
from pymc_ngvi.interface.notes import Note, notes_of_engine, warn_of_ending
from pymc_ngvi.interface.prepare import Prepared
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.model.target import Reading
from pymc_ngvi.results.approximation import NGVIApproximation
from pymc_ngvi.results.report import Report
from pymc_ngvi.results.verdict import Verdict, judge

PyMCCallback: TypeAlias = Callable[[Any, np.ndarray | None, int], object]


class Fit:
    """A fit from its first iteration to its last refinement.

    Nothing that was fitted is lost: after a callback that stops, an interrupt or an error, the
    approximation holds the last good member, its history and its report.

    Parameters
    ----------
    prepared : Prepared
        What to fit and where to start.
    approx : NGVIApproximation
        The approximation to keep up to date.
    score : bool
        Whether to keep the losses.
    callbacks : sequence of callables
        PyMC's: called as ``callback(approx, losses, i)`` after each iteration.
    family_reason : str
        Why the family was chosen, for the report.
    pause_at : int, optional
        Evaluations after which the automatic engine pauses, so that the fit so far is judged;
        `resume` goes on.

    Attributes
    ----------
    state : State
        Last good state.
    history : list of Info
        All iterations, refinements included.
    verdict : Verdict
        How good the last result is.
    search : Search or None
        The automatic engine with its starts; None where a schedule was given.
    stopwatch : Stopwatch
        Where the time went.
    """

    def __init__(
        self,
        prepared: Prepared,
        approx: NGVIApproximation,
        *,
        score: bool = True,
        callbacks: Sequence[PyMCCallback] = (),
        family_reason: str = "",
        pause_at: int | None = None,
    ) -> None:
        self.prepared = prepared
        self.approx = approx
        self.score = score
        self.callbacks = callbacks
        self.family_reason = family_reason
        self._pause_at = pause_at
        self._paused: Iterations | None = None
        self.state = prepared.states[0]
        self.history: list[Info] = []
        self.search = make_search(prepared) if prepared.options.automatic else None
        self.stopwatch = prepared.stopwatch
        self.verdict = Verdict()
        self._ending: Status | None = None
        self._retried = False
        self._misleading: Finding | None = None  # what a schedule could do nothing about
        self._told: list[Note] = []
        self._judging = Reading()  # what all verdicts so far have read of the data

    def run(self, n: int, progress: ProgressBar) -> None:
        """Fit for n iterations with a schedule, and for n at most with the automatic engine.

        How reliable the fit is, and how it ended, is for `tell` to say.
        """
        if n == 0:
            with Shield() as shield:
                self._conclude(Result(self.state, [], Status.INITIALISED), shield)
            return
        if self.search is None:
            self._complete(_scheduled(self.prepared, self.state, n), progress)
            return
        self._paused = self.search.fit(self.prepared.states, n)
        self._go_on(self._pause_at, progress)

    @property
    def paused(self) -> bool:
        """Whether there is more to come: the fit was judged before its end."""
        return self._paused is not None

    def resume(self, progress: ProgressBar) -> None:
        """Go on to the end after a pause."""
        self._go_on(None, progress)

    def _go_on(self, evaluations: int | None, progress: ProgressBar) -> None:
        """Go on with what is paused, to its end or up to so many evaluations, and judge it."""
        assert self.search is not None
        self._ending = self._complete(self._until(evaluations), progress)
        self._retried = len(self.prepared.states) == 1 < len(self.search.attempts)

    def _until(self, evaluations: int | None) -> Iterations:
        """Go on with what is paused, to its end or up to so many evaluations."""
        running = self._paused
        assert running is not None
        self._paused = None
        while True:
            try:
                state, info = next(running)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield state, info
            if evaluations is not None and state.evaluations >= evaluations:
                self._paused = running
                return Status.MAX_EVALUATIONS, state

    def tell(self, remedies: Sequence[str] = (), tried: Sequence[str] = ()) -> None:
        """Warn where the fit is unreliable or could not be judged, and where it has not converged.

        Parameters
        ----------
        remedies, tried : sequence of str
            What may help, and what has not.
        """
        assert self.approx.report is not None
        if message := self.approx.report.verdict.warning(remedies, tried):
            warn(f"ngvi: {message}", UnreliableFit)
        if self._ending is not None:
            accuracy = self.prepared.options.accuracy
            warn_of_ending(self._ending, accuracy, retried=self._retried)
        self._ending = None

    def refine(self, n: int, progress: ProgressBar) -> None:
        """Go on for n iterations from the last state."""
        if self.search is None or not self.history:  # nothing to go on from but the start
            self.run(n, progress)
        else:
            self._ending = None
            self._complete(self.search.engine.refine(self.state, n), progress)
        self.tell()

    def _complete(self, iterations: Iterations, progress: ProgressBar) -> Status:
        """Run the iterations, judge the member they came to, and report; return the status."""
        target, callbacks = self.prepared.target, [self._record, progress.update, self._call_back]
        target.watch(progress.reading)
        result: Result | None = None
        with Shield() as shield:
            try:
                with self.stopwatch.timed("fit"), shield.lifted():
                    result = algorithm.drive(iterations, self.state, callbacks, target)
                    self._examine(result)
            except KeyboardInterrupt:  # outside the iterations, which keep their own state
                result = result or Result(self.state, [], Status.INTERRUPTED)
            except BaseException as error:
                failed = getattr(error, "result", None) or Result(self.state, [], Status.FAILED)
                self._conclude(result or failed, shield)
                error.approximation = self.approx  # type: ignore[attr-defined]
                if isinstance(error, NonFiniteError):
                    error.args = (f"{error}\n\n{target.describe(error.draws[0])}",)
                raise
            progress.stage("judging")
            result = self._conclude(result, shield)
        for note in self._notes:
            if note not in self._told and note.category is not None:
                warn(f"ngvi: {note.text}", note.category)
        self._told = self._notes
        return result.status

    def _record(self, state: State, info: Info) -> None:
        self.state = state
        self.history.append(info)

    def _call_back(self, state: State, info: Info) -> None:
        if not self.callbacks:
            return
        self.approx.set_gaussian(state.fitted)
        losses = self._losses() if self.score else None
        for callback in self.callbacks:
            callback(self.approx, losses, state.iteration)

    def _losses(self) -> np.ndarray:
        return np.array([-info.elbo for info in self.history])

    def _conclude(self, result: Result, shield: Shield) -> Result:
        """Keep the result, judge it, and report; return it with the status that it has then."""
        result = self._keep(result)
        before = self.prepared.target.reading
        with self.stopwatch.timed("verdict"):
            try:
                self.verdict = self._judge(result, shield)
            except KeyboardInterrupt as error:
                self.verdict = Verdict(problem=first_line(error))
                if self.paused:  # what was to be judged is not the end of the fit
                    result = replace(result, status=Status.INTERRUPTED)
        self.approx.report = self._report(result, self.verdict, before)
        return result

    def _keep(self, result: Result) -> Result:
        """Write the result to the approximation; return it with the state that is kept."""
        if self.search is not None and self.search.best is not None:
            # Cut short in a later start, which must not replace what an earlier one came to.
            best = self.search.engine.budget.counted(self.search.best)
            result = replace(result, state=best)
            self.search.best = None
        self.state = result.state
        self.approx.set_gaussian(result.q)
        self.approx.hist = self._losses() if self.score else np.empty(0)
        self.approx.history = list(self.history)
        self.approx.seed = self.prepared.options.random_seed
        return result

    def _judge(self, result: Result, shield: Shield) -> Verdict:
        """Judge the result, unless it was cut short; an error in judging does not lose the fit."""
        if result.status in (Status.INITIALISED, Status.FAILED, Status.INTERRUPTED):
            return Verdict()
        try:
            prepared, spent = self.prepared, result.state.evaluations
            # What follows a pause is the same whether the fit was judged in it or not.
            rng = copy.deepcopy(prepared.rng) if self.paused else prepared.rng
            with shield.lifted():
                return judge(prepared.target, result.q, rng, spent=spent)
        except Exception as error:
            return Verdict(problem=first_line(error))

    def _report(self, result: Result, verdict: Verdict, before: Reading) -> Report:
        """Report on all runs so far; `before` is what had been read before the last verdict."""
        fitting = _difference(before, self._judging)
        judging = _difference(self.prepared.target.reading, before)
        self._judging = _difference(self.prepared.target.reading, fitting)
        estimator = self._estimator
        return Report.from_history(
            self.history,
            result,
            verdict=verdict,
            estimator=getattr(estimator, "name", repr(estimator)),
            backend=self.prepared.target.backend,
            family_reason=self.family_reason,
            compile_seconds=self.stopwatch.seconds["build"],
            fit_seconds=self.stopwatch.seconds["fit"],
            verdict_seconds=self.stopwatch.seconds["verdict"],
            starts=() if self.search is None else self.search.attempts,
            notes=tuple(note.text for note in self._notes),
            fitting=fitting,
            judging=judging,
        )

    @property
    def _estimator(self) -> Any:
        """The estimator that the last iterations used."""
        if self.search is None:
            return self.prepared.parts.estimator
        return self.search.engine.problem.estimator

    def _examine(self, result: Result) -> None:
        """Look for kinks and jumps after a schedule; the automatic engine does that by itself."""
        if self.search is None and result.status != Status.INTERRUPTED:
            prepared, most = self.prepared, DEFAULTS.examined_early
            self._misleading, _ = examine(
                prepared.target, self._estimator, result.q, prepared.rng, DEFAULTS, most
            )

    @property
    def _notes(self) -> list[Note]:
        """What the fit found of the log density, and what it did about it."""
        recentred = self.prepared.recentred
        return [*([Note(recentred, None)] if recentred else []), *self._findings]

    @property
    def _findings(self) -> list[Note]:
        if self.search is not None:
            label, ends = self.prepared.target.layout.label, self.verdict.beyond_support
            return notes_of_engine(self.search.engine, label, ends=ends)
        if self._misleading is None:
            return []
        advice = f'give estimator="{self._misleading.replacement.name}"'
        return [Note(f"{self._misleading}: {advice}", UnreliableFit)]


def make_search(prepared: Prepared, settings: Settings = DEFAULTS) -> Search:
    """Return the automatic engine, with more states to start from where the first end badly."""
    parts, options = prepared.parts, prepared.options
    problem = Problem(
        prepared.target, parts.estimator, parts.guard, parts.projection, options.accuracy, settings
    )
    engine = Engine(problem, options.max_evaluations, prepared.rng)
    return Search(engine, prepared.maker.elsewhere)


def _scheduled(prepared: Prepared, state: State, n: int) -> Iterations:
    """Return n iterations of Algorithm 1 with the schedules of the options."""
    target, options, estimator = prepared.target, prepared.options, prepared.parts.estimator
    n_samples = 10 if options.n_samples is None else options.n_samples
    if target.reads_batches:
        # An iteration that reads as many rows as there are gains nothing from reading more.
        n_samples = schedules.capped(n_samples, math.ceil(target.price))
        estimator = Anchored(estimator) if options.controlled else estimator
    return algorithm.iterate(
        target,
        state,
        n_iterations=n,
        step_size=schedules.decreasing() if options.step_size is None else options.step_size,
        n_samples=n_samples,
        estimator=estimator,
        guard=prepared.parts.guard,
        projection=prepared.parts.projection,
        averaging=options.averaging,
        rng=prepared.rng,
    )


def _difference(later: Reading, earlier: Reading) -> Reading:
    """Return what was read in `later` and not in `earlier`."""
    return replace(later, rows=later.rows - earlier.rows, anchors=later.anchors - earlier.anchors)
