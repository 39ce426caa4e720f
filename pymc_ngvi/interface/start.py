"""Where a fit starts: at values by name, at a previous approximation, or at draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc
from pymc.initial_point import make_initial_point_fn
from pymc.variational.opvi import Approximation

from pymc_ngvi._compat import group_names
from pymc_ngvi.arguments import did_you_mean, told
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.interface.options import Options
from pymc_ngvi.model.centring import Degrees
from pymc_ngvi.model.layout import Layout, Outline
from pymc_ngvi.results.records import degrees_from_json, moments_from_dataset


@dataclass(frozen=True)
class Start:
    """Where a fit starts; None is what the user did not give.

    Attributes
    ----------
    gaussian : Gaussian or None
        The result of a previous fit, in the family of this one.
    point : array, (d,), or None
        Starting point on the unconstrained scale.
    deviations : array, (d,), or None
        Standard deviations on the unconstrained scale, NaN where none is given.
    """

    gaussian: Gaussian | None = None
    point: Array | None = None
    deviations: Array | None = None

    def point_or(self, default: Array) -> Array:
        """Return the point to start from, or `default` if none was given."""
        if self.gaussian is not None:
            return self.gaussian.mean.copy()
        return default if self.point is None else self.point


def resolve_starts(options: Options, model: pymc.Model, layout: Layout) -> list[Start]:
    """Return the starts that the options `start` and `start_sigma` describe."""
    several = isinstance(options.start, list | tuple)
    starts = options.start if several else [options.start]
    if not starts:
        raise ValueError("start: an empty list gives no place to start from")
    sigma = options.start_sigma
    deviations = None if sigma is None else starting_deviations(sigma, layout)
    return [_resolve(start, deviations, options.parts.family, model, layout) for start in starts]


def other_points(
    model: pymc.Model, layout: Layout, around: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Yield points to start from instead of `around`, without end.

    A draw from the prior and a jittered `around` take turns. The jitter is uniform on [-1, 1] on
    the unconstrained scale, as in ``pm.sample``. Where the prior is improper, all points are
    jittered.
    """
    draw = make_initial_point_fn(
        model=model,
        overrides=dict.fromkeys(model.free_RVs, "prior"),  # in place of any `initval`
        jitter_rvs=set(),
        return_transformed=True,
    )
    while True:
        with contextlib.suppress(NotImplementedError):
            yield layout.flatten(draw(int(rng.integers(2**31))))
        yield around + rng.uniform(-1, 1, layout.dim)


def _resolve(
    start: Any,
    deviations: Array | None,
    family: type[Gaussian],
    model: pymc.Model,
    layout: Layout,
) -> Start:
    if start is None:
        return Start(deviations=deviations)
    is_point = isinstance(start, Mapping) and not hasattr(start, "groups")  # as InferenceData has
    gaussian = None if is_point else previous_gaussian(start, layout)
    if gaussian is not None:
        return Start(in_family(gaussian, family), deviations=deviations)
    values = start if is_point else posterior_means(start, layout)
    return Start(point=starting_point(values, model, layout), deviations=deviations)


def starting_point(start: Mapping[str, Any], model: pymc.Model, layout: Layout) -> Array:
    """Return the model's initial point with some variables replaced, flat (d,).

    Parameters
    ----------
    start : mapping
        Values by the name of the variable, on its own scale, or by the name of its unconstrained
        value variable. Names of deterministics and data, which ``pm.find_MAP`` returns too, are
        ignored.
    model : pymc.Model
    layout : Layout
    """
    names = _by_name(start, "start")
    others = set(model.named_vars) - {slot.variable for slot in layout}
    names = {name: value for name, value in names.items() if name not in others}
    _check_names("start", names, layout)
    overrides = {}
    for slot in layout:
        if slot.name in names:
            names[slot.name] = _shaped("start", slot.name, names[slot.name], slot.shape)
            overrides[slot.name] = names[slot.name]
        elif slot.variable in names:
            overrides[slot.variable] = _on_own_scale(model, slot.variable, names[slot.variable])
    point = make_initial_point_fn(
        model=model, overrides=overrides, jitter_rvs=set(), return_transformed=True
    )(0)
    for slot in layout:
        if slot.name in names:
            # The value itself, without the rounding of a transform and its inverse.
            point[slot.name] = names[slot.name]
        elif np.shape(point[slot.name]) != slot.shape:
            raise ValueError(
                f"start: {slot.variable} has shape {np.shape(names[slot.variable])}, "
                f"which does not fit the model's {model[slot.variable].type}"
            )
    flat = layout.flatten(point)
    bad = np.flatnonzero(~np.isfinite(flat))
    if bad.size:
        raise ValueError(
            f"start: {layout.label(int(bad[0]))} is {flat[bad[0]]} on the unconstrained scale; "
            "the value lies outside the support of the variable, or on its boundary"
        )
    return flat


