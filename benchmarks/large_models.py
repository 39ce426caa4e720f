"""Models of any size with sparse Hessians, as a user would write them, with simulated data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy.special import expit, softmax

MODELS: dict[str, Callable[[int], pm.Model]] = {}


def large(build: Callable[[int], pm.Model]) -> Callable[[int], pm.Model]:
    """Register a function that builds a model of a size, under the function's name."""
    MODELS[build.__name__] = build
    return build


def _grouped(groups: int, rows: int = 10) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Return a generator, the group of each row, and a predictor."""
    rng = np.random.default_rng(groups)
    group = np.repeat(np.arange(groups), rows)
    return rng, group, rng.normal(size=group.size)


def item_response(persons: int, items: int, seed: int, *, long: bool = False) -> pm.Model:
    """Build a two-parameter logistic model of all persons' answers to all items.

    Parameters
    ----------
    persons, items, seed : int
    long : bool
        Whether each answer is a row, as long tables have it, and not an entry of a matrix.
    """
    rng = np.random.default_rng(seed)
    slopes = np.outer(rng.normal(size=persons), rng.lognormal(0.0, 0.4, items))
    answers = (rng.random((persons, items)) < expit(slopes - rng.normal(size=items))).astype(int)
    with pm.Model() as model:
        ability = pm.Normal("ability", 0.0, 1.0, shape=persons)
        discrimination = pm.LogNormal("discrimination", 0.0, 0.5, shape=items)
        difficulty = pm.Normal("difficulty", 0.0, 2.0, shape=items)
        if long:
            person, item = (index.ravel() for index in np.indices((persons, items)))
            answers = answers.ravel()
            logit = discrimination[item] * (ability[person] - difficulty[item])
        else:
            logit = discrimination * (ability[:, np.newaxis] - difficulty)
        pm.Bernoulli("answer", logit_p=logit, observed=answers)
    return model


@large
def varying_intercepts(groups: int) -> pm.Model:
    """Gaussian regression with an intercept for each group of 10 rows, centred."""
    rng, group, x = _grouped(groups)
    y = rng.normal(1.0 + rng.normal(0.0, 0.7, groups)[group] + 0.5 * x, 1.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfNormal("tau", 2.0)
        slope = pm.Normal("slope", 0.0, 5.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        intercept = pm.Normal("intercept", mu, tau, shape=groups)
        pm.Normal("y", intercept[group] + slope * x, sigma, observed=y)
    return model


@large
def varying_intercepts_poisson(groups: int) -> pm.Model:
    """Poisson regression with an intercept for each group of 10 rows, centred."""
    rng, group, x = _grouped(groups)
    y = rng.poisson(np.exp(0.5 + rng.normal(0.0, 0.5, groups)[group] + 0.3 * x))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfNormal("tau", 2.0)
        slope = pm.Normal("slope", 0.0, 5.0)
        intercept = pm.Normal("intercept", mu, tau, shape=groups)
        pm.Poisson("y", pt.exp(intercept[group] + slope * x), observed=y)
    return model


@large
def varying_slopes(groups: int) -> pm.Model:
    """Slopes and intercepts that vary together, with their correlation."""
    rng, group, x = _grouped(groups)
    root = np.array([[0.7, 0.0], [-0.2, 0.4]])
    effects = [1.0, 0.5] + rng.normal(size=(groups, 2)) @ root.T
    y = rng.normal(effects[group, 0] + effects[group, 1] * x, 1.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        factor, _, _ = pm.LKJCholeskyCov("factor", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(2.0))
        sigma = pm.HalfNormal("sigma", 2.0)
        effect = pm.MvNormal("effect", mu, chol=factor, shape=(groups, 2))
        pm.Normal("y", effect[group, 0] + effect[group, 1] * x, sigma, observed=y)
    return model


@large
def nested(classes: int) -> pm.Model:
    """Classes of 10 rows within schools of 10 classes, both centred."""
    rng, of_row, x = _grouped(classes)
    schools = -(-classes // 10)
    of_class = np.arange(classes) // 10
    truth = rng.normal(rng.normal(1.0, 0.6, schools)[of_class], 0.4)
    y = rng.normal(truth[of_row] + 0.5 * x, 1.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        slope = pm.Normal("slope", 0.0, 5.0)
        school_sd = pm.HalfNormal("school_sd", 2.0)
        class_sd = pm.HalfNormal("class_sd", 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        school = pm.Normal("school", mu, school_sd, shape=schools)
        effect = pm.Normal("class", school[of_class], class_sd, shape=classes)
        pm.Normal("y", effect[of_row] + slope * x, sigma, observed=y)
    return model


@large
def crossed(subjects: int) -> pm.Model:
    """Subjects crossed with a quarter as many items, 20 answers of each subject."""
    rng, subject, _ = _grouped(subjects, rows=20)
    items = max(subjects // 4, 2)
    item = rng.integers(items, size=subject.size)
    y = rng.normal(
        1.0 + rng.normal(0.0, 0.6, subjects)[subject] + rng.normal(0.0, 0.4, items)[item], 1.0
    )
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        subject_sd = pm.HalfNormal("subject_sd", 2.0)
        item_sd = pm.HalfNormal("item_sd", 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        of_subject = pm.Normal("of_subject", 0.0, subject_sd, shape=subjects)
        of_item = pm.Normal("of_item", 0.0, item_sd, shape=items)
        pm.Normal("y", mu + of_subject[subject] + of_item[item], sigma, observed=y)
    return model


@large
def random_walk(steps: int) -> pm.Model:
    """Poisson counts whose log rate is a Gaussian random walk."""
    rng = np.random.default_rng(steps)
    walk = 1.0 + 0.05 * np.cumsum(rng.normal(size=steps))
    counts = rng.poisson(np.exp(2 * np.tanh(walk / 2)))  # kept from leaving for large rates
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 0.5)
        level = pm.GaussianRandomWalk(
            "level", mu=0.0, sigma=sd, init_dist=pm.Normal.dist(0.0, 2.0), shape=steps
        )
        pm.Poisson("count", pt.exp(level), observed=counts)
    return model


def _counts_on_lattice(side: int) -> np.ndarray:
    rng = np.random.default_rng(side)
    east, north = np.meshgrid(*[np.linspace(0, 2 * np.pi, side)] * 2)
    return rng.poisson(np.exp(1.0 + 0.7 * np.sin(east) * np.cos(north)))


@large
def lattice(side: int) -> pm.Model:
    """Poisson counts on a square lattice: a Gaussian Markov field, from differences."""
    counts = _counts_on_lattice(side)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        field = pm.Flat("field", shape=(side, side))
        squares = pt.sum(pt.diff(field, axis=0) ** 2) + pt.sum(pt.diff(field, axis=1) ** 2)
        pm.Potential("smooth", -0.5 * squares / sd**2 - (side**2 - 1) * pt.log(sd))
        pm.Poisson("count", pt.exp(field), observed=counts)
    return model


@large
def icar(side: int) -> pm.Model:
    """Poisson counts on a square lattice: PyMC's ICAR, which takes the neighbours as a matrix."""
    counts = _counts_on_lattice(side).ravel()
    index = np.arange(side**2).reshape(side, side)
    pairs = [(index[1:], index[:-1]), (index[:, 1:], index[:, :-1])]
    neighbours = np.zeros((side**2, side**2))
    for first, second in pairs:
        neighbours[first.ravel(), second.ravel()] = neighbours[second.ravel(), first.ravel()] = 1
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        sd = pm.HalfNormal("sd", 1.0)
        field = pm.ICAR("field", W=neighbours, sigma=1.0)
        pm.Poisson("count", pt.exp(mu + sd * field), observed=counts)
    return model


