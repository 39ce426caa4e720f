"""The options of a fit, and the parts of the algorithm that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from pymc_ngvi.arguments import check_choice, check_count, did_you_mean
from pymc_ngvi.core.estimators import BonnetPrice, Estimator, Score, Stein
from pymc_ngvi.core.families import Gaussian, get_family
from pymc_ngvi.core.guards import Guard, get_guard
from pymc_ngvi.core.projections import Identity, Projection, check_projection
from pymc_ngvi.core.schedules import as_schedule, check_sample_size, check_step_size
from pymc_ngvi.errors import warn

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


@dataclass(frozen=True)
class Options:
    """How to fit, as the user said it; `parts` is what follows from it.

    Parameters
    ----------
    family : str or type
        "fullrank" (default), "meanfield", "centred_meanfield", or a family of
        :mod:`pymc_ngvi.core.families`.
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
    """

    family: str | type[Gaussian] = "fullrank"
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

    def __post_init__(self) -> None:
        check_projection(self.parts.projection, self.parts.family)
        if self.step_size is not None:
            check_step_size(as_schedule(self.step_size, "step_size")(0), 0)
        if self.n_samples is not None:
            check_sample_size(as_schedule(self.n_samples, "n_samples")(0), 0)
        if not self.accuracy > 0:
            raise ValueError(f"accuracy must be positive, got {self.accuracy!r}")
        check_count("max_evaluations", self.max_evaluations)
        check_count("n_starts", self.n_starts)
        several = self.n_starts > 1 or isinstance(self.start, list | tuple)
        if several and not self.automatic:
            raise ValueError(
                "several starts belong to the automatic engine: give neither step_size nor "
                "n_samples, or give one start"
            )
        if self.automatic and not hasattr(self.parts.estimator, "at"):
            raise ValueError(
                f"estimator {self.estimator!r} cannot evaluate given draws (it has no `at`), which "
                "the automatic engine needs: give a step_size or n_samples"
            )
        if self.averaging and self.automatic:
            raise ValueError(
                "averaging belongs to Algorithm 1: give a step_size or n_samples as well. The "
                "automatic engine averages by itself."
            )

    @cached_property
    def parts(self) -> Parts:
        """The family, estimator, guard and projection that the words stand for."""
        projection = Identity() if self.projection is None else self.projection
        return Parts(
            family=get_family(self.family),
            estimator=_get_estimator(self.estimator),
            guard=get_guard(self.guard, projection),
            projection=projection,
        )

    @property
    def controlled(self) -> bool:
        """Whether batches are control variates."""
        return self.automatic if self.control_variates is None else self.control_variates

    @property
    def automatic(self) -> bool:
        """Whether the automatic engine runs: no schedule was given."""
        return self.step_size is None and self.n_samples is None


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
        return estimator
    word = estimator.lower() if isinstance(estimator, str) else estimator
    check_choice("estimator", word, list(_ESTIMATORS))
    return _ESTIMATORS[word]()
