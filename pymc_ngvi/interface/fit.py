"""One fit of a model: compiling, iterating, and keeping the approximation up to date."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from pymc.exceptions import SamplingError

from pymc_ngvi.core import algorithm, schedules
from pymc_ngvi.core.algorithm import Info, Iterations, Result, State, Status
from pymc_ngvi.core.control_variates import Anchored
from pymc_ngvi.core.estimators import Stein, mean_and_error
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.engine.automatic import Engine
from pymc_ngvi.engine.search import Search
from pymc_ngvi.errors import BudgetSpent, NonFiniteError, UnreliableFit, first_line, warn
from pymc_ngvi.interface.options import Options
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.interface.start import Start, other_points
from pymc_ngvi.model.batch_target import MOST_NOISE
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.approximation import NGVIFullRank, NGVIMeanField
from pymc_ngvi.results.importance import Importance
from pymc_ngvi.results.report import Report, Verdict, fresh_log_ratios

# Points tried for each start that is asked for, in search of a finite log density.
_TRIES_PER_START = 20

PyMCCallback: TypeAlias = Callable[[Any, np.ndarray | None, int], object]


class Fit:
    """A fit from its start to its last refinement.

    Parameters
    ----------
    approx : NGVIFullRank or NGVIMeanField
        The approximation to update.
    target : ModelTarget
    options : Options
    starts : sequence of Start
        Where to start; the first is tried first.
    rng : numpy.random.Generator
    score : bool
        Whether to keep the losses.
    callbacks : sequence of callables
        PyMC's: called as ``callback(approx, losses, i)``.
    seconds : float
        Time the target took to build.

    Attributes
    ----------
    state : State
        Last good state.
    """

    def __init__(
        self,
        approx: NGVIFullRank | NGVIMeanField,
        target: ModelTarget,
        options: Options,
        starts: Sequence[Start],
        rng: np.random.Generator,
        *,
        score: bool,
        callbacks: Sequence[PyMCCallback],
        seconds: float,
    ) -> None:
        self.approx = approx
        self.target = target
        self.options = options
        self.starts = starts
        self.rng = rng
        self.score = score
        self.callbacks = callbacks
        self.compile_seconds = seconds
        self.fit_seconds = 0.0
        self.verdict_seconds = 0.0
        self.verdict_rows = self.verdict_anchors = 0
        self.history: list[Info] = []
        self.search: Search | None = None
        self.state: State

    def compile(self) -> None:
        """Compile the target, check the starts, and choose the members to start from."""
        begin = time.perf_counter()
        target = self.target
        if self.options.control_variates and not target.reads_batches:
            raise ValueError(
                "control_variates=True is for models that read batches of their data, by "
                "pm.Minibatch or from a loader: this model does not"
            )
        target.begin(self.rng, controlled=self.options.controlled)
        first, *rest = self.starts
        point = first.point_or(target.initial_point)
        if not isinstance(self.options.estimator, Stein) and target.hessian_route == "none":
            self.options = dataclasses.replace(self.options, estimator=Stein())
        try:
            target.check_start(point)
        except SamplingError:
            given = first.gaussian is not None or first.point is not None
            others = [] if given or not self.options.automatic else self._others(1)
            if not others:
                raise
            warn("ngvi: the log density is not finite at PyMC's initial point; starting elsewhere")
            self._states = others
        else:
            self._states = [self._state(first, point)]
        for start in rest:
            point = start.point_or(target.initial_point)
            target.check_start(point)
            self._states.append(self._state(start, point))
        self._states += self._others(self.options.n_starts - len(self._states))
        self.state = self._states[0]
        self.compile_seconds += time.perf_counter() - begin

    def _state(self, start: Start, point: Array) -> State:
        """State to start from at a point that was found finite."""
        options, member = self.options, start.gaussian
        if member is None:
            curvature = options.family.curvature
            if isinstance(options.estimator, Stein):
                hessian = self.target.difference_hessian(point)
                hessian = hessian if curvature == "full" else hessian.diagonal().copy()
            else:
                evaluation = self.target.evaluate(point[np.newaxis], curvature)
                assert evaluation.hessian is not None
                hessian = evaluation.hessian[0]
            member = options.family.from_curvature(point, hessian, deviations=start.deviations)
        return State(options.projection(member))

    def _others(self, n: int) -> list[State]:
        """At most n states to start from elsewhere, where the log density is finite."""
        target, first = self.target, self.starts[0]
        around = first.point_or(target.initial_point)
        points = other_points(target.model, target.layout, around, self.rng)
        found: list[State] = []
        for point in itertools.islice(points, max(0, _TRIES_PER_START * n)):
            if len(found) == n:
                break
            try:
                target.check_start(point, explain=False)
            except SamplingError:
                continue
            found.append(self._state(dataclasses.replace(first, gaussian=None), point))
        return found

    def run(self, n: int, progress: ProgressBar) -> None:
        """Fit for so many iterations: at most, or exactly where a schedule was named."""
        if not self.options.automatic:
            self._drive(self._schedule(n), progress)
            return
        self.search = Search(self._make_engine(), self._others)
        result = self._drive(self.search.fit(self._states, n), progress)
        budget = {Status.MAX_ITERATIONS: "n", Status.MAX_EVALUATIONS: "max_evaluations"}.get(
            result.status
        )
        if budget:
            warn(
                f"ngvi stopped on its budget before reaching accuracy={self.options.accuracy:g}: "
                f"raise {budget}, or call refine",
                BudgetSpent,
            )
        elif result.status == Status.STALLED:
            warn(
                "ngvi found no step that helps, from any start: the result is not an optimum. "
                "Give start=, or reparametrise the model",
                UnreliableFit,
            )
        elif len(self._states) == 1 < len(self.search.attempts):
            warn("ngvi: the first start ended badly; this is the best of others, see the report")

    def refine(self, n: int, progress: ProgressBar) -> None:
        """Go on for so many iterations from the last state."""
        if self.search is None:
            self._drive(self._schedule(n), progress)
        else:
            self._drive(self.search.engine.refine(self.state, n), progress)

    def _make_engine(self) -> Engine:
        options = self.options
        return Engine(
            self.target,
            estimator=options.estimator,
            guard=options.guard,
            projection=options.projection,
            accuracy=options.accuracy,
            max_evaluations=options.max_evaluations,
            rng=self.rng,
        )

    def _schedule(self, n: int) -> Iterations:
        options, estimator = self.options, self.options.estimator
        n_samples = 10 if options.n_samples is None else options.n_samples
        if self.target.reads_batches:
            # Once an iteration reads as much as all the data, there is nothing more to read.
            n_samples = schedules.capped(n_samples, math.ceil(self.target.price))
            estimator = Anchored(estimator) if options.controlled else estimator
        return algorithm.iterate(
            self.target,
            self.state,
            n_iterations=n,
            step_size=schedules.decreasing() if options.step_size is None else options.step_size,
            n_samples=n_samples,
            estimator=estimator,
            guard=options.guard,
            projection=options.projection,
            averaging=options.averaging,
            rng=self.rng,
        )

    def _drive(self, iterations: Iterations, progress: ProgressBar) -> Result:
        begin = time.perf_counter()
        callbacks = [self._record, progress.update, self._call_back]
        try:
            with progress:
                result = algorithm.drive(iterations, self.state, callbacks, self.target)
        except Exception as error:
            self._finish(getattr(error, "result", Result(self.state, [], Status.FAILED)), begin)
            error.approximation = self.approx  # type: ignore[attr-defined]
            if isinstance(error, NonFiniteError):
                error.args = (f"{error}\n\n{self.target.describe(error.draws[0])}",)
            raise
        self._finish(result, begin)
        return result

    def _record(self, state: State, info: Info) -> None:
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

    def _finish(self, result: Result, begin: float) -> None:
        if self.search is not None and self.search.best is not None:
            # Cut short, a later start must not replace what an earlier one came to.
            spent = self.search.engine.evaluations
            best = dataclasses.replace(self.search.best, evaluations=spent)
            result = dataclasses.replace(result, state=best)
            self.search.best = None
        self.state = result.state
        self.approx.set_gaussian(result.q)
        self.approx.hist = self._losses() if self.score else np.empty(0)
        self.approx.history = list(self.history)
        self.approx.seed = self.options.random_seed
        self.fit_seconds += time.perf_counter() - begin
        begin = time.perf_counter()
        cut_short = result.status in (Status.FAILED, Status.INTERRUPTED)
        data, before = self._data_read(), self.target.reading
        verdict = Verdict()
        if not cut_short:
            try:
                verdict = self._judge(result.q)
            except (Exception, KeyboardInterrupt) as error:  # the fit itself is not to be lost
                warn(f"ngvi: the fit was not judged: {first_line(error)}", UnreliableFit)
        after = self.target.reading
        self.verdict_rows += after.rows - before.rows
        self.verdict_anchors += after.anchors - before.anchors
        if after.n_rows:
            data["verdict_passes"] = (after.rows - before.rows) / after.n_rows
        self.verdict_seconds += time.perf_counter() - begin
        self.approx.report = Report.from_history(
            self.history,
            result,
            verdict=verdict,
            estimator=getattr(self.options.estimator, "name", repr(self.options.estimator)),
            compile_seconds=self.compile_seconds,
            fit_seconds=self.fit_seconds,
            verdict_seconds=self.verdict_seconds,
            starts=() if self.search is None else tuple(self.search.attempts),
            **data,
        )
        if verdict.unreliable:
            warn(
                f"ngvi: the posterior is not close to a Gaussian of this family (k-hat {verdict}): "
                "reparametrise (non-centred hierarchies), or check against pm.sample",
                UnreliableFit,
            )

    def _data_read(self) -> dict[str, Any]:
        """Rows read so far, for the report."""
        read = self.target.reading
        if not read.n_rows:
            return {}
        return dict(
            n_rows=read.n_rows,
            batch_size=read.batch_size,
            passes=(read.rows - self.verdict_rows) / read.n_rows,
            anchors=read.anchors - self.verdict_anchors,
        )

    def _judge(self, q: Gaussian) -> Verdict:
        full = self.target.of_all_data(q, self.rng)
        log_ratios = fresh_log_ratios(full.log_density, q, self.rng)
        if not np.isfinite(log_ratios).all():
            worst = np.nan if np.isnan(log_ratios).any() else -np.inf
            return Verdict(worst, np.nan, np.inf, 0.0, len(log_ratios))
        elbo, elbo_se = mean_and_error(log_ratios, antithetic=True)
        elbo_se = math.hypot(elbo_se, full.noise * math.sqrt(full.shared / len(log_ratios)))
        if full.noise > MOST_NOISE:  # the ratios are those of the batches, not of the posterior
            return Verdict(elbo, elbo_se, draws=len(log_ratios))
        importance = Importance.from_ratios(log_ratios)
        return Verdict(elbo, elbo_se, importance.khat, importance.ess, len(log_ratios))
