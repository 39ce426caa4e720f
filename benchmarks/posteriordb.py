"""Twelve posteriors of posteriordb as PyMC models, with their reference draws.

Data and draws are read from a clone of https://github.com/stan-dev/posteriordb, which is not part
of this package. The folder is given by `--posteriordb PATH` or by the environment variable
POSTERIORDB. To see whether a folder holds all that is needed:

    python benchmarks/posteriordb.py --posteriordb PATH
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import process
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from references import unconstrain
from scipy.linalg import toeplitz

Data = Mapping[str, Any]
Draws = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Posterior:
    """A posterior of the database as a PyMC model.

    Attributes
    ----------
    name : str
        Name in our tables.
    reference : str
        Name of the posterior whose draws are the reference; its data come before the hyphen.
    build : callable
        Makes the model from the data. Its variables have the names they have in the draws.
    derive : callable
        Gives draws of the model's variables that the reference lacks.
    """

    name: str
    reference: str
    build: Callable[[Data], pm.Model]
    derive: Callable[[Draws], Draws]

    def model(self, database: Path) -> pm.Model:
        """Build the model from the data in a database."""
        data = _read(database / "data" / "data" / f"{self.reference.split('-')[0]}.json.zip")
        arrays = {key: np.array(v, float) if np.ndim(v) else v for key, v in data.items()}
        return self.build(arrays)

    def draws(self, database: Path) -> dict[str, np.ndarray]:
        """Read the reference draws (n, ...) of each variable, on its own scale."""
        folder = database / "reference_posteriors" / "draws" / "draws"
        chains = _read(folder / f"{self.reference}.json.zip")
        columns: dict[str, list[np.ndarray]] = {}
        for key in chains[0]:  # alpha, beta[1], beta[2], ...
            column = np.concatenate([chain[key] for chain in chains])
            columns.setdefault(re.sub(r"\[\d+\]$", "", key), []).append(column)
        draws = {
            name: np.stack(parts, axis=-1) if f"{name}[1]" in chains[0] else parts[0]
            for name, parts in columns.items()
        }
        return {**draws, **self.derive(draws)}

    def unconstrained_draws(self, database: Path, model: pm.Model) -> np.ndarray:
        """Read the reference draws (n, d) on the flat unconstrained space of the model."""
        return unconstrain(model, self.draws(database))


POSTERIORS: dict[str, Posterior] = {}


def posterior(reference: str, derive: Callable[[Draws], Draws] = lambda draws: {}) -> Callable:
    """Register the function that builds a model, under the function's name."""

    def register(build: Callable[[Data], pm.Model]) -> Callable[[Data], pm.Model]:
        name = build.__name__
        POSTERIORS[name] = Posterior(name, reference, build, derive)
        return build

    return register


@posterior("kidiq-kidscore_momiq")
def kidscore_momiq(data: Data) -> pm.Model:
    """Regression of a child's test score on the mother's."""
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", beta[0] + beta[1] * data["mom_iq"], sigma, observed=data["kid_score"])
    return model


@posterior("kilpisjarvi_mod-kilpisjarvi")
def kilpisjarvi(data: Data) -> pm.Model:
    """Summer temperatures against uncentred years: a correlation of -0.99998."""
    with pm.Model() as model:
        alpha = pm.Normal("alpha", data["pmualpha"], data["psalpha"])
        beta = pm.Normal("beta", data["pmubeta"], data["psbeta"])
        sigma = pm.HalfFlat("sigma")
        pm.Normal("y", alpha + beta * data["x"], sigma, observed=data["y"])
    return model


@posterior("mesquite-mesquite")
def mesquite(data: Data) -> pm.Model:
    """Regression of the yield of bushes on predictors of very different scales."""
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return _flat_regression([data[name] for name in names], data["weight"])


@posterior("nes1972-nes")
def nes1972(data: Data) -> pm.Model:
    """Regression of party identification in the election of 1972."""
    ages = [data["age_discrete"] == group for group in (2, 3, 4)]
    others = [data[name] for name in ("educ1", "gender", "income")]
    return _flat_regression([data["real_ideo"], data["race_adj"], *ages, *others], data["partyid7"])


def _flat_regression(predictors: list[np.ndarray], observed: np.ndarray) -> pm.Model:
    X = np.column_stack([np.ones(len(observed)), *predictors])
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=X.shape[1])
        sigma = pm.HalfFlat("sigma")
        pm.Normal("y", X @ beta, sigma, observed=observed)
    return model


@posterior("sblrc-blr")
def sblrc(data: Data) -> pm.Model:
    """Regression on simulated, correlated predictors."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 10.0, shape=data["D"])
        sigma = pm.HalfNormal("sigma", 10.0)
        pm.Normal("y", data["X"] @ beta, sigma, observed=data["y"])
    return model


@posterior("eight_schools-eight_schools_noncentered")
def eight_schools_centered(data: Data) -> pm.Model:
    """Hierarchy written in the effects themselves: a funnel."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=data["J"])
        pm.Normal("y", theta, data["sigma"], observed=data["y"])
    return model


def _standardised_effects(draws: Draws) -> Draws:
    mu, tau = draws["mu"][:, np.newaxis], draws["tau"][:, np.newaxis]
    return {"theta_trans": (draws["theta"] - mu) / tau}


