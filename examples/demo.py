"""Fit a hierarchical model by natural-gradient VI, and compare it with simpler regressions.

Run with `make demo`. Measurements of radon in houses are generated; three regressions are fitted to
them, compared by cross-validation, and the best is shown in numbers and in pictures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi

HOUSES_PER_COUNTY = (4, 30, 9, 5, 15, 7, 22, 5, 11, 3, 40, 18, 6, 25, 12, 8, 50, 10, 3, 14)
MODELS = {
    "one level": {"by_county": False, "by_floor": True},
    "counties": {"by_county": True, "by_floor": False},
    "counties and floor": {"by_county": True, "by_floor": True},
}


def simulate(seed: int) -> dict[str, np.ndarray]:
    """Radon-like measurements: houses in counties, measured in the basement or above."""
    rng = np.random.default_rng(seed)
    county = np.repeat(np.arange(len(HOUSES_PER_COUNTY)), HOUSES_PER_COUNTY)
    level = rng.normal(1.3, 0.9, len(HOUSES_PER_COUNTY))
    ground_floor = rng.binomial(1, 0.3, len(county))
    log_radon = level[county] - 0.7 * ground_floor + rng.normal(0, 0.7, len(county))
    return {"county": county, "ground_floor": ground_floor, "log_radon": log_radon}


def build_model(data: dict[str, np.ndarray], *, by_county: bool, by_floor: bool) -> pm.Model:
    """Linear model of the log radon level, with a level per county or one for all."""
    with pm.Model(coords={"county": np.arange(len(HOUSES_PER_COUNTY))}) as model:
        mu = pm.Normal("mu", 0, 2)
        noise = pm.HalfNormal("noise", 1)
        expected = mu
        if by_county:
            spread = pm.HalfNormal("spread", 1)
            level = pm.Normal("level", mu, spread, dims="county")
            expected = level[data["county"]]
        if by_floor:
            expected = expected + pm.Normal("ground_floor", 0, 2) * data["ground_floor"]
        pm.Normal("log_radon", expected, noise, observed=data["log_radon"])
    return model


def plot_levels(idata: Any, data: dict[str, np.ndarray], path: Path) -> None:
    """Posterior of each county's level beside the mean of its own houses."""
    draws = idata["posterior"]["level"].values[0]
    slope = float(idata["posterior"]["ground_floor"].mean())
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    adjusted = data["log_radon"] - slope * data["ground_floor"]
    raw = np.array([adjusted[data["county"] == county].mean() for county in range(len(middle))])
    order = np.argsort(HOUSES_PER_COUNTY, kind="stable")
    places = np.arange(len(order))
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    axes.errorbar(
        places,
        middle[order],
        yerr=[(middle - low)[order], (high - middle)[order]],
        fmt="o",
        label="posterior median, 90% interval",
    )
    axes.plot(places, raw[order], "x", color="black", label="mean of the county's houses")
    axes.axhline(float(idata["posterior"]["mu"].mean()), color="0.6", lw=1, label="all counties")
    axes.set_xticks(places, [str(HOUSES_PER_COUNTY[i]) for i in order])
    axes.set(xlabel="houses in the county", ylabel="log radon level", title="Partial pooling")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save(axes: Any, path: Path) -> None:
    """Write the figure that some axes belong to."""
    figure = np.ravel(axes)[0].figure
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Fit, print, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    begin, seed = time.perf_counter(), arguments.seed
    data = simulate(seed)

    fits = {}
    for name, terms in MODELS.items():
        print(f"\nFitting: {name}")
        with build_model(data, **terms):
            # An accuracy of a tenth of a standard deviation is enough for a first look.
            fits[name] = pm.fit(
                method="ngvi",
                accuracy=0.1,
                random_seed=seed,
            )
        print(fits[name].report)

    print("\nLeave-one-out cross-validation, the best model first")
    table = ngvi.compare(fits, random_seed=seed)
    columns = ["rank", "elpd", "elpd_diff", "dse", "weight", "khat", "effective", "elbo"]
    columns = [column for column in columns if column in table]
    print(table[columns].round(2).to_string())

    best = fits["counties and floor"]
    idata = best.sample(2000, random_seed=seed)
    print("\nPosterior of the model with counties and floor")
    names = ["mu", "ground_floor", "noise", "spread"]
    print(az.summary(idata, var_names=names, kind="stats"))

    paths = {
        name: arguments.output / f"{name}.png" for name in ("levels", "fit", "khat", "marginals")
    }
    plot_levels(idata, data, paths["levels"])
    save(ngvi.plots.fit_trace(best), paths["fit"])
    save(ngvi.plots.khat(best), paths["khat"])
    save(ngvi.plots.marginals(idata, var_names=names), paths["marginals"])
    print(f"\nPictures, {time.perf_counter() - begin:.0f} s after the start:")
    for path in paths.values():
        print(f"  {path}")


if __name__ == "__main__":
    main()
