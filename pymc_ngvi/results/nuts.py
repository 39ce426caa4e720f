"""NUTS from a fit: where its chains start, and the metric they move in.

Most of what NUTS spends on tuning goes into finding the posterior and its covariance. A fit has
both, so only the step size is left to tune. What NUTS then samples is the posterior itself,
whatever the fit missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiag, QuadPotentialFull

from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.arguments import did_you_mean
from pymc_ngvi.core.families import Gaussian

SAMPLERS = ("pymc", "nutpie")


def nuts_keywords(
    model: pymc.Model,
    gaussian: Gaussian,
    starts: Sequence[Mapping[str, np.ndarray]],
    *,
    sampler: str,
    tune: int,
    **options: Any,
) -> dict[str, Any]:
    """Return the keywords of ``pm.sample`` by which NUTS starts from a fit.

    Parameters
    ----------
    model : pymc.Model
    gaussian : Gaussian
        The fit, on the unconstrained scale.
    starts : sequence of mapping
        Values of the free variables for each chain to start from.
    sampler : {"pymc", "nutpie"}
    tune : int
        Tuning steps.
    **options
        Of ``pm.NUTS``.
    """
    if sampler not in SAMPLERS:
        hint = did_you_mean(sampler, SAMPLERS)
        raise ValueError(f"sampler {sampler!r} is none of {', '.join(map(repr, SAMPLERS))}{hint}")
    keywords = {"chains": len(starts), "tune": tune}
    if sampler == "nutpie":
        if options:
            raise TypeError(
                f"{', '.join(options)}: options of pm.NUTS; give those of nutpie to pm.sample"
            )
        if not PYMC_6:
            raise NotImplementedError(
                "PyMC 5 hands no start to nutpie: use PyMC 6, or PyMC's own sampler"
            )
        # It takes one start for all chains, and no metric: it adapts its own.
        return keywords | {"nuts_sampler": "nutpie", "initvals": dict(starts[0])}
    # A full matrix for a full Gaussian; what comes from a fit is not adapted away again.
    metric = QuadPotentialDiag if gaussian.factorised else QuadPotentialFull
    potential = metric(np.array(gaussian.covariance, dtype=pytensor.config.floatX))
    step = pymc.NUTS(model=model, potential=potential, **options)
    return keywords | {"step": step, "initvals": [dict(start) for start in starts]}
