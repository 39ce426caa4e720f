"""NUTS from a fit against NUTS from scratch, on a regression with correlated predictors.

Counts the gradients (leapfrog steps) of tuning and of sampling, and the effective draws they give.

    python benchmarks/warm_start.py

Rows go to benchmarks/results/warm-start-LINE.csv; what is there already is not measured again.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import arviz as az
import numpy as np
import process
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


def measure(**keywords: Any) -> process.Row:
    """Sample, and return gradients, effective draws and CPU seconds, compiling included."""
    begin = process.used()["cpu_s"]
    idata = pm.sample(
        DRAWS,
        cores=1,
        random_seed=2,
        progressbar=False,
        compute_convergence_checks=False,
        discard_tuned_samples=False,
        **keywords,
    )
    spent = process.used()["cpu_s"] - begin
    groups = ("warmup_sample_stats", "sample_stats")
    tuning, sampling = (int(idata[group]["n_steps"].sum()) for group in groups)
    ess = smallest_ess(idata)
    return {
        "tuning": tuning,
        "sampling": sampling,
        "ess": ess,
        "ess_per_1000": 1000 * ess / (tuning + sampling),
        "cpu_s": spent,
    }


def main() -> None:
    """Compare the ways to start NUTS."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    table = process.Table("warm-start", ("way",))
    with correlated_regression():
        approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
        told = {"fit_evaluations": approx.report.evaluations}
        told |= {"fit_gradients": approx.report.gradients, "pymc": pm.__version__}
        warm = "pm.sample(**approx.nuts_kwargs(chains=2))"
        scratch = {"chains": CHAINS, "tune": 1000}
        ways = {
            "pm.sample(tune=1000)": scratch,
            'pm.sample(tune=1000, init="jitter+adapt_full")': {
                **scratch,
                "init": "jitter+adapt_full",
            },
            warm: approx.nuts_kwargs(chains=CHAINS, random_seed=1),
            f"{warm[:-2]}, tune=50))": approx.nuts_kwargs(chains=CHAINS, tune=50, random_seed=1),
        }
        for way, keywords in ways.items():
            if not table.has(way=way):
                table.add({"way": way, **measure(**keywords), **told})


if __name__ == "__main__":
    main()
