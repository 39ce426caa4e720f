"""Pictures of a fit: how it went, whether it can be trusted, and what it found.

Each function takes an approximation or draws of one, plots on the axes it is given or on new ones,
and returns them. Matplotlib comes with the extra `plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray

from pymc_ngvi._compat import density_estimate, group_names, is_elpd
from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.results.approximation import NGVIApproximation
from pymc_ngvi.results.records import history_to_dataset
from pymc_ngvi.results.verdict import GOOD_KHAT, UNRELIABLE_KHAT

#: Number of draws that are made of an approximation for a picture.
_DRAWS = 2000

#: Largest number of marginals in one picture.
_MOST_MARGINALS = 36

#: Probabilities inside the contours of a pair.
_LEVELS = (0.5, 0.9, 0.99)

_FIT, _REFERENCE = "C0", "0.45"


def fit_trace(data: Any, *, axes: Any = None) -> Any:
    """Show how a fit went: the ELBO against iterations and evaluations, step and sample sizes.

    Parameters
    ----------
    data : approximation, InferenceData or DataTree
    axes : array of matplotlib.axes.Axes, (4,), optional

    Returns
    -------
    array of matplotlib.axes.Axes, (4,)
    """
    trace = (
        history_to_dataset(data.history) if _is_approximation(data) else _group(data, "fit_trace")
    )
    if not trace.sizes["iteration"]:
        raise ValueError("the approximation was not fitted and has no iterations to show")
    axes = _axes(axes, 4, width=3.2)
    iteration = np.arange(1, trace.sizes["iteration"] + 1)
    for ax, place, label in (
        (axes[0], iteration, "iteration"),
        (axes[1], trace["evaluations"].values, "evaluations"),
    ):
        ax.errorbar(place, trace["elbo"], yerr=trace["elbo_se"], color=_FIT, marker="o", ms=3)
        ax.set(xlabel=label, ylabel="ELBO")
        ax.ticklabel_format(axis="y", useOffset=False)
        _cut_off_the_climb(ax, trace["elbo"].values)
    axes[2].step(iteration, trace["step_size"], where="mid", color=_FIT)
    axes[2].set(xlabel="iteration", ylabel="step size", ylim=(0, None))
    axes[3].step(iteration, trace["n_samples"], where="mid", color=_FIT)
    axes[3].set(xlabel="iteration", ylabel="draws", ylim=(0, None))
    return axes


def khat(data: Any, *, ax: Any = None) -> Any:
    """Show the importance weights of a fit, or the Pareto k of each observation.

    For a fit, the picture shows the weights of the draws in decreasing order, times the number of
    draws. A flat line at 1 is a perfect fit; a steep beginning means that a few draws have most of
    the weight. For a result of :func:`pymc_ngvi.loo`, it shows the Pareto k of each observation.

    Parameters
    ----------
    data : approximation, InferenceData, DataTree or ELPDData
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    if is_elpd(data):
        return _pareto_k(data, ax)
    stats = _group(_drawn(data), "sample_stats")
    if "log_weight" not in stats:
        raise ValueError(f"the draws have no weights: {stats.attrs.get('lp_missing', 'no `lp`')}")
    (ax,) = _axes(None if ax is None else [ax], 1, width=4.5)
    weights = np.sort(np.exp(stats["log_weight"].values.ravel()))[::-1]
    ax.plot(np.arange(1, weights.size + 1), weights * weights.size, color=_FIT)
    ax.axhline(1, color=_REFERENCE, lw=1, ls="--")
    # Draws with hardly any weight should not determine the range of the axis.
    ax.set(
        xscale="log",
        yscale="log",
        ylim=(max(weights[-1] * weights.size, 0.05) / 1.5, None),
        xlabel="draw, by weight",
        ylabel="weight, in equal shares",
        title=f"k-hat {stats.attrs['khat']:.2f}, "
        f"{stats.attrs['ess']:.0f} of {int(stats.attrs['weighed_draws'])} draws effective",
    )
    return ax


