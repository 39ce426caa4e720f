r"""Standard normal draws that integrate polynomials exactly.

The noise of an estimate arises because the moments of the draws are not exactly those of the
standard normal: on a nearly Gaussian target almost all of it comes from the second moments. Draws
are therefore made as m antithetic pairs whose second moments are exact,

.. math:: z_{1 \ldots m} = \sqrt{m}\, U, \qquad z_{m+1 \ldots 2m} = -\sqrt{m}\, U,

with U uniform among the m x d matrices of orthonormal columns. All moments up to the third are then
exact. The fourth are too small by the factor m / (m + 2), whatever d; two such sets, scaled by
:math:`\sqrt{1 \pm \sqrt{2/m}}`, correct this: together their moments up to the third are exact, and
those up to the fifth are right on average. Draws made in this way are called balanced.

Higher moments remain. Large sets start from scrambled Sobol points instead of independent normal
ones, which helps where a few directions matter and the target is far from Gaussian in them. Their
fourth moments are too small by less, and the scales follow from the measured shortfall.

A few draws in many dimensions cannot have exact second moments. They are as far apart as possible
instead: orthogonal, and of length sqrt(d), which leaves their fourth moments too small by the
factor d / (d + 2). From `MANY_DIMENSIONS` on they have the second moments of each coordinate
instead, as draws in one dimension would: there each part of a log density depends on few
coordinates, and the noise of functions of one coordinate falls by far the most.

Several independent sets of draws, the replicates, show by their scatter how large the noise is.
"""

from __future__ import annotations

import numpy as np
import scipy

from pymc_ngvi.core.linalg import Array

#: Fewest pairs in a balanced half: with fewer, the scales of the two halves are far apart.
FEWEST_PAIRS = 4
#: Sobol points are used for at least this many pairs (fewer are no more regular than independent
#: points), in at most this many dimensions (in more, they are no more regular either).
SOBOL_PAIRS, SOBOL_DIMENSIONS = 32, 100
#: From so many dimensions on, few rows have exact moments in each coordinate instead of being
#: orthogonal.
MANY_DIMENSIONS = 1000


