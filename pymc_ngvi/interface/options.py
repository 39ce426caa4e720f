"""The options of a fit, and the parts of the algorithm that they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc.progress_bar import default_progress_theme
from pytensor.compile.mode import Mode, get_mode
from rich.theme import Theme

from pymc_ngvi.arguments import (
    as_generator,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_mapping,
    check_number,
    did_you_mean,
    told,
)
from pymc_ngvi.core.estimators import BonnetPrice, Estimate, Estimator, Score, Stein
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, Gaussian, get_family
from pymc_ngvi.core.guards import Guard, Mixed, get_guard
from pymc_ngvi.core.projections import Identity, Projection, check_projection
from pymc_ngvi.core.schedules import check_first
from pymc_ngvi.errors import first_line, warn
from pymc_ngvi.results.weighing import check_importance

#: Keywords of PyMC's other methods that have no meaning here.
IGNORED = frozenset(
    {
        "cost_part_grad_scale",
        "local_rv",
        "more_obj_params",
        "more_replacements",
        "more_tf_params",
        "more_updates",
        "obj_n_mc",
        "obj_optimizer",
        "scale_cost_to_minibatch",
        "test_optimizer",
        "tf_n_mc",
        "total_grad_norm_constraint",
    }
)

#: The engine squares the accuracy and divides by it: what is smaller cannot be reached by any
#: number of draws, and what is larger asks for nothing.
ACCURACIES = (1e-6, 1e3)
#: Every start costs a warm-up.
MOST_STARTS = 10_000

#: Fewest evaluations allowed with which a fit spends some on the choice of a centring.
_LEAST_BUDGET = 1000

#: Keywords of PyTensor's compilation that a fit sets itself.
_OWN_KEYWORDS = {"inputs", "outputs", "on_unused_input"}

_ESTIMATORS = {kind.name: kind for kind in (BonnetPrice, Stein, Score)}


@dataclass(frozen=True)
class Parts:
    """The parts of the algorithm that a fit is made of.

    Attributes
    ----------
    family : type
    estimator : Estimator
        With a method `at` where the automatic engine runs.
    guard : callable
        With ``guard="none"`` it follows from the projection, which may take over the guard's work.
    projection : callable
    """

    family: type[Gaussian]
    estimator: Any
    guard: Guard
    projection: Projection

    @property
    def needs_hessian(self) -> bool | None:
        """Whether the estimator asks for Hessians; None for one that does not say."""
        return getattr(self.estimator, "needs_hessian", None)

    @property
    def curvature(self) -> str:
        """The curvature that the target is compiled for."""
        return "none" if self.needs_hessian is False else self.family.curvature

    def try_on(self, q: Gaussian) -> None:
        """Raise where the projection or the guard cannot take the member that a fit starts from."""
        projected = _tried("projection", self.projection, q)
        if not (isinstance(projected, Gaussian) and projected.dim == q.dim):
            raise TypeError(
                f"projection {told(self.projection)} must return a Gaussian of the same dimension, "
                f"and has returned {told(projected)}"
            )
        # The derivatives of a target that is q itself, at which no step changes anything.
        estimate = Estimate(np.zeros(q.dim), -q.precision, 0.0, 0.0, 0)
        mixed = _tried("guard", self.guard, q, estimate, 0.5)
        if not isinstance(mixed, Mixed):
            raise TypeError(
                f"guard {told(self.guard)} must return a pymc_ngvi.core.guards.Mixed, and has "
                f"returned {told(mixed)}"
            )


@dataclass(frozen=True)
class Options:
    """How to fit, as the user said it; `parts` is what follows from it.

    Parameters
    ----------
    family : str or type
        "auto" (default), "fullrank", "sparse", "lowrank", "meanfield", "centred_meanfield", or a
        family of :mod:`pymc_ngvi.core.families`. "auto" takes a full covariance, by the sparse
        precision that hierarchies, time series and lattices have where that costs less, or by one
        that is sparse but for a few rows of data.
    estimator : str or object
        "bonnet-price" (exact Hessians, default), "stein" (gradients only), "score" (log densities
        only), or an instance of one. Where kinks or jumps of the log density mislead an estimator,
        the automatic engine goes on with the next of these, and says so.
    guard : str or callable
        "lin" (default), "backtrack" or "none"; see :mod:`pymc_ngvi.core.guards`.
    projection : callable, optional
        See :mod:`pymc_ngvi.core.projections`.
    step_size, n_samples : number or callable, optional
        If either is given, Algorithm 1 of the paper runs as given; the other one is then
        ``schedules.decreasing()``, or 10. If neither is given, the automatic engine runs.
    averaging : bool
        Return the average of the natural parameters (with a schedule only).
    control_variates : bool, optional
        For a model that reads batches of its data: whether batches estimate only the difference
        from an expansion of all the data at an anchor (:mod:`pymc_ngvi.core.control_variates`).
        By default yes with the automatic engine; with a schedule plain batches, as in the paper.
    accuracy : float
        Tolerated error of the automatic engine, in posterior standard deviations.
    max_evaluations : int
        Evaluations of the log density after which the automatic engine stops.
    start : mapping, approximation, InferenceData or list of these, optional
        Where to start: values by plain or transformed names (the others start at PyMC's initial
        point), a previous approximation, or what it returned from `sample`. From a list, every
        entry is tried.
    n_starts : int
        Number of starts to try (automatic engine): those given, or PyMC's initial point, and then
        draws from the prior and jittered points. Poor ones are abandoned after the warm-up, and
        the best is kept.
    start_sigma : mapping, optional
        Standard deviations to start from, on the unconstrained scale, by either name.
    random_seed : int, sequence of int, numpy.random.Generator or None
    reparametrize : "auto", False or mapping
        Whether the fit may recentre variables of hierarchies; see :mod:`pymc_ngvi.model.centring`.
        "auto" does so where it raises the ELBO. A mapping gives the degree of centring by name,
        from 0 (non-centred) to 1 (centred), as a number or an array.
    nested : list of str or "auto", optional
        Fit Gaussians of the rest on a grid of one or two scalar variables, given by name; see
        :mod:`pymc_ngvi.core.nested`. "auto" does so where the verdict on one Gaussian is bad, for
        the variables along which the curvature of the rest changes most.
    remedy : "auto", None or False
        Where the verdict on one Gaussian is bad, "auto" does what helps: a nested fit as by
        ``nested="auto"``, and if that does not suffice, it lets `sample` match its draws. It leaves
        alone what was named: a family, a schedule or a projection. None and False only warn.
    """

    family: str | type[Gaussian] = "auto"
    estimator: str | Estimator = "bonnet-price"
    guard: str | Guard = "lin"
    projection: Projection | None = None
    step_size: float | Callable[[int], float] | None = None
    n_samples: int | Callable[[int], int] | None = None
    averaging: bool = False
    control_variates: bool | None = None
    accuracy: float = 0.02
    max_evaluations: int = 20_000
    start: Any = None
    n_starts: int = 1
    start_sigma: Mapping[str, Any] | None = None
    random_seed: Any = None
    reparametrize: str | bool | Mapping[str, Any] = "auto"
    nested: str | Sequence[str] | None = None
    remedy: str | bool | None = "auto"

    def __post_init__(self) -> None:
        estimator = self.parts.estimator  # raises where a word stands for no part
        check_first(self.step_size, self.n_samples)
        check_number("accuracy", self.accuracy, *ACCURACIES)
        check_flag("averaging", self.averaging)
        check_flag("control_variates", self.control_variates, optional=True)
        # As integers, which a whole number such as 2.0 is not for what counts with it.
        self._keep("max_evaluations", check_count("max_evaluations", self.max_evaluations))
        self._keep("n_starts", check_count("n_starts", self.n_starts, most=MOST_STARTS))
        _check_reparametrize(self.reparametrize)
        _check_nested(self.nested)
        if self.remedy is not False:
            check_choice("remedy", self.remedy, (None, "auto"))
        if self.nested and not (self.automatic and self.projection is None):
            raise ValueError(
                "nested belongs to the automatic engine: give no step_size, no n_samples and no "
                "projection"
            )
        if self.nested and not self.parts.family.has_mean:
            raise ValueError("nested: a centred family has no means that could follow a variable")
        if not isinstance(self.random_seed, np.random.RandomState):  # whose state would move
            as_generator(self.random_seed)
        several = self.n_starts > 1 or isinstance(self.start, list | tuple)
        if several and not self.automatic:
            raise ValueError(
                "several starts belong to the automatic engine: give neither step_size nor "
                "n_samples, or give one start"
            )
        if self.automatic and not hasattr(estimator, "at"):
            raise ValueError(
                f"estimator {self.estimator!r} cannot evaluate given draws (it has no `at`), which "
                "the automatic engine needs: give a step_size or n_samples"
            )
        if self.averaging and self.automatic:
            raise ValueError(
                "averaging belongs to Algorithm 1: give a step_size or n_samples as well. The "
                "automatic engine averages by itself."
            )

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @cached_property
    def parts(self) -> Parts:
        """The family, estimator, guard and projection that the words stand for."""
        family = FullGaussian if self.family == "auto" else get_family(self.family, "auto")
        projection = Identity() if self.projection is None else self.projection
        check_projection(projection, family)
        return Parts(
            family=family,
            estimator=_get_estimator(self.estimator),
            guard=get_guard(self.guard, projection),
            projection=projection,
        )

    @property
    def controlled(self) -> bool:
        """Whether batches are control variates."""
        return self.automatic if self.control_variates is None else self.control_variates

    @property
    def may_recentre(self) -> bool:
        """Whether the fit may choose the centring of variables by itself.

        A schedule, a projection and standard deviations to start from are meant for the values that
        the model has. Several starts would have to be tried in each parametrisation.
        """
        plain = self.automatic and self.projection is None and self.start_sigma is None
        one = self.n_starts == 1 and not isinstance(self.start, list | tuple)
        known = self.parts.family in (FullGaussian, DiagonalGaussian)
        affordable = self.max_evaluations >= _LEAST_BUDGET
        return self.reparametrize == "auto" and plain and one and known and affordable

    @property
    def may_nest(self) -> bool:
        """Whether a bad verdict may lead to a nested fit of variables that were not named."""
        wanted = self.nested == "auto" or (self.nested is None and self.remedy == "auto")
        return wanted and self.automatic and self.projection is None

    @property
    def has_own_parts(self) -> bool:
        """Whether the guard or the projection was given as an object, and not by a word."""
        return callable(self.guard) or self.projection is not None

    @property
    def automatic(self) -> bool:
        """Whether the automatic engine runs: no schedule was given."""
        return self.step_size is None and self.n_samples is None


@dataclass(frozen=True)
class Run:
    """How long to fit, and what to show and to return: the arguments of `NGVI.fit`.

    Its docstring explains them.
    """

    n: int = 10_000
    score: bool | None = None
    callbacks: Sequence[Callable[..., object]] | None = None
    progressbar: bool = True
    progressbar_theme: Theme | None = default_progress_theme
    include_transformed: bool = False
    return_inferencedata: bool = False
    draws: int = 1000
    log_likelihood: bool = False
    importance: str | None = "auto"

    def __post_init__(self) -> None:
        check_count("n", self.n, least=0)
        check_flag("score", self.score, optional=True)
        _check_callbacks(self.callbacks)
        check_flag("progressbar", self.progressbar)
        if not isinstance(self.progressbar_theme, Theme | None):
            raise TypeError(
                f"progressbar_theme must be a rich.theme.Theme, got {told(self.progressbar_theme)}"
            )
        check_flag("include_transformed", self.include_transformed)
        check_flag("return_inferencedata", self.return_inferencedata)
        check_count("draws", self.draws)
        check_flag("log_likelihood", self.log_likelihood)
        check_importance(self.importance)

    def warn_of_unused(self) -> None:
        """Warn of what is said about draws where none are returned."""
        about_draws = ("draws", "log_likelihood", "importance", "include_transformed")
        given = [name for name in about_draws if getattr(self, name) != getattr(Run, name)]
        if given and not self.return_inferencedata:
            warn(
                f"{', '.join(given)}: not used, as the fit returns the approximation. Add "
                f"return_inferencedata=True, or give {'it' if len(given) == 1 else 'them'} to "
                "sample of the approximation"
            )


def check_compilation(compile_kwargs: Mapping[str, Any] | None) -> None:
    """Raise where `compile_kwargs` are not keywords of PyTensor's compilation."""
    kwargs = check_mapping("compile_kwargs", compile_kwargs)
    known = {*inspect.signature(pytensor.function).parameters, "random_seed"} - _OWN_KEYWORDS
    for name in kwargs:
        if name not in known:
            hint = did_you_mean(name, known, f"; it takes {', '.join(sorted(known))}")
            raise TypeError(f"compile_kwargs: PyTensor's compilation has no {name!r}{hint}")
    mode = kwargs.get("mode")
    if not isinstance(mode, str | Mode | None):
        raise TypeError(f"compile_kwargs: mode must be a mode of PyTensor, got {told(mode)}")
    try:
        get_mode(mode)
    except Exception as error:
        raise ValueError(f"compile_kwargs: mode {told(mode)}: {first_line(error)}") from error


