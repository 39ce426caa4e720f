# %% [markdown]
# # Comparing three regressions of counts
#
# Counts of visits, with more zeros and a longer tail than a Poisson regression expects. Three
# models of the same data are fitted, and ranked by how well each predicts observations that it has
# not seen.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi

rng = np.random.default_rng(11)
distance = rng.uniform(0, 3, 250)
rate = np.exp(1.2 - 0.5 * distance)
visits = rng.negative_binomial(1.5, 1.5 / (1.5 + rate))
print(
    "mean", visits.mean().round(2), "variance", visits.var().round(2), "zeros", (visits == 0).sum()
)

# %% [markdown]
# The Poisson model has one rate for all houses at the same distance. The second allows some houses
# to have no visits at all. The third allows rates to differ from house to house.


# %% tags=["remove-stderr"]
def build(kind):
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        slope = pm.Normal("slope", 0, 1)
        mean = pm.math.exp(intercept + slope * distance)
        if kind == "Poisson":
            pm.Poisson("visits", mean, observed=visits)
        elif kind == "zero-inflated Poisson":
            share = pm.Beta("share", 2, 2)
            pm.ZeroInflatedPoisson("visits", share, mean, observed=visits)
        else:
            shape = pm.Gamma("shape", 2, 1)
            pm.NegativeBinomial("visits", mu=mean, alpha=shape, observed=visits)
    return model


fits = {}
for kind in ("Poisson", "zero-inflated Poisson", "negative binomial"):
    with build(kind):
        fits[kind] = pm.fit(method="ngvi", random_seed=1, progressbar=False)
    print(f"{kind:<24} k-hat {fits[kind].report.verdict}")

# %% [markdown]
# Always look at k-hat before comparing: if fits are not close to their posteriors, the comparison
# is one of approximations, not of models.

# %%
table = ngvi.compare(fits, random_seed=1)
table[["rank", "elpd_diff", "dse", "weight", "khat", "effective", "elbo"]].round(2)

# %% [markdown]
# `elpd_diff` is the loss in log predictive density against the best model, and `dse` its standard
# error. The negative binomial, from which the data came, is ahead of the Poisson by many standard
# errors. The ELBO, a lower bound of the log evidence, gives the same order.
#
# Which observations make the Poisson model worse? The pointwise values show it.


# %%
def pointwise(approx):
    elpd = ngvi.loo(approx, random_seed=1)
    return np.ravel(elpd.elpd_i if hasattr(elpd, "elpd_i") else elpd.loo_i)  # ArviZ 1, ArviZ 0


gain = pointwise(fits["negative binomial"]) - pointwise(fits["Poisson"])
figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
axes.axhline(0, color="0.6", lw=1)
axes.plot(visits + rng.uniform(-0.15, 0.15, visits.size), gain, ".", alpha=0.6)
axes.set(xlabel="visits", ylabel="gain over the Poisson, nats")
plt.show()

# %% [markdown]
# The gain is at both ends: a little at each of the many zeros, and a lot at each of the few large
# counts. In between the Poisson model is slightly better.
