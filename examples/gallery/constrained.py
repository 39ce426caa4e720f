# %% [markdown]
# # Proportions, correlations and ordered categories
#
# The fitted Gaussian lives on an unconstrained space, and PyMC's transforms map its draws back: to
# proportions that sum to one, to correlation matrices, to ordered cutpoints. You need to do nothing
# for it, as these three models show.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi

rng = np.random.default_rng(5)

# %% [markdown]
# ## Proportions: a Dirichlet prior
#
# With a Dirichlet prior and multinomial counts the posterior is a Dirichlet distribution in closed
# form, so the fit can be compared with the exact posterior.

# %%
counts = np.array([45, 12, 81, 26])
with pm.Model(coords={"party": ["red", "blue", "green", "none"]}):
    shares = pm.Dirichlet("shares", np.ones(4), dims="party")
    pm.Multinomial("votes", counts.sum(), shares, observed=counts)
    votes = pm.fit(method="ngvi", random_seed=1, progressbar=False)

draws = votes.sample(4000, random_seed=1)["posterior"]["shares"]
exact = (counts + 1) / (counts + 1).sum()
print("fit  ", draws.mean(("chain", "draw")).values.round(3))
print("exact", exact.round(3))
print("sums to one:", bool(np.allclose(draws.sum("party"), 1)))
votes.report

# %% [markdown]
# ## Correlations: an LKJ prior
#
# Three measurements of each person, correlated. `LKJCholeskyCov` holds standard deviations and
# correlations in one packed vector, six numbers on the unconstrained scale. Its Hessian is a large
# graph, so the fit uses gradients only (`estimator="stein"`).

# %% tags=["remove-stderr"]
truth = np.array([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]])
scales = np.array([1.0, 2.0, 0.5])
measured = rng.multivariate_normal(np.zeros(3), truth * np.outer(scales, scales), size=150)

with pm.Model():
    factor, correlation, sd = pm.LKJCholeskyCov(
        "factor", eta=2, n=3, sd_dist=pm.HalfNormal.dist(3, shape=3)
    )
    pm.MvNormal("measured", np.zeros(3), chol=factor, observed=measured)
    measurements = pm.fit(method="ngvi", estimator="stein", random_seed=1, progressbar=False)

posterior = measurements.sample(2000, random_seed=1)["posterior"]
print("correlations of the data\n", np.corrcoef(measured.T).round(2))
print("posterior mean\n", posterior["factor_corr"].mean(("chain", "draw")).values.round(2))
measurements.report

# %% [markdown]
# ## Ordered categories
#
# Answers on a scale from 0 to 4. The cutpoints must stay in order, which the transform `ordered`
# ensures.

# %%
effort = rng.normal(size=300)
latent = 1.2 * effort + rng.logistic(size=300)
answer = np.digitize(latent, [-2.0, -0.5, 0.7, 2.2])

with pm.Model():
    slope = pm.Normal("slope", 0, 2)
    cutpoints = pm.Normal(
        "cutpoints",
        0,
        3,
        shape=4,
        transform=pm.distributions.transforms.ordered,
        initval=np.linspace(-1.5, 1.5, 4),
    )
    pm.OrderedLogistic(
        "answer", eta=slope * effort, cutpoints=cutpoints, compute_p=False, observed=answer
    )
    answers = pm.fit(method="ngvi", random_seed=1, progressbar=False)

posterior = answers.sample(2000, random_seed=1)["posterior"]
print("cutpoints", posterior["cutpoints"].mean(("chain", "draw")).values.round(2))
print("in order in every draw:", bool((np.diff(posterior["cutpoints"].values) > 0).all()))
answers.report

# %%
ngvi.plots.marginals(answers, var_names=["slope", "cutpoints"])
plt.show()
