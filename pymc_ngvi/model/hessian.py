"""Hessians of a log density: whether they can be built, and whether what they give is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.target import Evaluation
from pymc_ngvi.errors import warn
from pymc_ngvi.model.graph import Graph, operations_in_loops
from pymc_ngvi.model.layout import Layout

if TYPE_CHECKING:
    from pymc_ngvi.model.evaluators import Evaluator

# The loop of a Kalman filter has a gradient of more than a thousand operations, and its Hessian was
# not built in seven minutes. Those of autoregressions and of GARCH have fewer than a hundred.
_MOST_OPERATIONS_IN_LOOPS = 500

# How often a step of differences is made longer or shorter, each time by up to a factor of 1e4.
_STEP_TRIALS = 30

# A Hessian that differs by more than this part from differences of the gradient is looked at again,
# at another point: rounding and the errors of the differences are far below it.
_DOUBTFUL = 1e-3

# Products with random signs that tell the sizes of a Hessian's entries.
_PROBES = 8


#: Evaluates points (n, d), with Hessians for "full" and without for "none".
Evaluate: TypeAlias = Callable[[Array, str], Evaluation]


class HessianFallbackWarning(UserWarning):
    """The fastest way to a Hessian does not work for this model, and a slower one is taken."""


class HessianUnavailableError(NotImplementedError):
    """A Hessian was asked for, and the model's log density has no second derivatives."""


def too_large_to_differentiate(graph: Graph) -> bool:
    """Whether the gradient has loops of which no second derivative can be built in time; warn."""
    looped = operations_in_loops(graph.gradient)
    if looped <= _MOST_OPERATIONS_IN_LOOPS:
        return False
    warn(
        f"the gradient of this model has loops of {looped:,} operations, of which no second "
        "derivative could be built in a reasonable time; falling back on gradients only",
        HessianFallbackWarning,
    )
    return True


def check_first_order(
    evaluator: Evaluator, reference: Evaluator, x: Array, data: tuple[Any, ...]
) -> None:
    """Raise where an evaluator does not give the log density near x (d,), or not its gradient.

    Parameters
    ----------
    evaluator : Evaluator
    reference : Evaluator
        Evaluates the log density as PyMC wrote it.
    x : array, (d,)
    data : tuple
    """
    rng = np.random.default_rng(2)
    points = np.stack([x, x + 0.1 * rng.standard_normal(len(x))])
    with np.errstate(all="ignore"):
        expected = reference.density(points, data)
        found = evaluator.gradient(points, data)
        for density in (found.log_density, evaluator.density(points, data)):
            if not np.allclose(density, expected, rtol=1e-5, atol=1e-6, equal_nan=True):
                raise ArithmeticError(f"its log density is {density[0]:g}, not {expected[0]:g}")
        slope, point = found.gradient[1], points[1]
        if not np.isfinite([expected[1], *slope]).all():
            return
        direction = np.sign(slope) / np.maximum(abs(slope), 1e-12)
        direction *= rng.uniform(0.5, 1.5, len(x)) / len(x)
        rise, rises = float(slope @ direction), []
        # A longer step may be curved, and a shorter one be rounded: one that agrees is enough, and
        # with many rows of data each takes long.
        for step in (1e-3, 1e-2, 1e-1, 1e-4):
            ends = point + step * np.outer([1.0, -1.0], direction)
            above, below = reference.density(ends, data)
            rises.append(float((above - below) / (2 * step)))
            if abs(rises[-1] - rise) <= 1e-2 * abs(rise):
                return
    if np.isfinite(rises).any():
        raise ArithmeticError(
            f"its gradient contradicts the log density, {rise:g} to {rises[-1]:g}"
        )


