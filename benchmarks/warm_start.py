"""NUTS from a fit against NUTS from scratch, on a regression with correlated predictors.

Counts the gradients (leapfrog steps) of tuning and of sampling, and the effective draws they give.

    python benchmarks/warm_start.py
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

import pymc_ngvi  # noqa: F401 - importing it is what makes method="ngvi" work

CHAINS, DRAWS = 2, 500


def correlated_regression() -> pm.Model:
    """Build a regression on eight predictors that correlate at 0.99 and are far from zero."""
    rng = np.random.default_rng(5)
    root = np.linalg.cholesky(np.full((8, 8), 0.99) + 0.01 * np.eye(8))
    X = rng.normal(size=(200, 8)) @ root.T + 5
    y = X @ np.linspace(-1, 1, 8) + rng.normal(size=200)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 10)
        slopes = pm.Normal("slopes", 0, 5, shape=8)
        noise = pm.HalfNormal("noise", 2)
        pm.Normal("y", intercept + X @ slopes, noise, observed=y)
    return model


def smallest_ess(idata: Any) -> float:
    """Smallest effective sample size of all components."""
    summary = az.summary(idata, kind="diagnostics", round_to="none")
    return float(summary["ess_bulk"].astype(float).min())


def measure(label: str, **keywords: Any) -> None:
    """Sample, and print gradients, effective draws and seconds."""
    begin = time.perf_counter()
    idata = pm.sample(
        DRAWS,
        cores=1,
        random_seed=2,
        progressbar=False,
        compute_convergence_checks=False,
        discard_tuned_samples=False,
        **keywords,
    )
    seconds = time.perf_counter() - begin
    groups = ("warmup_sample_stats", "sample_stats")
    tuning, sampling = (int(idata[group]["n_steps"].sum()) for group in groups)
    ess = smallest_ess(idata)
    print(
        f"{label:<28} {tuning:>8} {sampling:>8} {ess:>6.0f} "
        f"{1000 * ess / (tuning + sampling):>9.2f} {seconds:>8.1f}"
    )


def main() -> None:
    """Compare the ways to start NUTS."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with correlated_regression():
        approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
        print(f"fit: {approx.report.evaluations} evaluations, {approx.report.fit_seconds:.2f} s")
        print(f"{'':28} gradients of        ESS  ESS/1000   seconds")
        print(f"{'':28}   tuning sampling        gradients")
        measure("default, tune=1000", chains=CHAINS, tune=1000)
        measure("adapt_full, tune=1000", chains=CHAINS, tune=1000, init="jitter+adapt_full")
        for tune in (200, 50):
            measure(
                f"nuts_kwargs(), tune={tune}",
                **approx.nuts_kwargs(chains=CHAINS, tune=tune, random_seed=1),
            )


if __name__ == "__main__":
    main()
