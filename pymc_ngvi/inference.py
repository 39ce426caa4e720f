"""NGVI as a PyMC inference method."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_ngvi import algorithm, schedules
from pymc_ngvi.algorithm import Info, Iterations, Result, State
from pymc_ngvi.approximation import (
    NGVIFullRank,
    NGVIMeanField,
    as_generator,
    create_approximation,
)
from pymc_ngvi.auto import Engine, starting_member
from pymc_ngvi.diagnostics import Report
from pymc_ngvi.errors import NonFiniteError, warn
from pymc_ngvi.estimators import Stein
from pymc_ngvi.families import Gaussian
from pymc_ngvi.options import Options, split_keywords
from pymc_ngvi.progress import ProgressBar
from pymc_ngvi.schedules import check_count
from pymc_ngvi.start import (
    in_family,
    is_point,
    posterior_means,
    previous_gaussian,
    starting_deviations,
    starting_point,
)
from pymc_ngvi.target import Target, compile_target

PyMCCallback = Callable[[Any, np.ndarray | None, int], object]


class NGVI(Inference):
    """Natural-gradient variational inference with a Gaussian family.

    Usually reached through ``pm.fit(method="ngvi")``; an instance serves as
    ``pm.fit(method=NGVI(...))`` too, and is needed to track parameters or to `refine`.

    Parameters
    ----------
    model : pymc.Model, optional
        Model to fit; that of the context by default.
    backend : {None, "numba", "c", "jax", "interpreted"}
        What evaluates the log density; None is PyTensor's default.
    compile_kwargs : mapping, optional
        Keywords for PyTensor's compilation, as elsewhere in PyMC.
    **options
        Those of :class:`pymc_ngvi.options.Options`: `family`, `estimator`, `guard`, `projection`,
        `step_size`, `n_samples`, `averaging`, `accuracy`, `max_evaluations`, `start`,
        `start_sigma`, `random_seed`.

    Attributes
    ----------
    approx : NGVIFullRank or NGVIMeanField
        The approximation, there before the fit and updated by it.
    hist : array
        Negative ELBO of each iteration.
    """

    def __init__(
        self,
        *,
        model: pymc.Model | None = None,
        backend: str | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        chosen, _ = split_keywords(options, set())
        self.options = Options(**chosen)
        self.model = pymc.modelcontext(model)
        self.hist = np.empty(0)
        self.state: State | None = None
        self._run: _Run | None = None
        self._compilation = (backend, compile_kwargs)
        self._target = self._build_target()
        self._point = self._start_vector()
        self._deviations = (
            None
            if self.options.start_sigma is None
            else starting_deviations(self.options.start_sigma, self._target.layout)
        )

    @classmethod
    def from_keywords(
        cls, model: pymc.Model | None, keywords: Mapping[str, Any]
    ) -> tuple[NGVI, dict[str, Any]]:
        """Build from the keywords of ``pm.fit``; also returns those that belong to `fit`."""
        options, rest = split_keywords(keywords, _FIT_KEYWORDS)
        compilation = {name: rest.pop(name, None) for name in ("backend", "compile_kwargs")}
        return cls(model=model, **compilation, **options), rest

    @cached_property
    def approx(self) -> NGVIFullRank | NGVIMeanField:  # type: ignore[override]
        """The approximation, updated by `fit`."""
        point = self._target.unflatten(self._target.initial_point)
        start = self._previous or starting_member(
            self._family, self._point, None, deviations=self._deviations
        )
        return create_approximation(self.model, start, initial_point=point)

    def fit(
        self,
        n: int = 10_000,
        score: bool | None = None,
        callbacks: Sequence[PyMCCallback] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        backend: str | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        include_transformed: bool = False,
        return_inferencedata: bool = False,
        draws: int = 1000,
        **options: Any,
    ) -> Any:
        """Fit the approximation.

        Parameters
        ----------
        n : int
            Iterations: the number to run where a schedule was named, the most otherwise.
        score : bool, optional
            False leaves `hist` empty and hands None to the callbacks instead of the losses.
        callbacks : list of callables, optional
            Called as ``callback(approx, losses, i)`` after each iteration; `StopIteration` stops.
        progressbar : bool
            Show progress, in a terminal or notebook.
        progressbar_theme : rich.theme.Theme
        backend, compile_kwargs
            As in the constructor.
        include_transformed : bool
            Include the unconstrained variables in what `return_inferencedata` returns.
        return_inferencedata : bool
            Return `draws` draws as InferenceData instead of the approximation.
        draws : int
            Number of these.
        **options
            As in the constructor, except `family`.

        Returns
        -------
        NGVIFullRank, NGVIMeanField or InferenceData
        """
        n = check_count("n", n)
        draws = check_count("draws", draws)
        self._override(options)
        if (backend, compile_kwargs) not in ((None, None), self._compilation):
            self._compilation = (backend, compile_kwargs)
            self._target = self._build_target()
        rng = as_generator(self.options.random_seed)
        self._run = _Run(self, rng, score=score is not False, callbacks=callbacks or [])
        self._run.start(n, ProgressBar(n, enabled=progressbar, theme=progressbar_theme))
        for group in self.approx.groups:
            group.include_transformed = include_transformed
        if not return_inferencedata:
            return self.approx
        return self.approx.sample(draws, random_seed=rng, include_transformed=include_transformed)

    def refine(
        self,
        n: int,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
    ) -> None:
        """Go on for n more iterations from where the fit stopped."""
        if self._run is None:
            raise TypeError("Need to call `.fit` first")
        n = check_count("n", n)
        self._run.go_on(n, ProgressBar(n, enabled=progressbar, theme=progressbar_theme))

    def run_profiling(self, *args: Any, **kwargs: Any) -> Any:
        """Not of use here: profile the target, with ``compile_kwargs={"profile": True}``."""
        raise TypeError(
            "NGVI has no step function to profile; pass compile_kwargs={'profile': True} to fit"
        )

    @property
    def _family(self) -> type[Gaussian]:
        return self.options.family  # type: ignore[no-any-return]

    @cached_property
    def _previous(self) -> Gaussian | None:
        """The Gaussian a previous fit left, in this family, if that is what `start` is."""
        if self.options.start is None or is_point(self.options.start):
            return None
        gaussian = previous_gaussian(self.options.start, self._target.layout)
        return None if gaussian is None else in_family(gaussian, self._family)

    def _start_vector(self) -> np.ndarray:
        start, layout = self.options.start, self._target.layout
        if start is None:
            return self._target.initial_point
        if self._previous is not None:
            return self._previous.mean
        if not is_point(start):
            start = posterior_means(start, layout)
        return starting_point(start, self.model, layout)

    def _build_target(self) -> Target:
        backend, compile_kwargs = self._compilation
        return compile_target(
            self.model,
            backend=backend,
            compile_kwargs=compile_kwargs,
            curvature="none" if self._gradients_only else self._family.curvature,
        )

    @property
    def _gradients_only(self) -> bool:
        return isinstance(self.options.estimator, Stein)

    def _override(self, options: Mapping[str, Any]) -> None:
        chosen, _ = split_keywords(options, set())
        if "family" in chosen:
            raise TypeError("family belongs to NGVI(family=...): the approximation is made there")
        if not chosen:
            return
        self.options = dataclasses.replace(self.options, **chosen)
        self.__dict__.pop("_previous", None)
        self._point = self._start_vector()
        if self.options.start_sigma is not None:
            self._deviations = starting_deviations(self.options.start_sigma, self._target.layout)


_FIT_KEYWORDS = {
    name
    for name, parameter in inspect.signature(NGVI.fit).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD and name not in ("self", "n")
}


class _Run:
    """One fit of an inference: compiling, iterating, and keeping the approximation up to date."""

    def __init__(
        self,
        inference: NGVI,
        rng: np.random.Generator,
        *,
        score: bool,
        callbacks: Sequence[PyMCCallback],
    ) -> None:
        self.inference = inference
        self.options = inference.options
        self.target = inference._target
        self.rng = rng
        self.score = score
        self.callbacks = callbacks
        self.losses: list[float] = []
        self.engine: Engine | None = None
        self.compile_seconds = 0.0

    def start(self, n: int, progress: ProgressBar) -> None:
        """Compile, choose where to start, and fit."""
        begin = time.perf_counter()
        state = State(self._first_member())
        self.compile_seconds = time.perf_counter() - begin
        if self.options.automatic:
            self.engine = self._make_engine()
            self._drive(state, self.engine.fit(state, n), progress)
            self._announce_budget()
        else:
            self._drive(state, self._schedule(state, n), progress)

    def go_on(self, n: int, progress: ProgressBar) -> None:
        """Continue from the last state."""
        state = self.inference.state
        assert state is not None, "a fit has left a state"
        if self.engine is None:
            iterations = self._schedule(state, n)
        else:
            iterations = self.engine.refine(state, n)
        self._drive(state, iterations, progress)

    def _first_member(self) -> Gaussian:
        inference, target = self.inference, self.target
        target.check_start(inference._point)
        estimator = self.options.estimator
        if not isinstance(estimator, Stein) and target.hessian_route == "none":
            self.options = dataclasses.replace(
                self.options, estimator=Stein(antithetic=estimator.antithetic)
            )
        start = inference._previous
        if start is None:
            hessian = None
            if not isinstance(self.options.estimator, Stein):
                at_start = target.evaluate(
                    inference._point[np.newaxis], inference._family.curvature
                ).hessian
                hessian = None if at_start is None else at_start[0]
            start = starting_member(
                inference._family, inference._point, hessian, deviations=inference._deviations
            )
        return self.options.projection(start)

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

    def _schedule(self, state: State, n: int) -> Iterations:
        options = self.options
        return algorithm.iterate(
            self.target,
            state,
            n_iterations=n,
            step_size=schedules.decreasing() if options.step_size is None else options.step_size,
            n_samples=10 if options.n_samples is None else options.n_samples,
            estimator=options.estimator,
            guard=options.guard,
            projection=options.projection,
            averaging=options.averaging,
            rng=self.rng,
        )

    def _drive(self, state: State, iterations: Iterations, progress: ProgressBar) -> None:
        begin = time.perf_counter()
        callbacks = [self._record, progress.update, self._call_back]
        try:
            with progress:
                result = algorithm.drive(iterations, state, callbacks, self.target)
        except Exception as error:
            self._finish(error.result, time.perf_counter() - begin)  # type: ignore[attr-defined]
            error.approximation = self.inference.approx  # type: ignore[attr-defined]
            if isinstance(error, NonFiniteError):
                error.args = (f"{error}\n\n{self.target.describe(error.draws[0])}",)
            raise
        self._finish(result, time.perf_counter() - begin)

    def _announce_budget(self) -> None:
        budgets = {"max_iterations": "n", "max_evaluations": "max_evaluations"}
        budget = budgets.get(self.inference.approx.report.status)
        if budget:
            warn(
                f"ngvi stopped on its budget before reaching accuracy={self.options.accuracy:g}: "
                f"raise {budget}, or call refine"
            )

    def _record(self, state: State, info: Info) -> None:
        self.losses.append(-info.elbo)

    def _call_back(self, state: State, info: Info) -> None:
        if not self.callbacks:
            return
        approx = self.inference.approx
        approx.set_gaussian(state.fitted)
        losses = np.array(self.losses) if self.score else None
        for callback in self.callbacks:
            callback(approx, losses, state.iteration)

    def _finish(self, result: Result, seconds: float) -> None:
        inference = self.inference
        inference.state = result.state
        inference.approx.set_gaussian(result.q)
        if self.score:
            inference.hist = np.array(self.losses)
        inference.approx.hist = inference.hist
        inference.approx.report = Report.from_result(
            result,
            estimator=self.options.estimator.name,
            compile_seconds=self.compile_seconds,
            fit_seconds=seconds,
        )


def fit_ngvi(
    n: int = 10_000,
    *,
    model: pymc.Model | None = None,
    draws: int = 1000,
    **kwargs: Any,
) -> Any:
    """Fit by NGVI and return draws from the approximate posterior.

    Parameters
    ----------
    n : int
        Iterations at most.
    model : pymc.Model, optional
        That of the context by default.
    draws : int
        Number of draws.
    **kwargs
        Any keyword of ``pm.fit(method="ngvi")``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
    """
    inference, rest = NGVI.from_keywords(model, kwargs)
    return inference.fit(n, draws=draws, return_inferencedata=True, **rest)
