r"""Standard normal draws that integrate polynomials exactly.

The noise of an estimate comes from the draws not being quite standard normal: on a target that is
nearly Gaussian, almost all of it from their second moments. A block of draws is therefore made of
antithetic pairs whose second moments are exactly those of the standard normal,

.. math:: z_{1 \ldots m} = \sqrt{m}\, U, \qquad z_{m+1 \ldots 2m} = -\sqrt{m}\, U,

with U uniform among the m x d matrices of orthonormal columns. All moments up to the third are then
exact. The fourth fall short by the factor m / (m + 2), whatever d; two blocks scaled by
:math:`\sqrt{1 \pm \sqrt{2/m}}` make up for it. In such a pair of blocks the moments up to the third
are exact, and those up to the fifth right on average.

What is left are higher moments. Large blocks start from scrambled Sobol points instead of
independent normal ones, which helps where a few directions matter and the target is far from
Gaussian in them; the two are scaled by what the fourth power of their radii falls short by.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_ngvi.core.linalg import Array

#: Fewest pairs in a block.
FEWEST_PAIRS = 4
#: Sobol points are used for blocks of at least so many pairs, in at most so many dimensions.
SOBOL_PAIRS, SOBOL_DIMENSIONS = 32, 100


def block(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw antithetic pairs (2 pairs, d) with the second moments of the standard normal.

    Fewer pairs than dimensions cannot have them: they are orthogonal, and all of length sqrt(d).
    """
    normal = _normal(pairs, dim, rng)
    left, _, right = np.linalg.svd(normal, full_matrices=False)
    half = np.sqrt(max(pairs, dim)) * left @ right  # the nearest such matrix, uniform as well
    return np.concatenate([half, -half])


def _normal(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    if not _is_regular(pairs, dim):
        return rng.standard_normal((pairs, dim))
    points = qmc.Sobol(dim, rng=rng).random_base2((pairs - 1).bit_length())[:pairs]
    return np.asarray(ndtri(np.clip(points, 1e-12, 1 - 1e-12)))


def _is_regular(pairs: int, dim: int) -> bool:
    """Whether Sobol points are taken."""
    return pairs >= max(SOBOL_PAIRS, 2 * dim) and dim <= SOBOL_DIMENSIONS


def balanced(pairs: int, dim: int, rng: np.random.Generator) -> Array:
    """Draw two blocks (4 pairs, d) scaled so that fourth moments are right on average.

    The antithetic partner of a row is half the number of rows further on.
    """
    halves = [block(pairs, dim, rng)[:pairs] for _ in range(2)]
    spread = 2 / pairs
    if _is_regular(pairs, dim):  # Sobol points fall short by less: by how much is seen in them
        radii = np.mean([np.square(np.square(half).sum(axis=1)).mean() for half in halves])
        spread = max(0.0, dim * (dim + 2) / float(radii) - 1)
    larger, smaller = (
        np.sqrt(1 + sign * np.sqrt(spread)) * half
        for sign, half in zip((1, -1), halves, strict=True)
    )
    half = np.concatenate([larger, smaller])
    return np.concatenate([half, -half])


def replicates(n: int, dim: int, rng: np.random.Generator) -> list[Array]:
    """Draw about n rows as independent batches of equal size, whose scatter tells their noise.

    There are 4 batches where that leaves each enough pairs to be balanced, 8 where the blocks are
    large, else 2. The size is rounded up to whole batches; see :func:`replicate_size`.
    """
    count, pairs, is_balanced = replicate_size(n, dim)
    draw = balanced if is_balanced else block
    return [draw(pairs, dim, rng) for _ in range(count)]


def replicate_size(n: int, dim: int) -> tuple[int, int, bool]:
    """Return the number of batches, the pairs in a block, and whether batches are balanced."""
    least = max(dim, FEWEST_PAIRS)
    if n >= 32 * max(least, 2 * SOBOL_PAIRS):
        count = 8
    # The scatter of two batches says little of a few components.
    elif n >= 16 * least or (dim < 2 * FEWEST_PAIRS and n >= 64):
        count = 4
    elif n >= 8 * least:
        count = 2
    else:
        return 2, -(-n // 4), False
    return count, max(-(-n // (4 * count)), least), True


def rounded_size(n: int, dim: int) -> int:
    """Return the number of rows :func:`replicates` gives when asked for n."""
    count, pairs, is_balanced = replicate_size(n, dim)
    return count * pairs * (4 if is_balanced else 2)