def split_keywords(
    given: Mapping[str, Any], others: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part keywords into those of :class:`Options` and `others`.

    Raises `TypeError` for an unknown keyword, with the nearest that exists, and warns of keywords
    that only PyMC's other methods know.
    """
    known = {field.name for field in fields(Options)}
    ignored = sorted(IGNORED.intersection(given))
    if ignored:
        warn(f"method='ngvi' has no use for {', '.join(ignored)}: ignored")
    unknown = sorted(set(given) - known - others - IGNORED)
    if unknown:
        valid = known | others
        hint = did_you_mean(unknown[0], valid, f"; it takes {sorted(valid)}")
        raise TypeError(f"method='ngvi' has no option {unknown[0]!r}{hint}")
    return (
        {name: value for name, value in given.items() if name in known},
        {name: value for name, value in given.items() if name in others},
    )


def _get_estimator(estimator: Any) -> Any:
    """Estimator by name, or the estimator itself."""
    if callable(estimator) and not isinstance(estimator, type):
        check_callable("estimator", estimator, "target", "q", "n_samples", "rng")
        return estimator
    word = estimator.lower() if isinstance(estimator, str) else estimator
    check_choice("estimator", word, list(_ESTIMATORS))
    return _ESTIMATORS[word]()


def _check_reparametrize(value: Any) -> None:
    if value is False or (isinstance(value, str) and value == "auto"):
        return
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return
    raise ValueError(
        'reparametrize must be "auto", False or degrees of centring by name such as '
        f'{{"theta": 0.0}}, got {told(value)}'
    )


def _check_nested(value: Any) -> None:
    if value is None or (isinstance(value, str) and value == "auto"):
        return
    names = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if not (names and value):
        raise ValueError(
            f'nested must be names of one or two variables such as ["tau"], or "auto", got '
            f"{told(value)}"
        )


def _check_callbacks(callbacks: Any) -> None:
    if callbacks is None:
        return
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str | bytes):
        hint = ": give it in a list, as [callback]" if callable(callbacks) else ""
        raise TypeError(f"callbacks must be a list of callables, got {told(callbacks)}{hint}")
    for callback in callbacks:
        check_callable("callbacks", callback, "approx", "losses", "i")


def _tried(name: str, part: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return part(*arguments)
    except Exception as error:
        raise TypeError(
            f"{name} {told(part)} fails on the Gaussian that the fit starts from: "
            f"{first_line(error)}"
        ) from error
