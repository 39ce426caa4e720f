"""Comparison of models by cross-validation, from approximations and from draws of a sampler.

Leave-one-out cross-validation asks how well a model predicts each observation from all the others.
Importance weights answer this without fitting again. The same weights correct for what an
approximation misses (Magnusson, Andersen, Jonasson and Vehtari, 2019).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray

from pymc_ngvi._compat import (
    compare_elpds,
    group_names,
    is_elpd,
    loo_from_approximation,
    loo_from_draws,
    make_elpd,
)
from pymc_ngvi.arguments import check_choice, check_count, told
from pymc_ngvi.errors import warn
from pymc_ngvi.results.approximation import NGVIApproximation
from pymc_ngvi.results.verdict import CLEAR_EFFICIENCY

#: Number of draws that are made of an approximation to compare it.
DRAWS = 2000
#: Fewer have no tail that could be smoothed.
LEAST_DRAWS = 25


def loo(
    data: Any, *, var_name: str | None = None, draws: int = DRAWS, random_seed: Any = None
) -> Any:
    r"""Estimate the log predictive density of observations that are left out, by PSIS-LOO.

    .. math:: \mathrm{elpd} = \sum_i \log p(y_i \mid y_{-i})

    Draws of an approximation have the weights
    :math:`p(\theta) / (q(\theta)\, p(y_i \mid \theta))`, which leave observation i out and also
    correct the approximation. Draws of a sampler, and resampled draws, have the weights
    :math:`1 / p(y_i \mid \theta)`.

    Parameters
    ----------
    data : approximation, InferenceData or DataTree
        A fit, or draws with a group `log_likelihood`: from ``approx.sample(log_likelihood=True)``,
        ``fit_ngvi(log_likelihood=True)`` or ``pm.sample`` with ``pm.compute_log_likelihood``.
    var_name : str, optional
        The observed variable; needed where the model has several.
    draws : int
        Number of draws to make, if `data` is an approximation.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of these draws.

    Returns
    -------
    arviz.ELPDData
        The estimate with its pointwise values, which ``az.compare`` takes.

    Raises
    ------
    TypeError
        The data have no log-likelihood; the message says how to add it.
    ValueError
        The model has several observed variables and `var_name` is not given, or none of that name.
    """
    if isinstance(data, NGVIApproximation):
        draws = _check_draws(draws)
    if isinstance(data, NGVIApproximation) and data.reads_batches:
        elpd, efficiency = _loo_in_partitions(data, var_name, draws, random_seed)
    else:
        if isinstance(data, NGVIApproximation):
            data = data.sample(draws, random_seed=random_seed, log_likelihood=True)
        elpd, efficiency = _loo_of_draws(data, var_name)
    # Where weights are nearly equal, k-hat is about a tail that holds too little to matter.
    # A k-hat that is NaN says nothing good either, hence the negations.
    bad = int((~(elpd.pareto_k <= elpd.good_k) & ~(efficiency >= CLEAR_EFFICIENCY)).sum())
    if bad:
        warn(
            f"loo: {bad} of {int(elpd.n_data_points)} observations have a Pareto k above "
            f"{elpd.good_k:.2f} and uneven weights: leaving one of them out changes the posterior "
            "more than weights can correct for, or the approximation is poor. Check these "
            "observations, or sample the model with pm.sample"
        )
    return elpd


def _loo_of_draws(data: Any, var_name: str | None) -> tuple[Any, Any]:
    """Return the estimate from draws, and the share of them that is effective by observation."""
    variable = _observed_variable(data, var_name)
    if not data["log_likelihood"][variable].size:
        raise ValueError(f"{variable} has no observations to leave out")
    estimate = loo_from_approximation if _is_weighed(data) else loo_from_draws
    with warnings.catch_warnings():
        # Whoever called says for how many observations.
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
        return estimate(data, variable), _efficiency(data, variable)


def _loo_in_partitions(
    approx: NGVIApproximation, var_name: str | None, draws: int, random_seed: Any
) -> tuple[Any, Any]:
    """Return the same for data that are read in batches, of which only a part is held at a time."""
    names = [variable.name for variable in approx.model.observed_RVs]
    variable = _choose(names, var_name)
    found = approx.leave_one_out(draws, variable, random_seed)
    dims = [f"{variable}_dim_{i}" for i in range(found.elpd.ndim)]
    elpd, density, khat, efficiency = (
        xarray.DataArray(values, dims=dims)
        for values in (found.elpd, found.density, found.khat, found.efficiency)
    )
    return make_elpd(elpd, density, khat, draws), efficiency


def _check_draws(draws: int) -> int:
    n = check_count("draws", draws)
    if n < LEAST_DRAWS:
        raise ValueError(f"draws must be at least {LEAST_DRAWS} to leave observations out, got {n}")
    return n


def compare(
    models: Mapping[str, Any],
    *,
    var_name: str | None = None,
    method: str = "stacking",
    draws: int = DRAWS,
    random_seed: Any = None,
) -> Any:
    """Rank models by how well they predict left-out observations.

    Parameters
    ----------
    models : mapping of str to approximation, InferenceData, DataTree or ELPDData
        Fits, draws of any sampler, or results of :func:`loo`, by the name of the model.
    var_name : str, optional
        The observed variable; needed where models have several.
    method : {"stacking", "BB-pseudo-BMA", "pseudo-BMA"}
        How the weights of the models are computed.
    draws, random_seed
        As in :func:`loo`.

    Returns
    -------
    pandas.DataFrame
        The table of ``az.compare``, best model first, with columns about the approximation: its
        `khat`, the share of draws that are `effective` after weighing, and its `elbo` (a lower
        bound of the log evidence) with `elbo_se`. They are NaN for models that were sampled.

    Raises
    ------
    ValueError
        There are fewer than two models, or they are of different data.
    """
    if not isinstance(models, Mapping):
        raise TypeError(
            'compare takes a dictionary of models by name, such as {"one": approx, "two": other}, '
            f"got {told(models)}"
        )
    draws = _check_draws(draws)
    if len(models) < 2:
        raise ValueError(f"compare takes two models or more, got {list(models)}")
    sampled = {
        name: model.sample(draws, random_seed=random_seed, log_likelihood=True)
        if isinstance(model, NGVIApproximation)
        else model
        for name, model in models.items()
    }
    elpds = {
        name: data if is_elpd(data) else loo(data, var_name=var_name)
        for name, data in sampled.items()
    }
    _check_same_observations(sampled, elpds, var_name)
    table = compare_elpds(elpds, method)
    about = {name: _about_the_fit(data) for name, data in sampled.items()}
    for column in ("khat", "effective", "elbo", "elbo_se"):
        table[column] = [float(about[name].get(column, np.nan)) for name in table.index]
    return table


def _observed_variable(data: Any, var_name: str | None) -> str:
    """Return the name of the variable to leave out, or raise an error that says what to do."""
    groups = group_names(data)
    if "log_likelihood" not in groups:
        if "posterior" not in groups:
            raise TypeError(
                "data is an approximation of pymc_ngvi, an InferenceData or a DataTree, "
                f"not {type(data).__name__}"
            )
        way = (
            "draw again with sample(log_likelihood=True)"
            if _is_ours(data)
            else "add it with pm.compute_log_likelihood"
        )
        raise TypeError(f"the draws have no log-likelihood: {way}")
    return _choose([str(name) for name in data["log_likelihood"].data_vars], var_name)


def _choose(names: list[str], var_name: str | None) -> str:
    """Choose an observed variable: the one that is named, or the only one."""
    if var_name is None and len(names) == 1:
        return names[0]
    if var_name is None:
        raise ValueError(
            f"the model observes {', '.join(names)}: choose the one to leave out with var_name="
        )
    check_choice("var_name", var_name, names)
    return var_name


def _attributes(data: Any, group: str) -> Mapping[str, Any]:
    return data[group].attrs if group in group_names(data) else {}


def _about_the_fit(data: Any) -> dict[str, Any]:
    """Return what the draws of an approximation tell about it; nothing for other draws."""
    if is_elpd(data) or not _is_ours(data):
        return {}
    found = dict(_attributes(data, "posterior"))
    if found.get("verdict_draws"):
        found["effective"] = found["ess"] / found["verdict_draws"]
    return found


def _is_ours(data: Any) -> bool:
    return _attributes(data, "posterior").get("inference_library") == "pymc_ngvi"


def _is_weighed(data: Any) -> bool:
    """Whether the draws are those of an approximation, which its density has to correct."""
    attributes = _attributes(data, "sample_stats")
    if not _is_ours(data) or attributes.get("resampled"):
        return False
    if "lp" not in data["sample_stats"]:
        reason = attributes.get("lp_missing", "sample_stats has no `lp`")
        raise TypeError(f"the draws have no log density of the model: {reason}")
    return True


def _efficiency(data: Any, variable: str) -> Any:
    """Return the share of draws that are effective when each observation is left out."""
    log_ratios = -data["log_likelihood"][variable]
    if _is_weighed(data):
        log_ratios = log_ratios + data["sample_stats"]["lp"] - data["sample_stats"]["log_q"]
    sample = ("chain", "draw")
    ratios = np.exp(log_ratios - log_ratios.max(sample))
    return ratios.mean(sample) ** 2 / (ratios**2).mean(sample)


def _check_same_observations(
    sampled: Mapping[str, Any], elpds: Mapping[str, Any], var_name: str | None
) -> None:
    for (one, first), (other, second) in itertools.pairwise(elpds.items()):
        if first.n_data_points != second.n_data_points:
            raise ValueError(
                f"{one} has {first.n_data_points} observations and {other} has "
                f"{second.n_data_points}: only models of the same data can be compared"
            )
    observations = {
        name: data["observed_data"][_observed_variable(data, var_name)]
        for name, data in sampled.items()
        if not is_elpd(data)
        and "observed_data" in group_names(data)
        and _observed_variable(data, var_name) in data["observed_data"]
    }
    for (one, first), (other, second) in itertools.pairwise(observations.items()):
        if not np.array_equal(np.ravel(first), np.ravel(second)):
            raise ValueError(
                f"{one} and {other} were fitted to different observations (perhaps on different "
                "scales): only models of the same data can be compared"
            )
