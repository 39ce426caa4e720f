"""Cost of one full-covariance step, relative to the linear algebra that it needs at least.

The yardstick is one Cholesky factorisation plus one triangular solve with a d x d right-hand side.
It is timed in the same run, in turn with the step, so that other load on the machine affects both
alike. The target costs nothing: its derivatives are computed beforehand.

Run with `make bench`, or `python benchmarks/core_step.py --dims 100 300`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy
import scipy.linalg
from threadpoolctl import threadpool_limits

from pymc_ngvi.core.algorithm import init, step
from pymc_ngvi.core.estimators import BonnetPrice
from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.core.guards import lin
from pymc_ngvi.core.projections import Identity
from pymc_ngvi.core.target import Evaluation, Target


class FreeTarget(Target):
    """A target whose evaluations are prepared beforehand."""

    def __init__(self, dim: int, n: int, hessian: np.ndarray) -> None:
        self.dim = dim
        self.prepared = Evaluation(np.zeros(n), np.zeros((n, dim)), np.stack([hessian] * n))

    def log_density(self, draws: np.ndarray) -> np.ndarray:
        """Zeros."""
        return self.prepared.log_density

    def evaluate(self, draws: np.ndarray, curvature: str) -> Evaluation:
        """Return the prepared values, for as many draws as asked for."""
        n = len(draws)
        whole = self.prepared
        return Evaluation(whole.log_density[:n], whole.gradient[:n], whole.hessian[:n])


def seconds(function, repeats: int) -> float:
    """Time of one call, in seconds."""
    begin = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - begin) / repeats


def measure(dim: int, n_samples: int, *, guarded: bool, rounds: int) -> tuple[float, float]:
    """Median times of the yardstick and of the step, in seconds."""
    rng = np.random.default_rng(1)
    root = rng.standard_normal((dim, dim))
    precision = root @ root.T / dim + np.eye(dim)
    q = FullGaussian.from_mean_precision(np.zeros(dim), precision)
    hessian = precision.copy() if guarded else -precision  # the wrong sign makes the guard act
    target = FreeTarget(dim, n_samples, hessian)
    state, estimator, projection = init(q), BonnetPrice(), Identity()

    def yardstick() -> None:
        factor = scipy.linalg.cholesky(precision, lower=True)
        scipy.linalg.solve_triangular(factor, root, lower=True)

    def one_step() -> None:
        step(
            state,
            rng,
            target=target,
            estimator=estimator,
            guard=lin,
            projection=projection,
            step_size=0.9,
            n_samples=n_samples,
        )

    repeats = max(1, int(0.05 / seconds(yardstick, 3)))
    pairs = [(seconds(yardstick, repeats), seconds(one_step, repeats)) for _ in range(rounds)]
    ratios = [stepped / yard for yard, stepped in pairs]
    return pairs[int(np.argsort(ratios)[rounds // 2])]


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--samples", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"numpy {np.__version__}, scipy {scipy.__version__}, one thread, median of rounds")
    print(f"{'d':>5} {'N':>4} {'guard':>7} {'yardstick ms':>13} {'step ms':>9} {'ratio':>6}")
    with threadpool_limits(1):
        for dim in arguments.dims:
            for n in arguments.samples:
                for guarded in (False, True):
                    yard, stepped = measure(dim, n, guarded=guarded, rounds=arguments.rounds)
                    print(
                        f"{dim:>5} {n:>4} {'acts' if guarded else 'idle':>7} "
                        f"{1e3 * yard:>13.3f} {1e3 * stepped:>9.3f} {stepped / yard:>6.2f}"
                    )


if __name__ == "__main__":
    main()
