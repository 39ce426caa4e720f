"""Differences between the supported versions of PyMC, PyTensor and ArviZ.

PyMC 5.28 comes with ArviZ 0.23 and its ``InferenceData``, PyMC 6 with ArviZ 1 and xarray's
``DataTree``. No other module of the package looks at a version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pymc
import xarray
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.compile.ops import ViewOp
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors
from pytensor.tensor import special
from pytensor.tensor.rewriting.ofg import inline_ofg_node

from pymc_ngvi.interpreted.mode import interpreted_mode as interpreted_mode
from pymc_ngvi.interpreted.mode import split_wide_operations as split_wide_operations

#: True with PyMC 6 and ArviZ 1, False with PyMC 5.28 and ArviZ 0.23.
PYMC_6 = int(pymc.__version__.split(".")[0]) >= 6

#: Operations that subtract a maximum against overflow. PyTensor 2 has no LogSumExp.
SHIFTED_BY_MAXIMUM = tuple(
    getattr(special, name)
    for name in ("LogSoftmax", "LogSumExp", "Softmax")
    if hasattr(special, name)
)


# Where the operations of linear algebra are.
_linalg = import_module(f"pytensor.tensor.{'linalg' if PYMC_6 else 'slinalg'}")
Cholesky, SolveTriangular = _linalg.Cholesky, _linalg.SolveTriangular


def collect_groups(groups: Mapping[str, xarray.Dataset]) -> Any:
    """Return the groups as one ``InferenceData`` (ArviZ 0) or ``DataTree`` (ArviZ 1)."""
    if PYMC_6:
        return xarray.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
    from arviz import InferenceData

    return InferenceData(**groups)


def group_names(data: Any) -> list[str]:
    """Names of the groups of an InferenceData or a DataTree; empty for anything else."""
    groups = getattr(data, "groups", ())
    names = groups() if callable(groups) else groups
    return [str(name).strip("/") for name in names]


def loo_from_draws(data: Any, var_name: str) -> Any:
    """ArviZ's PSIS-LOO, pointwise, for draws from the posterior itself."""
    from arviz import loo

    return loo(data, pointwise=True, var_name=var_name)


def loo_from_approximation(data: Any, var_name: str) -> Any:
    r"""PSIS-LOO, pointwise, for draws from an approximation with `lp` and `log_q`.

    The ratios for leaving out observation i are :math:`p / (q\, p(y_i \mid \theta))`. ArviZ 1
    has a function for this; for ArviZ 0 it is computed here.
    """
    log_p, log_q = data["sample_stats"]["lp"], data["sample_stats"]["log_q"]
    if PYMC_6:
        from arviz import loo_approximate_posterior

        return loo_approximate_posterior(data, log_p, log_q, pointwise=True, var_name=var_name)
    from arviz import psislw
    from scipy.special import logsumexp

    pointwise = data["log_likelihood"][var_name].stack(__sample__=("chain", "draw"))
    correction = (log_p - log_q).stack(__sample__=("chain", "draw"))
    log_weights, pareto_k = psislw(-pointwise + (correction - correction.max()))
    n = pointwise.sizes["__sample__"]
    elpd_i = (log_weights + pointwise).reduce(logsumexp, "__sample__")
    density_i = pointwise.reduce(logsumexp, "__sample__") - np.log(n)
    return make_elpd(elpd_i, density_i, pareto_k, n)


