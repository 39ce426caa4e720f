r"""Guards: what replaces an update that leaves the family's domain.

All of them take the paper's update wherever it is safe, so on a log-concave target they are the
same algorithm. In particular a step of size 1 is exact on a Gaussian target, which it would not be
if the correction of `lin` were always applied. With :math:`-H \succeq 0` the new precision is at
least :math:`(1-\eta) P`. `lin` and `backtrack` call an update safe if its precision exceeds half of
that: the variances of an update that only just stays in the domain would be mostly noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pymc_ngvi.arguments import check_callable, check_choice
from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.errors import DomainError


@dataclass(frozen=True)
class Mixed:
    """The member after an update, the step size taken, and whether the guard changed the update."""

    q: Gaussian
    step_size: float
    active: bool


Guard: TypeAlias = Callable[[Gaussian, Estimate, float], Mixed]

# A step 2^40 times shorter no longer changes the precision by more than rounding.
_MOST_HALVINGS = 40


def lin(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Correct the update to second order (Lin, Schmidt and Khan 2020) where it is not safe.

    The corrected precision is positive definite for every symmetric Hessian, and agrees with the
    plain update to first order in the step size.
    """
    margin = _margin(step_size)
    plain = q.mix(estimate.gradient, estimate.hessian, step_size, margin=margin)
    if plain is not None:
        return Mixed(plain, step_size, active=False)
    corrected = q.mix_corrected(estimate.gradient, estimate.hessian, step_size, margin=margin)
    if corrected is not None:
        return Mixed(corrected, step_size, active=True)
    # Rounding or overflow spoiled the correction: only a shorter step can help.
    return backtrack(q, estimate, step_size)


def backtrack(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Halve the step size until the update is safe."""
    shorter = step_size
    for _ in range(_MOST_HALVINGS):
        mixed = q.mix(estimate.gradient, estimate.hessian, shorter, margin=_margin(shorter))
        if mixed is not None:
            return Mixed(mixed, shorter, active=shorter < step_size)
        shorter /= 2
    raise DomainError(
        f"no step size between {shorter:.3g} and {step_size:.3g} keeps the precision positive "
        "definite: the estimated derivatives are too large for double precision; rescale the "
        "parameters or start elsewhere"
    )


def none(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Take the paper's bare update, and fail where it leaves the domain."""
    mixed = q.mix(estimate.gradient, estimate.hessian, step_size)
    if mixed is None:
        smallest = q.smallest_eigenvalue(q.mixed_precision(estimate.hessian, step_size))
        raise DomainError(
            f"the precision lost positive definiteness (smallest eigenvalue {smallest:.3g}) at "
            f"step size {step_size:.3g}; lower step_size, use guard='lin', or project onto "
            "EigenvalueBounds with a finite beta"
        )
    return Mixed(mixed, step_size, active=False)


def clip(lowest: float, highest: float) -> Guard:
    """Build the guard that clips the eigenvalues of a new precision to [lowest, highest].

    It acts only where the plain update leaves the domain; the projection does the rest.
    """

    def clipping(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
        mixed = q.mix(estimate.gradient, estimate.hessian, step_size)
        if mixed is not None:
            return Mixed(mixed, step_size, active=False)
        clipped = q.mix_clipped(estimate.gradient, estimate.hessian, step_size, lowest, highest)
        return Mixed(clipped, step_size, active=True)

    return clipping


GUARDS: dict[str, Guard] = {"lin": lin, "backtrack": backtrack, "none": none}


def get_guard(guard: str | Guard, projection: Any = None) -> Guard:
    """Guard by name, or the guard itself.

    With "none" and a projection that bounds the variances from above, it is :func:`clip`.
    """
    if callable(guard):
        check_callable("guard", guard, "q", "estimate", "step_size")
        return guard
    check_choice("guard", guard, list(GUARDS))
    lowest, highest = getattr(projection, "precision_bounds", (0.0, np.inf))
    return clip(lowest, highest) if guard == "none" and lowest > 0 else GUARDS[guard]


def _margin(step_size: float) -> float:
    return (1 - step_size) / 2