@large
def irt_2pl(persons: int) -> pm.Model:
    """Two-parameter logistic item response: each person answers 50 items."""
    return item_response(persons, 50, seed=persons)


@large
def irt_2pl_long(persons: int) -> pm.Model:
    """Build the same model with a row for each answer, as long tables have it."""
    return item_response(persons, 50, seed=persons, long=True)


@large
def multinomial(groups: int) -> pm.Model:
    """Choice among three categories, with an intercept of each group for two of them."""
    rng, group, x = _grouped(groups)
    utility = np.zeros((group.size, 3))
    utility[:, 1:] = rng.normal([0.3, -0.3], 0.6, (groups, 2))[group] + np.outer(x, [0.5, -0.5])
    shares = softmax(utility, axis=1)
    choice = (rng.random((group.size, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0, shape=2)
        tau = pm.HalfNormal("tau", 1.0, shape=2)
        slope = pm.Normal("slope", 0.0, 2.0, shape=2)
        intercept = pm.Normal("intercept", mu, tau, shape=(groups, 2))
        eta = intercept[group] + x[:, np.newaxis] * slope
        logit = pt.concatenate([pt.zeros((group.size, 1)), eta], axis=1)
        pm.Categorical("choice", logit_p=logit, observed=choice)
    return model


@large
def ordinal(groups: int) -> pm.Model:
    """Ordered logistic regression with five categories and an intercept of each group."""
    rng, group, x = _grouped(groups)
    latent = rng.normal(0.0, 0.8, groups)[group] + 0.5 * x + rng.logistic(size=group.size)
    rating = np.searchsorted([-2.0, -0.5, 0.5, 2.0], latent)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2.0)
        slope = pm.Normal("slope", 0.0, 2.0)
        intercept = pm.Normal("intercept", 0.0, tau, shape=groups)
        cutpoints = pm.Normal(
            "cutpoints", 0.0, 3.0, shape=4, transform=ordered, initval=[-2.0, -0.5, 0.5, 2.0]
        )
        eta = intercept[group] + slope * x
        pm.OrderedLogistic("rating", eta, cutpoints, compute_p=False, observed=rating)
    return model


def logistic(rows: int, predictors: int) -> pm.Model:
    """Logistic regression on independent predictors, one of which is constant."""
    rng = np.random.default_rng(predictors)
    X = rng.normal(size=(rows, predictors))
    X[:, 0] = 1.0
    y = rng.random(rows) < expit(X @ rng.normal(0.0, 1 / np.sqrt(predictors), predictors))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=predictors)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return model


@large
def wide(predictors: int) -> pm.Model:
    """Logistic regression on ten times as many predictors as rows, with a prior that sees that."""
    rows, scale = predictors // 10, 1 / np.sqrt(predictors)
    rng = np.random.default_rng(predictors)
    X = rng.normal(size=(rows, predictors))
    y = rng.random(rows) < expit(X @ rng.normal(0.0, scale, predictors))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, scale, shape=predictors)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
    return model
