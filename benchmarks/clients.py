"""Models of other packages, fitted by NGVI the way their users would, against NUTS.

    python benchmarks/clients.py [NAME ...] [--results FILE]
    python benchmarks/clients.py --table

fits and samples one client after the other, each with its own small model and data, and puts a row
for each into the file. A client whose package is not installed is skipped with a message, and its
row in the file stays: packages that exclude each other are run from environments of their own.
With ``--table`` it prints the rows as the table of docs/clients.md.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_ngvi as ngvi

RESULTS = Path(__file__).parent / "results" / "clients.csv"
COLUMNS = (
    "client",
    "versions",
    "dim",
    "status",
    "khat",
    "family",
    "warned",
    "mean_error",
    "mean_worst",
    "sd_ratio",
    "sd_worst",
    "fit_seconds",
    "nuts_seconds",
)
#: How every client is fitted.
FIT: dict[str, Any] = {"random_seed": 1, "progressbar": False}
#: How NUTS samples, unless a client says otherwise.
NUTS: dict[str, Any] = {
    "draws": 1000,
    "tune": 1000,
    "chains": 2,
    "cores": 1,
    "random_seed": 1,
    "progressbar": False,
    "nuts_sampler": "nutpie",
}
DRAWS = 4000


@dataclass(frozen=True)
class Fits:
    """A fit and its reference, as a client's user gets them.

    Attributes
    ----------
    fit : callable
        Returns the approximation and draws from it.
    nuts : callable
        Returns draws of NUTS.
    packages : sequence of str
        What to name with their versions.
    """

    fit: Callable[[], tuple[Any, Any]]
    nuts: Callable[[], Any]
    packages: Sequence[str] = ("pymc",)


CLIENTS: dict[str, Callable[[], Fits]] = {}


def client(build: Callable[[], Fits]) -> Callable[[], Fits]:
    """Register the function that makes the fits of a client, under the function's name."""
    CLIENTS[build.__name__] = build
    return build


def of_model(model: pm.Model, *packages: str) -> Fits:
    """Fits of a PyMC model, by ``pm.fit`` and ``pm.sample``."""

    def fit() -> tuple[Any, Any]:
        approx = pm.fit(method="ngvi", model=model, **FIT)
        return approx, approx.sample(DRAWS, random_seed=1)

    return Fits(fit, lambda: pm.sample(model=model, **NUTS), ("pymc", *packages))


@client
def bambi() -> Fits:
    """Regression with a slope for each of six groups."""
    import bambi as bmb
    import pandas as pd

    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(6), 12)
    x = rng.uniform(0, 10, group.size)
    y = 250 + (10 + rng.normal(0, 3, 6))[group] * x + rng.normal(0, 15, group.size)
    data = pd.DataFrame({"x": x, "y": y, "group": [f"g{i}" for i in group]})
    model = bmb.Model("y ~ x + (0 + x | group)", data)

    def fit() -> tuple[Any, Any]:
        approx = model.fit(inference_method="vi", method="ngvi", accuracy=0.05, **FIT)
        return approx, ngvi.bambi_results(model, approx.sample(DRAWS, random_seed=1))

    # At the default acceptance steps diverge near a scale of 0, and the sd is 0.8 of what it is.
    longer = {"draws": 15_000, "tune": 3000, "chains": 4, "target_accept": 0.99}
    keywords = {name: value for name, value in NUTS.items() if name != "nuts_sampler"} | longer
    return Fits(fit, lambda: model.fit(inference_method="nutpie", **keywords), ("bambi", "pymc"))


def _drift_diffusion(**options: Any) -> Fits:
    import hssm

    rng = np.random.default_rng(3)
    x = rng.normal(1.0, 0.5, 200)
    others = np.tile([1.2, 0.5, 0.3], (200, 1))
    theta = np.column_stack([0.5 + 0.4 * x, others])
    data = hssm.simulate_data(model="ddm", theta=theta, size=1, random_state=3)
    data["x"] = x
    model = hssm.HSSM(data=data, model="ddm", **options)

    def fit() -> tuple[Any, Any]:
        idata = model.vi(method="ngvi", draws=DRAWS, random_seed=1, progressbar=False)
        return model.vi_approx, ngvi.bambi_results(model.model, idata)

    keywords = {name: value for name, value in NUTS.items() if name != "nuts_sampler"}
    return Fits(fit, lambda: model.sample(sampler="nutpie", **keywords), ("HSSM", "bambi", "pymc"))


