# %% [markdown]
# # Starting NUTS from a fit
#
# NUTS spends most of its work on two questions: where the posterior is, and what shape it has. A
# fit answers both in a fraction of a second. `approx.nuts_kwargs()` passes the answers to NUTS:
# starting points for the chains, and the covariance as their metric. NUTS samples the posterior
# itself, so its draws are exact even where the fit is not.

# %%
import logging

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_ngvi as ngvi

logging.getLogger("pymc").setLevel(logging.ERROR)

rng = np.random.default_rng(5)
root = np.linalg.cholesky(np.full((4, 4), 0.95) + 0.05 * np.eye(4))
x = rng.normal(size=(200, 4)) @ root.T + 5
y = x @ [-1.0, -0.5, 0.5, 1.0] + rng.normal(size=200)

with pm.Model() as model:
    intercept = pm.Normal("intercept", 0, 10)
    slopes = pm.Normal("slopes", 0, 5, shape=4)
    noise = pm.HalfNormal("noise", 2)
    pm.Normal("y", intercept + x @ slopes, noise, observed=y)
    approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
approx.report

# %% [markdown]
# The predictors correlate at 0.95 and are far from zero. NUTS at its defaults adapts a diagonal
# metric, which cannot represent the correlations, so it needs long trajectories.

# %% tags=["remove-stderr"]
options = dict(
    draws=300, cores=1, random_seed=2, progressbar=False, discard_tuned_samples=False, model=model
)
runs = {
    "pm.sample()": pm.sample(chains=2, tune=500, **options),
    "pm.sample(**approx.nuts_kwargs())": pm.sample(
        **approx.nuts_kwargs(chains=2, tune=100, random_seed=1), **options
    ),
}

# %%
rows = {}
for name, idata in runs.items():
    summary = az.summary(idata, kind="diagnostics", round_to="none")
    rows[name] = {
        "gradients while tuning": int(idata["warmup_sample_stats"]["n_steps"].sum()),
        "gradients while sampling": int(idata["sample_stats"]["n_steps"].sum()),
        "smallest ESS": float(summary["ess_bulk"].astype(float).min()),
    }
pd.DataFrame(rows).T.round(0).astype(int)

# %% [markdown]
# Compare the number of gradients for each effective draw. The fit itself is not free, but its cost
# is in the report above: a few hundred evaluations. `benchmarks/warm_start.py` measures the same on
# a harder example.
#
# Means and standard deviations agree, as they must. They also check the fit:

# %%
ngvi.plots.marginals(approx, reference=runs["pm.sample(**approx.nuts_kwargs())"])
plt.show()
