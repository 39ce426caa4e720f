"""Fit a hierarchical model by natural-gradient VI, and compare it with a simpler one.

Run with `make demo`. Prints the report and the posterior summary, compares two models by their
ELBO, and writes two pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import arviz as az
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ngvi as ngvi  # noqa: F401 - importing it is what makes method="ngvi" work

# PyTensor 3 interprets a model of this size in less time than it would take to compile it.
BACKEND = "interpreted" if int(pm.__version__.split(".")[0]) >= 6 else None
HOUSES_PER_COUNTY = (4, 30, 9, 2, 15, 7, 22, 5, 11, 3)


def simulate(seed: int) -> dict[str, np.ndarray]:
    """Radon-like measurements: houses in counties, with a basement or without."""
    rng = np.random.default_rng(seed)
    county = np.repeat(np.arange(len(HOUSES_PER_COUNTY)), HOUSES_PER_COUNTY)
    level = rng.normal(1.3, 0.5, len(HOUSES_PER_COUNTY))
    ground_floor = rng.binomial(1, 0.3, len(county))
    log_radon = level[county] - 0.7 * ground_floor + rng.normal(0, 0.7, len(county))
    return {"county": county, "ground_floor": ground_floor, "log_radon": log_radon}


def build_model(data: dict[str, np.ndarray], *, by_county: bool) -> pm.Model:
    """Linear model of the log radon level, with an intercept per county or one for all."""
    with pm.Model(coords={"county": np.arange(len(HOUSES_PER_COUNTY))}) as model:
        mu = pm.Normal("mu", 0, 2)
        slope = pm.Normal("ground_floor", 0, 2)
        noise = pm.HalfNormal("noise", 1)
        intercept = mu
        if by_county:
            spread = pm.HalfNormal("spread", 1)
            offset = pm.Normal("offset", 0, 1, dims="county")
            intercept = pm.Deterministic("level", mu + spread * offset, dims="county")
            intercept = intercept[data["county"]]
        pm.Normal(
            "log_radon", intercept + slope * data["ground_floor"], noise, observed=data["log_radon"]
        )
    return model


def plot_trace(fits: dict[str, pm.Approximation], path: Path) -> None:
    """ELBO against the iteration."""
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, approx in fits.items():
        axes.plot(np.arange(1, len(approx.hist) + 1), -approx.hist, marker="o", ms=3, label=name)
    axes.set(xlabel="iteration", ylabel="ELBO", title="The fit, from PyMC's initial point")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_levels(idata: object, data: dict[str, np.ndarray], path: Path) -> None:
    """Posterior of each county's level beside the mean of its own houses."""
    draws = idata["posterior"]["level"].values[0]
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    adjusted = data["log_radon"] + 0.7 * data["ground_floor"]
    raw = [adjusted[data["county"] == county].mean() for county in range(len(middle))]
    order = np.argsort(HOUSES_PER_COUNTY)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    places = np.arange(len(order))
    axes.errorbar(
        places,
        middle[order],
        yerr=[(middle - low)[order], (high - middle)[order]],
        fmt="o",
        label="posterior median, 90% interval",
    )
    axes.plot(places, np.array(raw)[order], "x", color="black", label="mean of the houses")
    axes.set_xticks(places, [str(HOUSES_PER_COUNTY[i]) for i in order])
    axes.set(xlabel="houses in the county", ylabel="log radon level", title="Partial pooling")
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Fit, print, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    data = simulate(arguments.seed)

    fits = {}
    for name, by_county in {"one level": False, "a level per county": True}.items():
        print(f"\nFitting: {name}")
        with build_model(data, by_county=by_county):
            # The default accuracy, 0.02 posterior standard deviations, takes ten times the draws.
            fits[name] = pm.fit(
                method="ngvi", accuracy=0.2, random_seed=arguments.seed, backend=BACKEND
            )
        print(fits[name].report)

    best = fits["a level per county"]
    idata = best.sample(2000, random_seed=arguments.seed)
    print("\nPosterior of the model with a level per county")
    print(az.summary(idata, var_names=["mu", "ground_floor", "noise", "spread"], kind="stats"))

    print("\nComparison by the ELBO, a lower bound of the log evidence")
    for name, approx in sorted(fits.items(), key=lambda item: -item[1].report.elbo):
        report = approx.report
        print(f"  {name:<20} {report.elbo:9.2f} (s.e. {report.elbo_se:.2f}), {report.status}")

    paths = [arguments.output / "fit.png", arguments.output / "levels.png"]
    plot_trace(fits, paths[0])
    plot_levels(idata, data, paths[1])
    print("\nPictures: " + ", ".join(str(path) for path in paths))


if __name__ == "__main__":
    main()
