"""Make the target of a model: choose its backend, and find the batches that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import pymc
from pymc.variational.opvi import ParametrizationError
from pytensor.compile.mode import get_mode

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.arguments import check_choice
from pymc_ngvi.model.batch_target import BatchTarget
from pymc_ngvi.model.compiler import Compiler
from pymc_ngvi.model.data import ModelData
from pymc_ngvi.model.garbage import collected_later
from pymc_ngvi.model.loaded_target import PassTarget
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.minibatches import find_data
from pymc_ngvi.model.target import CURVATURES, ModelTarget
from pymc_ngvi.model.terms import Terms

#: Targets in use, so that a second fit of a model builds nothing again. An approximation holds the
#: target that it was fitted to, and a target its model: a key is not used again while it is here.
_built: WeakValueDictionary[tuple[Any, ...], ModelTarget] = WeakValueDictionary()

BACKENDS = ("auto", "numba", "c", "jax", "interpreted")


@collected_later()
def compile_target(
    model: pymc.Model,
    *,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
    curvature: str = "full",
    loader: Loader | None = None,
) -> ModelTarget:
    """Make a model's log density, gradient and Hessian callable on its flat unconstrained vector.

    This takes a moment only: each function is built at its first use. A model that was not changed
    gets the target that it has already.

    Parameters
    ----------
    model : pymc.Model
    backend : {"auto", "numba", "c", "jax", "interpreted"}, optional
        What runs the graph. "interpreted" is NumPy without any compilation. "auto", the default,
        begins so and lets PyTensor compile, by its own default, what proves to cost more time than
        compiling; see :mod:`~pymc_ngvi.model.compiler`.
    compile_kwargs : mapping, optional
        Passed on to ``pymc.Model.compile_fn``; its "mode" cannot be combined with `backend`.
    curvature : {"full", "diagonal", "none"}
        The part of the Hessian that the fit will ask for.
    loader : Loader, optional
        What the model's data containers are fed from, a batch at a time.

    Returns
    -------
    ModelTarget
        A :class:`~pymc_ngvi.model.batch_target.BatchTarget` where the model reads batches, and a
        :class:`~pymc_ngvi.model.loaded_target.PassTarget` where a loader has none.

    Raises
    ------
    TypeError
        The model has no free variables, or all of them are of size 0.
    pymc.variational.opvi.ParametrizationError
        Some free variables are discrete.
    NotImplementedError
        An operation in the log density has no gradient, or a term of it is not the log density of
        its variable (BART, `pm.Simulator`).
    """
    check_choice("curvature", curvature, CURVATURES)
    kwargs = _resolve_backend(backend, compile_kwargs)
    if not model.free_RVs:
        raise TypeError("the model has no free variables: there is nothing to fit")
    discrete = [v.name for v in model.free_RVs if v.type.numpy_dtype.kind not in "f"]
    if discrete:
        raise ParametrizationError(
            f"Discrete variables are not supported by VI: {', '.join(discrete)}. They have no "
            "gradient, so no Gaussian can be fitted to them. Sum them out of the model "
            "(`pymc_extras.marginalize`, or a mixture distribution such as `pm.Mixture`), or "
            "observe them."
        )
    key = (id(model), backend, curvature, id(loader))
    if compile_kwargs is None and (known := _built.get(key)) and known.is_of(model):
        return known
    compiler = Compiler(
        model, kwargs, interpreted=backend == "interpreted", automatic="mode" not in kwargs
    )
    terms = Terms(find_data(model, loader))
    terms.check()
    target = _kind_of(terms.data)(model, terms, compiler, curvature)
    if compile_kwargs is None:
        _built[key] = target
    return target


def _kind_of(data: ModelData) -> type[ModelTarget]:
    """Return the class of target for data that are held, read in batches, or passed over."""
    ways = {feed.loader.in_batches for feed in data.feeds}
    if len(ways) > 1:
        raise ValueError(
            "the model reads some data in batches, by pm.Minibatch, and the loader has none: give "
            "the Loader a batch_size"
        )
    if not ways:
        return ModelTarget
    return BatchTarget if ways == {True} else PassTarget


def _resolve_backend(
    backend: str | None, compile_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    kwargs = dict(compile_kwargs or {})
    if backend is None:
        return kwargs
    check_choice("backend", backend, BACKENDS)
    if "mode" in kwargs:
        raise ValueError("give either `backend` or `compile_kwargs['mode']`, not both")
    if backend == "auto":
        return kwargs
    names = {"numba": "NUMBA", "c": "CVM", "jax": "JAX"}
    kwargs["mode"] = get_mode(names[backend]) if backend in names else interpreted_mode()
    return kwargs
