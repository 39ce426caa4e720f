r"""The paper's theory as tools: gradient noise in Bregman geometry, bounds, and a planner.

The noise of an estimator is measured by the variance-like quantity of section 2,

.. math:: \sigma^2_{\eta,N} = \frac1\eta \sup_\omega \Bigl\{ f(\omega_*) - f(\omega)
          + \frac1\eta E\, d_{A^*}(\omega, \omega_+) \Bigr\}, \qquad f(\omega) = KL(q_\omega, \pi),

with :math:`\omega_+` one stochastic step from :math:`\omega`. For the estimators here there is a V
with :math:`\sigma^2_{\eta,N} \le V / N`, and everything else follows from V: the neighbourhood in
which a constant step ends, and the bounds of section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_ngvi.arguments import check_count
from pymc_ngvi.core import schedules
from pymc_ngvi.core.estimators import Estimate, Estimator, pool
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.guards import none as bare_update
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.schedules import SampleSchedule, StepSchedule, as_schedule


@dataclass(frozen=True)
class Variance:
    r"""An estimate of :math:`\sigma^2_{\eta,N}`, and of V.

    Attributes
    ----------
    value : float
        The estimate.
    standard_error : float
        Its Monte-Carlo standard error.
    n_samples : int
        The sample size N it belongs to.
    """

    value: float
    standard_error: float
    n_samples: int

    @property
    def constant(self) -> float:
        """V, with sigma^2 = V / N."""
        return self.value * self.n_samples


def gradient_variance(
    points: Gaussian | Sequence[Gaussian],
    optimum: Gaussian,
    target: Any,
    estimator: Estimator,
    *,
    step_size: float,
    n_samples: int,
    rng: np.random.Generator,
    replicates: int = 200,
) -> Variance:
    r"""Estimate :math:`\sigma^2_{\eta,N}` by its definition, the supremum taken over given points.

    Parameters
    ----------
    points : Gaussian or sequence of them
        Where to take the supremum, for instance the iterates of a run. The optimum is always
        included: the term there is :math:`E\,d(\omega_*, \omega_+)/\eta^2`.
    optimum : Gaussian
        The solution, or the best approximation of it.
    target, estimator
        As in :func:`pymc_ngvi.core.algorithm.run`.
    step_size, n_samples : float, int
        Step size eta and sample size N.
    rng : numpy.random.Generator
    replicates : int
        Independent steps taken from each point.
    """
    points = [points] if isinstance(points, Gaussian) else list(points)
    estimates = _replicate(optimum, target, estimator, n_samples, rng, replicates)
    best_elbo = np.array([estimate.elbo for estimate in estimates])
    terms = [_spread(optimum, optimum, estimates, step_size)]
    for q in points:
        estimates = _replicate(q, target, estimator, n_samples, rng, replicates)
        # f(omega_*) - f(omega), a difference of KL divergences, is one of ELBOs.
        gap = np.array([estimate.elbo for estimate in estimates]) - best_elbo
        terms.append(gap / step_size + _spread(q, q, estimates, step_size))
    return max((_variance(term, n_samples) for term in terms), key=lambda found: found.value)


def gradient_variance_bound(
    q: Gaussian,
    target: Any,
    estimator: Estimator,
    *,
    step_size: float,
    n_samples: int,
    rng: np.random.Generator,
    replicates: int = 200,
) -> Variance:
    r"""Estimate an upper bound of the variance at q, :math:`E\,d(\bar\omega_+, \omega_+)/\eta^2`.

    It bounds the variance where the objective is 1-smooth relative to A* (as on a Gaussian target),
    and needs no optimum. :math:`\bar\omega_+` is the step with the exact gradient, replaced here by
    the mean over the replicates; the result is corrected for the degree of freedom this costs.
    """
    estimates = _replicate(q, target, estimator, n_samples, rng, replicates)
    exact = bare_update(q, pool(estimates), step_size).q
    spread = _spread(exact, q, estimates, step_size) * (replicates / (replicates - 1))
    return _variance(spread, n_samples)


def neighbourhood(step_size: float, n_samples: int, *, variance: float, m: float = 1.0) -> float:
    r"""Predicted size of the neighbourhood where a constant step ends, :math:`\eta V / (m N)`.

    Examples
    --------
    >>> neighbourhood(0.01, 100, variance=5.0)
    0.0005
    """
    return step_size * variance / (m * n_samples)


def constant_step_bound(
    T: int, *, step_size: float, n_samples: int, variance: float, distance: float, m: float = 1.0
) -> float:
    r"""Bound on :math:`E\,d_{A^*}(\omega_*, \omega_T)` for constant step and sample size.

    .. math:: (1 - m\eta)^T d_{A^*}(\omega_*, \omega_0) + \frac{\eta V}{m N}

    Parameters
    ----------
    T : int
        Iterations done.
    step_size, n_samples : float, int
        Constant step size eta, at most 1/m, and sample size N.
    variance : float
        V.
    distance : float
        Distance of the start, in nats.
    m : float
        Relative strong convexity; 1 for a Gaussian target.
    """
    _check_m(step_size, m)
    remaining = (1 - m * step_size) ** T * distance
    return remaining + neighbourhood(step_size, n_samples, variance=variance, m=m)


def growing_samples_bound(
    T: int, *, step_size: float, gamma: float, variance: float, distance: float, m: float = 1.0
) -> float:
    r"""Bound for a constant step and :math:`N_t = (t+1)^\gamma`.

    .. math:: (1-m\eta)^T d_{A^*}(\omega_*, \omega_0)
              + \frac{V}{m\eta}\Bigl((1-m\eta)^{(T+1)/2} + \frac{2^\gamma}{T^\gamma}\Bigr)

    As printed in the paper; its proof gives the smaller factor :math:`\eta V / m` in place of
    :math:`V / (m\eta)`, and :func:`schedule_bound` is sharper than both.
    """
    _check_m(step_size, m)
    if T < 1:
        raise ValueError(f"the bound holds from T = 1 on, got {T}")
    decay = 1 - m * step_size
    noise = variance / (m * step_size) * (decay ** ((T + 1) / 2) + (2 / T) ** gamma)
    return float(decay**T * distance + noise)


def decreasing_step_bound(
    T: int, *, n_samples: int | SampleSchedule, variance: float, m: float = 1.0
) -> float:
    r"""Bound on :math:`E\,d_{A^*}(\omega_*, \omega_{T+1})` for :math:`\eta_t = 1/(m(t/2+1))`.

    .. math:: \frac{4V}{m^2 (T+2)(T+1)} \sum_{t=0}^T \frac1{N_t}
    """
    counts = as_schedule(n_samples, "n_samples")
    total = sum(1 / counts(t) for t in range(T + 1))
    return float(4 * variance / (m**2 * (T + 2) * (T + 1)) * total)


def schedule_bound(
    T: int,
    *,
    step_size: float | StepSchedule,
    n_samples: int | SampleSchedule,
    variance: float,
    distance: float,
    m: float = 1.0,
) -> Array:
    r"""Bounds on :math:`E\,d_{A^*}(\omega_*, \omega_t)`, t = 0, ..., T, for any schedules.

    The one-step inequality behind both results of section 4, iterated:

    .. math:: e_{t+1} = (1 - m\eta_t) e_t + \eta_t^2 V / N_t, \quad
              e_0 = d_{A^*}(\omega_*, \omega_0)
    """
    sizes, counts = as_schedule(step_size, "step_size"), as_schedule(n_samples, "n_samples")
    bounds = np.empty(T + 1)
    bounds[0] = distance
    for t in range(T):
        _check_m(sizes(t), m)
        bounds[t + 1] = (1 - m * sizes(t)) * bounds[t] + sizes(t) ** 2 * variance / counts(t)
    return bounds


@dataclass(frozen=True)
class Plan:
    """Schedules that reach a distance by the bounds, and what they cost.

    Attributes
    ----------
    kind : str
        "constant step" or "decreasing step".
    step_size : callable
        Step-size schedule.
    n_samples : int
        Sample size of every iteration.
    iterations : int
    evaluations : int
        Iterations times the sample size.
    bound : float
        Expected Bregman distance at the end, by the bound.
    """

    kind: str
    step_size: Callable[[int], float]
    n_samples: int
    iterations: int
    evaluations: int
    bound: float


def plan(
    accuracy: float,
    *,
    variance: float,
    distance: float,
    m: float = 1.0,
    max_step: float = 1.0,
    min_samples: int = 1,
) -> list[Plan]:
    """Step and sample sizes that reach an expected Bregman distance, the cheapest first.

    Parameters
    ----------
    accuracy : float
        Expected Bregman distance to reach, in nats.
    variance : float
        V, for instance from :func:`gradient_variance`.
    distance : float
        Distance of the start, in nats; an over-estimate is safe.
    m : float
        Relative strong convexity; 1 for a Gaussian target.
    max_step : float
        Longest constant step allowed: lower it where the target is far from Gaussian, as the bounds
        hold only if V bounds the variance at all iterates.
    min_samples : int
        Smallest sample size allowed. V / N must bound the variance for it too: with antithetic
        draws a V measured at an even N does not hold for N = 1, which has no pair, so give 2.

    Returns
    -------
    list of Plan
        The cheapest plan with a constant step, and one with decreasing steps (for m at least 1),
        which spreads its draws over about ten iterations; sorted by evaluations.

    Examples
    --------
    Which step and sample size reaches 0.01 nats from 100 nats away with V = 5, at least cost?

    >>> best = plan(0.01, variance=5.0, distance=100.0)[0]
    >>> best.kind, best.step_size(0), best.n_samples, best.iterations, best.evaluations
    ('constant step', 1.0, 500, 1, 500)
    """
    for name, value in {"accuracy": accuracy, "distance": distance, "m": m}.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")
    if not variance >= 0:
        raise ValueError(f"variance must not be negative, got {variance!r}")
    least = check_count("min_samples", min_samples)
    longest = min(schedules.check_step_size(max_step, 0), 1 / m)
    found = [_constant_plan(accuracy, variance, distance, m, longest, least)]
    if m >= 1:
        found.append(_decreasing_plan(accuracy, variance, m, least))
    return sorted(found, key=lambda plan: plan.evaluations)


def _constant_plan(
    accuracy: float, variance: float, distance: float, m: float, max_step: float, least: int
) -> Plan:
    best: Plan | None = None
    for step_size in max_step * np.geomspace(1, 1e-4, 81):
        for share in np.linspace(0.05, 1, 20):  # of the accuracy, given to the noise
            n_samples = max(least, math.ceil(step_size * variance / (m * share * accuracy)))
            left = accuracy - neighbourhood(step_size, n_samples, variance=variance, m=m)
            decay = 1 - m * step_size
            if decay <= 0:
                iterations = 1
            elif left <= 0:
                continue
            else:
                iterations = max(1, math.ceil(math.log(left / distance) / math.log(decay)))
            cost = n_samples * iterations
            if best is None or cost < best.evaluations:
                bound = constant_step_bound(
                    iterations,
                    step_size=step_size,
                    n_samples=n_samples,
                    variance=variance,
                    distance=distance,
                    m=m,
                )
                schedule = schedules.constant(float(step_size))
                best = Plan("constant step", schedule, n_samples, iterations, cost, bound)
    assert best is not None
    return best


def _decreasing_plan(accuracy: float, variance: float, m: float, least: int) -> Plan:
    # The bound is 4 V / (m^2 N (T + 2)) after T + 1 iterations: N (T + 2) is fixed by the accuracy.
    product = 4 * variance / (m**2 * accuracy)
    n_samples = max(least, math.ceil(product / 11))
    iterations = max(1, math.ceil(product / n_samples) - 1)
    bound = decreasing_step_bound(iterations - 1, n_samples=n_samples, variance=variance, m=m)
    cost = n_samples * iterations
    return Plan("decreasing step", schedules.decreasing(m), n_samples, iterations, cost, bound)


def _replicate(
    q: Gaussian,
    target: Any,
    estimator: Estimator,
    n_samples: int,
    rng: np.random.Generator,
    replicates: int,
) -> list[Estimate]:
    if replicates < 2:
        raise ValueError(f"replicates must be at least 2, got {replicates}")
    return [estimator(target, q, n_samples, rng) for _ in range(replicates)]


def _spread(
    centre: Gaussian, q: Gaussian, estimates: Sequence[Estimate], step_size: float
) -> Array:
    """Divergence of a noisy step from q, seen from `centre`, over eta^2, for each estimate."""
    steps = [bare_update(q, estimate, step_size).q for estimate in estimates]
    return np.array([centre.kl(stepped) for stepped in steps]) / step_size**2


def _variance(terms: Array, n_samples: int) -> Variance:
    return Variance(float(terms.mean()), float(terms.std(ddof=1) / len(terms) ** 0.5), n_samples)


def _check_m(step_size: float, m: float) -> None:
    if not (m > 0 and 0 < m * step_size <= 1):
        raise ValueError(f"the bounds need a step size in (0, 1/m], got {step_size} with m = {m}")
