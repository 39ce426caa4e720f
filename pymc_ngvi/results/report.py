"""How a fit went, as a value that prints itself."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas

from pymc_ngvi.core.algorithm import Info, Result, Status
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.engine.search import Attempt
from pymc_ngvi.model.target import Reading
from pymc_ngvi.results.parameters import describe, empty_table, worst
from pymc_ngvi.results.verdict import Verdict

#: Number of parameters that the printed report names.
_NAMED = 3
#: Up to this many parameters a full covariance costs next to nothing, and choosing it is no news.
FEW_PARAMETERS = 200


@dataclass(frozen=True)
class Report:
    """How a fit went; prints as a short table.

    Attributes
    ----------
    status : Status
        "converged", or why the fit stopped: "max_iterations", "max_evaluations", "stalled" (no step
        improves the ELBO), "improper" (the posterior is not proper), "stopped_by_callback",
        "interrupted", "failed"; "refined" after `refine`; "initialised" with ``n=0``: nothing was
        fitted, this is the start.
    family, estimator : str
        Names of the family and of the estimator.
    family_reason : str
        Why ``family="auto"`` chose this family; empty where the family was given.
    backend : str
        What evaluated the log density: "interpreted" or the name of a compiler, and with "auto" the
        time that compiling took, if it paid.
    dim : int
        Number of unconstrained parameters.
    iterations : int
        Number of iterations, refinements included.
    evaluations : int
        Evaluations of the log density with the derivatives that the estimator takes.
    gradients : int
        Further evaluations, of gradients or log densities alone.
    elbo, elbo_se : float
        Mean of log p - log q over fresh draws from the result, and its standard error: higher is
        better. After an interrupt or a failure, those of the last iteration.
    khat : float
        Pareto shape of the importance ratios of these draws. Below 0.5 the Gaussian is close to the
        posterior; up to 0.7 weighing its draws corrects it; above 0.7, do not trust it. NaN where
        the fit was not judged: after an interrupt or a failure, and for a model that reads batches
        which leave too much noise in the log density.
    ess : float
        Effective sample size of the weights of these draws.
    verdict_draws : int
        Number of these draws; 0 where the fit was not judged.
    max_step_kl : float
        Largest KL divergence of a step, in nats.
    guard_activations : int
        Iterations in which the guard had to keep the precision positive definite.
    retreats : int
        Times a step was halved because the log density was not finite where it led.
    compile_seconds, fit_seconds, verdict_seconds : float
        Time until the first iteration could start, time of the iterations, and time spent on
        judging the result; refinements included.
    starts : tuple of Attempt
        What became of each start of the automatic engine.
    n_rows, batch_size : int
        Rows of the data, and of a batch, of a model that reads batches; otherwise 0.
    passes, verdict_passes : float
        Rows read by the fit, those of anchors included, and by its last verdict, both as multiples
        of all rows.
    anchors : int
        Anchors of the control variates placed by the fit; each reads all rows once.
    notes : tuple of str
        What the fit found of the log density: kinks, jumps and flat directions.
    problem : str
        Why the fit could not be judged, where it was tried.
    moved_draws : int
        Number of draws, after moves towards the posterior, by which `parameters` were judged; 0
        where importance weights were enough, or moves too expensive.
    matched_khat : float or None
        k-hat of the draws that `sample` moves to the moments of the posterior, as they can be
        relied on and the fit cannot; None where it does not. All other fields are of the fit.
    parameters : pandas.DataFrame
        How far each parameter is off, unconstrained and, where it is transformed, on its own scale:
        `mean` and `sd` of the fit; `shift`, the posterior's mean less that of the fit, in the
        posterior's standard deviations; `sd_ratio`, the sd of the fit as a share of the
        posterior's; and their Monte-Carlo standard errors `shift_error` and `sd_ratio_error`. Empty
        where the fit was not judged. Without `moved_draws`, to be trusted as far as the weights, by
        k-hat.
    """

    status: Status
    family: str
    estimator: str
    dim: int
    iterations: int
    evaluations: int
    elbo: float
    elbo_se: float
    khat: float
    ess: float
    verdict_draws: int
    max_step_kl: float
    guard_activations: int
    retreats: int
    compile_seconds: float
    fit_seconds: float
    verdict_seconds: float
    gradients: int = 0
    starts: tuple[Attempt, ...] = ()
    n_rows: int = 0
    batch_size: int = 0
    passes: float = 0.0
    verdict_passes: float = 0.0
    anchors: int = 0
    notes: tuple[str, ...] = ()
    problem: str = ""
    backend: str = ""
    family_reason: str = ""
    moved_draws: int = 0
    matched_khat: float | None = None
    parameters: pandas.DataFrame = field(default_factory=empty_table, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        same = all(
            getattr(self, one.name) == getattr(other, one.name)
            for one in fields(self)
            if one.compare
        )
        return same and self.parameters.equals(other.parameters)

    @classmethod
    def from_history(
        cls,
        history: Sequence[Info],
        result: Result,
        *,
        verdict: Verdict,
        estimator: str,
        backend: str,
        family_reason: str,
        compile_seconds: float,
        fit_seconds: float,
        verdict_seconds: float,
        starts: Sequence[Attempt],
        notes: Sequence[str] = (),
        fitting: Reading,
        judging: Reading,
    ) -> Report:
        """Summarise a fit.

        Parameters
        ----------
        history : sequence of Info
            All its iterations, those of earlier runs included.
        result : Result
            Outcome of its last run.
        verdict : Verdict
        estimator, backend, family_reason : str
        compile_seconds, fit_seconds, verdict_seconds : float
        starts : sequence of Attempt
        notes : sequence of str
        fitting, judging : Reading
            What the iterations, and what the verdict, have read of the data.
        """
        if history and not verdict.draws:
            verdict = replace(verdict, elbo=history[-1].elbo, elbo_se=history[-1].elbo_se)
        return cls(
            status=result.status,
            family=result.q.name,
            estimator=estimator,
            dim=result.q.dim,
            iterations=len(history),
            evaluations=result.state.evaluations,
            gradients=result.state.gradients,
            max_step_kl=max((info.kl for info in history), default=0.0),
            guard_activations=sum(info.guard_active for info in history),
            retreats=sum(info.retreats for info in history),
            compile_seconds=compile_seconds,
            fit_seconds=fit_seconds,
            verdict_seconds=verdict_seconds,
            starts=tuple(starts),
            notes=tuple(notes),
            n_rows=fitting.n_rows,
            batch_size=fitting.batch_size,
            passes=fitting.rows / max(fitting.n_rows, 1),
            verdict_passes=judging.rows / max(judging.n_rows, 1),
            anchors=fitting.anchors,
            backend=backend,
            family_reason=family_reason,
            **_fields_of(verdict),
        )

    def judged(self, verdict: Verdict) -> Report:
        """Return the report with another verdict."""
        return replace(self, **_fields_of(verdict))

    @property
    def verdict(self) -> Verdict:
        """How good the fit is, judged on fresh draws."""
        return Verdict(
            elbo=self.elbo,
            elbo_se=self.elbo_se,
            khat=self.khat,
            ess=self.ess,
            draws=self.verdict_draws,
            problem=self.problem,
            moved=self.moved_draws,
            matched_khat=self.matched_khat,
            parameters=self.parameters,
        )

    @property
    def optima(self) -> int:
        """Number of different optima among the starts that were fitted to the end."""
        return sum(start.outcome in ("best", "other") for start in self.starts)

    def _starts(self) -> str:
        counts = Counter(start.outcome for start in self.starts)
        elbos = [start.elbo for start in self.starts if np.isfinite(start.elbo)]
        spread = f"; ELBO {min(elbos):.3f} to {max(elbos):.3f}" if elbos else ""
        local = "; local optima exist" if self.optima > 1 else ""
        return ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + spread + local

    def _data(self) -> str:
        return (
            f"{self.passes:.2f} passes over {self.n_rows:,} rows in batches of "
            f"{self.batch_size:,}, {self.anchors} of them for anchors; "
            f"{self.verdict_passes:.2f} for the verdict"
        )

    def _times(self) -> str:
        return (
            f"build {self.compile_seconds:.1f} s, fit {self.fit_seconds:.2f} s, "
            f"verdict {self.verdict_seconds:.2f} s"
        )

    def _worst(self) -> list[tuple[str, str]]:
        """Name the worst parameters, if any is off or if weights cannot tell which are."""
        verdict = self.verdict
        if verdict.weighable or verdict.moved:
            name, table = "off", verdict.off
        else:
            name, table = "perhaps off", self.parameters
        named = list(describe(worst(table, _NAMED)))
        if len(verdict.off) > _NAMED:
            named[-1] += f"; {len(verdict.off) - _NAMED} more in report.parameters"
        return list(zip([name, *[""] * _NAMED], named, strict=False))

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("status", str(self.status)),
            ("approximation", f"{self.family}, {self.dim} parameters, {self.estimator}"),
            ("ELBO", f"{self.elbo:.3f} (s.e. {self.elbo_se:.2g})"),
            ("k-hat", str(self.verdict)),
            *self._worst(),
            ("iterations", self._spent()),
            ("largest step", f"{self.max_step_kl:.3g} nats"),
            ("guard", f"acted {self.guard_activations} times, {self.retreats} retreats"),
        ]
        if self.family_reason and self.dim > FEW_PARAMETERS:
            rows.insert(2, ("", self.family_reason))
        if self.n_rows:
            rows.append(("data", self._data()))
        if len(self.starts) > 1:
            rows.append(("starts", self._starts()))
        rows += [("note", note) for note in self.notes]
        if self.backend:
            rows.append(("backend", self.backend))
        return [*rows, ("time", self._times())]

    def _spent(self) -> str:
        if not self.gradients or self.estimator != BonnetPrice.name:
            return f"{self.iterations}, {self.evaluations + self.gradients} evaluations"
        hessians = f"{self.evaluations} evaluations with Hessians"
        return f"{self.iterations}, {hessians}, {self.gradients} without"

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table>{''.join(cells)}</table>"


def _fields_of(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict by the fields of a report."""
    return {
        "elbo": verdict.elbo,
        "elbo_se": verdict.elbo_se,
        "khat": verdict.khat,
        "ess": verdict.ess,
        "verdict_draws": verdict.draws,
        "problem": verdict.problem,
        "moved_draws": verdict.moved,
        "matched_khat": verdict.matched_khat,
        "parameters": verdict.parameters,
    }
