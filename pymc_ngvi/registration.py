"""``pm.fit(method="ngvi")``: a wrapper around PyMC's `fit`, which keeps no registry of methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pymc
import pymc.variational
import pymc.variational.inference

from pymc_ngvi.inference import NGVI

_HOMES = (pymc, pymc.variational, pymc.variational.inference)
_MARK = "_pymc_ngvi_original"
_NAME = "ngvi"


def register() -> None:
    """Make ``pm.fit`` know ``method="ngvi"``; importing the package has done so already.

    Every other method goes to PyMC's own function as before. Registering twice does no harm.
    """
    for home in _HOMES:
        if not hasattr(home.fit, _MARK):
            home.fit = _wrap(home.fit)


def unregister() -> None:
    """Restore PyMC's own ``pm.fit`` wherever it is still ours."""
    for home in _HOMES:
        home.fit = getattr(home.fit, _MARK, home.fit)


@functools.cache
def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        method = arguments.pop("method", "advi")
        if isinstance(method, NGVI) or (isinstance(method, str) and method.lower() == _NAME):
            return _fit(method, **arguments.pop("kwargs", {}) | arguments)
        try:
            return original(*args, **kwargs)
        except KeyError as error:
            message = str(error.args[0]) if error.args else ""
            if message.startswith("method should be one of"):
                raise KeyError(message.replace("{", f"{{'{_NAME}', ", 1)) from None
            raise

    setattr(fit, _MARK, original)
    return fit


def _fit(
    method: str | NGVI,
    *,
    n: int = 10_000,
    model: pymc.Model | None = None,
    inf_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    # PyMC's own `fit` fills in None for what was not given.
    for name in ("random_seed", "start", "start_sigma", "backend"):
        if kwargs.get(name, ...) is None:
            del kwargs[name]
    kwargs = (inf_kwargs or {}) | kwargs
    if isinstance(method, NGVI):
        return method.fit(n, **kwargs)
    inference, rest = NGVI.from_keywords(model, kwargs)
    return inference.fit(n, **rest)
