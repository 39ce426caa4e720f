# %% [markdown]
# # Callbacks and early stopping
#
# PyMC's callbacks work as they do with ADVI: a function of the approximation, the losses so far and
# the iteration. It may print or record values, or stop the fit by raising `StopIteration`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from pymc.variational.callbacks import Tracker

import pymc_ngvi as ngvi

rng = np.random.default_rng(6)
x = rng.normal(size=(120, 2))
y = rng.poisson(np.exp(0.5 + x @ [0.6, -0.3]))

with pm.Model() as model:
    intercept = pm.Normal("intercept", 0, 2)
    slope = pm.Normal("slope", 0, 1, shape=2)
    pm.Poisson("y", pm.math.exp(intercept + x @ slope), observed=y)

# %% [markdown]
# ## Watching
#
# The losses are negative ELBOs, so they fall.


# %%
def watch(approx, losses, i):
    print(f"iteration {i}: ELBO {-losses[-1]:.4f}, mean {approx.gaussian.mean.round(3)}")


with model:
    approx = pm.fit(method="ngvi", random_seed=1, callbacks=[watch], progressbar=False)
approx.report

# %% [markdown]
# The automatic engine needs a handful of iterations only, so there is seldom a reason to stop it.
# When it stops by itself is set by `accuracy`, in posterior standard deviations.
#
# ## Stopping
#
# With a schedule, Algorithm 1 runs as many iterations as you say. Here it stops when the ELBO has
# not risen by a hundredth of a nat in ten iterations.


# %%
class StopWhenFlat:
    def __init__(self, patience=10, gain=0.01):
        self.patience, self.gain = patience, gain

    def __call__(self, approx, losses, i):
        if i > 2 * self.patience:
            recent, before = losses[-self.patience :], losses[-2 * self.patience : -self.patience]
            if np.mean(before) - np.mean(recent) < self.gain:
                raise StopIteration


with model:
    stopped = pm.fit(
        500,
        method="ngvi",
        step_size=0.1,
        n_samples=10,
        random_seed=1,
        callbacks=[StopWhenFlat()],
        progressbar=False,
    )
print(stopped.report.status, "after", stopped.report.iterations, "iterations")

# %% [markdown]
# ## Keeping what passed
#
# PyMC's `Tracker` records values at each iteration. It needs the approximation before the fit
# begins, which an `NGVI` object provides.

# %%
inference = ngvi.NGVI(
    model=model,
    step_size=ngvi.schedules.decreasing(),
    n_samples=10,
    random_seed=1,
)
tracker = Tracker(mean=inference.approx.mean.get_value, sd=inference.approx.std.eval)
inference.fit(60, callbacks=[tracker], progressbar=False)

means, sds = np.array(tracker["mean"]), np.array(tracker["sd"])
figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for k, label in enumerate(["intercept", "slope[0]", "slope[1]"]):
    axes.plot(means[:, k], color=f"C{k}", label=label)
    axes.fill_between(
        range(len(means)),
        means[:, k] - sds[:, k],
        means[:, k] + sds[:, k],
        color=f"C{k}",
        alpha=0.2,
    )
axes.set(xlabel="iteration", ylabel="mean, and one standard deviation")
axes.legend()
plt.show()

# %% [markdown]
# `refine` continues where the fit stopped, with the next values of its schedule.

# %%
inference.refine(40, progressbar=False)
inference.approx.report
