"""Draws of a bambi model, as bambi's own samplers return them. bambi itself is not imported."""

from __future__ import annotations

from typing import Any


def bambi_results(model: Any, idata: Any) -> Any:
    """Return draws of a bambi model as bambi's samplers return them.

    bambi centres the predictors before it builds the PyMC model. From draws of NUTS it computes
    the intercept of the predictors as they are; with an approximation, by any method of ``pm.fit``,
    it does not. `Intercept` is then that of the centred predictors, and ``model.predict`` is off by
    as much. This function runs bambi's own computation on the draws.

    Parameters
    ----------
    model : bambi.Model
        The model that was fitted by ``model.fit(inference_method="vi", ...)``.
    idata : arviz.InferenceData or xarray.DataTree
        Draws of the approximation, from its `sample`. They are changed in place.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        `idata`, for ``model.predict`` and all that takes what ``model.fit`` returns. Intercepts
        are those of the predictors as they are; offsets of group-specific terms are left out.

    Raises
    ------
    TypeError
        `model` is no bambi model that was fitted, or a version of bambi that works differently.
    ValueError
        The draws are as bambi returns them already: the intercept would be changed twice.
    """
    finish = getattr(getattr(model, "backend", None), "_clean_results", None)
    if finish is None:
        raise TypeError(
            f"model: {type(model).__name__} is not a bambi model that was fitted by "
            'model.fit(inference_method="vi"), or bambi has changed; '
            "bambi.Model(..., center_predictors=False) needs no correction"
        )
    if idata["posterior"].attrs.get("modeling_interface") == "bambi":
        raise ValueError("idata: these draws are as bambi returns them already")
    return finish(idata, omit_offsets=True, include_response_params=False)
