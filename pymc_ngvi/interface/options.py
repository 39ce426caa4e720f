"""The keywords of a fit: what they are, what they may be, and what is said of any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pymc_ngvi.arguments import check_count, did_you_mean
from pymc_ngvi.core.estimators import BonnetPrice, Estimator, Stein
from pymc_ngvi.core.families import get_family
from pymc_ngvi.core.guards import get_guard
from pymc_ngvi.core.projections import Identity, check_projection
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

_ESTIMATORS = {kind.name: kind for kind in (BonnetPrice, Stein)}


@dataclass(frozen=True)
class Options:
    """How to fit.

    Parameters
    ----------
    family : str or type
        "fullrank" (default), "meanfield", "centred_meanfield", or a family of
        :mod:`pymc_ngvi.core.families`.
    estimator : str or object
        "bonnet-price" (exact Hessians, default), "stein" (gradients only), or an instance of one.
    guard : str or callable
        "lin" (default), "backtrack" or "none"; see :mod:`pymc_ngvi.core.guards`.
    projection : callable, optional
        See :mod:`pymc_ngvi.core.projections`.
    step_size, n_samples : number or callable, optional
        Naming either runs Algorithm 1 of the paper as given; the other then is
        ``schedules.decreasing()``, or 10. Naming neither runs the automatic engine.
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

    # Words are replaced by what they stand for, which is what these hold afterwards.
    family: Any = "fullrank"
    estimator: Any = "bonnet-price"
    guard: Any = "lin"
    projection: Any = None
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
        object.__setattr__(self, "family", get_family(self.family))
        object.__setattr__(self, "estimator", _as_estimator(self.estimator))
        object.__setattr__(self, "projection", self.projection or Identity())
        check_projection(self.projection, self.family)
        object.__setattr__(self, "guard", get_guard(self.guard, self.projection))
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
                "several starts belong to the automatic engine: name neither step_size nor "
                "n_samples, or give one start"
            )
        if self.automatic and not hasattr(self.estimator, "at"):
            raise ValueError(
                f"estimator {self.estimator!r} cannot evaluate given draws (it has no `at`), which "
                "the automatic engine needs: name a step_size or n_samples"
            )
        if self.averaging and self.automatic:
            raise ValueError(
                "averaging belongs to Algorithm 1: name a step_size or n_samples as well. The "
                "automatic engine averages by itself."
            )

    @property
    def controlled(self) -> bool:
        """Whether batches are control variates."""
        return self.automatic if self.control_variates is None else self.control_variates

    @property
    def automatic(self) -> bool:
        """Whether no schedule was named."""
        return self.step_size is None and self.n_samples is None


def split_keywords(
    given: Mapping[str, Any], others: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part keywords into those of :class:`Options` and `others`.

    Raises `TypeError` for an unknown one, with the nearest that exists, and warns of those that
    only PyMC's other methods know.
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


def _as_estimator(estimator: Any) -> Estimator:
    if callable(estimator) and not isinstance(estimator, type):
        return estimator  # type: ignore[no-any-return]
    if isinstance(estimator, str) and estimator.lower() in _ESTIMATORS:
        return _ESTIMATORS[estimator.lower()]()
    hint = did_you_mean(str(estimator).lower(), _ESTIMATORS)
    names = ", ".join(map(repr, _ESTIMATORS))
    raise ValueError(f"estimator {estimator!r} is none of {names}{hint}")