@client
def hssm() -> Fits:
    """Drift diffusion model of 200 trials."""
    return _drift_diffusion()


@client
def hssm_regression() -> Fits:
    """Drift diffusion model of 200 trials, with a regression of the drift."""
    return _drift_diffusion(include=[{"name": "v", "formula": "v ~ 1 + x"}])


@client
def pymc_marketing() -> Fits:
    """Media mix model of two channels and 100 weeks."""
    import pandas as pd
    from pymc_marketing.mmm import GeometricAdstock, LogisticSaturation
    from pymc_marketing.mmm.multidimensional import MMM

    rng = np.random.default_rng(4)
    X = pd.DataFrame(
        {
            "date": pd.date_range("2024-01-01", periods=100, freq="W"),
            "tv": rng.uniform(0, 1, 100),
            "web": rng.uniform(0, 1, 100),
        }
    )
    y = pd.Series(1 + np.tanh(2 * X["tv"]) + 0.5 * X["web"] + rng.normal(0, 0.1, 100), name="y")
    model = MMM(
        date_column="date",
        target_column="y",
        channel_columns=["tv", "web"],
        adstock=GeometricAdstock(l_max=4),
        saturation=LogisticSaturation(),
    )
    model.build_model(X, y)

    def fit() -> tuple[Any, Any]:
        approx = pm.fit(method="ngvi", model=model.model, **FIT)
        model.idata = approx.sample(DRAWS, random_seed=1)
        return approx, model.idata

    return Fits(fit, lambda: pm.sample(model=model.model, **NUTS), ("pymc-marketing", "pymc"))


@client
def r2d2m2cp() -> Fits:
    """Regression with the R2-D2-M2 prior on six coefficients."""
    import pymc_extras.distributions

    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 6))
    y = X @ [1.0, 0.5, 0.0, 0.0, -0.3, 0.0] + rng.normal(size=80)
    with pm.Model(coords={"x": list("abcdef")}) as model:
        residual, coefficients = pymc_extras.distributions.R2D2M2CP(
            "coefficients", y.std(), X.std(axis=0), dims=["x"], r2=0.5, r2_std=0.2
        )
        pm.Normal("y", X @ coefficients, residual, observed=y)
    return of_model(model, "pymc-extras")


@client
def statespace() -> Fits:
    """Local level with measurement error, 60 points, by the Kalman filter of pymc-extras."""
    from pymc_extras.statespace import structural

    rng = np.random.default_rng(11)
    y = np.cumsum(rng.normal(0, 0.3, 60)) + rng.normal(0, 0.5, 60)
    level = structural.LevelTrend(order=1, innovations_order=1, name="level")
    built = (level + structural.MeasurementError(name="error")).build(verbose=False)
    with pm.Model(coords=built.coords) as model:
        pm.Normal("initial_level", 0, 2, dims=built.param_dims["initial_level"])
        pm.HalfNormal("sigma_level", 1, dims=built.param_dims["sigma_level"])
        pm.HalfNormal("sigma_error", 1)
        pm.Deterministic("P0", pt.eye(1), dims=built.param_dims["P0"])
        built.build_statespace_graph(y[:, np.newaxis])
    return of_model(model, "pymc-extras")


