"""What can be done where one Gaussian does not do: nested fits, and draws that are matched.

The order is that of what they cost: centring is chosen before the fit
(:mod:`pymc_ngvi.interface.recentre`), a nested fit comes after it, matched draws come with
sampling, and NUTS is left to the user.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Status
from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.families import SparseGaussian
from pymc_ngvi.core.nested import MOST_HELD
from pymc_ngvi.engine.bending import choose_held, curvature_changes
from pymc_ngvi.engine.nesting import NestedFit, Nesting
from pymc_ngvi.errors import DomainError, NonFiniteError, UnreliableFit, warn
from pymc_ngvi.interface.fit import Fit
from pymc_ngvi.interface.prepare import Prepared
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.model.centring import candidates
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import NGVIApproximation, create_approximation
from pymc_ngvi.results.report import Report
from pymc_ngvi.results.verdict import Verdict, judge

#: A variable is worth a grid if the curvature of the rest changes along it by so many nats.
LEAST_CHANGE = 0.02
#: Draws on which matching is tried.
MATCHED_DRAWS = 1000
#: What a Gaussian has to reach, and may cost, that is only the start of a nested fit.
FIRST_ACCURACY, FIRST_EVALUATIONS = 0.1, 2000
#: Where one Gaussian may not be the end, the fit is judged when it has cost so much; that is more
#: than most fits cost in all.
JUDGED_EARLY = 1500
#: Numbers that the log density of one draw may go through where what takes thousands of draws is to
#: be tried by itself: nested fits then take half a minute at most, as matched draws do.
MOST_NUMBERS_NESTED, MOST_NUMBERS_MATCHED = 2**14, 2**11
#: A nested fit has to raise the ELBO by so many nats, to be better than one Gaussian.
LEAST_GAIN = 0.05
#: Where a fit has ended for one of these reasons, there is nothing to improve.
_FINAL = (Status.MAX_ITERATIONS, Status.STOPPED_BY_CALLBACK, Status.IMPROPER, Status.INTERRUPTED)


def when_to_pause(prepared: Prepared) -> int | None:
    """Tell after how many evaluations to judge a fit before its end; None for not at all."""
    one = len(prepared.states) == 1 and not prepared.target.reads_batches
    family = prepared.states[0].q
    suitable = family.has_mean and family.has_triangular_root
    wanted = prepared.options.may_nest and _nests_by_itself(prepared)
    return JUDGED_EARLY if one and suitable and wanted else None


def _nests_by_itself(prepared: Prepared) -> bool:
    """Whether nested fits are tried where nobody asked for them: not where they take minutes."""
    asked = prepared.options.nested == "auto"
    return asked or prepared.target.numbers <= MOST_NUMBERS_NESTED


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


class Remedies:
    """Improve a fit that has ended, as far as the options ask for it, and tell how it ends.

    Parameters
    ----------
    fit : Fit
    progress : ProgressBar
    """

    def __init__(self, fit: Fit, progress: ProgressBar) -> None:
        self.fit, self.progress = fit, progress
        self.options = fit.prepared.options
        self.target = fit.prepared.target
        self.approx = fit.approx
        self.tried: list[str] = []
        self._nesting_tried = False
        #: Evaluations, gradients and seconds that went into what was not kept.
        self._spent = (0, 0, 0.0)

    def apply(self) -> NGVIApproximation:
        """Return the approximation of the fit, or one that is better; an interrupt keeps it."""
        try:
            self._apply()
        except KeyboardInterrupt:
            report = self.approx.report
            self.approx.report = report and replace(report, status=Status.INTERRUPTED)
        return self.approx

    def _apply(self) -> None:
        options, fit = self.options, self.fit
        if fit.paused:
            # A good fit goes on; of a bad one, the Gaussian need not be exact if it is not the end.
            if fit.verdict.draws and fit.verdict.unreliable:
                self._nest_by_itself()
            if self._verdict.unreliable or self.approx is fit.approx:
                better, self.approx = self.approx, fit.approx
                fit.resume(self.progress)
                self._take(better)
        report = self.approx.report
        ended = report is None or report.status in _FINAL
        if ended or not fit.verdict.draws or self.target.reads_batches or not options.automatic:
            fit.tell(self._named())
        elif not isinstance(options.nested, str | None):
            self.approx = self._nested(list(options.nested))
            self._tell()
        elif options.may_nest and self._verdict.unreliable:
            if not self._nesting_tried and _nests_by_itself(fit.prepared):
                self._nest_by_itself()
            matches = options.remedy == "auto" and self.target.numbers <= MOST_NUMBERS_MATCHED
            if matches and self._verdict.unreliable:
                self._match()
            self._tell()
        elif self.approx is fit.approx:
            fit.tell(self._named() if fit.verdict.unreliable else ())

    @property
    def _verdict(self) -> Verdict:
        assert self.approx.report is not None
        return self.approx.report.verdict

    @property
    def _elbo(self) -> float:
        """The ELBO of the best so far, other than the Gaussian."""
        report = self.approx.report
        return -np.inf if report is None or self.approx is self.fit.approx else report.elbo

    def _tell(self) -> None:
        """Warn where the fit is still unreliable, with what was tried."""
        if self.approx.importance is not None:
            return
        if self.approx is self.fit.approx:
            self.fit.tell(self._named(), self.tried)
        elif message := self._verdict.warning(self._named(), self.tried):
            warn(f"ngvi: {message}", UnreliableFit)

    def _named(self) -> list[str]:
        """Name the remedies that are left, those that cost least first."""
        options, target = self.options, self.target
        named = ['family="fullrank"'] if self.fit.state.q.factorised else []
        if options.reparametrize is False and candidates(target.model, factorised=False):
            named.append('reparametrize="auto"')
        fitted = bool(self.fit.verdict.draws) and self.fit.verdict.unreliable
        if fitted and not self.tried and self._can_nest and options.nested is None:
            named += [f"nested=[{name!r}]".replace("'", '"') for name in self._ranked()[:1]]
        if not any(word.startswith("matched") for word in self.tried) and not target.reads_batches:
            how = "resample" if self._verdict.weighable else "match"
            named.append(f'sample(importance="{how}")')
        return named

    # Nested fits.

    @property
    def _can_nest(self) -> bool:
        family = self.fit.state.q
        return (
            self.options.automatic
            and self.options.projection is None
            and not self.target.reads_batches
            and family.has_mean
            and family.has_triangular_root
        )

    def _ranked(self) -> list[str]:
        """Names of scalar variables, those first along which the curvature changes most."""
        layout, q = self.target.layout, self.fit.state.q
        scalars = [slot for slot in layout if slot.size == 1 and layout.dim > 1]
        assert self.fit.search is not None
        problem = self.fit.search.engine.problem
        if not scalars or not problem.takes_hessians:
            return [slot.variable for slot in scalars]
        splits = [Split(layout.dim, [slot.start]) for slot in scalars]
        changes = curvature_changes(problem, q, splits, np.random.default_rng(0))
        order = np.argsort(changes)[::-1]
        return [scalars[i].variable for i in order if changes[i] > LEAST_CHANGE]

    def _nest_by_itself(self) -> None:
        """Nest in the one or two variables that leave the rest closest to a Gaussian."""
        layout = self.target.layout
        slots = {slot.start: slot for slot in layout}
        starts = {slot.variable: slot.start for slot in layout}
        ranked = [starts[name] for name in self._ranked()] if self._can_nest else []
        self.progress.stage("nesting")
        self._nesting_tried = True
        beside: int | None = None
        while True:
            begin = time.perf_counter()
            choice = choose_held(ranked, self._begin, beside=beside)
            self._spend(choice.evaluations, choice.gradients, time.perf_counter() - begin)
            if choice.nesting is None:
                if ranked and not self.tried:
                    self.tried.append("nesting in one or two variables")
                return
            held = choice.nesting.split.held
            names = [slots[int(i)].variable for i in held]
            self.tried.append(f"nested in {' and '.join(names)}")
            with contextlib.suppress(NonFiniteError, DomainError, np.linalg.LinAlgError):
                self._take(self._nested(names, choice.nesting))
            if len(held) > 1 or not self._verdict.unreliable:
                return
            beside = int(held[0])
            self._spend(choice.nesting.evaluations, choice.nesting.gradients, 0.0)

    def _spend(self, evaluations: int, gradients: int, seconds: float) -> None:
        before = self._spent
        self._spent = (before[0] + evaluations, before[1] + gradients, before[2] + seconds)

    def _take(self, found: NGVIApproximation) -> None:
        """Keep what was found, if it is better than the Gaussian."""
        before, after = self.fit.approx.report, found.report
        assert before is not None
        assert after is not None
        if found is not self.fit.approx and after.elbo > max(before.elbo + LEAST_GAIN, self._elbo):
            self.approx = found

    def _begin(self, held: Sequence[int]) -> Nesting:
        """Return the nested fit that holds these components."""
        assert self.fit.search is not None
        q = self.fit.state.q
        return Nesting(
            self.fit.search.engine.problem,
            q,
            Split(q.dim, held),
            self.fit.prepared.rng,
            q.structure if isinstance(q, SparseGaussian) else None,
            # Who names variables wants their grid; its Gaussian has a budget of its own.
            self.options.max_evaluations if self.options.may_nest else sys.maxsize,
        )

    def _nested(self, names: list[str], nesting: Nesting | None = None) -> NGVIApproximation:
        """Fit on a grid of these variables, judge, and report."""
        fit, prepared = self.fit, self.fit.prepared
        self.progress.stage("nesting")
        begin = time.perf_counter()
        if nesting is None:
            nesting = self._begin(find_held(names, self.target.layout).held.tolist())
        nested = nesting.fit()
        seconds = time.perf_counter() - begin
        approx = create_approximation(
            fit.approx.model,
            nested.distribution,
            layout=self.target.layout,
            centring=fit.approx.centring,
        )
        approx.take_records(fit.approx)
        self.progress.stage("judging")
        begin = time.perf_counter()
        spent = nested.evaluations
        verdict = judge(self.target, nested.distribution, prepared.rng, spent=spent)
        approx.report = self._report(names, nested, verdict, seconds, time.perf_counter() - begin)
        return approx

    def _report(
        self,
        names: list[str],
        nested: NestedFit,
        verdict: Verdict,
        seconds: float,
        verdict_seconds: float,
    ) -> Report:
        """Report on the Gaussian and the nested fit together."""
        before = self.fit.approx.report
        assert before is not None
        gain = verdict.elbo - before.elbo
        grid = " x ".join(str(axis.size) for axis in nested.distribution.axes)
        note = f"nested in {' and '.join(names)}: grid of {grid} (ELBO {gain:+.2f})"
        return replace(
            before.judged(verdict),
            status=Status.CONVERGED if nested.complete else Status.MAX_EVALUATIONS,
            family=nested.distribution.name,
            evaluations=before.evaluations + nested.evaluations + self._spent[0],
            gradients=before.gradients + nested.gradients + self._spent[1],
            fit_seconds=before.fit_seconds + seconds + self._spent[2],
            verdict_seconds=before.verdict_seconds + verdict_seconds,
            notes=(*before.notes, note),
        )

    # Matched draws.

    def _match(self) -> None:
        """Let `sample` match the draws, where that makes their weights reliable."""
        matched, khat = self.approx.try_matching(MATCHED_DRAWS, self.fit.prepared.rng)
        self.tried.append(f"matched draws (k-hat {matched.khat:.2f})")
        if not matched.weighable:
            return
        report = self.approx.report
        assert report is not None
        note = f"sample() matches draws (k-hat {khat:.2f}, matched {matched.khat:.2f})"
        self.approx.report = replace(report, notes=(*report.notes, note))
        self.approx.importance = "match"
