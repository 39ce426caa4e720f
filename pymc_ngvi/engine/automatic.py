r"""The automatic engine: no schedule to choose, and a stop with a statistical meaning.

The engine works in levels. A level fixes a set of standard normal draws and iterates on them: with
the draws common to all members there is no noise between two of them, a step of size 1 can be tried
and halved until it helps, past steps can be combined, and the iteration settles where the estimate
on these draws asks for no further move. What is left is the error of the draws themselves, measured
by the scatter of a few replicates at the solution: the standard error of every mean, in posterior
standard deviations, of every log standard deviation, and the expected Bregman distance in nats.

The warm-up comes first: a few draws, far from the optimum, and progress judged by the ELBO. The
first level takes more, and then fresh draws are averaged in until the error is small against the
posterior: the fit has converged. Where the iteration closes in slowly, or the draws of a level
prove to have been misleading, a level of more draws takes the place of the averaging.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, Iterations, State, Status
from pymc_ngvi.engine.averaging import average
from pymc_ngvi.engine.derivatives import Finding, examine
from pymc_ngvi.engine.flatness import FlatDirection
from pymc_ngvi.engine.level import LevelResult, level
from pymc_ngvi.engine.problem import Budget, Problem
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.warm_up import warm_up
from pymc_ngvi.errors import NonFiniteError


class Engine:
    """The automatic engine: levels of more and more draws, until they suffice.

    Parameters
    ----------
    problem : Problem
    max_evaluations : int
        Evaluations of the target after which the fit stops in any case.
    rng : numpy.random.Generator

    Attributes
    ----------
    budget : Budget
    n_samples : int
        Draws of the current level, or of the last.
    secants : Secants
        What the steps of the last fit have shown; `refine` goes on with them.
    findings : list of Finding
        Kinks and jumps that were found, after each of which the engine took another estimator.
    flat : FlatDirection or None
        Where a fit did not converge, the direction in which the log density has no curvature.
    improper : FlatDirection or None
        The direction along which the posterior is not proper.
    """

    def __init__(self, problem: Problem, max_evaluations: int, rng: np.random.Generator) -> None:
        self.problem = problem
        self.budget = Budget(problem, max_evaluations, rng)
        self.n_samples = 0
        self.secants = Secants(problem.settings)
        self.findings: list[Finding] = []
        self.flat: FlatDirection | None = None
        self.improper: FlatDirection | None = None

    @property
    def evaluations(self) -> int:
        """Evaluations of the target spent so far."""
        return self.budget.evaluations

    @property
    def remaining(self) -> int:
        """Evaluations left in the budget."""
        return self.budget.remaining

    @property
    def spent(self) -> bool:
        """Whether the budget has no room for the draws of this level."""
        return self.remaining < self.n_samples

    def fit(self, state: State, n_iterations: int) -> Iterations:
        """Fit from a state, for at most `n_iterations`."""
        last = state.iteration + n_iterations
        state = yield from self.warm_up(state, last)
        if state.iteration >= last:
            return Status.MAX_ITERATIONS, state
        return (yield from self.converge(state, last))

    def warm_up(
        self, state: State, last: int, share: int | None = None
    ) -> Generator[tuple[State, Info], None, State]:
        """Come near the optimum on a few draws.

        Parameters
        ----------
        state : State
        last : int
            Iteration to stop at.
        share : int, optional
            Evaluations to spend at most, where that is less than the engine has left.
        """
        budget = self.budget
        budget.evaluations = max(budget.evaluations, state.evaluations)
        limit = budget.max_evaluations if share is None else budget.evaluations + share
        while True:
            self.n_samples = self.problem.rounded(self.problem.settings.warm_up_draws, state.q)
            self.secants = Secants(self.problem.settings)
            warmed = yield from warm_up(budget, state, self.n_samples, last, limit)
            state, self.improper = warmed.state, warmed.flat
            if state.iteration >= last or self.improper or not self._examine(state, early=True):
                return replace(state, evaluations=self.evaluations)

    def converge(self, state: State, last: int) -> Iterations:
        """Fit from near the optimum on, with as many draws as the accuracy asks for.

        Where kinks or jumps of the log density prove to have misled the estimator, fit again with
        the one that they do not mislead.
        """
        if self.improper is not None:
            return Status.IMPROPER, state
        while True:
            status, state = yield from self._converge(state, last)
            if state.iteration >= last or not self._examine(state):
                break
            state = yield from self.warm_up(state, last)
        return status, replace(state, evaluations=self.evaluations)

    def _examine(self, state: State, *, early: bool = False) -> bool:
        """Look for kinks and jumps; take another estimator and return True where some are found.

        An `early` look, from which the fit still goes on, sees coarse violations only.
        """
        problem, budget = self.problem, self.budget
        settings = problem.settings
        most = settings.examined_early if early else settings.examined_late
        finding, spent = examine(
            problem.target, problem.estimator, state.q, budget.rng, settings, most
        )
        budget.evaluations += spent
        if finding is None:
            return False
        self.findings.append(finding)
        estimator = finding.replacement(antithetic=problem.estimator.antithetic)
        self.problem = replace(problem, estimator=estimator)
        budget.problem = self.problem
        return True

    def _converge(self, state: State, last: int) -> Iterations:
        problem, settings = self.problem, self.problem.settings
        self.secants = Secants(settings)
        self.n_samples = problem.first_size(state.q)
        stuck = 0
        while not self.spent:
            ended = yield from level(self.budget, self.secants, state, self.n_samples, last)
            # More draws do not help where it is not their noise that stands in the way.
            stuck = 0 if ended.settled else stuck + 1
            if ended.settled and self._is_near(ended):
                ended = yield from average(self.budget, self.secants, ended, last)
            state, self.n_samples, self.flat = ended.state, ended.n_samples, ended.flat
            if state.iteration >= last:
                return Status.MAX_ITERATIONS, state
            if ended.settled and problem.excess(ended.error) <= 1:
                return Status.CONVERGED, state
            if problem.target.follow(state.q, self.n_samples):
                continue  # the error was that of an anchor far away
            affordable = self.remaining // settings.evaluations_per_level
            if affordable <= self.n_samples:
                break
            if stuck == settings.most_stuck:
                return Status.STALLED, state
            most = min(settings.most_growth * self.n_samples, settings.most_draws)
            wanted = problem.planned(ended.error, self.n_samples, most)
            wanted = max(wanted, settings.least_growth * self.n_samples)
            self.n_samples = problem.rounded(min(wanted, affordable), state.q)
        return Status.MAX_EVALUATIONS, replace(state, evaluations=self.evaluations)

    def refine(self, state: State, n_iterations: int) -> Iterations:
        """Go on from a state with more and more draws, whatever the accuracy and the budget."""
        problem, settings = self.problem, self.problem.settings
        self.budget.max_evaluations = sys.maxsize
        last = state.iteration + n_iterations
        while state.iteration < last:
            more = max(settings.fewest_draws, settings.least_growth * self.budget.most_drawn)
            self.n_samples = problem.rounded(min(more, settings.most_draws), state.q)
            before = state.iteration
            ended = yield from level(
                self.budget, self.secants, state, self.n_samples, last, forced=True
            )
            state = ended.state
            if state.iteration == before:
                break  # no step helps
        return Status.REFINED, state

    def elbos(self, states: Sequence[State]) -> list[float]:
        """ELBO of each state, all on the same draws; minus infinity where it is not finite."""
        if not states:
            return []
        draws = self.budget.draw(self.problem.settings.compared_draws, states[0].q.dim)
        elbos = []
        for state in states:
            self.problem.target.place_anchor(state.q)  # another state's may be far from this one
            try:
                elbos.append(self.budget.evaluate(state.q, draws).estimate.elbo)
            except NonFiniteError:
                elbos.append(-np.inf)
        return elbos

    def _is_near(self, ended: LevelResult) -> bool:
        """Whether a settled level is so close that more draws only have to be averaged in."""
        settings = self.problem.settings
        return (
            not self.problem.constrained
            and ended.amplification < settings.most_amplification
            and self.problem.excess(ended.error) < settings.most_excess
        )