@posterior("eight_schools-eight_schools_noncentered", derive=_standardised_effects)
def eight_schools_noncentered(data: Data) -> pm.Model:
    """Build the same hierarchy in standardised effects."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta = mu + tau * pm.Normal("theta_trans", shape=data["J"])
        pm.Normal("y", theta, data["sigma"], observed=data["y"])
    return model


@posterior("diamonds-diamonds")
def diamonds(data: Data) -> pm.Model:
    """Regression of the price of 5,000 diamonds on 24 nearly collinear predictors."""
    X = data["X"][:, 1:] - data["X"][:, 1:].mean(axis=0)
    with pm.Model() as model:
        b = pm.Normal("b", shape=X.shape[1])
        intercept = pm.StudentT("Intercept", nu=3.0, mu=8.0, sigma=10.0)
        sigma = pm.HalfStudentT("sigma", nu=3.0, sigma=10.0)
        pm.Normal("Y", intercept + X @ b, sigma, observed=data["Y"])
    return model


@posterior("arK-arK")
def arK(data: Data) -> pm.Model:  # noqa: N802 (its name in the database)
    """Autoregression of fifth order."""
    y, order = data["y"], data["K"]
    lagged = np.column_stack([y[order - lag : -lag] for lag in range(1, order + 1)])
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0.0, 10.0)
        beta = pm.Normal("beta", 0.0, 10.0, shape=order)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", alpha + lagged @ beta, sigma, observed=y[order:])
    return model


@posterior("gp_pois_regr-gp_regr")
def gp_regr(data: Data) -> pm.Model:
    """Gaussian-process regression of 11 observations."""
    x, y = data["x"], data["y"]
    squared_distance = np.subtract.outer(x, x) ** 2
    with pm.Model() as model:
        rho = pm.Gamma("rho", alpha=25.0, beta=4.0)
        alpha = pm.HalfNormal("alpha", 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        kernel = alpha**2 * pt.exp(-squared_distance / (2 * rho**2))
        pm.MvNormal("y", np.zeros(len(y)), cov=kernel + sigma * np.eye(len(y)), observed=y)
    return model


@posterior("low_dim_gauss_mix-low_dim_gauss_mix")
def low_dim_gauss_mix(data: Data) -> pm.Model:
    """Mixture of two Gaussians, the lower one first."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0, shape=2, transform=ordered, initval=[-1.0, 1.0])
        sigma = pm.HalfNormal("sigma", 2.0, shape=2)
        theta = pm.Beta("theta", 5.0, 5.0)
        weights = pt.stack([theta, 1 - theta])
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=data["y"])
    return model


@posterior("garch-garch11")
def garch11(data: Data) -> pm.Model:
    r"""Volatility that depends on past shocks and on itself.

    The recursion :math:`s_t^2 = \alpha_0 + \alpha_1 (y_{t-1} - \mu)^2 + \beta_1 s_{t-1}^2` is
    linear in the variances, and is solved here instead of run:

    .. math:: s_t^2 = \beta_1^{t-1} s_1^2
              + \sum_{k=0}^{t-2} \beta_1^k \left(\alpha_0 + \alpha_1 (y_{t-1-k} - \mu)^2\right).

    With the square multiplied out, the sums are products of constant matrices with the powers of
    beta1. A Scan would be slower, and PyTensor 2 differentiates it twice wrongly.
    """
    y = data["y"]
    past = y[:-1] - y.mean()
    lags = np.arange(len(past), dtype=float)
    ones, shocks, squares = (toeplitz(past**power, np.zeros_like(past)) for power in (0, 1, 2))
    with pm.Model() as model:
        mu = pm.Flat("mu")
        alpha0 = pm.HalfFlat("alpha0")
        alpha1 = pm.Beta("alpha1", 1.0, 2.0)
        beta1 = pm.Uniform("beta1", 0.0, 1 - alpha1)
        powers, shift = beta1**lags, mu - y.mean()
        squared_shocks = squares @ powers - 2 * shift * (shocks @ powers)
        squared_shocks += shift**2 * (ones @ powers)
        variance = beta1 * powers * data["sigma1"] ** 2
        variance += alpha0 * (ones @ powers) + alpha1 * squared_shocks
        sigma = pt.concatenate([[data["sigma1"]], pt.sqrt(variance)])
        pm.Normal("y", mu, sigma, observed=y)
    return model


def find_database(path: str | None) -> Path:
    """Return the folder of data and draws in a clone of posteriordb.

    Raises
    ------
    FileNotFoundError
        No folder was given, or it holds no database.
    """
    how = "Clone https://github.com/stan-dev/posteriordb and name its folder with --posteriordb"
    if not path:
        raise FileNotFoundError(f"no database of posteriors given. {how} or POSTERIORDB.")
    for folder in (Path(path) / "posterior_database", Path(path)):
        if (folder / "reference_posteriors").is_dir():
            return folder
    raise FileNotFoundError(f"{path} holds no folder posterior_database. {how}.")


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"the database of posteriors lacks {path}; is the clone complete?")
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(path.stem))


def main() -> None:
    """Print dimension and number of reference draws of every posterior."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    process.add_posteriordb(parser)
    arguments = parser.parse_args()
    try:
        database = find_database(arguments.posteriordb)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(f"{'posterior':<26} {'dim':>4} {'draws':>6}  reference")
    for entry in POSTERIORS.values():
        draws = entry.unconstrained_draws(database, entry.model(database))
        print(f"{entry.name:<26} {draws.shape[1]:>4} {draws.shape[0]:>6}  {entry.reference}")


if __name__ == "__main__":
    main()
