# %% [markdown]
# # A hierarchy: radon in houses
#
# Houses lie in counties; some counties have few houses in the data, some many. Each county has a
# level of its own, drawn from a common distribution, so counties with few houses borrow information
# from the others. The data are made like those of the well-known radon survey: log radon, the floor
# of the measurement, and the uranium in the county's soil.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi  # makes method="ngvi" known to pm.fit

rng = np.random.default_rng(2)
houses = rng.negative_binomial(1.2, 0.08, 30) + 2
county = np.repeat(np.arange(30), houses)
uranium = rng.normal(0, 0.4, 30)
level = 1.4 + 0.7 * uranium + rng.normal(0, 0.4, 30)
floor = rng.binomial(1, 0.2, county.size)
log_radon = level[county] - 0.65 * floor + rng.normal(0, 0.75, county.size)
print(county.size, "houses;", houses.min(), "to", houses.max(), "in a county")

with pm.Model(coords={"county": np.arange(30)}) as model:
    intercept = pm.Normal("intercept", 0, 2)
    of_uranium = pm.Normal("of_uranium", 0, 1)
    of_floor = pm.Normal("of_floor", 0, 1)
    spread = pm.HalfNormal("spread", 1)
    noise = pm.HalfNormal("noise", 1)
    levels = pm.Normal("level", intercept + of_uranium * uranium, spread, dims="county")
    pm.Normal("log_radon", levels[county] + of_floor * floor, noise, observed=log_radon)

# %%
with model:
    approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
approx.report

# %% [markdown]
# Thirty-five parameters. The centred form is the right one here, since most counties have enough
# data to determine their level. With two houses per county the non-centred form would be better,
# and k-hat would show it.

# %%
idata = approx.sample(2000, random_seed=1)
posterior = idata["posterior"]
for name in ("intercept", "of_uranium", "of_floor", "spread", "noise"):
    low, high = np.quantile(posterior[name], [0.05, 0.95])
    print(f"{name:<11} {float(posterior[name].mean()):6.2f}   90% in {low:5.2f} to {high:5.2f}")

# %% [markdown]
# The picture shows partial pooling: the fewer houses a county has, the closer its level lies to the
# line that uranium predicts, and the longer its interval is.

# %%
low, middle, high = np.quantile(posterior["level"].values[0], [0.05, 0.5, 0.95], axis=0)
grid = np.linspace(uranium.min(), uranium.max(), 50)
line = float(posterior["intercept"].mean()) + float(posterior["of_uranium"].mean()) * grid
adjusted = log_radon - float(posterior["of_floor"].mean()) * floor
own = np.array([adjusted[county == j].mean() for j in range(30)])

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(grid, line, color="0.5", lw=1, label="predicted by uranium")
axes.errorbar(
    uranium, middle, yerr=[middle - low, high - middle], fmt="o", ms=4, lw=1, label="level, 90%"
)
axes.scatter(
    uranium, own, s=4 + 2 * houses, marker="x", color="black", lw=0.8, label="own mean, by size"
)
axes.set(xlabel="uranium in the soil", ylabel="log radon, basement")
axes.legend()
plt.show()

# %% [markdown]
# The draws can be used like draws of `pm.sample`, here for a posterior predictive check. This is
# the share of houses above 2 on the log scale, in the data and in data simulated from the model:

# %% tags=["remove-stderr"]
with model:
    predicted = pm.sample_posterior_predictive(
        approx.sample(500, random_seed=1), random_seed=1, progressbar=False
    )

# %%
shares = (predicted["posterior_predictive"]["log_radon"].values[0] > 2).mean(axis=1)
print(
    f"observed {np.mean(log_radon > 2):.3f}, predicted {np.quantile(shares, [0.05, 0.95]).round(3)}"
)
