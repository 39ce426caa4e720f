"""Whether the derivatives that an estimator uses can be used, and which estimator does without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_ngvi.core.estimators import BonnetPrice, Score, Stein
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.smoothness import try_identities
from pymc_ngvi.core.target import Target
from pymc_ngvi.engine.settings import Settings


@dataclass(frozen=True)
class Finding:
    """Derivatives that an estimator uses and that mislead it.

    Attributes
    ----------
    operations : tuple of str
        The operations that may be the cause.
    derivatives : int
        How many derivatives can be used: 1 at kinks, 0 at jumps.
    """

    operations: tuple[str, ...]
    derivatives: int

    def __str__(self) -> str:
        causes = "; ".join(self.operations)
        if self.derivatives == 1:
            return f"the log density has kinks ({causes}), whose curvature its Hessian misses"
        return f"the log density has jumps ({causes}), which its gradient does not see"

    @property
    def replacement(self) -> type[Stein | Score]:
        """The estimator that does without the derivatives that mislead."""
        return Stein if self.derivatives == 1 else Score


def examine(
    target: Target,
    estimator: object,
    q: Gaussian,
    rng: np.random.Generator,
    settings: Settings,
    most: int,
) -> tuple[Finding | None, int]:
    """Look for kinks and jumps among draws from q that mislead the estimator.

    A target without operations that have kinks costs nothing, and one whose operations do not
    switch sides among the draws hardly more.

    Parameters
    ----------
    target : Target
    estimator : object
        An estimator that is not known is not judged.
    q : Gaussian
    rng : numpy.random.Generator
    settings : Settings
    most : int
        Most draws to evaluate.

    Returns
    -------
    finding : Finding or None
        None where nothing was found.
    evaluations : int
        Evaluations of the target spent.
    """
    if not isinstance(estimator, BonnetPrice | Stein) or not target.may_have_kinks:
        return None, 0
    operations = tuple(target.kinks(q.sample(settings.examined_draws, rng)))
    n, spent, suspected = settings.examined_draws, 0, 2
    while operations and spent + n <= most:
        hessians = isinstance(estimator, BonnetPrice)
        smoothness = try_identities(target, q, n, rng, hessians=hessians)
        spent += n
        if smoothness is None:
            break
        # A few draws of something skewed may lack its tail, and agree on what is wrong; those near
        # a kink may all lie on one side of it, which looks like a jump.
        enough = smoothness.derivatives == 1 or n > settings.examined_draws
        if smoothness.derivatives < 2 and suspected < 2 and enough:
            return Finding(operations, smoothness.derivatives), spent
        if smoothness.derivatives == 2 and not smoothness.is_open:
            break
        if smoothness.derivatives != 1:
            n *= settings.examined_growth
        suspected = smoothness.derivatives
    return None, spent