def starting_deviations(start_sigma: Mapping[str, Any], layout: Layout) -> Array:
    """Return standard deviations (d,) on the unconstrained scale, NaN where none is given."""
    names = _by_name(start_sigma, "start_sigma")
    _check_names("start_sigma", names, layout)
    deviations = np.full(layout.dim, np.nan)
    for slot in layout:
        for name in {slot.name, slot.variable} & set(names):
            given = _shaped("start_sigma", name, names[name], slot.shape)
            if not ((given > 0) & (given < np.inf)).all():
                raise ValueError(
                    f"start_sigma: {name} must be positive and finite, got {told(names[name])}"
                )
            deviations[slot.where] = given.ravel()
    return deviations


def previous_gaussian(start: Any, layout: Layout) -> Gaussian | None:
    """Return the Gaussian of an approximation, or of the InferenceData of one; else None."""
    if isinstance(start, Approximation):
        return _of_approximation(start, layout)
    found = moments_from_dataset(start["fit"]) if "fit" in group_names(start) else None
    if found is None:
        return None
    gaussian, outline = found
    _check_same_model(layout, outline, "the fit in the InferenceData")
    return gaussian


def centring_of(start: Any) -> Degrees:
    """Return the degrees of centring of a previous fit, given as approximation or InferenceData."""
    if isinstance(start, Approximation):
        return dict(getattr(start, "centring", {}))
    attrs = start["fit"].attrs if "fit" in group_names(start) else {}
    return degrees_from_json(attrs.get("centring", "{}"))


def posterior_means(start: Any, layout: Layout) -> dict[str, Any]:
    """Return the posterior means by variable, from the InferenceData of any sampler."""
    if "posterior" not in group_names(start):
        raise TypeError(
            "start is a dict of values, a previous approximation or an InferenceData, "
            f"not {type(start).__name__}"
        )
    posterior = start["posterior"]
    missing = [slot.variable for slot in layout if slot.variable not in posterior]
    if missing:
        raise ValueError(f"start: the InferenceData's posterior lacks {', '.join(missing)}")
    return {
        slot.variable: posterior[slot.variable].mean(("chain", "draw")).values for slot in layout
    }


def in_family(gaussian: Gaussian, family: type[Gaussian]) -> Gaussian:
    """Return the Gaussian where `family` has it, else the member with its mean and variances."""
    if isinstance(gaussian, family):
        return gaussian
    # Every fit makes a class of its own for its structure.
    own, its = family.structure, gaussian.structure
    if own is not None and its is not None and own.has_places_of(its):
        return family.from_mean_precision(gaussian.mean, gaussian.precision)
    return family.from_mean_variance(gaussian.mean, gaussian.variance)


def _of_approximation(start: Approximation, layout: Layout) -> Gaussian:
    if isinstance(getattr(start, "gaussian", None), Gaussian):
        _check_same_model(layout, start.layout.outline, "the approximation")
        return start.gaussian  # type: ignore[no-any-return]
    if len(start.groups) != 1 or not start.groups[0].has_logq:
        raise TypeError(f"start: {type(start).__name__} is not a single Gaussian to start from")
    shapes = {name: shape for name, _, shape, _ in start.groups[0].ordering.values()}
    _check_same_model(layout, Outline(shapes), "the approximation")
    mean = np.asarray(start.mean.eval(), float)
    return FullGaussian.from_mean_covariance(mean, np.asarray(start.cov.eval(), float))


def _by_name(values: Any, option: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{option} is a dict of values by name, not {type(values).__name__}")
    return {str(getattr(key, "name", key)): value for key, value in values.items()}


def _on_own_scale(model: pymc.Model, name: str, value: Any) -> Any:
    """Return the value; a single number is repeated to the shape of the variable."""
    shape = model[name].type.shape
    if None in shape:
        return _numbers("start", name, value)
    return _shaped("start", name, value, shape)


def _numbers(option: str, name: str, value: Any) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{option}: {name} must be a number or an array of numbers, got {told(value)}"
        ) from error


def _check_names(option: str, names: Mapping[str, Any], layout: Layout) -> None:
    known = {name for slot in layout for name in (slot.name, slot.variable)}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"; it has {sorted(known)}")
            raise ValueError(f"{option}: the model has no free variable {name!r}{hint}")


def _check_same_model(layout: Layout, fit: Outline, what: str) -> None:
    differences = layout.outline.differences(fit)
    if differences:
        raise ValueError(f"start: {what} is of another model than this one: {differences}")


def _shaped(option: str, name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = _numbers(option, name, value)
    if array.shape not in ((), shape):
        raise ValueError(f"{option}: {name} has shape {array.shape}, the model asks for {shape}")
    return np.broadcast_to(array, shape)
