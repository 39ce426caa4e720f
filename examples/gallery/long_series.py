# %% [markdown]
# # A long series: 10,000 latent values
#
# Counts of every hour, for more than a year, whose log rate wanders as a random walk. Each hour has
# a latent value of its own, and all of them share one scale: 10,001 parameters. Neighbours depend
# on each other, and distant hours only through those between them, so the precision of the
# posterior has entries next to its diagonal and in the row of the scale, and nowhere else.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_ngvi  # makes method="ngvi" known to pm.fit

hours = 10_000
rng = np.random.default_rng(4)
walk = 1.0 + 0.05 * np.cumsum(rng.normal(size=hours))
log_rate = 2 * np.tanh(walk / 2)  # keeps the counts in bounds
counts = rng.poisson(np.exp(log_rate))

with pm.Model() as model:
    sd = pm.HalfNormal("sd", 0.5)
    level = pm.GaussianRandomWalk(
        "level", mu=0, sigma=sd, init_dist=pm.Normal.dist(0, 2), shape=hours
    )
    pm.Poisson("count", pt.exp(level), observed=counts)

# %%
with model:
    approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
report = approx.report
print(report.family_reason)
print(report.status, "after", report.evaluations, "evaluations with Hessians")

# %% [markdown]
# The family is `"sparse"`, chosen by itself: a full covariance, kept as the few entries of the
# precision that differ from zero. Means and standard deviations of all hours come without draws.

# %%
mean, deviation = approx.mean.eval(), approx.std.eval()
at = approx.ordering["level"][1]
middle, width = mean[at], 2 * deviation[at]

figure, axes = plt.subplots(2, figsize=(9, 6), layout="constrained")
for axis, shown in zip(axes, (slice(None), slice(4_000, 4_500)), strict=True):
    hour = np.arange(hours)[shown]
    axis.fill_between(hour, (middle - width)[shown], (middle + width)[shown], alpha=0.4)
    axis.plot(hour, middle[shown], linewidth=1, label="mean, and two standard deviations")
    axis.plot(hour, log_rate[shown], "k", linewidth=0.6, label="truth")
    axis.set(xlabel="hour", ylabel="log rate")
_ = axes[0].legend()

# %%
within = np.mean(np.abs(log_rate - middle) < width)
print(f"{within:.1%} of the true values lie within two standard deviations")

# %% [markdown]
# One number deserves care: the scale. A Gaussian that holds 10,000 hours and their scale together
# knows the scale given the hours, and its standard deviation is smaller than that of the marginal
# posterior. The report sees that, by a large k-hat: read the curve, and not the width of the scale.

# %%
print(f"k-hat {report.khat:.2f}")