def make_elpd(
    elpd_i: xarray.DataArray, density_i: xarray.DataArray, pareto_k: xarray.DataArray, n: int
) -> Any:
    """Make what ArviZ's `loo` returns, of each observation's predictions from n draws.

    Parameters
    ----------
    elpd_i, density_i : DataArray
        Log predictive density of each observation when it is left out, and when it is not.
    pareto_k : DataArray
        Shapes of the weights that leave it out.
    n : int
    """
    good_k = min(1 - 1 / np.log10(n), 0.7)
    # ArviZ 1 divides the variance by one less.
    se = float(np.sqrt(elpd_i.size * elpd_i.var(ddof=int(PYMC_6))))
    contents = {
        "elpd": float(elpd_i.sum()),
        "se": se,
        "p": float((density_i - elpd_i).sum()),
        "n_samples": n,
        "n_data_points": elpd_i.size,
        "warning": bool((pareto_k > good_k).any()),
        "elpd_i": elpd_i,
        "pareto_k": pareto_k,
        "scale": "log",
        "good_k": good_k,
    }
    if PYMC_6:
        from arviz_stats.utils import ELPDDataLOO

        return ELPDDataLOO(approx_posterior=True, **contents)
    from arviz.stats.stats_utils import ELPDData

    # A series, whose printed form depends on the order too.
    contents["elpd_i"] = elpd_i.rename("loo_i")
    names = {"elpd": "elpd_loo", "p": "p_loo", "elpd_i": "loo_i"}
    return ELPDData(
        data=list(contents.values()), index=[names.get(name, name) for name in contents]
    )


def compare_elpds(elpds: Mapping[str, Any], method: str) -> Any:
    """ArviZ's table of compared models, with numbers that are not rounded."""
    from arviz import compare

    return compare(dict(elpds), method=method, **({"round_to": "none"} if PYMC_6 else {}))


def density_estimate(values: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Estimate the density of values (n,) by ArviZ's KDE: return a grid and the density on it."""
    if PYMC_6:
        from arviz_stats.base import array_stats

        grid, density, *_ = array_stats.kde(values)
    else:
        from arviz import kde

        grid, density = kde(values)
    return np.asarray(grid), np.asarray(density)


def is_elpd(data: Any) -> bool:
    """Whether `data` is what ArviZ's `loo` returns."""
    if PYMC_6:
        from arviz import ELPDData
    else:
        from arviz.stats.stats_utils import ELPDData
    return isinstance(data, ELPDData)


def initial_point(model: pymc.Model) -> dict[str, np.ndarray]:
    """Return PyMC's initial point of a model, without compiling what is evaluated once.

    PyMC's mode for it still calls the C compiler, with empty caches for 46 s on PyMC 6 and 9 s on
    PyMC 5 where the model has an LKJCholeskyCov; without it this takes 3 and 1 s.
    """
    with config.change_flags(cxx=""):
        return dict(model.initial_point(0))


def lower_named_dims(outputs: Sequence[Variable]) -> list[Variable]:
    """Replace operations on tensors of named dimensions by those on plain tensors.

    The former, of ``pymc.dims``, have no gradients in part. The given graph is not changed.
    """
    if not any(hasattr(variable.type, "dims") for variable in ancestors(outputs)):
        return list(outputs)
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False)
    optdb.query(RewriteDatabaseQuery(include=["lower_xtensor"])).rewrite(graph)
    return list(graph.outputs)


def inner_graph(op: Any) -> FunctionGraph:
    """Return a copy of the graph inside an operation; that of PyTensor 3 is frozen."""
    graph = op.fgraph
    return graph.unfreeze() if hasattr(graph, "unfreeze") else graph.clone()


def inline_inner_graphs(outputs: Sequence[Variable]) -> list[Variable]:
    """Replace operations that are graphs themselves by those graphs, and views by what they view.

    PyTensor 3 defines softmax and similar operations as graphs. Each would compile its inner graph
    with the C compiler even where the rest is interpreted, which takes ten seconds for one softmax.
    PyMC wraps deterministics in views, which a graph vectorised over draws would evaluate element
    by element.

    The given graph is not changed.
    """
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False)
    _inline_everywhere.rewrite(graph)
    return list(graph.outputs)


def _inline(_graph: FunctionGraph, node: Apply) -> list[Variable]:
    return inline_ofg_node(node) if isinstance(node.op, OpFromGraph) else node.inputs


_inline_everywhere = dfs_rewriter(node_rewriter([OpFromGraph, ViewOp])(_inline))
