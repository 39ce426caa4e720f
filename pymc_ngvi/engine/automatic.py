r"""The automatic engine: no schedule to choose, and a stop with a statistical meaning.

The engine works on sets of standard normal draws that are common to all members evaluated on them:
then there is no noise between two members, a step of size 1 can be tried and halved until it helps,
past steps can be combined, and the iteration settles where the estimate on these draws asks for no
further move. What is left is the error of the draws themselves, measured by the scatter of a few
replicates at the solution: the standard error of every mean, in posterior standard deviations, of
every log standard deviation, and the expected Bregman distance in nats. How many draws are taken
follows from this error, never from the dimension.

The warm-up comes first: steps by the curvature at the mean alone, then by that of a few draws, and
progress judged by the ELBO. The first level goes on with the same draws until it settles. Then
fresh draws are averaged in until the error is small against the posterior: the fit has converged.
Where it is the mean gradient whose noise is left, these are draws of gradients alone, which cost
less. Where the iteration closes in slowly, or the draws of a level prove to have been misleading, a
level of more draws takes the place of the averaging.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from pymc_ngvi.core.algorithm import Info, Iterations, State, Status
from pymc_ngvi.engine.averaging import average, confirmed
from pymc_ngvi.engine.derivatives import Finding, examine
from pymc_ngvi.engine.evaluated import Evaluated
from pymc_ngvi.engine.flatness import FlatDirection
from pymc_ngvi.engine.level import LevelResult, level
from pymc_ngvi.engine.problem import Budget, Draws, Problem, Size
from pymc_ngvi.engine.secants import Secants
from pymc_ngvi.engine.warm_up import warm_up


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
    size : Size
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
        self.size = Size(0)
        self.secants = Secants(problem.settings)
        self.findings: list[Finding] = []
        self.flat: FlatDirection | None = None
        self.improper: FlatDirection | None = None
        self._near: tuple[Evaluated, Draws] | None = None  # where the warm-up ended

    @property
    def evaluations(self) -> int:
        """Evaluations of the target spent so far, by the estimator."""
        return self.budget.evaluations

    @property
    def gradients(self) -> int:
        """Further evaluations so far, of gradients or log densities alone."""
        return self.budget.gradients

    @property
    def remaining(self) -> int:
        """Evaluations left in the budget."""
        return self.budget.remaining

    @property
    def spent(self) -> bool:
        """Whether the budget has no room for the draws of this level."""
        return self.remaining < self.size.total

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
        budget.gradients = max(budget.gradients, state.gradients)
        limit = budget.max_evaluations
        if share is not None:
            limit = budget.evaluations + budget.gradients + share
        while True:
            self.size = self.problem.few(state.q)
            self.secants = Secants(self.problem.settings)
            warmed = yield from warm_up(budget, state, self.size, last, limit)
            state, self.improper, self._near = warmed.state, warmed.flat, warmed.near
            if state.iteration >= last or self.improper or not self._examine(state, early=True):
                return budget.counted(state)

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
        return status, self.budget.counted(state)

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
        problem, budget, settings = self.problem, self.budget, self.problem.settings
        self.secants = Secants(settings)
        self.size, near = problem.first(state.q), self._near
        if near is not None and (near[0].q is not state.q or len(near[1]) != self.size.total):
            near = None  # from another start, or too few draws
        stuck = least_steps = 0
        while near is not None or not self.spent:
            ended = yield from level(
                budget,
                self.secants,
                state,
                self.size,
                last,
                near=near,
                least_steps=least_steps,
            )
            near, least_steps = None, 0
            # More draws do not help where it is not their noise that stands in the way.
            many = self.size.hessians >= settings.telling_draws
            stuck = 0 if ended.settled or not many else stuck + 1
            if not problem.is_telling(ended.error, ended.size):
                # What few draws showed may be their own, and the posterior is far from Gaussian.
                self.secants, least_steps = Secants(settings), settings.least_steps
            averaged = ended.settled and self._is_near(ended)
            if averaged:
                ended = yield from average(budget, self.secants, ended, last)
            state, self.size, self.flat = ended.state, ended.size, ended.flat
            if state.iteration >= last:
                return Status.MAX_ITERATIONS, state
            telling = problem.is_telling(ended.error, ended.size)
            precise = telling and problem.excess(ended.error) <= 1
            # A level's own draws may agree on what is wrong.
            if ended.settled and precise and (averaged or confirmed(budget, self.secants, ended)):
                return Status.CONVERGED, budget.counted(state)
            if problem.target.follow(state.q, self.size.total):
                continue  # the error was that of an anchor far away
            affordable = self.remaining // settings.evaluations_per_level
            if affordable <= self.size.total:
                break
            if stuck == settings.most_stuck:
                return Status.STALLED, state
            self.size = self._next_size(ended, affordable)
        return Status.MAX_EVALUATIONS, self.budget.counted(state)

    def _next_size(self, ended: LevelResult, affordable: int) -> Size:
        """Draws of the level after one that has not come near enough."""
        problem, size = self.problem, self.size
        most = problem.most(size)
        wanted = problem.planned(ended.error, ended.parts, size, most)
        if ended.settled and wanted.gradients:
            # The noise of the mean is what is left: that of the Hessians is averaged later.
            wanted = Size(size.hessians, wanted.gradients)
        if not (ended.settled and problem.is_telling(ended.error, ended.size)):
            telling = problem.settings.telling_draws
            gradients = wanted.gradients if ended.settled else 0
            wanted = Size(min(max(wanted.hessians, telling), most.hessians), gradients)
        if wanted.total < problem.settings.least_growth * size.total:
            grown = problem.settings.least_growth * size.hessians
            wanted = Size(max(grown, wanted.hessians), wanted.gradients)
        hessians = min(wanted.hessians, affordable)
        gradients = min(wanted.gradients, affordable - hessians)
        return problem.rounded_size(Size(hessians, gradients), ended.state.q)

    def refine(self, state: State, n_iterations: int) -> Iterations:
        """Go on from a state with more and more draws, whatever the accuracy and the budget."""
        problem, settings = self.problem, self.problem.settings
        self.budget.max_evaluations = sys.maxsize
        last = state.iteration + n_iterations
        while state.iteration < last:
            more = max(settings.telling_draws, settings.least_growth * self.budget.most_drawn)
            self.size = Size(problem.rounded(min(more, settings.most_draws), state.q))
            before = state.iteration
            ended = yield from level(
                self.budget, self.secants, state, self.size, last, least_steps=1
            )
            state = ended.state
            if state.iteration == before:
                break  # no step helps
        return Status.REFINED, state

    def elbos(self, states: Sequence[State]) -> list[float]:
        """ELBO of each state, all on the same draws; minus infinity where it is not finite."""
        if not states:
            return []
        draws = self.budget.draw(Size(self.problem.settings.compared_draws), states[0].q.dim)
        elbos = []
        for state in states:
            self.problem.target.place_anchor(state.q)  # another state's may be far from this one
            elbos.append(self.budget.elbo(state.q, draws)[0])
        return elbos

    def _is_near(self, ended: LevelResult) -> bool:
        """Whether a settled level is so close that more draws only have to be averaged in."""
        problem, settings = self.problem, self.problem.settings
        most = settings.most_displacement**2
        if problem.takes_gradients and not problem.is_even(ended.error, ended.size):
            most = min(most, settings.linear * problem.accuracy)  # a long step would begin anew
        return (
            not problem.constrained
            and ended.amplification < settings.most_amplification
            and bool(ended.error.mean.max() < most)
            and problem.is_telling(ended.error, ended.size)
        )