def verify(evaluate: Evaluate, x: Array, layout: Layout) -> bool:
    """Raise where a Hessian contradicts the gradient near x (d,).

    The product of the Hessian with a direction is compared with central differences of the
    gradient, whose own error is estimated by halving the step. This is needed because an operation
    may have a second derivative that is wrong: PyTensor 2 differentiates a recurrent Scan twice
    without complaint, and the wrong result is even symmetric.

    The direction goes as far in each component as gradient and Hessian say that it is long, so that
    the units of the parameters do not matter. The first step is mostly good enough. Where it tells
    nothing or finds a contradiction, longer and shorter ones are tried, and for each component the
    one of the smallest error counts.

    Parameters
    ----------
    evaluate : callable
        Maps points (n, d) and "full" or "none" to an evaluation with or without Hessians.
    x : array, (d,)
    layout : Layout
        Names the components in messages.

    Returns
    -------
    bool
        Whether they could be compared: False where they are not finite.
    """
    rng = np.random.default_rng(0)
    shift, direction = 0.1 * rng.standard_normal(len(x)), rng.standard_normal(len(x))
    with np.errstate(all="ignore"):
        here = evaluate(x[np.newaxis], "full")
        assert here.hessian is not None
        lengths = _lengths(here.gradient[0], here.hessian[0].diagonal())
        lengths = np.where(np.isfinite(lengths), lengths, 1.0)
        # A parameter that seems very uncertain at x may be bounded not far from there.
        tried = (
            _compare(evaluate, x + scale * shift, scale * direction, scale)
            for scale in (lengths, np.minimum(lengths, 1.0))
        )
        comparison = next((found for found in tried if found is not None), None)
        # What is wrong by a little here may be wrong by much elsewhere.
        if comparison is not None and comparison.is_doubtful and not comparison.wrong.size:
            comparison = _compare(evaluate, x, lengths * direction[::-1], lengths) or comparison
    if comparison is None:
        return False
    wrong, product, difference = comparison.wrong, comparison.product, comparison.difference
    if wrong.size:
        i = int(wrong[0])
        raise ArithmeticError(
            f"it contradicts the gradient, for {layout.label(i)} by {product[i]:.3g} against "
            f"{difference[i]:.3g}: an operation's second derivative is wrong"
        )
    return True


@dataclass(frozen=True)
class _Comparison:
    """A product of the Hessian and a direction beside differences of the gradient.

    Attributes
    ----------
    product, difference : array, (d,)
        In units of the scale of each component.
    wrong : array of int
        The components that contradict each other.
    is_doubtful : bool
        Whether any differ by more than rounding and the errors of the differences explain.
    """

    product: Array
    difference: Array
    wrong: NDArray[np.int64]
    is_doubtful: bool


class Products:
    """A Hessian that is known by its products with vectors, and is not formed.

    Parameters
    ----------
    evaluator : Evaluator
    point : array, (d,)
    data : tuple
    """

    def __init__(self, evaluator: Evaluator, point: Array, data: tuple[Any, ...]) -> None:
        self._evaluator, self._point, self._data = evaluator, point, data
        signs = np.random.default_rng(3).choice([-1.0, 1.0], (_PROBES, len(point)))
        self._signs: Array = np.asarray(signs, float)

    def _times(self, vectors: Array) -> Array:
        points = np.tile(self._point, (len(vectors), 1))
        found = self._evaluator.products(points, vectors, self._data).hessian
        assert found is not None
        return found

    def __matmul__(self, vector: Array) -> Array:
        return np.asarray(self._times(vector[np.newaxis])[0])

    def diagonal(self) -> Array:
        """Diagonal (d,), estimated by products with random signs."""
        return np.asarray((self._signs * self._times(self._signs)).mean(axis=0))

    def __abs__(self) -> _Sizes:
        return _Sizes(self)


class _Sizes:
    """About the absolute values of the entries of a Hessian, in products with vectors."""

    def __init__(self, hessian: Products) -> None:
        self._hessian = hessian

    def __matmul__(self, vector: Array) -> Array:
        found = self._hessian._times(self._hessian._signs * vector)
        return np.asarray(np.abs(found).max(axis=0))


def _lengths(gradient: Array, curvature: Array) -> Array:
    """Distance (d,) along each component over which the log density changes noticeably.

    It is a standard deviation near the mode; far away it is the length of a Newton step, in which
    the gradient changes by its own size. Where the curvature tells nothing it is not finite.
    """
    return np.asarray(np.maximum(abs(curvature) ** -0.5, abs(gradient / curvature)))


