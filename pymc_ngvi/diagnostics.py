"""How a fit went, as a value that prints itself."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_ngvi.algorithm import Info, Result
from pymc_ngvi.estimators import mean_and_error
from pymc_ngvi.families import Gaussian, standard_normal

#: Fresh draws for the ELBO of the report.
ELBO_DRAWS = 100


@dataclass(frozen=True)
class Report:
    """How a fit went; prints as a short table.

    Attributes
    ----------
    status : str
        "converged", or why it stopped: "max_iterations", "max_evaluations",
        "stopped_by_callback", "interrupted", "failed"; "refined" after `refine`.
    family, estimator : str
    dim : int
        Number of unconstrained parameters.
    iterations : int
    evaluations : int
        Evaluations of the log density with its derivatives.
    elbo, elbo_se : float
        Mean of log p - log q over fresh draws from the result, and its standard error: higher is
        better. After an interrupt or a failure, those of the last iteration.
    max_step_kl : float
        Largest KL divergence of a step, in nats.
    guard_activations : int
        Iterations in which the guard had to keep the precision positive definite.
    retreats : int
        Times a step was halved because the log density was not finite where it led.
    compile_seconds, fit_seconds : float
        Time until the first iteration could start, and from there on, refinements included.
    """

    status: str
    family: str
    estimator: str
    dim: int
    iterations: int
    evaluations: int
    elbo: float
    elbo_se: float
    max_step_kl: float
    guard_activations: int
    retreats: int
    compile_seconds: float
    fit_seconds: float

    @classmethod
    def from_history(
        cls,
        history: Sequence[Info],
        result: Result,
        *,
        elbo: tuple[float, float],
        estimator: str,
        compile_seconds: float,
        fit_seconds: float,
    ) -> Report:
        """Summarise a fit: all its iterations, and the result of its last run."""
        if history and np.isnan(elbo[0]):
            elbo = history[-1].elbo, history[-1].elbo_se
        return cls(
            status=result.status,
            family=result.q.name,
            estimator=estimator,
            dim=result.q.dim,
            iterations=len(history),
            evaluations=result.state.evaluations,
            elbo=elbo[0],
            elbo_se=elbo[1],
            max_step_kl=max((info.kl for info in history), default=0.0),
            guard_activations=sum(info.guard_active for info in history),
            retreats=sum(info.retreats for info in history),
            compile_seconds=compile_seconds,
            fit_seconds=fit_seconds,
        )

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("status", self.status),
            ("approximation", f"{self.family}, {self.dim} parameters, {self.estimator}"),
            ("ELBO", f"{self.elbo:.3f} (s.e. {self.elbo_se:.2g})"),
            ("iterations", f"{self.iterations}, {self.evaluations} evaluations"),
            ("largest step", f"{self.max_step_kl:.3g} nats"),
            ("guard", f"acted {self.guard_activations} times, {self.retreats} retreats"),
            ("time", f"compile {self.compile_seconds:.1f} s, fit {self.fit_seconds:.2f} s"),
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


def fresh_elbo(target: Any, q: Gaussian, rng: np.random.Generator) -> tuple[float, float]:
    """ELBO of q on fresh antithetic draws, with the standard error over the pairs."""
    z = standard_normal(ELBO_DRAWS, q.dim, rng, antithetic=True)
    log_ratio = target.log_density(q.unwhiten(z)) - q.log_density_whitened(z)
    return mean_and_error(log_ratio, antithetic=True)
