"""How a fit went, as a value that prints itself."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.algorithm import Info, Result
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.engine.search import Attempt

#: Fresh draws by which a fit is judged.
VERDICT_DRAWS = 1000
#: Above this k-hat neither the Gaussian nor weights on its draws can be trusted.
UNRELIABLE_KHAT = 0.7
#: Below this one the Gaussian is close.
GOOD_KHAT = 0.5
#: Nor can they where fewer of the draws than this share are effective, whatever k-hat.
LEAST_EFFICIENCY = 0.2
#: Where more than this share are, the ratios are all but equal.
FULL_EFFICIENCY = 0.95


@dataclass(frozen=True)
class Verdict:
    """How good a fit is, judged on fresh draws from it.

    Attributes
    ----------
    elbo, elbo_se : float
        Mean of log p - log q, and its standard error.
    khat : float
        Pareto shape of the importance ratios p/q; NaN where they cannot be had.
    ess : float
        Effective sample size of the weights.
    draws : int
        Draws it was judged on.
    """

    elbo: float = np.nan
    elbo_se: float = np.nan
    khat: float = np.nan
    ess: float = np.nan
    draws: int = 0

    @property
    def unreliable(self) -> bool:
        """Whether the ratios say that the Gaussian misses part of the posterior."""
        if self.only_tails:
            return False
        return self.khat > UNRELIABLE_KHAT or self.ess < LEAST_EFFICIENCY * self.draws

    @property
    def only_tails(self) -> bool:
        """Whether a large k-hat is about tails that hold hardly any of the posterior.

        k-hat knows nothing of scale: the ratios of a fit that is all but exact may have a tail of
        any shape.
        """
        many = self.ess > FULL_EFFICIENCY * self.draws
        return many and UNRELIABLE_KHAT < self.khat < np.inf

    def __str__(self) -> str:
        if np.isnan(self.khat):
            return "not judged"
        word = "unreliable" if self.unreliable else "good" if self.khat < GOOD_KHAT else "fair"
        if self.only_tails:
            word = "good but for the tails"
        return f"{self.khat:.2f}, {self.ess:.0f} of {self.draws} draws effective: {word}"


@dataclass(frozen=True)
class Report:
    """How a fit went; prints as a short table.

    Attributes
    ----------
    status : str
        "converged", or why it stopped: "max_iterations", "max_evaluations", "stalled" (no step
        helps), "stopped_by_callback", "interrupted", "failed"; "refined" after `refine`.
    family, estimator : str
    dim : int
        Number of unconstrained parameters.
    iterations : int
    evaluations : int
        Evaluations of the log density with its derivatives.
    elbo, elbo_se : float
        Mean of log p - log q over fresh draws from the result, and its standard error: higher is
        better. After an interrupt or a failure, those of the last iteration.
    khat : float
        Pareto shape of the importance ratios of these draws. Below 0.5 the Gaussian is close to the
        posterior; up to 0.7 weighing its draws corrects it; above, do not trust it. NaN where the
        fit was not judged: after an interrupt or a failure, and with minibatches.
    ess : float
        Effective sample size of the weights, of `verdict_draws`.
    max_step_kl : float
        Largest KL divergence of a step, in nats.
    guard_activations : int
        Iterations in which the guard had to keep the precision positive definite.
    retreats : int
        Times a step was halved because the log density was not finite where it led.
    compile_seconds, fit_seconds, verdict_seconds : float
        Time until the first iteration could start, of the iterations, refinements included, and of
        judging the result.
    starts : tuple of Attempt
        What became of each start, where several were tried.
    n_rows, batch_size : int
        Rows of the data, and of a batch, of a model that reads batches; otherwise 0.
    passes, verdict_passes : float
        Rows read by the fit, those of anchors included, and by judging it, both in passes over the
        data.
    anchors : int
        Anchors of the control variates placed by the fit, each of which takes one pass.
    """

    status: str
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
    starts: tuple[Attempt, ...] = ()
    n_rows: int = 0
    batch_size: int = 0
    passes: float = 0.0
    verdict_passes: float = 0.0
    anchors: int = 0

    @classmethod
    def from_history(
        cls,
        history: Sequence[Info],
        result: Result,
        *,
        verdict: Verdict,
        estimator: str,
        compile_seconds: float,
        fit_seconds: float,
        verdict_seconds: float,
        starts: Sequence[Attempt] = (),
        **data: Any,
    ) -> Report:
        """Summarise a fit: all its iterations, and the result of its last run."""
        elbo, elbo_se = verdict.elbo, verdict.elbo_se
        if history and not verdict.draws:
            elbo, elbo_se = history[-1].elbo, history[-1].elbo_se
        return cls(
            status=result.status,
            family=result.q.name,
            estimator=estimator,
            dim=result.q.dim,
            iterations=len(history),
            evaluations=result.state.evaluations,
            elbo=elbo,
            elbo_se=elbo_se,
            khat=verdict.khat,
            ess=verdict.ess,
            verdict_draws=verdict.draws,
            max_step_kl=max((info.kl for info in history), default=0.0),
            guard_activations=sum(info.guard_active for info in history),
            retreats=sum(info.retreats for info in history),
            compile_seconds=compile_seconds,
            fit_seconds=fit_seconds,
            verdict_seconds=verdict_seconds,
            starts=tuple(starts),
            **data,
        )

    @property
    def verdict(self) -> Verdict:
        """What the fresh draws say of the fit."""
        return Verdict(self.elbo, self.elbo_se, self.khat, self.ess, self.verdict_draws)

    @property
    def optima(self) -> int:
        """How many different optima the starts came to, of those fitted to the end."""
        return sum(start.outcome in ("best", "other") for start in self.starts)

    def _starts(self) -> str:
        counts = Counter(start.outcome for start in self.starts)
        elbos = [start.elbo for start in self.starts if np.isfinite(start.elbo)]
        spread = f"; ELBO {min(elbos):.3f} to {max(elbos):.3f}" if elbos else ""
        local = "; local optima exist" if self.optima > 1 else ""
        return ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + spread + local

    def _rows(self) -> list[tuple[str, str]]:
        *rows, times = self._plain_rows()
        if self.n_rows:
            rows.append(("data", self._data()))
        if len(self.starts) > 1:
            rows.append(("starts", self._starts()))
        return [*rows, times]

    def _data(self) -> str:
        return (
            f"{self.passes:.2f} passes over {self.n_rows:,} rows in batches of "
            f"{self.batch_size:,}, {self.anchors} of them for anchors; "
            f"{self.verdict_passes:.2f} for the verdict"
        )

    def _plain_rows(self) -> list[tuple[str, str]]:
        return [
            ("status", self.status),
            ("approximation", f"{self.family}, {self.dim} parameters, {self.estimator}"),
            ("ELBO", f"{self.elbo:.3f} (s.e. {self.elbo_se:.2g})"),
            ("k-hat", str(self.verdict)),
            ("iterations", f"{self.iterations}, {self.evaluations} evaluations"),
            ("largest step", f"{self.max_step_kl:.3g} nats"),
            ("guard", f"acted {self.guard_activations} times, {self.retreats} retreats"),
            (
                "time",
                f"compile {self.compile_seconds:.1f} s, fit {self.fit_seconds:.2f} s, "
                f"verdict {self.verdict_seconds:.2f} s",
            ),
        ]

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


def fresh_log_ratios(
    log_density: Callable[[Any], Any],
    q: Gaussian,
    rng: np.random.Generator,
    n: int = VERDICT_DRAWS,
) -> NDArray[np.float64]:
    """Log p - log q (n,) at fresh antithetic draws from q."""
    z = standard_normal(n, q.dim, rng, antithetic=True)
    return np.asarray(log_density(q.unwhiten(z)) - q.log_density_whitened(z))