def _compare(evaluate: Evaluate, x: Array, direction: Array, scale: Array) -> _Comparison | None:
    """Compare the product of the Hessian and a direction with differences of the gradient.

    Everything is in units of `scale` (d,), in which components can be compared with each other.
    None is returned where they are not finite.
    """
    here = evaluate(x[np.newaxis], "full")
    assert here.hessian is not None
    gradient, hessian = here.gradient[0], here.hessian[0]
    product = scale * (hessian @ direction)
    if not np.isfinite([gradient, product]).all():
        return None
    # What rounding of the gradient and of the point makes of a difference over a step of 1.
    rounding = 8 * np.finfo(float).eps * scale * (abs(gradient) + abs(hessian) @ abs(x))
    difference, error = np.full(len(x), np.nan), np.full(len(x), np.inf)
    agrees, wrong = np.zeros(len(x), dtype=bool), np.array([], dtype=int)
    for step in (1e-2, 1e-1, 1e-3, 1e-4, 1e-5, 1e-6):
        steps = step * np.array([1.0, -1.0, 0.5, -0.5])
        points = x + steps[:, np.newaxis] * direction
        above, below, half_above, half_below = evaluate(points, "none").gradient
        fine = scale * (half_above - half_below) / step
        own_error = abs(fine - scale * (above - below) / (2 * step)) + rounding / step
        # A longer step may cross a kink, and be as sure of itself as one that does not.
        agrees |= _is_sure(own_error, product) & _agree(fine, product, own_error)
        better = own_error < error  # False where it is not finite
        difference, error = np.where(better, fine, difference), np.where(better, own_error, error)
        if not np.isfinite(error).all():
            continue
        wrong = np.flatnonzero(~agrees & ~_agree(difference, product, error))
        if not wrong.size and _is_sure(error, product).all():
            break
    if not np.isfinite(error).all():
        return None
    doubtful = not _agree(difference, product, error, share=_DOUBTFUL).all()
    return _Comparison(product, difference, wrong, doubtful)


def _agree(
    difference: Array, product: Array, error: Array, share: float = 0.01
) -> NDArray[np.bool_]:
    size = np.maximum(abs(difference), abs(product))
    return np.asarray(abs(difference - product) <= 20 * error + share * size + 1e-6 * size.max())


def _is_sure(error: Array, product: Array) -> NDArray[np.bool_]:
    return np.asarray(200 * error <= abs(product).max())


def difference_hessian(gradient: Callable[[Array], Array], x: Array) -> Array:
    """Hessian (d, d) at x (d,) by central differences, accurate to a few digits.

    The step in each component is a thousandth of the length that the differences themselves give
    it, found by trying.

    Parameters
    ----------
    gradient : callable
        Maps points (n, d) to gradients (n, d).
    x : array, (d,)
    """
    steps = 1e-4 * (1 + abs(x))
    below, above = np.zeros(len(x)), np.full(len(x), np.inf)  # steps too short, and too long
    here, todo = gradient(x[np.newaxis])[0], np.arange(len(x))
    rows = np.full((len(x), len(x)), np.nan)
    for _ in range(_STEP_TRIALS):
        step, shifts = steps[todo], np.diag(steps)[todo]
        right, left = np.split(gradient(np.concatenate([x + shifts, x - shifts])), 2)
        with np.errstate(all="ignore"):
            found = (right - left) / (2 * step[:, np.newaxis])
            # A component without any curvature keeps its first row: no step is good for it.
            rows[todo] = np.where(np.isnan(rows[todo]), found, rows[todo])
            # Of each component's own gradient: its change, its size, and how far it is from linear.
            kinds = np.stack([right - left, right, right + left - 2 * here])
            change, size, bend = abs(kinds[:, range(len(todo)), todo])
            length = _lengths(here[todo], found[range(len(todo)), todo])
            too_long = ~np.isfinite(found).all(axis=1) | (bend > 1e3 * change)
            too_long |= step > 0.02 * length
            too_short = ~too_long & ((change <= 1e-8 * size) | (step < 1e-6 * length))
            above[todo], below[todo] = (
                np.where(too_long, step, above[todo]),
                np.where(too_short, step, below[todo]),
            )
            steps[todo] = _next_step(1e-3 * length, step, too_long, below[todo], above[todo])
        good = ~(too_long | too_short)
        rows[todo[good]] = found[good]
        todo = todo[~good]
        if not todo.size:
            break
    return np.asarray((rows + rows.T) / 2)


def _next_step(proposal: Array, step: Array, too_long: Array, below: Array, above: Array) -> Array:
    """Return the proposal if it lies between steps known to be too short and too long."""
    middle = np.sqrt(below * above)
    known = (below > 0) & np.isfinite(above)
    other = np.where(known, middle, np.where(too_long, 1e-4, 1e4) * step)
    return np.where((below < proposal) & (proposal < above) & (proposal > 0), proposal, other)