@client
def causalpy() -> Fits:
    """Synthetic control: one unit as a weighted sum of five others, 60 points before an event."""
    import causalpy as cp
    import pandas as pd

    rng = np.random.default_rng(12)
    controls = rng.normal(size=(80, 5)).cumsum(axis=0)
    treated = controls @ [0.5, 0.3, 0.2, 0.0, 0.0] + rng.normal(0, 0.3, 80)
    treated[60:] += 2.0
    data = pd.DataFrame(controls, columns=list("abcde")).assign(treated=treated)

    class Fitter(cp.pymc_models.WeightedSumFitter):
        """CausalPy's own, with another line for the posterior."""

        by: Callable[[pm.Model], Any]

        def fit(self, X: Any, y: Any, coords: Any = None) -> Any:
            self.priors = {**self.priors_from_data(X, y), **self.priors}
            self.build_model(X, y, coords)
            with self:
                self.idata = self.by(self)
                self.idata.extend(pm.sample_prior_predictive(random_seed=1))
                self.idata.extend(pm.sample_posterior_predictive(self.idata, progressbar=False))
            return self.idata

    approximations = []

    def by_ngvi(model: pm.Model) -> Any:
        approximations.append(pm.fit(method="ngvi", model=model, **FIT))
        return approximations[-1].sample(DRAWS, random_seed=1)

    def experiment(by: Callable[[pm.Model], Any]) -> Any:
        fitter = type("Fitter", (Fitter,), {"by": staticmethod(by)})()
        units = {"control_units": list("abcde"), "treated_units": ["treated"]}
        return cp.SyntheticControl(data, 60, model=fitter, **units).model.idata

    return Fits(
        lambda: (experiment(by_ngvi), approximations[-1])[::-1],
        lambda: experiment(lambda model: pm.sample(model=model, **NUTS)),
        ("CausalPy", "pymc"),
    )


@client
def gp_latent() -> Fits:
    """Poisson counts whose log rate is a latent Gaussian process."""
    return of_model(latent_process())


@client
def ode() -> Fits:
    """Exponential decay as a ``pm.ode.DifferentialEquation``."""
    return of_model(decay())


@client
def custom_dist() -> Fits:
    """Gumbel regression by a ``pm.CustomDist`` with its own log density."""
    return of_model(gumbel_regression())


@client
def do_observe() -> Fits:
    """Effect of an intervention: ``pm.observe`` data, then ``pm.do``."""
    return of_model(intervention())


def latent_process() -> pm.Model:
    """Poisson counts whose log rate is a latent Gaussian process."""
    rng = np.random.default_rng(7)
    x = np.linspace(0, 10, 25)
    counts = rng.poisson(np.exp(1 + np.sin(x)))
    with pm.Model() as model:
        length = pm.Gamma("length", 4, 2)
        scale = pm.HalfNormal("scale", 2)
        process = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.Matern52(1, length))
        f = process.prior("f", x[:, np.newaxis])
        pm.Poisson("count", pt.exp(f), observed=counts)
    return model


def decay() -> pm.Model:
    """Exponential decay as a differential equation, observed with noise."""
    rng = np.random.default_rng(8)
    times = np.linspace(0.5, 4, 8)
    y = 3 * np.exp(-0.7 * times) + rng.normal(0, 0.1, 8)
    equation = pm.ode.DifferentialEquation(
        func=lambda y, t, p: -p[0] * y[0], times=times, n_states=1, n_theta=1, t0=0
    )
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0, 1)
        start = pm.HalfNormal("start", 5)
        noise = pm.HalfNormal("noise", 0.5)
        pm.Normal("y", equation(y0=[start], theta=[rate])[:, 0], noise, observed=y)
    return model


