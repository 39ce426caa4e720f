"""NUTS from a fit: where its chains start, and which metric they use.

NUTS spends most of its tuning on finding the posterior and its covariance. A fit has both, so only
the step size is left to tune. NUTS then samples the posterior itself, whatever the fit missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiag, QuadPotentialFull

from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.arguments import check_choice
from pymc_ngvi.core.families import Gaussian

SAMPLERS = ("pymc", "nutpie")
#: Acceptance that steps are tuned for where the posterior is no Gaussian, in any metric: in its
#: narrow places the steps that suit the wide ones diverge.
BENT_ACCEPT = 0.95


def nuts_keywords(
    model: pymc.Model,
    gaussian: Gaussian,
    starts: Sequence[Mapping[str, np.ndarray]],
    *,
    sampler: str,
    tune: int,
    bent: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Return keywords for ``pm.sample`` that let NUTS start from a fit.

    Parameters
    ----------
    model : pymc.Model
    gaussian : Gaussian
        The fit, on the unconstrained scale.
    starts : sequence of mapping
        For each chain the values of the free variables to start from.
    sampler : {"pymc", "nutpie"}
    tune : int
        Number of tuning steps.
    bent : bool
        Whether one Gaussian does not describe the posterior: steps are then shorter.
    **options
        Options of ``pm.NUTS``.
    """
    check_choice("sampler", sampler, SAMPLERS)
    keywords = {"chains": len(starts), "tune": tune}
    if sampler == "nutpie":
        if options:
            raise TypeError(
                f"{', '.join(options)}: these are options of pm.NUTS; give those of nutpie to "
                "pm.sample"
            )
        if not PYMC_6:
            raise NotImplementedError(
                "PyMC 5 does not pass a start to nutpie: use PyMC 6, or PyMC's own sampler"
            )
        # nutpie takes one start for all chains, and adapts its own metric.
        return keywords | {"nuts_sampler": "nutpie", "initvals": dict(starts[0])}
    # These two potentials, unlike those that adapt, keep the covariance of the fit. That of a
    # sparse fit would be a dense matrix: its variances are most of what a metric needs.
    diagonal = gaussian.factorised or gaussian.curvature == "sparse"
    metric = QuadPotentialDiag if diagonal else QuadPotentialFull
    covariance = gaussian.variance if diagonal else gaussian.covariance
    potential = metric(np.array(covariance, dtype=pytensor.config.floatX))
    shorter = {"target_accept": BENT_ACCEPT} if bent else {}
    step = pymc.NUTS(model=model, potential=potential, **shorter | options)
    return keywords | {"step": step, "initvals": [dict(start) for start in starts]}
