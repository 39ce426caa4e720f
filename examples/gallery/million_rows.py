# %% [markdown]
# # A million rows, in batches
#
# A model of a million rows takes a good part of a second for each evaluation, and a fit takes tens
# to hundreds of them. With `pm.Minibatch` an evaluation sees a few rows only, and the whole fit
# reads the data two or three times.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi

rng = np.random.default_rng(7)
n_rows, slopes = 1_000_000, np.linspace(-1, 1, 10)
x = rng.standard_normal((n_rows, 10))
x[:, 1:] += 0.5 * rng.standard_normal((n_rows, 1))
y = rng.binomial(1, 1 / (1 + np.exp(-x @ slopes))).astype("int32")

# %% [markdown]
# `total_size` tells PyMC how many rows there are in all. Without it the posterior would be that of
# 1,000 rows; PyMC does not warn of this, `pymc_ngvi` does. Integers must be `int32`.

# %%
with pm.Model() as model:
    x_batch, y_batch = pm.Minibatch(x, y, batch_size=1000)
    slope = pm.Normal("slope", 0, 5, shape=10)
    pm.Bernoulli("y", logit_p=x_batch @ slope, observed=y_batch, total_size=n_rows)
    begin = time.perf_counter()
    approx = pm.fit(method="ngvi", random_seed=1, progressbar=False)
print(f"{time.perf_counter() - begin:.0f} s in all")
approx.report

# %% [markdown]
# The line `data` says what was read. Two passes were for **anchors**: the gradient and Hessian of
# all the data at one point. The batches then estimate only the difference from the second-order
# expansion at that point. It is so small that a fit of batches is as accurate as one of all the
# data. The means should be close to the mode of the posterior, found by Newton's method on all the
# data:

# %%
mode = np.zeros(10)
for _ in range(8):
    probability = 1 / (1 + np.exp(-x @ mode))
    precision = x.T @ (x * (probability * (1 - probability))[:, np.newaxis]) + np.eye(10) / 25
    mode += np.linalg.solve(precision, x.T @ (y - probability) - mode / 25)
errors = (approx.gaussian.mean - mode) * np.sqrt(precision.diagonal())
print(f"largest error of a mean: {abs(errors).max():.4f} standard deviations")
ratio = np.sqrt(approx.gaussian.variance / np.diag(np.linalg.inv(precision)))
print(f"standard deviations: {ratio.min():.4f} to {ratio.max():.4f} of the Laplace approximation's")

# %% [markdown]
# ## What plain batches do
#
# This fit reads the same number of rows without anchors, with the decreasing steps of the paper.
# The verdict is computed from all the data, so it detects the error and warns:

# %%
reads = 100
with model:
    plain = pm.fit(
        reads,
        method="ngvi",
        n_samples=25,
        random_seed=1,
        progressbar=False,
    )
errors = {
    "plain batches": plain.gaussian.mean - mode,
    "control variates": approx.gaussian.mean - mode,
}
fig, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for label, error in errors.items():
    axis.plot(error * np.sqrt(precision.diagonal()), "o", label=label)
axis.axhspan(-1, 1, alpha=0.1)
axis.set(xlabel="slope", ylabel="error, in posterior\nstandard deviations", xticks=range(10))
axis.legend()
print(
    f"{plain.report.passes:.2f} passes for plain batches, {approx.report.passes:.2f} with anchors"
)

# %% [markdown]
# The band is one standard deviation. Plain batches are right on average, but a few passes leave
# errors of the size of the posterior itself.
#
# ## Data on disk
#
# Arrays that do not fit in memory are read by a `Loader`, which feeds the model's data containers:
# see [Data in batches](../minibatches.md).

# %%
with pm.Model() as loaded:
    x_rows, y_rows = pm.Data("x", x[:2]), pm.Data("y", y[:2])
    slope = pm.Normal("slope", 0, 5, shape=10)
    pm.Bernoulli("outcome", logit_p=x_rows @ slope, observed=y_rows, total_size=n_rows)
    same = pm.fit(
        method="ngvi",
        loader=ngvi.Loader({"x": x, "y": y}, batch_size=1000),
        random_seed=1,
        progressbar=False,
    )
print(f"divergence of the two fits: {same.gaussian.kl(approx.gaussian):.1e} nats")
