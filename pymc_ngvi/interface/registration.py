"""``pm.fit(method="ngvi")``: a wrapper around PyMC's `fit`, as PyMC has no registry of methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pymc
import pymc.variational
import pymc.variational.inference

_HOMES = (pymc, pymc.variational, pymc.variational.inference)
_NAME = "ngvi"

# Signature of PyMC's own function, below any wrappers around it.
_SIGNATURE = inspect.signature(inspect.unwrap(pymc.variational.inference.fit))

# Our wrappers, and the function that each of them wraps. They are kept in PyMC's module, so that
# reloading this package finds them.
_wrapped: dict[Callable[..., Any], Callable[..., Any]] = pymc.__dict__.setdefault(
    "_pymc_ngvi_wrapped", {}
)


def register() -> None:
    """Make ``pm.fit`` know ``method="ngvi"``; importing the package does this already.

    Calls with any other method go to PyMC's own function as before. Registering twice is harmless.
    """
    ours = {original: wrapper for wrapper, original in _wrapped.items()}
    for home in _HOMES:
        if home.fit not in _wrapped:
            wrapper = ours.get(home.fit) or _wrap(home.fit)
            ours[home.fit] = wrapper
            _wrapped[wrapper] = home.fit
            home.fit = wrapper


def unregister() -> None:
    """Restore PyMC's own ``pm.fit``, except where someone else has wrapped our wrapper since."""
    for home in _HOMES:
        home.fit = _wrapped.get(home.fit, home.fit)


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        method = kwargs.get("method", args[1] if len(args) > 1 else "advi")
        if _is_ours(method):
            from pymc_ngvi.interface.calls import fit_method

            arguments = _SIGNATURE.bind(*args, **kwargs).arguments
            return fit_method(**arguments.pop("kwargs", {}), **arguments)
        try:
            return original(*args, **kwargs)
        except KeyError as error:
            message = str(error.args[0]) if error.args else ""
            if message.startswith("method should be one of") and _NAME not in message:
                raise KeyError(message.replace("{", f"{{'{_NAME}', ", 1)) from None
            raise

    return fit


def _is_ours(method: Any) -> bool:
    if isinstance(method, str):
        return method.lower() == _NAME
    # Imported here and above: a program that never fits by this method should not wait for it.
    from pymc_ngvi.interface.inference import NGVI

    return isinstance(method, NGVI)