def orthogonal(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw antithetic pairs (2 pairs, d) with the second moments of the standard normal.

    Fewer pairs than dimensions cannot have these moments: they are orthogonal, of length sqrt(d),
    or have those of each coordinate.
    """
    if _coordinatewise(pairs, dim):
        half = _stratified(pairs, dim, rng)
        half /= np.sqrt(np.square(half).mean(axis=0 if pairs > 1 else 1, keepdims=True))
    else:
        left, _, right = np.linalg.svd(_normal(pairs, dim, rng), full_matrices=False)
        half = np.sqrt(max(pairs, dim)) * (left @ right)  # it is uniform as well
    return np.concatenate([half, -half])


def _coordinatewise(pairs: int, dim: int) -> bool:
    """Whether so few pairs have exact second moments in each coordinate."""
    return dim >= MANY_DIMENSIONS and pairs < dim


def _stratified(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw (m, d) numbers; in each coordinate one is from each m-th part of absolute values."""
    parts = rng.permuted(np.tile(np.arange(pairs)[:, np.newaxis], dim), axis=0)
    shares = (parts + rng.random(parts.shape)) / pairs
    signs = 1 - 2 * rng.integers(2, size=shares.shape)
    return np.asarray(signs * scipy.special.ndtri((1 + shares) / 2))


def _normal(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    if not _uses_sobol(pairs, dim):
        return rng.standard_normal((pairs, dim))
    points = scipy.stats.qmc.Sobol(dim, rng=rng).random_base2((pairs - 1).bit_length())[:pairs]
    return np.asarray(scipy.special.ndtri(np.clip(points, 1e-12, 1 - 1e-12)))


def _uses_sobol(pairs: int, dim: int) -> bool:
    return pairs >= max(SOBOL_PAIRS, 2 * dim) and dim <= SOBOL_DIMENSIONS


def balanced(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw two orthogonal sets (4 pairs, d), scaled so that fourth moments are right on average.

    The antithetic partner of a row is half the number of rows further on.
    """
    halves = [orthogonal(pairs, dim, rng)[:pairs] for _ in range(2)]
    spread = 2 / max(pairs, dim)
    larger: Array = np.ones(1)
    if _coordinatewise(pairs, dim):
        spread = max(0.0, 3 / float(np.mean(np.power(halves, 4))) - 1)
        larger = np.asarray(1.0 - 2 * rng.integers(2, size=dim), float)  # one in each coordinate
    elif _uses_sobol(pairs, dim):  # their shortfall is smaller, and is measured
        radii = np.mean([np.square(np.square(half).sum(axis=1)).mean() for half in halves])
        spread = max(0.0, dim * (dim + 2) / float(radii) - 1)
    first, second = (
        np.sqrt(1 + sign * np.sqrt(spread)) * half
        for sign, half in zip((larger, -larger), halves, strict=True)
    )
    half = np.concatenate([first, second])
    return np.concatenate([half, -half])


def replicates(n: int, dim: int, rng: np.random.Generator) -> list[Array]:
    """Draw about n rows as independent replicates of equal size, whose scatter shows their noise.

    The size is rounded up to whole replicates; see :func:`replicate_size`.
    """
    count, pairs, is_balanced = replicate_size(n, dim)
    draw = balanced if is_balanced else orthogonal
    return [draw(pairs, dim, rng) for _ in range(count)]


def replicate_size(n: int, dim: int) -> tuple[int, int, bool]:
    """Return the number of replicates, the pairs in a set, and whether replicates are balanced.

    Sets with enough pairs have exact second moments: 8 replicates where they are large, 4 or 2
    where n is just enough for that, or half of it: exact second moments are worth the other half.
    Fewer draws make 4 replicates, down to a pair each. In many dimensions, where the moments of
    each coordinate are exact, the smallest are 2 replicates of 2 pairs.
    """
    if dim >= MANY_DIMENSIONS and n < 8 * dim:
        if n <= 8:
            return 2, 2, False
        # A set's noise hardly falls as it grows, and what it misses of higher moments does.
        pairs = 2 ** ((max(n // 16, 1).bit_length() + 1) // 2)
        return max(-(-n // (4 * pairs)), 2), pairs, True
    least = max(dim, FEWEST_PAIRS)
    if n >= 32 * max(least, 2 * SOBOL_PAIRS):
        count = 8
    # With few components, the scatter of two replicates says too little.
    elif n >= 16 * least or (dim < 2 * FEWEST_PAIRS and n >= 64):
        count = 4
    elif dim <= FEWEST_PAIRS and n <= 4 * FEWEST_PAIRS:
        # One pair in one dimension would always be the same.
        return 2, FEWEST_PAIRS, False
    elif 16 * -(-n // 16) >= 4 * dim:
        count = 2
    elif n <= 8:
        return 4, 1, False
    else:
        return 4, -(-n // 16), True
    return count, max(-(-n // (4 * count)), least), True


def exact_size(dim: int) -> int:
    """Return the fewest rows that :func:`replicates` gives with exact second moments."""
    if dim >= MANY_DIMENSIONS:
        return 8
    return 4 * FEWEST_PAIRS if dim <= FEWEST_PAIRS else 8 * dim


def is_balanced(n: int, dim: int) -> bool:
    """Return whether fourth moments of the rows that :func:`replicates` gives are right on average.

    The scatter of replicates does not show where they are not. With few pairs in many dimensions
    it is much larger than what they miss.
    """
    return replicate_size(n, dim)[2] or FEWEST_PAIRS < dim < MANY_DIMENSIONS


def rounded_size(n: int, dim: int) -> int:
    """Return the number of rows :func:`replicates` gives when asked for n."""
    count, pairs, is_balanced = replicate_size(n, dim)
    return count * pairs * (4 if is_balanced else 2)
