"""NGVI as a PyMC inference method: construct it from options, `fit`, and `refine`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np
import pymc
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_ngvi.arguments import as_generator, check_count, told
from pymc_ngvi.core.algorithm import State
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.interface.family import choose_family
from pymc_ngvi.interface.fit import Fit, PyMCCallback
from pymc_ngvi.interface.nest import find_held
from pymc_ngvi.interface.options import Options, Run, check_compilation, split_keywords
from pymc_ngvi.interface.prepare import Prepared, prepare
from pymc_ngvi.interface.progress import ProgressBar
from pymc_ngvi.interface.recentre import choose_centring
from pymc_ngvi.interface.remedies import (
    FIRST_ACCURACY,
    FIRST_EVALUATIONS,
    Remedies,
    when_to_pause,
)
from pymc_ngvi.interface.start import Start, centring_of, resolve_starts
from pymc_ngvi.interface.stopwatch import Stopwatch
from pymc_ngvi.interface.threads import suitable_threads
from pymc_ngvi.model.centring import Degrees, check_degrees, recentred
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.approximation import NGVIApproximation, create_approximation


class NGVI(Inference):
    """Natural-gradient variational inference with a Gaussian family.

    ``pm.fit(method="ngvi")`` constructs an instance and fits it. Construct one yourself to track
    parameters or to `refine`; ``pm.fit(method=NGVI(...))`` takes it too.

    Parameters
    ----------
    model : pymc.Model, optional
        Model to fit; by default the model of the context.
    backend : {"auto", "numba", "c", "jax", "interpreted"}, optional
        What evaluates the log density. "interpreted" is NumPy and compiles nothing; "auto", the
        default, begins so and compiles what proves to cost more time than compiling.
    compile_kwargs : mapping, optional
        Keywords for PyTensor's compilation, as elsewhere in PyMC.
    loader : Loader, optional
        Source of the rows for the model's data containers, a batch at a time.
    **options
        Options of :class:`pymc_ngvi.interface.options.Options`: `family`, `estimator`, `guard`,
        `projection`, `step_size`, `n_samples`, `averaging`, `control_variates`, `accuracy`,
        `max_evaluations`, `start`, `n_starts`, `start_sigma`, `random_seed`, `reparametrize`,
        `nested`, `remedy`.

    Attributes
    ----------
    approx : NGVIApproximation
        The approximation. It exists before the fit, which updates it; a nested fit puts another in
        its place.
    """

    #: The bar of whoever has shown progress before the fit; otherwise a fit shows its own.
    _bar: ProgressBar | None = None

    def __init__(
        self,
        *,
        model: pymc.Model | None = None,
        backend: str | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        loader: Loader | None = None,
        **options: Any,
    ) -> None:
        chosen, _ = split_keywords(options, set())
        self.options = Options(**chosen)
        check_compilation(compile_kwargs)
        if not isinstance(model, pymc.Model | None):
            raise TypeError(f"model must be a pymc.Model, got {told(model)}")
        self.model = pymc.modelcontext(model)
        self._fit: Fit | None = None
        self._compilation = (backend, compile_kwargs)
        self._loader = loader
        self._centring = self._given_centring()
        self._stopwatch = Stopwatch()
        with self._stopwatch.timed("build"):
            self._resolve()

    def _resolve(self) -> None:
        """Build the target, and settle what the options leave to the model."""
        self._target = self._build_target()
        self._chosen = choose_family(self.options, self._target)
        self._resolved = dataclasses.replace(
            self.options,
            family=self._chosen.family,
            # Who names a family gets one of its members.
            remedy=self.options.remedy if self.options.family == "auto" else None,
        )
        self._starts = resolve_starts(self._resolved, self._target.model, self._target.layout)
        self._try_parts(self._resolved, self._starts)

    @cached_property
    def approx(self) -> NGVIApproximation:  # type: ignore[override]
        """The approximation, updated by `fit`."""
        start = self._start_of(self._starts[0])
        approx = create_approximation(
            self.model, start, layout=self._target.layout, centring=self._centring
        )
        approx.loader, approx.target = self._loader, self._target
        approx.loaded = () if self._loader is None else tuple(self._loader.arrays)
        return approx

    @property
    def hist(self) -> np.ndarray:
        """Negative ELBO of each iteration."""
        return self.approx.hist

    @property
    def state(self) -> State | None:
        """State of the algorithm after the last fit."""
        return None if self._fit is None else self._fit.state

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
        log_likelihood: bool = False,
        importance: str | None = "auto",
        **options: Any,
    ) -> Any:
        """Fit the approximation.

        Parameters
        ----------
        n : int
            Number of iterations where a schedule is given; otherwise the most that are run. With 0
            the approximation is returned as it starts, and `refine` goes on from there.
        score : bool, optional
            False leaves `hist` empty and hands None to the callbacks instead of the losses.
        callbacks : list of callables, optional
            Called as ``callback(approx, losses, i)`` after each iteration. A callback that raises
            `StopIteration` ends the fit.
        progressbar : bool
            Show progress, in a terminal or notebook.
        progressbar_theme : rich.theme.Theme
        backend, compile_kwargs
            As in the constructor.
        include_transformed : bool
            Include the unconstrained variables in what `return_inferencedata` returns.
        return_inferencedata : bool
            Return `draws` draws as InferenceData instead of the approximation. Without it, `draws`,
            `log_likelihood`, `importance` and `include_transformed` are not used, and a warning
            says so.
        draws : int
            Number of these draws.
        log_likelihood : bool
            Include the log-likelihood of each observation in the InferenceData.
        importance : {"auto", None, "psis", "resample", "match"}
            What to do with the importance weights of the draws: see `sample` of the approximation.
        **options
            As in the constructor, except `family` and `reparametrize`; they hold for this fit only.

        Returns
        -------
        NGVIApproximation or InferenceData
        """
        run = Run(
            n=n,
            score=score,
            callbacks=callbacks,
            progressbar=progressbar,
            progressbar_theme=progressbar_theme,
            include_transformed=include_transformed,
            return_inferencedata=return_inferencedata,
            draws=draws,
            log_likelihood=log_likelihood,
            importance=importance,
        )
        run.warn_of_unused()
        check_compilation(compile_kwargs)
        n = int(n)
        chosen, starts = self._overridden(options)
        rng = as_generator(chosen.random_seed)
        first = self._first_options(chosen)
        bar = self._bar or ProgressBar(n, enabled=progressbar, theme=progressbar_theme)
        with ExitStack() as stack:
            if self._bar is None:
                stack.enter_context(bar)
            bar.stage("building")
            self._restore_gaussian()
            self._update_target(backend, compile_kwargs)
            stopwatch = copy.deepcopy(self._stopwatch)  # each fit has its own
            with stopwatch.timed("build"):
                prepared = prepare(self._target, first, starts, rng, stopwatch)
            stack.enter_context(suitable_threads(self._target, prepared.states[0].q))
            if n and first.may_recentre and "approx" not in vars(self):
                bar.stage("centring")
                with stopwatch.timed("fit"):
                    prepared = self._recentre(prepared)
            self._fit = Fit(
                prepared,
                self.approx,
                score=score is not False,
                callbacks=callbacks or [],
                family_reason=self._chosen.reason,
                pause_at=when_to_pause(prepared),
            )
            self._fit.run(n, bar)
            self.approx = Remedies(self._fit, bar).apply()  # type: ignore[misc]
        for group in self.approx.groups:
            group.include_transformed = include_transformed
        if not return_inferencedata:
            return self.approx
        return self.approx.sample(
            draws,
            random_seed=rng,
            log_likelihood=log_likelihood,
            importance=importance,
            include_transformed=include_transformed,
        )

    def refine(
        self,
        n: int,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
    ) -> None:
        """Go on for n more iterations from where the fit stopped."""
        if self._fit is None:
            raise TypeError("Need to call `.fit` first")
        if self.approx is not self._fit.approx:
            raise TypeError(
                "a nested fit cannot be refined: fit again with another accuracy, or with "
                "remedy=None, which keeps to one Gaussian"
            )
        n = check_count("n", n)
        bar = ProgressBar(n, enabled=progressbar, theme=progressbar_theme)
        with bar, suitable_threads(self._target, self._fit.state.q):
            self._fit.refine(n, bar)

    def run_profiling(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: to profile the target, pass ``compile_kwargs={"profile": True}`` to `fit`."""
        raise TypeError(
            "NGVI has no step function to profile; pass compile_kwargs={'profile': True} to fit"
        )

    def _first_options(self, options: Options) -> Options:
        """Return the options of the Gaussian, which need not be exact where a grid follows."""
        if isinstance(options.nested, str | None):
            return options
        if self._target.reads_batches:
            raise ValueError("nested: a model that reads batches of its data has no nested fit")
        find_held(options.nested, self._target.layout)
        return dataclasses.replace(
            options,
            accuracy=max(options.accuracy, FIRST_ACCURACY),
            max_evaluations=min(options.max_evaluations, FIRST_EVALUATIONS),
        )

    def _restore_gaussian(self) -> None:
        """Put the Gaussian back in place of a nested approximation, for another fit."""
        if self._fit is not None:
            self.approx = self._fit.approx  # type: ignore[misc]

    def _update_target(self, backend: str | None, compile_kwargs: Mapping[str, Any] | None) -> None:
        """Build the target anew for another backend, or where pm.set_data has replaced its data."""
        another = (backend, compile_kwargs) not in ((None, None), self._compilation)
        if another:
            self._compilation = (backend, compile_kwargs)
        if another or not self._target.is_of(self._target.model):
            self.approx.target = self._target = self._build_target()

    def _recentre(self, prepared: Prepared) -> Prepared:
        """Choose the centring of variables; the approximation is made on what was chosen.

        Whoever has seen the approximation before the fit keeps the values that it has.
        """
        prepared, degrees = choose_centring(prepared, self._build_target)
        if degrees:
            self._centring, self._target = degrees, prepared.target
            self._starts = [Start(prepared.states[0].q)]
        return prepared

    def _given_centring(self) -> Degrees:
        """Return the degrees of centring that were asked for, or that the start has."""
        how = self.options.reparametrize
        if isinstance(how, Mapping):
            return check_degrees(self.model, how)
        return centring_of(self.options.start) if how == "auto" else {}

    def _build_target(self, model: pymc.Model | None = None) -> ModelTarget:
        backend, compile_kwargs = self._compilation
        return compile_target(
            recentred(self.model, self._centring) if model is None else model,
            backend=backend,
            compile_kwargs=compile_kwargs,
            curvature=self.options.parts.curvature,
            loader=self._loader,
        )

    def _overridden(self, options: Mapping[str, Any]) -> tuple[Options, list[Start]]:
        """Return the options of one fit and its starts; the constructor's stay as they are."""
        chosen, _ = split_keywords(options, set())
        if "family" in chosen:
            raise TypeError("family belongs to NGVI(family=...): the approximation is made there")
        if "reparametrize" in chosen:
            raise TypeError("reparametrize belongs to NGVI(reparametrize=...): its model is there")
        if not chosen:
            return self._resolved, self._starts
        merged = dataclasses.replace(self._resolved, **chosen)
        starts = self._starts
        if {"start", "start_sigma"} & set(chosen):
            starts = resolve_starts(merged, self._target.model, self._target.layout)
        self._try_parts(merged, starts)
        return merged, starts

    def _try_parts(self, options: Options, starts: Sequence[Start]) -> None:
        """Raise where a guard or a projection of the user's own does not work at the start."""
        if options.has_own_parts:
            options.parts.try_on(self._start_of(starts[0]))

    def _start_of(self, start: Start) -> Gaussian:
        """Return the Gaussian to start from, as far as it is known without evaluating anything."""
        return start.gaussian or self._chosen.family.from_curvature(
            start.point_or(self._target.initial_point), None, deviations=start.deviations
        )
