r"""Guards: what becomes of an update that leaves the family's domain.

All of them take the paper's update wherever it is safe, so on a log-concave target they are the
same algorithm; in particular a step of size 1 is exact on a Gaussian one, which it would not be
with the correction of `lin` applied always. With :math:`-H \succeq 0` the new precision satisfies
:math:`P_+ \succeq (1-\eta) P`. `lin` and `backtrack` call an update safe that keeps half of that:
one that only just stays in the domain would give some direction a variance made of noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pymc_ngvi.core.estimators import Estimate
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.errors import DomainError


@dataclass(frozen=True)
class Mixed:
    """The member after an update, the step size really taken, and whether the guard had to act."""

    q: Gaussian
    step_size: float
    active: bool


Guard: TypeAlias = Callable[[Gaussian, Estimate, float], Mixed]

_MOST_HALVINGS = 40


def lin(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Correct the update to second order (Lin, Schmidt and Khan 2020) where it left the domain.

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
    # Only rounding or overflow gets here; a shorter step is the only way left.
    return backtrack(q, estimate, step_size)


def backtrack(q: Gaussian, estimate: Estimate, step_size: float) -> Mixed:
    """Halve the step size until the update stays in the domain."""
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
    """Leave it to eigenvalue bounds: clip the spectrum of the new precision into them."""

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

    With "none", a projection that bounds the eigenvalues from above takes over the guard's work.
    """
    if callable(guard):
        return guard
    if guard not in GUARDS:
        raise ValueError(f"guard {guard!r} is none of {', '.join(map(repr, GUARDS))}")
    lowest, highest = getattr(projection, "precision_bounds", (0.0, np.inf))
    return clip(lowest, highest) if guard == "none" and lowest > 0 else GUARDS[guard]


def _margin(step_size: float) -> float:
    return (1 - step_size) / 2
