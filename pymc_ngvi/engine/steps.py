"""Steps on common draws: where they start, how long they are, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pymc_ngvi.core.algorithm import Info, State
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import Mixed
from pymc_ngvi.engine.evaluated import Evaluated, SquaredError
from pymc_ngvi.engine.problem import Budget, Draws, Problem
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.errors import NonFiniteError


@dataclass(frozen=True)
class Rule:
    """Which steps are taken.

    Attributes
    ----------
    shortest : float
        Smallest step size to try.
    longest : float
        Largest divergence of the new member from the old one, in nats.
    helps : callable
        Whether a step from one evaluated member to another is progress.
    by_elbo : bool
        Whether nothing but the ELBO counts for that, so that log densities can tell.
    """

    shortest: float
    longest: float
    helps: Callable[[Evaluated, Evaluated], bool]
    by_elbo: bool = False


@dataclass(frozen=True)
class Step:
    """A step: the update, the member it leads to after projection, and the retreats before it."""

    mixed: Mixed
    there: Evaluated
    retreats: int = 0


def finite_start(budget: Budget, state: State, draws: Draws) -> tuple[State, Evaluated]:
    """Evaluate the first member, narrowed until the target is finite on all draws.

    A step by log densities alone may have led to where derivatives are not finite: then the member
    before it is taken.
    """
    settings = budget.problem.settings
    for q in filter(None, (state.q, state.previous)):
        for _ in range(settings.most_narrowings):
            try:
                here = budget.evaluate(q, draws)
            except NonFiniteError as error:
                last = error
                q = type(q).from_mean_precision(q.mean, settings.narrowing * q.precision)
            else:
                return budget.counted(replace(state, q=q)), here
    message = f"{last} however close to the starting point; start elsewhere"
    raise NonFiniteError(message, last.draws, budget.evaluations) from last


def climb(
    budget: Budget,
    here: Evaluated,
    draws: Draws,
    step_size: float,
    rule: Rule,
    *,
    forced: bool = False,
    wary: bool = False,
) -> Step | None:
    """Take the longest step that helps, by the preconditioned gradient or else the plain one.

    Parameters
    ----------
    budget : Budget
    here : Evaluated
        The member to step from.
    draws : Draws
    step_size : float
        Step size to try first; it is halved until the step helps.
    rule : Rule
    forced : bool
        Try even where the budget has no room for it.
    wary : bool
        Whether the first step may well be too long: the one before was.

    Returns
    -------
    Step or None
        None where no step helps.
    """
    step = _halve(budget, here, here.estimate, draws, step_size, rule, forced, wary)
    if step is None and here.plain.coupling is not None:
        step = _halve(budget, here, here.plain, draws, step_size, rule, forced, wary)
    return step


def _halve(
    budget: Budget,
    here: Evaluated,
    estimate: Estimate,
    draws: Draws,
    step_size: float,
    rule: Rule,
    forced: bool,
    wary: bool,
) -> Step | None:
    problem, retreats = budget.problem, 0
    while step_size >= rule.shortest and (forced or budget.remaining >= len(draws)):
        mixed = budget.led(here, problem.guard(here.q, estimate, step_size))
        candidate = problem.projection(mixed.q)
        step_size /= 2
        if candidate.kl(here.q) > rule.longest:
            continue
        # Where a first step was too long, more may be: log densities show that for less.
        if rule.by_elbo and wary and budget.elbo(candidate, draws)[0] < here.estimate.elbo:
            continue
        wary = True
        try:
            there = budget.evaluate(candidate, draws)
        except NonFiniteError:
            retreats += 1
            continue
        if rule.helps(here, there):
            return Step(mixed, there, retreats)
    return None


def advance(
    budget: Budget,
    state: State,
    here: Evaluated,
    mixed: Mixed,
    q: Gaussian,
    n_samples: int,
    retreats: int = 0,
) -> tuple[State, Info]:
    """Return the state after a step to q, and what happened in it."""
    info = Info(
        iteration=state.iteration,
        elbo=here.estimate.elbo,
        elbo_se=here.estimate.elbo_se,
        step_size=mixed.step_size,
        n_samples=n_samples,
        kl=q.kl(here.q),
        guard_active=mixed.active,
        projection_active=q is not mixed.q,
        retreats=retreats,
        evaluations=budget.evaluations,
        gradients=budget.gradients,
        passes=budget.problem.target.passes,
    )
    return budget.counted(State(q, state.iteration + 1, previous=here.q)), info


def settled(
    problem: Problem, here: Evaluated, secants: Secants, error: SquaredError | None = None
) -> bool:
    """Whether what is left to go no longer matters, against the accuracy or the noise.

    Both the step the draws ask for and the whole way that the secants make of it have to be small.
    A very large error of the draws excuses no more than `Settings.largest_noise`.

    Parameters
    ----------
    problem : Problem
    here : Evaluated
    secants : Secants
    error : SquaredError, optional
        Error of the draws, where it is known.
    """
    settings = problem.settings
    lefts = [here.asked]
    if not problem.constrained and len(secants):
        lefts.append(here.distance(secants))
    lefts = [left for left in lefts if not problem.excess(left) < settings.negligible]
    if not lefts:
        return True
    most = settings.excused * settings.largest_noise * here.q.dim
    if any(left.nats >= most for left in lefts):
        return False  # whatever the error
    error = here.error_of_draws(secants) if error is None else error
    nats = settings.excused * min(error.nats, settings.largest_noise * here.q.dim)
    excess = settings.excused * problem.excess(error)
    return all(left.nats < nats and problem.excess(left) < excess for left in lefts)