def gumbel_regression() -> pm.Model:
    """Gumbel regression, with a log density of our own."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=60)
    y = 1 + 2 * x + rng.gumbel(0, 0.5, 60)

    def log_density(value: Any, location: Any, scale: Any) -> Any:
        z = (value - location) / scale
        return -z - pt.exp(-z) - pt.log(scale)

    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        b = pm.Normal("b", 0, 5)
        scale = pm.HalfNormal("scale", 2)
        pm.CustomDist("y", a + b * x, scale, logp=log_density, observed=y)
    return model


def intervention() -> pm.Model:
    """Effect of an intervention, with a confounder that was observed."""
    rng = np.random.default_rng(10)
    z = rng.normal(size=100)
    cause = 0.8 * z + rng.normal(size=100)
    outcome = 1.5 * cause - z + rng.normal(size=100)
    with pm.Model() as model:
        effect, confounding = pm.Normal("effect"), pm.Normal("confounding")
        noise = pm.HalfNormal("noise")
        z_ = pm.Normal("z", shape=100)
        x_ = pm.Normal("x", 0.8 * z_, shape=100)
        pm.Normal("y", effect * x_ + confounding * z_, noise, shape=100)
    return pm.do(pm.observe(model, {"z": z, "y": outcome}), {"x": cause})


def compare(fitted: Any, reference: Any) -> dict[str, Any]:
    """Errors of the worst parameter: of its mean, in standard deviations, and of its deviation."""
    means, ratios = {}, {}
    for name, sampled in reference.data_vars.items():
        if name not in fitted or not np.issubdtype(sampled.dtype, np.floating):
            continue
        ours, theirs = (_flat(draws) for draws in (fitted[name], sampled))
        sd = theirs.std(axis=1)
        free = sd > 0
        if not free.any():
            continue
        error = abs(ours.mean(axis=1) - theirs.mean(axis=1))[free] / sd[free]
        ratio = ours.std(axis=1)[free] / sd[free]
        means[name] = error.max()
        ratios[name] = ratio[np.argmax(abs(np.log(ratio)))]
    mean = max(means, key=lambda name: means[name])
    sd = max(ratios, key=lambda name: abs(np.log(ratios[name])))
    return {
        "mean_error": f"{means[mean]:.2f}",
        "mean_worst": mean,
        "sd_ratio": f"{ratios[sd]:.2f}",
        "sd_worst": sd,
    }


def _flat(draws: Any) -> np.ndarray:
    """Return the draws of a variable, a row for each of its components."""
    chains, draws_ = draws.sizes["chain"], draws.sizes["draw"]
    return draws.transpose("chain", "draw", ...).values.reshape(chains * draws_, -1).T


def run(name: str) -> dict[str, Any] | None:
    """Fit and sample a client; None where its package is not installed."""
    try:
        fits = CLIENTS[name]()
    except ModuleNotFoundError as error:
        print(f"{name}: skipped, {error.name} is not installed")
        return None
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        approx, fitted = fits.fit()
    between = time.perf_counter()
    print(f"{name}: fitted in {between - begin:.1f} s", flush=True)
    print(approx.report, flush=True)
    reference = fits.nuts()
    end = time.perf_counter()
    return {
        "client": name,
        "versions": ", ".join(f"{package} {version(package)}" for package in fits.packages),
        "dim": approx.gaussian.dim,
        "status": str(approx.report.status),
        "khat": f"{approx.report.khat:.2f}",
        "family": approx.report.family,
        "warned": _warned(caught),
        **compare(fitted["posterior"], reference["posterior"]),
        "fit_seconds": f"{between - begin:.1f}",
        "nuts_seconds": f"{end - between:.1f}",
    }


def _warned(caught: Sequence[warnings.WarningMessage]) -> str:
    """Name what the fit warned of: that it is off, or that its budget was spent."""
    kinds = {"off": ngvi.UnreliableFit, "budget": ngvi.BudgetSpent}
    return ", ".join(
        name for name, kind in kinds.items() if any(issubclass(w.category, kind) for w in caught)
    )


def table(results: Path = RESULTS) -> str:
    """Return the errors as a table in Markdown. Seconds depend on the machine: they stay out."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    head = "model", "d", "fit", "k-hat", "means off by (sd)", "sds, of NUTS's", "warned", "with"
    lines = [head, ["---"] * len(head)]
    lines += [
        (
            f"`{row['client']}`",
            row["dim"],
            row["family"],
            row["khat"],
            f"{row['mean_error']} (`{row['mean_worst']}`)",
            f"{row['sd_ratio']} (`{row['sd_worst']}`)",
            row["warned"] or "no",
            row["versions"],
        )
        for row in rows
    ]
    # A bar in a name, as in bambi's `x|group`, would end the cell.
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> None:
    """Run the clients named, or all, and update the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CLIENTS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.results))
        return
    unknown = set(arguments.names) - set(CLIENTS)
    if unknown:
        parser.error(f"no client is called {', '.join(sorted(unknown))}; there are {[*CLIENTS]}")
    for name in arguments.names or CLIENTS:
        row = run(name)
        if row is None:
            continue
        print(row, flush=True)
        rows = {}
        if arguments.results.exists():
            with arguments.results.open(newline="") as file:
                rows = {old["client"]: old for old in csv.DictReader(file)}
        rows[name] = row
        with arguments.results.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[each] for each in CLIENTS if each in rows)


if __name__ == "__main__":
    main()