def marginals(
    data: Any, *, reference: Any = None, var_names: Sequence[str] | None = None, axes: Any = None
) -> Any:
    """Show the marginal density of each component, and that of draws of a sampler.

    Parameters
    ----------
    data : approximation, InferenceData or DataTree
    reference : InferenceData or DataTree, optional
        Draws of the same model by a sampler such as ``pm.sample``.
    var_names : sequence of str, optional
        Variables to show; all by default.
    axes : array of matplotlib.axes.Axes, optional
        One for each component.

    Returns
    -------
    array of matplotlib.axes.Axes
    """
    posterior = _group(_drawn(data), "posterior")
    chosen = [str(name) for name in posterior.data_vars] if var_names is None else list(var_names)
    found = _components(posterior, chosen)
    if len(found) > _MOST_MARGINALS:
        raise ValueError(
            f"{len(found)} marginals are too many for one picture (at most {_MOST_MARGINALS}): "
            "choose some with var_names="
        )
    others = {} if reference is None else _components(_group(reference, "posterior"), chosen)
    axes = _axes(axes, len(found), width=2.6)
    for ax, (label, values) in zip(axes, found.items(), strict=True):
        if label in others:
            _density(ax, others[label], color=_REFERENCE, label="reference", fill=True)
        _density(ax, values, color=_FIT, label="ngvi")
        ax.set(title=label, yticks=[], ylim=(0, None))
    if others:
        axes[0].legend(frameon=False, fontsize="small")
    return axes


def pair(data: Any, names: tuple[str, str], *, reference: Any = None, ax: Any = None) -> Any:
    """Show draws of two unconstrained components, and contours of the Gaussian.

    The contours contain 50, 90 and 99 percent of the Gaussian.

    Parameters
    ----------
    data : approximation, InferenceData or DataTree
    names : pair of str
        Names of the components in the group `fit`, such as ``"tau_log__"`` or ``"beta[0]"``.
    reference : InferenceData or DataTree, optional
        Draws of a sampler, shown in place of those of the fit. They must include the unconstrained
        variables: ``pm.sample(idata_kwargs={"include_transformed": True})``.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    data = _drawn(data)
    fit = _group(data, "fit")
    labels = [str(label) for label in fit["parameter"].values]
    for name in names:
        if name not in labels:
            hint = did_you_mean(name, labels, f"; there is {', '.join(labels[:10])}")
            raise ValueError(f"the fit has no component {name!r}{hint}")
    where = [labels.index(name) for name in names]
    spread = fit["covariance"].values if "covariance" in fit else np.diag(fit["variance"].values)
    (ax,) = _axes(None if ax is None else [ax], 1, width=4)
    draws = [_component(data if reference is None else reference, name, labels) for name in names]
    label = "draws" if reference is None else "reference"
    ax.plot(*draws, ".", color=_REFERENCE, ms=3, alpha=0.4, label=label, rasterized=True)
    for level, ellipse in zip(_LEVELS, _ellipses(spread[np.ix_(where, where)]), strict=True):
        x, y = fit["mean"].values[where][:, np.newaxis] + ellipse
        ax.plot(x, y, color=_FIT, lw=1.2, label="Gaussian" if level == _LEVELS[0] else None)
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.legend(fontsize="small", markerscale=3, framealpha=0.9)
    return ax


def _pareto_k(elpd: Any, ax: Any) -> Any:
    (ax,) = _axes(None if ax is None else [ax], 1, width=4.5)
    values = np.ravel(elpd.pareto_k)
    ax.plot(values, "+", color=_FIT)
    for level in (GOOD_KHAT, UNRELIABLE_KHAT):
        ax.axhline(level, color=_REFERENCE, lw=1, ls="--")
    above = int((values > elpd.good_k).sum())
    ax.set(
        xlabel="observation",
        ylabel="Pareto k",
        title=f"{above} of {values.size} above {elpd.good_k:.2f}",
    )
    return ax


def _cut_off_the_climb(ax: Any, elbo: Array) -> None:
    """Limit the axis where a few low iterations, usually the first, would flatten all others."""
    finite = elbo[np.isfinite(elbo)]
    highest, middle = finite.max(), np.median(finite)
    lowest = highest - 5 * (highest - middle)
    if finite.min() >= lowest or highest == middle:
        return
    margin = 0.1 * (highest - lowest)
    ax.set_ylim(lowest - margin, highest + margin)
    below = int((elbo < lowest - margin).sum())
    if below:
        ax.set_title(f"{below} of {elbo.size} iterations below", fontsize="medium")


def _density(ax: Any, values: Array, *, color: str, label: str, fill: bool = False) -> None:
    grid, density = density_estimate(np.ascontiguousarray(values, dtype=np.float64))
    if fill:
        ax.fill_between(grid, density, color=color, alpha=0.35, lw=0, label=label)
    else:
        ax.plot(grid, density, color=color, label=label)


def _ellipses(covariance: Array) -> list[Array]:
    """Return contours (2, k) around zero that contain the probabilities `_LEVELS`."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.array([np.cos(angle), np.sin(angle)])
    return [np.sqrt(-2 * np.log1p(-level)) * circle for level in _LEVELS]


