"""What can be done where one Gaussian does not do: nested fits, and draws that are matched.

The order is that of what they cost: centring is chosen before the fit
(:mod:`pymc_ngvi.interface.recentre`), a nested fit comes after it
(:mod:`pymc_ngvi.interface.nest`), matched draws come with sampling, and NUTS is left to the user.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Status
from pymc_ngvi.engine.settings import DEFAULTS
from pymc_ngvi.errors import UnreliableFit, warn
from pymc_ngvi.interface.fit import Fit
from pymc_ngvi.interface.nest import Nester
from pymc_ngvi.interface.prepare import Prepared
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.model.centring import candidates
from pymc_ngvi.results.approximation import NGVIApproximation
from pymc_ngvi.results.checks import compare_with_moves
from pymc_ngvi.results.parameters import severity
from pymc_ngvi.results.report import Report

#: Draws on which matching is tried.
MATCHED_DRAWS = 1000
#: What a Gaussian has to reach, and may cost, that is only the start of a nested fit.
FIRST_ACCURACY, FIRST_EVALUATIONS = 0.1, 2000
#: Where one Gaussian may not be the end, the fit is judged when it has cost so much; that is about
#: what a regression costs in all.
JUDGED_EARLY = 800
#: Numbers that the log density of one draw may go through where what takes thousands of draws is to
#: be tried by itself, and those that its Hessian may: nested fits then take half a minute at most,
#: as matched draws do.
MOST_NUMBERS_NESTED, MOST_NUMBERS_MATCHED, MOST_NUMBERS_OF_HESSIANS = 2**14, 2**13, 2**18
#: A nested fit has to raise the ELBO by so many nats, to be better than one Gaussian.
LEAST_GAIN = 0.05
#: Where a fit has ended for one of these reasons, there is nothing to improve.
_FINAL = (
    Status.INITIALISED,
    Status.MAX_ITERATIONS,
    Status.STOPPED_BY_CALLBACK,
    Status.IMPROPER,
    Status.INTERRUPTED,
)


def when_to_pause(prepared: Prepared) -> int | None:
    """Tell after how many evaluations to judge a fit before its end; None for not at all."""
    one = len(prepared.states) == 1 and not prepared.target.reads_batches
    nestable = _nests_by_itself(prepared) and prepared.states[0].q.can_be_nested
    return JUDGED_EARLY if one and nestable else None


def _nests_by_itself(prepared: Prepared) -> bool:
    """Whether nested fits are tried where nobody named variables: not where they take minutes."""
    options, target = prepared.options, prepared.target
    of_hessian = target.numbers * target.hessian_price / target.price
    quick = target.numbers <= MOST_NUMBERS_NESTED and of_hessian <= MOST_NUMBERS_OF_HESSIANS
    return options.may_nest and (options.nested == "auto" or quick)


def _matches_by_itself(prepared: Prepared) -> bool:
    """Whether matched draws are tried where nobody asked for them: not where they take minutes."""
    options = prepared.options
    wanted = options.may_nest and options.remedy == "auto"
    return wanted and prepared.target.numbers <= MOST_NUMBERS_MATCHED


class Remedies:
    """Improve a fit that is paused or has ended, as far as the options ask for it.

    Parameters
    ----------
    fit : Fit
    progress : ProgressBar

    Attributes
    ----------
    nested : NGVIApproximation or None
        The best nested fit so far.
    tried : list of str
        What was done about a bad verdict.
    """

    def __init__(self, fit: Fit, progress: ProgressBar) -> None:
        self.fit, self.progress = fit, progress
        self.options = fit.prepared.options
        self.nester = Nester(fit, progress)
        self.nested: NGVIApproximation | None = None
        self.tried: list[str] = []
        fit.approx.importance = None  # an earlier fit may have matched its draws

    def apply(self) -> NGVIApproximation:
        """Return the approximation of the fit, or one that is better, and warn where it is bad.

        An interrupt ends what is being tried, and what was fitted before is kept.
        """
        interrupted = False
        try:
            self._improve()
        except KeyboardInterrupt:
            interrupted = True
        except BaseException as error:
            error.approximation = self.approx  # type: ignore[attr-defined]
            raise
        approx = self.approx
        report = approx.report = self._with_costs()
        if interrupted:
            approx.report = replace(report, status=Status.INTERRUPTED)
        self._tell(ended=not interrupted)
        return approx

    @property
    def approx(self) -> NGVIApproximation:
        """The best approximation so far: the Gaussian, unless a nested fit is better."""
        if self.nested is None:
            return self.fit.approx
        asked_for = not isinstance(self.options.nested, str | None)
        # An ELBO that is not a number is that of a Gaussian that was not judged.
        worse = _report(self.nested).elbo <= _report(self.fit.approx).elbo + LEAST_GAIN
        return self.fit.approx if worse and not asked_for else self.nested

    @property
    def _unreliable(self) -> bool:
        return _report(self.approx).verdict.unreliable

    @property
    def _is_beyond_weights(self) -> bool:
        """Whether only moved draws show what is wrong, and weights that can be trusted do not."""
        verdict = _report(self.approx).verdict
        return verdict.moved > 0 and verdict.weighable

    def _improve(self) -> None:
        """Do what the options ask for, and what the verdict calls for."""
        fit, options = self.fit, self.options
        if not self._improvable:
            return
        if not isinstance(options.nested, str | None):
            self.nested = self.nester.nest_in(options.nested)
            return
        if _nests_by_itself(fit.prepared) and self._unreliable and not self._is_open:
            self._nest()
        if fit.paused and (self.nested is None or self._unreliable):
            # The Gaussian was only judged, or may be the end.
            self._resume()
            if not self._improvable:
                return
            if _nests_by_itself(fit.prepared) and self._unreliable and not self.tried:
                self._nest()
        if _matches_by_itself(fit.prepared) and self._unreliable:
            self._match()

    @property
    def _improvable(self) -> bool:
        """Whether the Gaussian was fitted and judged in a way that leaves something to improve."""
        prepared, report = self.fit.prepared, _report(self.fit.approx)
        usual = self.options.automatic and not prepared.target.reads_batches
        return usual and bool(self.fit.verdict.draws) and report.status not in _FINAL

    @property
    def _is_open(self) -> bool:
        """Whether only the end of the fit tells if the Hessians can be used.

        A grid that is fitted by Hessians which miss the curvature of a kink is too wide, or too
        short, without a sign of it; and with gradients alone a fit has often not come far when it
        is paused.
        """
        target, q = self.fit.prepared.target, self.fit.state.q
        if not (self.fit.paused and target.may_have_kinks):
            return False
        return bool(target.kinks(q.sample(DEFAULTS.examined_draws, np.random.default_rng(0))))

    def _resume(self) -> None:
        """Fit the Gaussian to its end."""
        self.fit.resume(self.progress)
        if _report(self.fit.approx).status == Status.INTERRUPTED:
            raise KeyboardInterrupt

    def _nest(self) -> None:
        """Nest in variables that the fit chooses, until the verdict is good."""
        for names, found in self.nester.attempts():
            self.tried.append(f"nested in {names}")
            if found is not None and (
                self.nested is None or _report(found).elbo > _report(self.nested).elbo
            ):
                self.nested = found
            if not self._unreliable:
                break
        if self.nester.evaluations and not self.tried:
            self.tried.append("nesting in one or two variables")

    def _match(self) -> None:
        """Let `sample` match the draws, where that makes their weights reliable.

        A tail that no draw reaches has no weight. So the draws must stay as they are when some are
        moved towards the posterior, unless moves are rejected.
        """
        approx, prepared = self.approx, self.fit.prepared
        matched = approx.try_matching(MATCHED_DRAWS, prepared.rng)
        assert matched.unmatched is not None
        verdict = matched.verdict
        self.tried.append(f"matched draws (k-hat {verdict.khat:.2f})")
        if not verdict.weighable:
            return
        moved = compare_with_moves(
            prepared.target, approx.distribution, matched.draws, prepared.rng
        )
        if moved is not None and (severity(moved, moved=True) > 1).any():
            return
        before = matched.unmatched.khat
        note = f"sample() matches draws (k-hat {before:.2f}, matched {verdict.khat:.2f})"
        report = _report(approx)
        notes = (*report.notes, note)
        approx.report = replace(report, matched_khat=verdict.khat, notes=notes)
        approx.importance = "match"

    def _with_costs(self) -> Report:
        """Return the report with what all that was tried has cost."""
        gaussian, nester, report = _report(self.fit.approx), self.nester, _report(self.approx)
        seconds = self.fit.stopwatch.seconds
        return replace(
            report,
            evaluations=gaussian.evaluations + nester.evaluations,
            gradients=gaussian.gradients + nester.gradients,
            compile_seconds=seconds["build"],
            fit_seconds=seconds["fit"],
            verdict_seconds=seconds["verdict"],
        )

    def _tell(self, *, ended: bool) -> None:
        """Warn where the fit is unreliable or has not converged, with what was tried."""
        approx = self.approx
        if approx is self.fit.approx and ended:
            self.fit.tell(self._left(), self.tried)
        elif message := _report(approx).verdict.warning(self._left(), self.tried):
            warn(f"ngvi: {message}", UnreliableFit)

    def _left(self) -> list[str]:
        """Name the remedies that are left, those that cost least first."""
        options, prepared, verdict = self.options, self.fit.prepared, self.fit.verdict
        named = ['family="fullrank"'] if self.fit.state.q.factorised else []
        model = prepared.target.model
        if options.reparametrize is False and candidates(model, factorised=False):
            named.append('reparametrize="auto"')
        bad = bool(verdict.draws) and verdict.unreliable
        if bad and not self.tried and options.nested is None:
            named += [f'nested=["{name}"]' for name in self.nester.ranked()[:1]]
        matched = any(word.startswith("matched") for word in self.tried)
        if not (matched or self._is_beyond_weights or prepared.target.reads_batches):
            how = "resample" if _report(self.approx).verdict.weighable else "match"
            named.append(f'sample(importance="{how}")')
        return named


def _report(approx: NGVIApproximation) -> Report:
    assert approx.report is not None
    return approx.report
