# %% [markdown]
# # Bambi, in one line
#
# [Bambi](https://bambinos.github.io/bambi/) writes PyMC models from formulas. Its `fit` passes the
# method to `pm.fit`, so NGVI needs one keyword only.

# %%
import arviz as az
import bambi
import numpy as np
import pandas as pd

import pymc_ngvi  # makes method="ngvi" known to pm.fit

rng = np.random.default_rng(8)
data = pd.DataFrame({"hours": rng.uniform(0, 10, 150), "school": rng.choice(list("ABC"), 150)})
data["passed"] = rng.binomial(
    1, 1 / (1 + np.exp(-(data["hours"] - 5 + (data["school"] == "B") * 1.5)))
)

model = bambi.Model("passed ~ hours + school", data, family="bernoulli")

# %%
approx = model.fit(inference_method="vi", method="ngvi", random_seed=1, progressbar=False)
approx.report

# %% [markdown]
# The result is the approximation, as from `pm.fit`.

# %%
idata = approx.sample(2000, random_seed=1)
az.summary(idata, var_names=["Intercept", "hours", "school"], kind="stats")
