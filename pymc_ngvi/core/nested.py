r"""Nested approximations: a Gaussian of the rest that depends on one or two held components.

On a grid of values of the held components u, each point has a Gaussian of the rest and an estimate
of the logarithm of the marginal density. Between the points both are interpolated, and so the whole
is one smooth density: with weights :math:`w_i(u)` that sum to 1,

.. math::

    q(u, x) &= q(u)\, N\bigl(x;\; m(u),\, C(u) C(u)'\bigr), \qquad
    m(u) = \sum_i w_i(u)\, m_i, \\
    C(u) &= \Bigl(\sum_i w_i(u)\, C_i D_i^{-1}\Bigr) D(u), \qquad
    \log D(u) = \sum_i w_i(u) \log D_i.

:math:`C_i` are the triangular roots of the covariances at the points and :math:`D_i` their
diagonals. The sum is then triangular with a diagonal of ones, whatever the weights, and
:math:`\log|\det C(u)| = \sum_j \log D_j(u)`: the density of a draw is exact. What is interpolated
are the coefficients by which components follow from each other, and the logarithms of their
conditional scales: in a funnel the former are constant and the latter are straight lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_ngvi.core.conditional import Split
from pymc_ngvi.core.distribution import Distribution, log_standard_normal
from pymc_ngvi.core.families import DiagonalGaussian, FullGaussian, Gaussian, standard_normal
from pymc_ngvi.core.interpolation import interpolation, refined
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.log_linear import LogLinear

#: Most components that are held.
MOST_HELD = 2
#: Pieces of the log-linear density between two points of the grid, for one and for two axes.
_PIECES = (16, 8)
#: Nats by which the density beyond the grid falls over the distance of two points, at least.
_DECAY = 3.0
#: Points by which moments are integrated, along each of one or two axes.
_QUADRATURE = (64, 24)
#: Up to so many components of the rest, roots are dense matrices.
_DENSE = 500
#: Draws at each of these points where they are not.
_SPREAD_DRAWS = 64
#: Numbers that are handled at a time.
_NUMBERS = 2**21


class Nested(Distribution):
    """A distribution of all components, made of Gaussians of the rest on a grid of held values.

    Parameters
    ----------
    split : Split
        The held components, one or two, and the rest.
    centre : array, (k,)
    scale : array, (k, k)
        Lower triangular. The held values are ``centre + scale @ t``, with t on the grid.
    axes : sequence of array
        For each of the held components the nodes of the grid, increasing.
    log_marginal : array
        Logarithm of the marginal density, up to a constant, at the points of the grid.
    members : sequence of Gaussian
        The Gaussian of the rest at each point, the last axis first.
    """

    name: ClassVar[str] = "nested"

    def __init__(
        self,
        split: Split,
        centre: ArrayLike,
        scale: ArrayLike,
        axes: Sequence[Array],
        log_marginal: ArrayLike,
        members: Sequence[Gaussian],
    ) -> None:
        self.split = split
        self.centre, self.scale = np.array(centre, float), np.array(scale, float)
        self.axes = [np.array(axis, float) for axis in axes]
        self.log_marginal, self.members = np.array(log_marginal, float), list(members)
        self._means = np.array([member.mean for member in members])
        self._log_diagonals = np.log([member.root_diagonal for member in members])
        per_cell = _PIECES[len(self.axes) - 1]
        self._fine = [refined(axis, per_cell) for axis in self.axes]
        self._first = self._marginal_of_first()
        points, weights = self._quadrature
        values, around, _ = self._at(points)
        self.mean: Array = np.empty(self.dim)
        self.mean[split.held] = weights @ values
        self.mean[split.rest] = weights @ (around @ self._means)

    def __repr__(self) -> str:
        grid = " x ".join(str(axis.size) for axis in self.axes)
        return f"Nested(dim={self.dim}, held={self.split.held.tolist()}, grid={grid})"

    @property
    def kind(self) -> str:
        """Which approximation holds it."""
        return "nested"

    @property
    def family(self) -> type[Gaussian]:
        """The family of the Gaussians of the rest."""
        return type(self.members[0])

    @property
    def dim(self) -> int:
        """Number of components d."""
        return self.split.dim

    # Draws and their densities.

    def unwhiten(self, z: Array) -> Array:
        """Map standard normal rows z (n, d) to draws (n, d)."""
        draws = np.empty(z.shape)
        for part in self._parts(len(z)):
            values, weights, _ = self._at(z[part][:, self.split.held])
            rest = self._rest(weights, z[part][:, self.split.rest])
            draws[part] = self.split.join(values, rest)
        return draws

    def log_density_whitened(self, z: Array) -> Array:
        """Log density (n,) of the draws `unwhiten(z)`."""
        found = np.empty(len(z))
        for part in self._parts(len(z)):
            _, weights, log_q = self._at(z[part][:, self.split.held])
            found[part] = log_q - (weights @ self._log_diagonals).sum(axis=1)
        return found + log_standard_normal(z[:, self.split.rest])

    def log_density(self, draws: Array) -> Array:
        """Log density (n,) at draws (n, d). It takes a dense matrix of the rest for each draw."""
        draws, found = np.asarray(draws, float), np.empty(len(draws))
        for part in self._parts(len(draws), self.split.rest.size**2):
            values, rest = draws[part][:, self.split.held], draws[part][:, self.split.rest]
            t = np.linalg.solve(self.scale, (values - self.centre).T).T
            weights, log_diagonal = self._weights(t), self._weights(t) @ self._log_diagonals
            roots = np.tensordot(weights, self._unit_roots, 1)
            centred = rest - weights @ self._means
            z = np.linalg.solve(roots, centred[:, :, np.newaxis])[:, :, 0] * np.exp(-log_diagonal)
            found[part] = self._log_density_held(t) + log_standard_normal(z)
            found[part] -= log_diagonal.sum(axis=1)
        return found

    def _parts(self, n: int, numbers: int = 0) -> list[slice]:
        """Rows to handle at a time."""
        width = max(self.dim, self._fine[-1].size, self._fine[0].size, numbers)
        size = max(1, _NUMBERS // width)
        return [slice(start, start + size) for start in range(0, n, size)]

    def _at(self, z: Array) -> tuple[Array, Array, Array]:
        """Return held values (n, k) for standard normal rows, weights (n, g), log densities."""
        t = np.empty(z.shape)
        t[:, 0] = self._first.quantile(z[:, 0])
        if len(self.axes) > 1:
            t[:, 1] = self._second(t[:, 0]).quantile(z[:, 1])
        return self.centre + t @ self.scale.T, self._weights(t), self._log_density_held(t)

    def _log_density_held(self, t: Array) -> Array:
        found = self._first.log_density(t[:, 0]) - np.log(self.scale.diagonal()).sum()
        if len(self.axes) > 1:
            found = found + self._second(t[:, 0]).log_density(t[:, 1])
        return np.asarray(found)

    def _marginal_of_first(self) -> LogLinear:
        fine = self._fine[0]
        if len(self.axes) > 1:
            values = self._second(fine).log_integral[np.newaxis]
        else:
            values = (interpolation(self.axes[0], fine) @ self.log_marginal)[np.newaxis]
        return LogLinear(fine, values, _least_slope(self.axes[0]))

    def _second(self, t: Array) -> LogLinear:
        """Return the densities of the second held component given values (n,) of the first."""
        fine = self._fine[1]
        rows = interpolation(self.axes[0], t) @ self.log_marginal
        values = rows @ interpolation(self.axes[1], fine).T
        return LogLinear(fine, values, _least_slope(self.axes[1]))

    def _weights(self, t: Array) -> Array:
        """Weights (n, g) of the points of the grid at t (n, k)."""
        each = [interpolation(axis, t[:, i]) for i, axis in enumerate(self.axes)]
        weights = each[0]
        for other in each[1:]:
            weights = (weights[:, :, np.newaxis] * other[:, np.newaxis]).reshape(len(t), -1)
        return weights

    def _rest(self, weights: Array, z: Array) -> Array:
        """Draws (n, r) of the rest from standard normal rows (n, r)."""
        draws, log_diagonal = weights @ self._means, weights @ self._log_diagonals
        for i, member in enumerate(self.members):
            rows = np.flatnonzero(weights[:, i])
            if rows.size:
                scaled = z[rows] * np.exp(log_diagonal[rows] - self._log_diagonals[i])
                draws[rows] += weights[rows, i, np.newaxis] * (
                    member.unwhiten(scaled) - member.mean
                )
        return np.asarray(draws)

    # Moments.

    @cached_property
    def variance(self) -> Array:
        """Marginal variances, (d,)."""
        points, quadrature = self._quadrature
        values, weights, _ = self._at(points)
        found = np.empty(self.dim)
        found[self.split.held] = quadrature @ (values - self.mean[self.split.held]) ** 2
        between = (weights @ self._means - self.mean[self.split.rest]) ** 2
        found[self.split.rest] = quadrature @ (between + self._spread(weights))
        return found

    @property
    def covariance(self) -> Array:
        """Covariance, (d, d)."""
        points, quadrature = self._quadrature
        values, weights, _ = self._at(points)
        centred = self.split.join(values, weights @ self._means) - self.mean
        found = (centred.T * quadrature) @ centred
        rest = self.split.rest
        for part, share in zip(weights, quadrature, strict=True):
            root = self._root(part)
            found[rest[:, np.newaxis], rest] += share * root @ root.T
        return np.asarray((found + found.T) / 2)

    @cached_property
    def gaussian(self) -> Gaussian:
        """The Gaussian with the same moments; with the same variances, where there are many."""
        if self.split.rest.size > _DENSE:
            return DiagonalGaussian.from_mean_variance(self.mean, self.variance)
        return FullGaussian.from_mean_covariance(self.mean, self.covariance)

    @cached_property
    def _quadrature(self) -> tuple[Array, Array]:
        """Standard normal points (p, k) for the held components, and their weights (p,)."""
        k = len(self.axes)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE[k - 1])
        points = np.stack([grid.ravel() for grid in np.meshgrid(*[nodes] * k, indexing="ij")], 1)
        products = weights if k == 1 else np.outer(weights, weights).ravel()
        # Far points of the rule have next to no weight, and quantiles that are not numbers.
        kept = products > 1e-14 * products.max()
        return points[kept], products[kept] / products[kept].sum()

    def _spread(self, weights: Array) -> Array:
        """Variances (n, r) of the rest given held values, by their weights (n, g)."""
        if self.split.rest.size <= _DENSE:
            return np.array([np.square(self._root(part)).sum(axis=1) for part in weights])
        z = standard_normal(
            _SPREAD_DRAWS, self.split.rest.size, np.random.default_rng(0), antithetic=True
        )
        found = []
        for part in weights:
            rest = self._rest(np.tile(part, (_SPREAD_DRAWS, 1)), z)
            found.append(np.square(rest - part @ self._means).mean(axis=0))
        return np.array(found)

    @cached_property
    def _unit_roots(self) -> Array:
        """Roots at the points of the grid with a diagonal of ones, (g, r, r)."""
        eye = np.eye(self.split.rest.size)
        return np.array(
            [
                (member.unwhiten(eye) - member.mean).T / member.root_diagonal
                for member in self.members
            ]
        )

    def _root(self, weights: Array) -> Array:
        """Root (r, r) of the covariance of the rest at weights (g,)."""
        used = np.flatnonzero(weights)
        unit = np.tensordot(weights[used], self._unit_roots[used], 1)
        return np.asarray(unit * np.exp(weights @ self._log_diagonals))

    # Files.

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by which a file keeps the distribution."""
        found: dict[str, NDArray[Any]] = {
            "held": self.split.held,
            "size": np.array([self.dim]),
            "centre": self.centre,
            "scale": self.scale,
            "log_marginal": self.log_marginal,
        }
        found |= {f"axis_{i}": axis for i, axis in enumerate(self.axes)}
        each = [member.arrays() for member in self.members]
        return found | {f"rest_{name}": np.stack([one[name] for one in each]) for name in each[0]}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], family: type[Gaussian]) -> Self:
        """Build from the `arrays` of one; there may be others among them.

        Parameters
        ----------
        arrays : mapping of str to array
        family : type
            The family of the Gaussians of the rest.
        """
        stacked = {
            name.removeprefix("rest_"): array
            for name, array in arrays.items()
            if name.startswith("rest_")
        }
        members = [
            family.from_arrays({name: array[i] for name, array in stacked.items()})
            for i in range(arrays["log_marginal"].size)
        ]
        k = len(arrays["held"])
        return cls(
            Split(int(arrays["size"][0]), arrays["held"]),
            arrays["centre"],
            arrays["scale"],
            [arrays[f"axis_{i}"] for i in range(k)],
            arrays["log_marginal"],
            members,
        )


def _least_slope(nodes: Array) -> float:
    """Slope of the log density beyond the grid, where little is left and nothing was fitted."""
    return _DECAY / float(nodes[-1] - nodes[-2])
