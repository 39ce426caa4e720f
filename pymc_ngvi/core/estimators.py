r"""Estimators of the mean gradient and Hessian of a log density under a Gaussian.

With f the log density, the Bonnet-Price, the Stein and the score estimator give

.. math:: g \approx E_q[\nabla f(X)], \qquad H \approx E_q[\nabla^2 f(X)],

from which the paper's :math:`g^N(\omega) = (g - H\mu, H/2)`, an unbiased estimate of
:math:`\nabla_\omega E_q[f(X)]`, follows. The families' `mix` takes g and H as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import Array, symmetrise
from pymc_ngvi.core.target import Evaluation, Target
from pymc_ngvi.errors import NonFiniteError

# Eigenvalues of a Hessian scaled to a diagonal of 1 that are smaller are rounding.
_SMALLEST_EIGENVALUE = 1e-10


@dataclass(frozen=True)
class Estimate:
    """Mean gradient and Hessian under a Gaussian, and the ELBO from the same draws.

    Attributes
    ----------
    gradient : array, (d,)
    hessian : array
        In the family's representation, symmetric.
    elbo : float
        Mean of log p - log q over the draws: higher is better.
    elbo_se : float
        Its standard error; NaN where a single draw, or a single pair, gives none.
    evaluations : int
        Evaluations of the target spent.
    coupling : array, (d, d), or None
        The whole mean Hessian, where an estimator with `coupled` serves a factorised family.
    """

    gradient: Array
    hessian: Array
    elbo: float
    elbo_se: float
    evaluations: int
    coupling: Array | None = None


@dataclass(frozen=True)
class Slope:
    """Mean gradient under a Gaussian, and the ELBO, from draws without Hessians.

    Attributes
    ----------
    gradient : array, (d,)
    elbo, elbo_se : float
        As in :class:`Estimate`.
    """

    gradient: Array
    elbo: float
    elbo_se: float


class Estimator(Protocol):
    """Estimate the mean gradient and Hessian of a target under q from n samples.

    An estimator may say whether it asks the target for Hessians, by an attribute `needs_hessian`.
    A fit replaces one that says True where the model has none, and compiles no Hessian for one that
    says False.
    """

    def __call__(
        self, target: Any, q: Gaussian, n_samples: int, rng: np.random.Generator
    ) -> Estimate:
        """Estimate from n fresh samples."""


class _DrawsEstimator(ABC):
    """An estimator that evaluates the target at draws from q.

    Parameters
    ----------
    antithetic : bool
        Draw in pairs mean + e, mean - e. Odd functions of e then cancel exactly, and the estimate
        is exact on a Gaussian target. An odd number of draws leaves one unpaired.
    """

    def __init__(self, *, antithetic: bool = True) -> None:
        self.antithetic = antithetic

    def __repr__(self) -> str:
        return f"{type(self).__name__}(antithetic={self.antithetic})"

    def __call__(
        self, target: Target, q: Gaussian, n_samples: int, rng: np.random.Generator
    ) -> Estimate:
        z = standard_normal(n_samples, q.dim, rng, antithetic=self.antithetic)
        return self.at(target, q, z)

    def at(self, target: Target, q: Gaussian, z: Array) -> Estimate:
        """Estimate from given standard normal rows z (n, d), so that members can share draws."""
        (estimate,) = self.at_each(target, q, [z])
        return estimate

    @abstractmethod
    def at_each(self, target: Target, q: Gaussian, sets: Sequence[Array]) -> list[Estimate]:
        """Estimate from each of some sets (n, d) of equal size, in one call of the target."""


class BonnetPrice(_DrawsEstimator):
    r"""Gradients and exact Hessians of the log density, averaged over draws from q.

    .. math:: g = \frac1N\sum_n \nabla f(X_n), \quad
              H = \frac1N\sum_n \nabla^2 f(X_n), \quad X_n \sim q

    Of the diagonal families only the Hessian's diagonal is evaluated, unless `coupled` is true.

    Parameters
    ----------
    antithetic : bool
        Draw in pairs (default); False gives the plain draws of the paper.
    coupled : bool
        Evaluate the whole Hessian for the diagonal families too, and keep its mean as `coupling`.
    """

    name: ClassVar[str] = "bonnet-price"
    needs_hessian: ClassVar[bool] = True

    def __init__(self, *, antithetic: bool = True, coupled: bool = False) -> None:
        super().__init__(antithetic=antithetic)
        self.coupled = coupled

    def at_each(  # noqa: D102
        self, target: Target, q: Gaussian, sets: Sequence[Array]
    ) -> list[Estimate]:
        z = np.concatenate(sets)
        draws = q.unwhiten(z)
        coupled = self.coupled and q.factorised and q.has_mean
        curvature = "full" if coupled else q.curvature
        found = target.average(draws, curvature, len(sets))
        assert found.hessian is not None
        gradients = found.gradient.reshape(len(sets), -1, q.dim).mean(axis=1)
        if not _all_finite(found.log_density, gradients, found.hessian):
            each = replace(found, hessian=None)
            if _all_finite(found.log_density, found.gradient):  # it must be the Hessians
                each = target.evaluate(draws, curvature)
            raise _non_finite(each, draws)
        ratios = np.split(found.log_density - q.log_density_whitened(z), len(sets))
        estimates = []
        for gradient, hessian, ratio in zip(gradients, found.hessian, ratios, strict=True):
            coupling = symmetrise(hessian) if coupled else None
            own = hessian.diagonal().copy() if coupled else hessian
            elbo = mean_and_error(ratio, antithetic=self.antithetic)
            estimates.append(Estimate(gradient, q.symmetrise(own), *elbo, len(ratio), coupling))
        return estimates

    def slopes_at(self, target: Target, q: Gaussian, sets: Sequence[Array]) -> list[Slope]:
        r"""Estimate the mean gradient alone, from each of some sets (n, d) of standard normal rows.

        A gradient costs a small part of a Hessian. The precision of q is a control variate:

        .. math:: g = \frac1N\sum_n r_n, \quad r_n = \nabla f(x_n) + L z_n,
                  \quad x_n = \mu + L^{-\top} z_n
        """
        return [
            Slope(residual.mean(axis=0), *mean_and_error(ratio, antithetic=self.antithetic))
            for residual, ratio in _residuals(target, q, sets)
        ]


class Stein(_DrawsEstimator):
    r"""Mean Hessian from gradients alone, for targets that have no second derivatives.

    .. math:: H = -P + \mathrm{sym}\Bigl(L\, \frac1N\sum_n z_n r_n'\Bigr), \quad
              r_n = \nabla f(x_n) + L z_n, \quad x_n = \mu + L^{-\top} z_n

    The residual r is the gradient of log p - log q: it is zero where q is the target, and so is the
    variance. About 5 d draws or more are needed for a useful full Hessian.

    Parameters
    ----------
    antithetic : bool
        Draw in pairs (default).
    """

    name: ClassVar[str] = "stein"
    needs_hessian: ClassVar[bool] = False

    def at_each(  # noqa: D102
        self, target: Target, q: Gaussian, sets: Sequence[Array]
    ) -> list[Estimate]:
        estimates = []
        for z, (residual, ratio) in zip(sets, _residuals(target, q, sets), strict=True):
            elbo = mean_and_error(ratio, antithetic=self.antithetic)
            hessian = q.stein_hessian(z, residual)
            estimates.append(Estimate(residual.mean(axis=0), hessian, *elbo, len(z)))
        return estimates


class Score(_DrawsEstimator):
    r"""Mean gradient and Hessian from log densities alone, for targets that jump.

    .. math:: g = L\, \frac1N\sum_n z_n h_n, \quad
              H = -P + \frac1N\sum_n h_n\, (L z_n z_n' L' - P), \quad
              h_n = \log p(x_n) - \log q(x_n) - b_n

    with b the mean over the other draws, which leaves the estimates unbiased. No derivative of the
    target is evaluated. The price is noise: h varies even where its gradient nearly vanishes.

    Parameters
    ----------
    antithetic : bool
        Draw in pairs (default).
    """

    name: ClassVar[str] = "score"
    needs_hessian: ClassVar[bool] = False

    def at_each(  # noqa: D102
        self, target: Target, q: Gaussian, sets: Sequence[Array]
    ) -> list[Estimate]:
        whole = np.concatenate(sets)
        draws = q.unwhiten(whole)
        log_density = target.log_density(draws)
        if not _all_finite(log_density):
            evaluation = Evaluation(log_density, np.zeros_like(draws), None)
            raise _non_finite(evaluation, draws)
        ratios = np.split(log_density - q.log_density_whitened(whole), len(sets))
        estimates = []
        for z, ratio in zip(sets, ratios, strict=True):
            h = self._without_mean_of_others(ratio)
            weighted = -q.score_whitened(z) * h[:, np.newaxis]
            hessian = q.stein_hessian(z, weighted) - h.mean() * q.precision
            elbo = mean_and_error(ratio, antithetic=self.antithetic)
            estimates.append(Estimate(weighted.mean(axis=0), hessian, *elbo, len(z)))
        return estimates

    def _without_mean_of_others(self, values: Array) -> Array:
        """Subtract from each value (n,) the mean over the draws that are independent of it."""
        n = len(values)
        own, others = values.copy(), np.full(n, n - 1.0)
        if self.antithetic:
            paired, half = n // 2, (n + 1) // 2
            own[:paired] += values[half:]
            own[half:] += values[:paired]
            others[:paired] -= 1
            others[half:] -= 1
        return np.asarray(values - (values.sum() - own) / np.maximum(others, 1))


def estimate_each(
    estimator: Any, target: Target, q: Gaussian, sets: Sequence[Array]
) -> list[Estimate]:
    """Estimate from each of some sets (n, d) of standard normal rows, all of equal size.

    An estimator with an `at` of its own is asked for one set after the other.
    """
    if getattr(type(estimator), "at", None) is _DrawsEstimator.at:
        return list(estimator.at_each(target, q, sets))
    return [estimator.at(target, q, z) for z in sets]


def pool(estimates: Sequence[Estimate]) -> Estimate:
    """Average independent estimates, each from the same number of draws.

    Where one alone is too few draws to tell the error of its ELBO, their scatter does.
    """
    elbos = np.array([estimate.elbo for estimate in estimates])
    elbo_se = float(np.linalg.norm([estimate.elbo_se for estimate in estimates]) / len(elbos))
    if np.isnan(elbo_se) and len(elbos) > 1:
        elbo_se = float(elbos.std(ddof=1) / np.sqrt(len(elbos)))
    couplings = [e.coupling for e in estimates if e.coupling is not None]
    return Estimate(
        gradient=np.mean([estimate.gradient for estimate in estimates], axis=0),
        hessian=np.mean([estimate.hessian for estimate in estimates], axis=0),
        elbo=float(elbos.mean()),
        elbo_se=elbo_se,
        evaluations=sum(estimate.evaluations for estimate in estimates),
        coupling=np.mean(couplings, axis=0) if couplings else None,
    )


def decouple(estimates: Sequence[Estimate], coupling: Array) -> list[Estimate]:
    r"""Precondition the gradients of a factorised family by the whole Hessian.

    .. math:: g \to D H^{-1} g, \quad D = \mathrm{diag}(H)

    The ELBO's second derivative in the mean is the mean Hessian, so a step of size 1 then moves the
    mean by Newton's step, instead of each component as if the others were fixed. The solution is
    the same. An indefinite Hessian is replaced by the one with the absolute eigenvalues.

    Parameters
    ----------
    estimates : sequence of Estimate
        Each with the diagonal of a Hessian.
    coupling : array, (d, d)
        Mean Hessian H, used for all of them.
    """
    scale = np.sqrt(np.maximum(np.abs(coupling.diagonal()), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(coupling / np.outer(scale, scale))
    values = np.maximum(np.abs(values), _SMALLEST_EIGENVALUE)
    decoupled = []
    for estimate in estimates:
        newton = vectors @ ((vectors.T @ (estimate.gradient / scale)) / values) / scale
        decoupled.append(replace(estimate, gradient=np.abs(estimate.hessian) * newton))
    return decoupled


def mean_and_error(log_ratio: Array, *, antithetic: bool) -> tuple[float, float]:
    """Mean of log p - log q and its standard error, in which a pair counts as one observation."""
    half = (len(log_ratio) + 1) // 2
    if antithetic and len(log_ratio) > 1:
        pairs = log_ratio[:half].copy()
        paired = len(log_ratio) - half
        pairs[:paired] = (pairs[:paired] + log_ratio[half:]) / 2
    else:
        pairs = log_ratio
    n = len(pairs)
    spread = float(pairs.std(ddof=1)) / np.sqrt(n) if n > 1 else np.nan
    return float(log_ratio.mean()), float(spread)


def _residuals(target: Target, q: Gaussian, sets: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
    """Give the gradients (n, d) and the values (n,) of log p - log q at each of some sets.

    Raises where one is not finite.
    """
    z = np.concatenate(sets)
    draws = q.unwhiten(z)
    found = target.evaluate(draws, "none")
    if not _all_finite(found.log_density, found.gradient):
        raise _non_finite(found, draws)
    residuals = np.split(found.gradient - q.score_whitened(z), len(sets))
    ratios = np.split(found.log_density - q.log_density_whitened(z), len(sets))
    return zip(residuals, ratios, strict=True)


def _all_finite(*arrays: Array) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _non_finite(evaluation: Evaluation, draws: Array) -> NonFiniteError:
    """Build the error for draws (n, d) at which the target, or a sum over them, is not finite."""
    parts = {"log density": evaluation.log_density, "gradient": evaluation.gradient}
    if evaluation.hessian is not None:
        parts["Hessian"] = evaluation.hessian
    n = len(draws)
    finite = {what: np.isfinite(array.reshape(n, -1)).all(axis=1) for what, array in parts.items()}
    bad = ~np.logical_and.reduce(list(finite.values()))
    if not bad.any():
        message = f"the target's derivatives overflow when summed over {n} draws"
        return NonFiniteError(message, draws, n)
    what = ", ".join(what for what, ok in finite.items() if not ok.all())
    message = f"the target's {what} is not finite at {int(bad.sum())} of {n} draws"
    return NonFiniteError(message, draws[bad], n)
