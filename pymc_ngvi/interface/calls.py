"""The two calls of a user: ``pm.fit(method="ngvi")``, and `fit_ngvi` straight to draws."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pymc

from pymc_ngvi.arguments import check_mapping
from pymc_ngvi.interface.inference import NGVI
from pymc_ngvi.interface.options import Run, split_keywords
from pymc_ngvi.interface.progress import ProgressBar

# The keywords of `NGVI.fit` itself. Any other keyword of `pm.fit` belongs to the constructor.
_FIT_KEYWORDS = {
    name
    for name, parameter in inspect.signature(NGVI.fit).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD and name not in ("self", "n")
}


def fit_method(
    method: str | NGVI,
    n: int = 10_000,
    *,
    model: pymc.Model | None = None,
    inf_kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Any:
    """Do what ``pm.fit`` does, for ``method="ngvi"`` or an instance of :class:`NGVI`."""
    if isinstance(n, pymc.Model):
        raise TypeError("n is the number of iterations: give the model by its name, model=...")
    given = check_mapping("inf_kwargs", inf_kwargs) | {
        name: value
        for name, value in keywords.items()
        # None is PyMC's own default for these, and says nothing.
        if value is not None or name not in ("random_seed", "start", "start_sigma", "backend")
    }
    if isinstance(method, NGVI):
        if model is not None and model is not method.model:
            raise ValueError(
                "model: the instance of NGVI has a model of its own, which is another one: leave "
                "model out, or give it to NGVI(model=...)"
            )
        return method.fit(n, **given)
    options, rest = split_keywords(given, _FIT_KEYWORDS | {"loader"})
    compilation = {name: rest.pop(name, None) for name in ("backend", "compile_kwargs", "loader")}
    run = Run(n=n, **rest)  # which raises before the model is looked at
    bar = ProgressBar(int(n), enabled=run.progressbar, theme=run.progressbar_theme)
    with bar:
        bar.stage("building")
        inference = NGVI(model=model, **compilation, **options)
        inference._bar = bar
        return inference.fit(n, **rest)


def fit_ngvi(
    n: int = 10_000,
    *,
    model: pymc.Model | None = None,
    draws: int = 1000,
    **keywords: Any,
) -> Any:
    """Fit by NGVI and return draws from the approximate posterior.

    Parameters
    ----------
    n : int
        Iterations at most.
    model : pymc.Model, optional
        Model to fit; by default the model of the context.
    draws : int
        Number of draws.
    **keywords
        Any other keyword of ``pm.fit(method="ngvi")``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
    """
    if keywords.pop("return_inferencedata", True) is not True:
        raise TypeError("fit_ngvi returns InferenceData; pm.fit returns the approximation")
    return fit_method("ngvi", n, model=model, draws=draws, return_inferencedata=True, **keywords)
