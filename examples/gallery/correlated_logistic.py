# %% [markdown]
# # Logistic regression with correlated predictors
#
# Two predictors carry almost the same information: the data determine the sum of their effects
# well, and the difference hardly at all. The intervals of an approximation are right only if it
# represents this correlation.

# %%
import logging

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi

logging.getLogger("pymc").setLevel(logging.ERROR)

rng = np.random.default_rng(3)
shared = rng.normal(size=250)
x = np.column_stack([shared + 0.25 * rng.normal(size=250), shared + 0.25 * rng.normal(size=250)])
y = rng.binomial(1, 1 / (1 + np.exp(-(0.3 + x @ [1.0, 0.5]))))
print("correlation of the predictors:", np.corrcoef(x.T)[0, 1].round(3))

with pm.Model(coords={"predictor": ["first", "second"]}) as model:
    intercept = pm.Normal("intercept", 0, 3)
    slope = pm.Normal("slope", 0, 3, dims="predictor")
    pm.Bernoulli("y", logit_p=intercept + x @ slope, observed=y)

# %% [markdown]
# The same model, by a Gaussian with a full covariance and by one without correlations.

# %%
with model:
    full = pm.fit(method="ngvi", random_seed=1, progressbar=False)
full.report

# %%
with model:
    diagonal = pm.fit(method="ngvi", family="meanfield", random_seed=1, progressbar=False)
diagonal.report

# %% [markdown]
# Both fits converged: each is the best Gaussian of its family. The k-hat line says which family
# is good enough. The mean-field fit gives a warning, and its ELBO is lower by about $-\tfrac12
# \log(1 - \rho^2)$ with $\rho$ the posterior correlation.
#
# NUTS, started from the full fit, is the reference.

# %% tags=["remove-stderr"]
with model:
    sampled = pm.sample(
        1000, **full.nuts_kwargs(chains=2, random_seed=1), random_seed=1, cores=1, progressbar=False
    )

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharex=True, sharey=True)
components = ("slope[predictor=first]", "slope[predictor=second]")
for ax, approx, title in zip(axes, (full, diagonal), ("fullrank", "meanfield")):
    ngvi.plots.pair(approx, components, reference=sampled, ax=ax)
    ax.set_title(title)

# %% [markdown]
# Draws of NUTS are grey; the lines contain 50, 90 and 99% of each Gaussian. The mean-field Gaussian
# lies inside the ridge: its mean is right, but its standard deviations are those of each slope
# given the other one.

# %%
for name, posterior in {
    "NUTS": sampled["posterior"],
    "fullrank": full.sample(4000, random_seed=1)["posterior"],
    "meanfield": diagonal.sample(4000, random_seed=1)["posterior"],
}.items():
    draws = posterior["slope"].stack(sample=("chain", "draw"))
    both = float(draws.sum("predictor").std())
    each = draws.std("sample").values.round(2)
    print(f"{name:<9} sd of the slopes {each}, of their sum {both:.2f}")
