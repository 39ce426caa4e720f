r"""Which derivatives of a log density can be used, judged by Gaussian integration by parts.

With z standard normal, and h the difference log p - log q as a function of z,

.. math:: E[z h] = E[\nabla h], \qquad E[(z z' - I)\, h] = E[z\, \nabla h'], \qquad
          E[z\, \nabla h'] = E[\nabla^2 h],

provided that h is smooth. Automatic differentiation gives derivatives almost everywhere. It sees
neither a jump of the log density, which breaks the first two identities, nor a kink, where the
gradient jumps, which breaks the third: the mean Hessian lacks the curvature of the kink. Stein's
estimator takes the Hessian from the left side of the third identity and is right at kinks; the
score estimator takes both derivatives from the left sides of the first two, and is right at jumps.

One half of the draws shows the direction in which each identity is violated most, and the other
half whether that is more than noise. Curvatures are also added up over all directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import Array, symmetrise, units
from pymc_ngvi.core.target import CHUNK_SIZE, Target

#: Standard errors beyond which a violation is not noise.
SIGNIFICANT = 5.0
#: Violation of a curvature, relative to that of q, or of a mean, in standard deviations of q, that
#: matters. A curvature that is 5% off makes a standard deviation that is 2.5% off.
MATERIAL = 0.05


@dataclass(frozen=True)
class Violation:
    """By how much an identity is violated in a direction.

    Attributes
    ----------
    size, error : float
        The violation and its standard error.
    material : float
        A violation that matters.
    """

    size: float
    error: float
    material: float

    @classmethod
    def of(cls, material: float, *sets: Array) -> Violation:
        """From one value a draw, in sets whose second half are the partners of the first half."""
        pairs = np.concatenate([values.reshape(2, -1).mean(axis=0) for values in sets])
        error = float(pairs.std(ddof=1) / np.sqrt(pairs.size))
        return cls(float(pairs.mean()), error, material)

    @property
    def is_real(self) -> bool:
        """Whether it matters and is more than noise."""
        return abs(self.size) > max(SIGNIFICANT * self.error, self.material)

    @property
    def is_open(self) -> bool:
        """Whether it may prove real on more draws."""
        return not self.is_real and abs(self.size) + 2 * self.error > 2 * self.material


@dataclass(frozen=True)
class Smoothness:
    """What draws show of jumps and kinks of a log density.

    Attributes
    ----------
    jumps : tuple of Violation
        Of the identities between the log density and its gradient.
    kinks : tuple of Violation
        Of the identity between gradient and Hessian; empty where no Hessian was evaluated.
    """

    jumps: tuple[Violation, ...]
    kinks: tuple[Violation, ...] = ()

    @property
    def derivatives(self) -> int:
        """How many derivatives can be used: 2, or 1 at kinks, or 0 at jumps."""
        if any(violation.is_real for violation in self.jumps):
            return 0
        return 1 if any(violation.is_real for violation in self.kinks) else 2

    @property
    def is_open(self) -> bool:
        """Whether more draws may show fewer derivatives."""
        return self.derivatives == 2 and any(v.is_open for v in (*self.jumps, *self.kinks))


def try_identities(
    target: Target, q: Gaussian, n: int, rng: np.random.Generator, *, hessians: bool = True
) -> Smoothness | None:
    """Try the identities on n draws from q, rounded up to a multiple of 4.

    Parameters
    ----------
    target : Target
    q : Gaussian
    n : int
        Number of draws.
    rng : numpy.random.Generator
    hessians : bool
        Whether to evaluate Hessians, without which kinks are not seen.

    Returns
    -------
    Smoothness or None
        None where the log density or a derivative is not finite at a draw.
    """
    half, curvature = 2 * -(-n // 4), q.curvature if hessians else "none"
    first = _Sides.at(target, q, half, rng, curvature)
    if first is None:
        return None
    if q.curvature == "sparse":  # single directions would take a d x d matrix
        second = _Sides.at(target, q, half, rng, curvature)
        return None if second is None else _in_all_directions(first, second, q.dim, hessians)
    worst_kink = first.worst(first.kink_gap) if hessians else None
    second = _Sides.at(target, q, half, rng, curvature, worst_kink)
    if second is None:
        return None
    one, every = MATERIAL, MATERIAL * np.sqrt(q.dim)
    # The log density is noisier than its gradient, and a jump leaves less to do than a kink.
    steepest, worst = first.steepest(first.slope_gap), first.worst(first.curve_gap)
    jumps = (
        Violation.of(2 * one, second.slope_gap_along(steepest)),
        Violation.of(2 * one, second.curve_gap_along(worst)),
        Violation.of(2 * every, first.curve_gap_trace, second.curve_gap_trace),
    )
    if worst_kink is None:
        return Smoothness(jumps)
    kinks = (
        Violation.of(one, second.kink_gap_along(worst_kink)),
        Violation.of(every, first.kink_gap_trace, second.kink_gap_trace),
    )
    return Smoothness(jumps, kinks)


def _in_all_directions(first: _Sides, second: _Sides, dim: int, hessians: bool) -> Smoothness:
    """Try the identities in all directions together, and along the steepest gap of gradients."""
    one, every = MATERIAL, MATERIAL * np.sqrt(dim)
    steepest = first.steepest(first.slope_gap)
    jumps = (
        Violation.of(2 * one, second.slope_gap_along(steepest)),
        Violation.of(2 * every, first.curve_gap_trace, second.curve_gap_trace),
    )
    kinks = (Violation.of(every, first.kink_gap_trace, second.kink_gap_trace),)
    return Smoothness(jumps, kinks if hessians else ())


@dataclass(frozen=True)
class _Sides:
    """Both sides of the identities at n draws, in coordinates in which q is standard normal.

    Attributes
    ----------
    z : array, (n, d)
        The draws, in antithetic pairs.
    h : array, (n,)
        Log p - log q, less its mean.
    slope : array, (n, d)
        Gradient of h.
    hessian : array, (d, d) or (d,)
        Mean Hessian of h, or its diagonal.
    trace, bend : array, (n,)
        Trace of the Hessian of h, and its curvature along a given direction.
    factorised : bool
        Whether the only directions are those of the components.
    """

    z: Array
    h: Array
    slope: Array
    hessian: Array
    trace: Array
    bend: Array
    factorised: bool

    @classmethod
    def at(
        cls,
        target: Target,
        q: Gaussian,
        n: int,
        rng: np.random.Generator,
        curvature: str,
        direction: Array | None = None,
    ) -> _Sides | None:
        """Evaluate the target at n draws; None where something is not finite."""
        z = standard_normal(n, q.dim, rng, antithetic=True)
        draws = q.unwhiten(z)
        h, slope, trace, bend = np.empty(n), np.empty_like(z), np.zeros(n), np.zeros(n)
        total: Array = np.zeros(())
        along = np.zeros(q.dim)
        if direction is not None:
            along = q.unwhiten(direction[np.newaxis])[0] - q.mean
        chunk = max(1, CHUNK_SIZE // (q.precision.size if curvature != "none" else q.dim))
        for start in range(0, n, chunk):
            part = slice(start, min(start + chunk, n))
            evaluation = target.evaluate(draws[part], curvature)
            h[part] = evaluation.log_density - q.log_density_whitened(z[part])
            residual = evaluation.gradient - q.score_whitened(z[part])
            slope[part] = q.whiten_gradients(residual)
            hessian = evaluation.hessian
            if hessian is None:
                continue
            total = total + hessian.sum(axis=0)
            trace[part] = q.relative_trace(hessian)
            if direction is not None:
                bend[part] = [along @ q.product(one, along) for one in hessian]
        if not all(np.isfinite(array).all() for array in (h, slope, total)):
            return None
        mean = total / n
        if mean.ndim == 2:
            mean = q.whiten_gradients(q.whiten_gradients(mean).T) + np.eye(q.dim)
        elif q.factorised and mean.ndim == 1:
            mean = mean * q.variance + 1
        return cls(z, h - h.mean(), slope, mean, trace + q.dim, bend + 1, q.factorised)

    # Left side minus right side: the mean, and for each draw along a direction or in all.

    @property
    def slope_gap(self) -> Array:
        return np.asarray(self.h @ self.z / len(self.z) - self.slope.mean(axis=0))

    def slope_gap_along(self, v: Array) -> Array:
        return np.asarray((self.z @ v) * self.h - self.slope @ v)

    @property
    def curve_gap(self) -> Array:
        return self._moment(self.z * self.h[:, np.newaxis]) - self.stein

    def curve_gap_along(self, v: Array) -> Array:
        along = self.z @ v
        return np.asarray((np.square(along) - 1) * self.h - along * (self.slope @ v))

    @property
    def curve_gap_trace(self) -> Array:
        squares = np.square(self.z).sum(axis=1) - self.z.shape[1]
        return np.asarray(squares * self.h - self._inner)

    @property
    def kink_gap(self) -> Array:
        return self.stein - self.hessian

    def kink_gap_along(self, v: Array) -> Array:
        return np.asarray((self.z @ v) * (self.slope @ v) - self.bend)

    @property
    def kink_gap_trace(self) -> Array:
        return np.asarray(self._inner - self.trace)

    @cached_property
    def stein(self) -> Array:
        """Stein's estimate of the mean Hessian of h."""
        return self._moment(self.slope)

    @cached_property
    def _inner(self) -> Array:
        return np.asarray(np.einsum("ni,ni->n", self.z, self.slope))

    def _moment(self, values: Array) -> Array:
        """Mean of z times values (n, d): a matrix, or its diagonal."""
        if self.factorised:
            return np.asarray((self.z * values).mean(axis=0))
        return symmetrise(self.z.T @ values / len(self.z))

    # Directions in which a mean gap is largest.

    def steepest(self, gap: Array) -> Array:
        if self.factorised:
            return self.worst(gap)
        length = np.linalg.norm(gap)
        return np.asarray(gap / length if length else units(len(gap), 0)[0])

    def worst(self, gap: Array) -> Array:
        if gap.ndim == 1:
            return np.asarray(units(len(gap), int(np.argmax(np.abs(gap))))[0])
        values, vectors = np.linalg.eigh(gap)
        return vectors[:, int(np.argmax(np.abs(values)))]
