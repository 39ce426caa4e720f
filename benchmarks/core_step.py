"""Cost of one full-covariance step, relative to the linear algebra that it needs at least.

The yardstick is one Cholesky factorisation plus one triangular solve with a d x d right-hand side.
It is timed in the same run, in turn with the step, in CPU seconds of one thread, so that other load
on the machine affects both alike. The target costs nothing: its derivatives are computed
beforehand.

Run with `make bench`, or `python benchmarks/core_step.py --dims 100 300`. Rows go to
benchmarks/results/core-step-LINE.csv, and the new ones take the place of the old.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
import scipy
import scipy.linalg
from process import Table
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
    """CPU time of one call, in seconds."""
    begin = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - begin) / repeats


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
    """Measure, and show what is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--samples", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    table = Table("core-step", ("dim", "samples", "guard"))
    table.path.unlink(missing_ok=True)
    versions = f"NumPy {np.__version__}, SciPy {scipy.__version__}"
    cases = itertools.product(arguments.dims, arguments.samples, (False, True))
    with threadpool_limits(1):
        for dim, n, guarded in cases:
            yard, stepped = measure(dim, n, guarded=guarded, rounds=arguments.rounds)
            table.add(
                {
                    "dim": dim,
                    "samples": n,
                    "guard": "acts" if guarded else "idle",
                    "yardstick_ms": 1e3 * yard,
                    "step_ms": 1e3 * stepped,
                    "ratio": stepped / yard,
                    "versions": versions,
                }
            )


if __name__ == "__main__":
    main()
