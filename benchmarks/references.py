"""Reference draws of a model on its flat unconstrained space, and the distance of a fit from them.

A reference is an array of draws (n, d) in the order of :class:`pymc_ngvi.model.layout.Layout`,
wherever the draws came from: a database of posteriors or a run of NUTS.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph

from pymc_ngvi.core.families import FullGaussian


def unconstrain(model: pm.Model, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Map draws of a model's variables to its flat unconstrained vector.

    Parameters
    ----------
    model : pymc.Model
    draws : mapping of str to array, (n, ...)
        Draws of every free variable on its own scale; other entries of the mapping are ignored.

    Returns
    -------
    array, (n, d)
    """
    variables = model.free_RVs
    missing = [variable.name for variable in variables if variable.name not in draws]
    if missing:
        raise KeyError(f"no draws of {', '.join(missing)}; there are draws of {', '.join(draws)}")
    values = {variable: variable.type() for variable in variables}
    batches = {
        value: pt.tensor(dtype=value.dtype, shape=(None, *value.type.shape))
        for value in values.values()
    }
    transforms = [model.rvs_to_transforms[variable] for variable in variables]
    forward = [
        values[variable].copy()
        if transform is None
        else transform.forward(values[variable], *variable.owner.inputs)
        for variable, transform in zip(variables, transforms, strict=True)
    ]
    # The bounds of an interval may be other variables, which then take their values here.
    forward = graph_replace(forward, values, strict=False)
    function = pytensor.function(
        [*batches.values()], vectorize_graph(forward, batches), mode="FAST_COMPILE"
    )
    columns = function(*(np.array(draws[v.name], dtype=v.dtype) for v in variables))
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)


def kl_per_dimension(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    r"""Forward divergence of a fit from a reference, both taken as Gaussians, per dimension.

    .. math:: \mathrm{KL}(N(m, S) \,\|\, N(\mu, \Sigma)) / d

    Parameters
    ----------
    draws : array, (n, d)
        The reference; m and S are its mean and covariance.
    mean : array, (d,)
    covariance : array, (d, d) or (d,)
        The fit; a vector holds the variances of a diagonal one.
    """
    reference = FullGaussian.from_mean_covariance(draws.mean(axis=0), np.cov(draws.T))
    matrix = np.diag(covariance) if np.ndim(covariance) == 1 else covariance
    return reference.kl(FullGaussian.from_mean_covariance(mean, matrix)) / reference.dim
