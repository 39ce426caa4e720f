"""Draws of a 100-parameter posterior: this package's `sample` against PyMC's own.

Both draw from the same approximation and return the same variables. "First call" is what a user
waits for after a fit, compiling included; "later calls" reuse what was compiled.

    python benchmarks/sampling.py [draws]
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
from pymc.variational.opvi import Approximation

from pymc_ngvi.core.families import FullGaussian
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.results.approximation import create_approximation


def varying_intercepts() -> pm.Model:
    """Build a regression with intercepts for 90 groups: 100 parameters in five variables."""
    rng = np.random.default_rng(1)
    groups, predictors, rows = 90, 7, 500
    group = rng.integers(groups, size=rows)
    coords = {"group": range(groups), "predictor": range(predictors)}
    with pm.Model(coords=coords) as model:
        level = pm.Normal("level", 0, 5)
        spread = pm.HalfNormal("spread", 1)
        offset = pm.Normal("offset", 0, 1, dims="group")
        intercept = pm.Deterministic("intercept", level + spread * offset, dims="group")
        slope = pm.Normal("slope", 0, 1, dims="predictor")
        noise = pm.HalfNormal("noise", 1)
        mean = intercept[group] + rng.normal(size=(rows, predictors)) @ slope
        pm.Normal("y", mean, noise, observed=rng.normal(size=rows))
    return model


def many_variables() -> pm.Model:
    """Build a hundred scalar variables, half of them positive, and their sum."""
    with pm.Model() as model:
        variables = [pm.HalfNormal(f"x{i}") if i % 2 else pm.Normal(f"x{i}") for i in range(100)]
        pm.Deterministic("total", sum(variables))
    return model


def some_gaussian(dim: int) -> FullGaussian:
    """Correlated Gaussian of posterior-like scale."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    covariance = 0.1 * (root @ root.T + np.eye(dim))
    return FullGaussian.from_mean_covariance(rng.normal(0, 0.1, dim), covariance)


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(name: str, model: pm.Model, draws: int) -> None:
    """Time both routes on one approximation and print a table."""
    layout = Layout(model, model.initial_point())
    approx = create_approximation(model, some_gaussian(layout.dim), layout=layout)

    def ours() -> object:
        return approx.sample(draws, random_seed=1)

    def pymc() -> object:
        return Approximation.sample(approx, draws, random_seed=1)

    first = seconds(pymc), seconds(ours)
    later = min(seconds(pymc) for _ in range(3)), min(seconds(ours) for _ in range(3))
    print(f"\n{name}: {layout.dim} parameters, {draws} draws")
    print(f"{'':14}{'PyMC':>10}{'pymc_ngvi':>12}{'ratio':>8}")
    for label, (theirs, mine) in (("first call", first), ("later calls", later)):
        print(f"{label:14}{theirs:9.3f}s{mine:11.3f}s{theirs / mine:8.1f}")


def main() -> None:
    """Run both models."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(
        f"Python {platform.python_version()}, PyMC {pm.__version__}, "
        f"PyTensor {pytensor.__version__}, NumPy {np.__version__}"
    )
    compare("varying intercepts", varying_intercepts(), draws)
    compare("many variables", many_variables(), draws)


if __name__ == "__main__":
    main()
