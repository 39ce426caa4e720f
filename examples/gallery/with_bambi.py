# %% [markdown]
# # Bambi, in two lines
#
# [Bambi](https://bambinos.github.io/bambi/) writes PyMC models from formulas. Its `fit` passes the
# method to `pm.fit`, so NGVI needs one keyword only. Here twelve persons have a reaction time that
# grows with the days without sleep, each at a rate of their own.

# %%
import arviz as az
import bambi
import numpy as np
import pandas as pd

import pymc_ngvi as ngvi  # makes method="ngvi" known to pm.fit

rng = np.random.default_rng(8)
person = np.repeat(np.arange(12), 10)
days = np.tile(np.arange(10.0), 12)
level, rate = rng.normal(250, 25, 12), rng.normal(10, 6, 12)
data = pd.DataFrame(
    {
        "reaction": level[person] + rate[person] * days + rng.normal(0, 25, person.size),
        "days": days,
        "person": [f"P{i}" for i in person],
    }
)

model = bambi.Model("reaction ~ days + (days | person)", data)

# %%
approx = model.fit(inference_method="vi", method="ngvi", random_seed=1, progressbar=False)
approx.report

# %% [markdown]
# The result is the approximation, as from `pm.fit`. Bambi centres the predictors before it builds
# the PyMC model. It corrects the intercept of NUTS's draws for this, but not that of an
# approximation, by whatever method: `Intercept` would be the reaction at 4.5 days, and
# `model.predict` off by as much. `ngvi.bambi_results` lets bambi correct these draws, too.

# %%
draws = approx.sample(2000, random_seed=1)
print(f"Intercept of the centred predictors: {float(draws['posterior']['Intercept'].mean()):.1f}")
idata = ngvi.bambi_results(model, draws)

# %% [markdown]
# The same by NUTS, and both side by side. The verdict of the report is about the spreads. Where
# k-hat is above 0.7, as it can be with few groups, those of the slopes and of their `sigma` come
# out too small, and the draws of NUTS are the ones to use.

# %%
nuts = model.fit(draws=1000, chains=2, cores=1, random_seed=1, progressbar=False)
names = ["Intercept", "days", "1|person_sigma", "days|person_sigma", "sigma"]
pd.concat(
    {
        name: az.summary(result, var_names=names, kind="stats")[["mean", "sd"]]
        for name, result in {"NGVI": idata, "NUTS": nuts}.items()
    },
    axis="columns",
)

# %% [markdown]
# `idata` is now like the result of NUTS, also for predictions: a new day of persons we know.

# %%
new = pd.DataFrame({"days": [12.0, 12.0], "person": ["P0", "P1"]})
for name, result in {"NGVI": idata, "NUTS": nuts}.items():
    predicted = model.predict(result, data=new, inplace=False)["posterior"]["mu"]
    print(name, predicted.mean(("chain", "draw")).values.round(1))

# %% [markdown]
# `bambi.Model(..., center_predictors=False)` makes the correction unnecessary, but is another
# model: the prior of the intercept is then that of the uncentred one. With the default priors of a
# logistic regression, a normal of scale 1.5, that can matter.