def _components(group: xarray.Dataset, names: Sequence[str]) -> dict[str, Array]:
    """Return draws (n,) of each scalar component of some variables, by label."""
    found = {}
    for name in names:
        if name not in group:
            hint = did_you_mean(name, map(str, group.data_vars))
            raise ValueError(f"the posterior has no variable {name!r}{hint}")
        variable = group[name].transpose("chain", "draw", ...)
        draws = variable.values.reshape(-1, *variable.shape[2:])
        for place in np.ndindex(draws.shape[1:]):
            keys = [
                str(variable[dim].values[i])
                for dim, i in zip(variable.dims[2:], place, strict=True)
            ]
            label = f"{name}[{', '.join(keys)}]" if keys else name
            found[label] = draws[:, *place]
    return found


def _component(data: Any, name: str, labels: Sequence[str]) -> Array:
    """Return draws (n,) of one unconstrained component."""
    variable = name.split("[")[0]
    offset = [label for label in labels if label.split("[")[0] == variable].index(name)
    for group in ("unconstrained_posterior", "posterior"):
        if group in group_names(data) and variable in data[group]:
            values = data[group][variable].values
            return np.asarray(values.reshape(values.shape[0] * values.shape[1], -1)[:, offset])
    raise ValueError(
        f"the reference has no draws of {variable} on the unconstrained scale: sample them with "
        'idata_kwargs={"include_transformed": True}'
    )


def _is_approximation(data: Any) -> bool:
    return isinstance(data, NGVIApproximation)


def _drawn(data: Any) -> Any:
    return data.sample(_DRAWS, random_seed=0) if _is_approximation(data) else data


def _group(data: Any, name: str) -> Any:
    if name not in group_names(data):
        raise ValueError(
            f"there is no group {name!r} to show in this {type(data).__name__}: give an "
            "approximation of pymc_ngvi, or what its sample returned"
        )
    return data[name]


def _axes(axes: Any, n: int, *, width: float) -> Any:
    """Return the n axes given, or those of a new figure."""
    if axes is not None:
        axes = np.ravel(axes)
        if axes.size != n:
            raise ValueError(f"the picture takes {n} axes, got {axes.size}")
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("pictures need Matplotlib: pip install 'pymc-ngvi[plots]'") from error
    columns = min(n, 4)
    rows = -(-n // columns)
    _, grid = plt.subplots(
        rows, columns, figsize=(width * columns, 2.6 * rows), layout="constrained", squeeze=False
    )
    for spare in grid.ravel()[n:]:
        spare.remove()
    return grid.ravel()[:n]
