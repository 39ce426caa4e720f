"""Posteriors that are not one Gaussian: fits before and after what was done about it, beside NUTS.

    python benchmarks/shape.py                              # every model, one seed
    python benchmarks/shape.py eight_schools --seeds 5
    python benchmarks/shape.py --cache FOLDER               # where draws of NUTS are kept
    python benchmarks/shape.py --picture                    # draw marginals of eight schools
    python benchmarks/shape.py --needless --posteriordb PATH    # what models pay that need nothing
    python benchmarks/shape.py --nuts                       # NUTS as it is, and from a fit
    python benchmarks/shape.py --matched                    # draws with weights, and matched

The ways to fit are one Gaussian on the values as they are written (`plain`), one Gaussian on values
that the fit chooses (`recentred`: ``remedy=None``), the default call (`default`), and a grid of the
variables that someone who knows the model would name (`nested`: ``nested=[...]``). Errors are
against 4 chains of nutpie, over all components on the unconstrained scale: of means in standard
deviations, of standard deviations as their ratio. Rows go to benchmarks/results/shape-LINE.csv;
what is there already is not measured again. `--needless` counts evaluations of the default call
and of one Gaussian on the values as they are, on regressions and on hierarchies with many rows;
`--nuts` samples by PyMC's own NUTS, on the model as it is written and on what the fit has chosen;
`--matched` weighs draws of two hierarchies, as they are and after matching.
`python benchmarks/run.py table` writes the tables.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import process

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"reparametrize": False, "remedy": None},
    "recentred": {"remedy": None},
    "default": {},
    "nested": {},  # and the names of `shape_models.NESTED`
}
COLUMNS = ("model", "way", "seed", "dim", "elbo", "elbo_se", "khat", "ess", "verdict_draws")
COLUMNS += ("evaluations", "gradients", "mean_error", "mean_worst", "sd_low", "sd_high", "worst")
COLUMNS += ("worst_mean_error", "worst_sd_ratio", "warned", "notes", "build_s", "fit_s")
COLUMNS += ("cpu_s", "nuts_s", "nuts_rhat", "nuts_ess", "nuts_divergences", "problem")
NEEDLESS = ("model", "way", "seed", "evaluations", "gradients", "elbo", "khat", "warned", "notes")
NEEDLESS += ("cpu_s", "problem")
SAMPLED = ("model", "way", "seed", "divergences", "gradients", "ess", "ess_per_gradient", "rhat")
SAMPLED += ("problem",)
MATCHED = ("model", "way", "draws", "seed", "elbo", "weighed_draws", "khat_before", "khat", "ess")
MATCHED += ("hyper_mean_error", "hyper_sd_ratio", "mean_worst", "cpu_s", "problem")
#: Regressions of posteriordb.
REGRESSIONS = ("kidscore_momiq", "kilpisjarvi", "mesquite", "nes1972", "sblrc", "diamonds", "arK")
DRAWS = 4000
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "eight_schools_shapes.png"
NUTS = {"chains": 4, "draws": 2000, "tune": 1500, "target_accept": 0.95}


def reference(model: str, cache: str) -> Iterator[process.Row]:
    """Sample a model by nutpie, and keep the draws on its unconstrained scale."""
    import arviz
    import numpy as np
    import pymc as pm
    import shape_models
    from references import unconstrain

    from pymc_ngvi.model.centring import recentred

    built = shape_models.MODELS[model]()
    begin = time.perf_counter()
    data = pm.sample(
        model=recentred(built, shape_models.CENTRING.get(model, {})),
        nuts_sampler="nutpie",
        random_seed=1,
        progressbar=False,
        cores=1,
        **NUTS,
    )
    seconds = time.perf_counter() - begin
    names = [variable.name for variable in built.free_RVs]
    posterior = data["posterior"]
    draws = {n: posterior[n].values.reshape(-1, *posterior[n].shape[2:]) for n in names}
    summary = arviz.summary(data, var_names=names, round_to="none")
    np.savez(
        Path(cache, f"{model}.npz"),
        draws=unconstrain(built, draws),
        seconds=seconds,
        rhat=float(summary["r_hat"].max()),
        ess=float(summary["ess_bulk"].min()),
        divergences=int(data["sample_stats"]["diverging"].sum()),
    )
    yield {"nuts_s": seconds}


def measure(model: str, way: str, seed: int, cache: str) -> Iterator[process.Row]:
    """Fit a model in one way, and compare its draws with those of NUTS."""
    if way == "nuts":
        yield from reference(model, cache)
        return
    import numpy as np
    import shape_models
    from references import unconstrain

    import pymc_ngvi as ngvi
    from pymc_ngvi._compat import initial_point
    from pymc_ngvi.model.layout import Layout

    built = shape_models.MODELS[model]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = options_of(model, way)
        approx = ngvi.NGVI(model=built, **options).fit(random_seed=seed, progressbar=False)
    report = approx.report
    yield {
        **{name: getattr(report, name) for name in COLUMNS[3:11]},
        "warned": "+".join(sorted({w.category.__name__ for w in caught if "ngvi" in str(w)})),
        "notes": "; ".join(report.notes),
        "build_s": report.compile_seconds,
        "fit_s": report.fit_seconds,
        **{name: value for name, value in process.used().items() if name == "cpu_s"},
    }
    posterior = approx.sample(DRAWS, random_seed=seed)["posterior"]
    names = [variable.name for variable in built.free_RVs]
    draws = unconstrain(built, {n: posterior[n].values[0] for n in names})
    nuts = np.load(Path(cache, f"{model}.npz"))
    layout = Layout(built, initial_point(built))
    yield compared(draws, nuts["draws"], layout)
    yield {f"nuts_{name}": nuts[name].item() for name in ("rhat", "ess", "divergences")}
    yield {"nuts_s": nuts["seconds"].item()}


def options_of(model: str, way: str) -> dict[str, Any]:
    """Return the options of a way to fit a model."""
    import shape_models

    return WAYS[way] | ({"nested": shape_models.NESTED[model]} if way == "nested" else {})


def matched(model: str, way: str, seed: int, cache: str) -> Iterator[process.Row]:
    """Fit a hierarchy in one way, and compare its draws as they are, weighed and matched."""
    import numpy as np
    import shape_models
    from references import unconstrain

    import pymc_ngvi as ngvi

    built = shape_models.MODELS[model]()
    exact = np.load(Path(cache, f"{model}.npz"))["draws"]
    centre, scale = exact.mean(axis=0), exact.std(axis=0)
    names = [variable.name for variable in built.free_RVs]
    hyper = names.index("tau")  # after scalars
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = options_of(model, way)
        approx = ngvi.NGVI(model=built, **options).fit(random_seed=seed, progressbar=False)
        for kind, importance in {
            "plain": None,
            "weighed": "psis",
            "matched": "match",
        }.items():
            data = approx.sample(DRAWS, random_seed=seed, importance=importance)
            posterior, stats = data["posterior"], data["sample_stats"]
            draws = unconstrain(built, {n: posterior[n].values[0] for n in names})
            weights = np.exp(stats["log_weight"].values.ravel()) if importance else None
            means = np.average(draws, axis=0, weights=weights)
            sds = np.sqrt(np.average((draws - means) ** 2, axis=0, weights=weights))
            shift = np.abs(means - centre) / scale
            yield {
                kind: {
                    "elbo": approx.report.elbo,
                    "weighed_draws": int(stats.attrs["weighed_draws"]),
                    "khat_before": float(stats.attrs.get("khat_unmatched", stats.attrs["khat"])),
                    "khat": float(stats.attrs["khat"]),
                    "ess": float(stats.attrs["ess"]),
                    "hyper_mean_error": float(shift[hyper]),
                    "hyper_sd_ratio": float(sds[hyper] / scale[hyper]),
                    "mean_worst": float(shift.max()),
                }
            }


def needless(model: str, way: str, seed: int, database: str) -> Iterator[process.Row]:
    """Fit a model that needs nothing, and count evaluations."""
    import posteriordb
    import shape_models

    import pymc_ngvi as ngvi

    if model in shape_models.PLAIN:
        built = shape_models.PLAIN[model]()
    else:
        built = posteriordb.POSTERIORS[model].model(posteriordb.find_database(database))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        approx = ngvi.NGVI(model=built, **WAYS[way]).fit(random_seed=seed, progressbar=False)
    yield {
        **{name: getattr(approx.report, name) for name in NEEDLESS[3:7]},
        "warned": "+".join(sorted({w.category.__name__ for w in caught if "ngvi" in str(w)})),
        "notes": "; ".join(approx.report.notes),
    }


def sampled(model: str, way: str, seed: int) -> Iterator[process.Row]:
    """Sample a model by PyMC's NUTS, and count its gradients, those of tuning included."""
    import arviz
    import pymc as pm
    import shape_models

    import pymc_ngvi as ngvi

    built = shape_models.MODELS[model]()
    keywords: dict[str, Any] = {"chains": 2, "tune": 1000}
    if way != "nuts":
        fitted = ngvi.NGVI(model=built).fit(random_seed=seed, progressbar=False)
        keywords = fitted.nuts_kwargs(chains=2, random_seed=seed)
    with built:
        data = pm.sample(
            draws=1000,
            cores=1,
            random_seed=seed,
            progressbar=False,
            discard_tuned_samples=False,
            **keywords,
        )
    summary = arviz.summary(data, var_names=[v.name for v in built.free_RVs], round_to="none")
    steps = [data[name]["n_steps"].sum() for name in ("sample_stats", "warmup_sample_stats")]
    gradients, ess = int(sum(steps)), float(summary["ess_bulk"].min())
    yield {
        "divergences": int(data["sample_stats"]["diverging"].sum()),
        "gradients": gradients,
        "ess": ess,
        "ess_per_gradient": ess / gradients,
        "rhat": float(summary["r_hat"].max()),
    }


def compared(draws: Any, exact: Any, layout: Any) -> process.Row:
    """Tell errors of means and sds, and those of the worst component by themselves."""
    import numpy as np

    shift = np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    ratio = draws.std(axis=0) / exact.std(axis=0)
    worst = int(np.argmax(np.abs(np.log(ratio)) + shift))
    return {
        "mean_error": float(np.sqrt(np.mean(shift**2))),
        "mean_worst": float(shift.max()),
        "sd_low": float(ratio.min()),
        "sd_high": float(ratio.max()),
        "worst": layout.label(worst),
        "worst_mean_error": float(shift[worst]),
        "worst_sd_ratio": float(ratio[worst]),
    }


def picture(cache: str) -> None:
    """Draw marginals of eight schools by all ways, and by NUTS."""
    import matplotlib.pyplot as plt
    import numpy as np
    import shape_models
    from references import unconstrain

    import pymc_ngvi as ngvi

    built = shape_models.MODELS["eight_schools"]()
    nuts = np.load(Path(cache, "eight_schools.npz"))["draws"]
    components = {"log tau": 1, "mu": 0, "theta[0]": 2}
    figure, axes = plt.subplots(1, len(components), figsize=(10, 3), layout="constrained")
    for axis, (name, i) in zip(axes, components.items(), strict=True):
        low, high = np.quantile(nuts[:, i], [0.002, 0.998])
        axis.hist(nuts[:, i], 60, range=(low, high), density=True, color="0.85", label="NUTS")
        axis.set(title=name, yticks=[])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label in ("plain", "recentred", "default"):
            options = options_of("eight_schools", label)
            approx = ngvi.NGVI(model=built, **options).fit(random_seed=1, progressbar=False)
            posterior = approx.sample(40_000, random_seed=1)["posterior"]
            names = [variable.name for variable in built.free_RVs]
            draws = unconstrain(built, {n: posterior[n].values[0] for n in names})
            for axis, i in zip(axes, components.values(), strict=True):
                edges = np.linspace(*axis.get_xlim(), 70)
                heights, _ = np.histogram(draws[:, i], edges, density=True)
                # Of all draws, those outside the axis included.
                heights *= np.mean((draws[:, i] > edges[0]) & (draws[:, i] < edges[-1]))
                axis.plot((edges[1:] + edges[:-1]) / 2, heights, label=label)
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(PICTURE, dpi=120)


def answered(what: str, **case: Any) -> Iterator[process.Row]:
    """Measure a case of one of the four kinds."""
    kinds = {"shape": measure, "needless": needless, "nuts": sampled, "matched": matched}
    return kinds[what](**case)


def count_needless(seeds: int, database: str | None, limit: float) -> None:
    """Count evaluations of models that need nothing."""
    table = process.Table("shape-needless", ("model", "way", "seed"), NEEDLESS)
    models = (*REGRESSIONS, "intercepts_of_many_rows", "rates_of_many_counts")
    for model, seed, way in itertools.product(models, range(1, seeds + 1), ("plain", "default")):
        key = {"model": model, "way": way, "seed": seed}
        if not table.has(**key):
            case = {"what": "needless", **key, "database": database}
            table.add(key | process.measure(__file__, case, limit=limit))


def sample_by_nuts(seeds: int, limit: float) -> None:
    """Sample two hierarchies by NUTS as it is, and from a fit."""
    table = process.Table("shape-nuts", ("model", "way", "seed"), SAMPLED)
    models, ways = ("eight_schools", "varying_intercepts"), ("nuts", "nuts from a fit")
    for model, seed, way in itertools.product(models, range(1, seeds + 1), ways):
        key = {"model": model, "way": way, "seed": seed}
        if not table.has(**key):
            case = {"what": "nuts", **key}
            table.add(key | process.measure(__file__, case, limit=limit))


def match_draws(arguments: argparse.Namespace) -> None:
    """Weigh and match draws of two hierarchies, after NUTS where its draws are not kept yet."""
    table = process.Table("shape-matched", ("model", "way", "draws", "seed"), MATCHED)
    models, ways = ("eight_schools", "poisson_hierarchy"), ("plain", "recentred", "nested")
    for model in models:
        make_reference(model, arguments)
        for way, seed in itertools.product(ways, range(1, arguments.seeds + 1)):
            key = {"model": model, "way": way, "seed": seed}
            if not table.has(**key, draws="matched"):
                case = {"what": "matched", **key, "cache": arguments.cache}
                row = process.measure(__file__, case, limit=arguments.limit)
                kinds = [kind for kind, value in row.items() if isinstance(value, dict)]
                for kind in kinds or ["matched"]:
                    table.add({**key, "draws": kind} | row | row.get(kind, {}))


def main() -> None:
    """Measure the models named, or all."""
    names = ("eight_schools", "poisson_hierarchy", "varying_intercepts", "meta_analysis")
    names += ("two_levels", "stochastic_volatility", "hsgp_regression", "horseshoe")
    names += ("student_hierarchy", "beta_binomial")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(names))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--limit", type=float, default=600, help="CPU seconds of each fit")
    parser.add_argument("--cache", default=str(Path(__file__).parent / ".cache" / "shape"))
    parser.add_argument("--picture", action="store_true", help="draw, and measure nothing")
    parser.add_argument("--needless", action="store_true", help="models that need nothing")
    parser.add_argument("--nuts", action="store_true", help="NUTS as it is, and from a fit")
    parser.add_argument("--matched", action="store_true", help="draws with weights, and matched")
    process.add_posteriordb(parser)
    arguments = parser.parse_args()
    if arguments.picture:
        picture(arguments.cache)
    elif arguments.needless:
        count_needless(arguments.seeds, arguments.posteriordb, arguments.limit)
    elif arguments.nuts:
        sample_by_nuts(arguments.seeds, arguments.limit)
    elif arguments.matched:
        match_draws(arguments)
    else:
        unknown = [model for model in arguments.models if model not in names]
        if unknown:
            parser.error(f"no model is called {unknown[0]}; there are {', '.join(names)}")
        measure_shapes(arguments.models or names, arguments)


def make_reference(model: str, arguments: argparse.Namespace) -> None:
    """Sample a model by nutpie, where its draws are not kept yet."""
    Path(arguments.cache).mkdir(parents=True, exist_ok=True)
    if not Path(arguments.cache, f"{model}.npz").exists():
        case = {"model": model, "way": "nuts", "seed": 1, "cache": arguments.cache}
        process.measure(__file__, {"what": "shape", **case}, limit=arguments.limit)


def measure_shapes(models: Sequence[str], arguments: argparse.Namespace) -> None:
    """Fit models in all ways, after NUTS where its draws are not kept yet."""
    table = process.Table("shape", ("model", "way", "seed"), COLUMNS)
    for model in models:
        make_reference(model, arguments)
        for way, seed in itertools.product(arguments.ways, range(1, arguments.seeds + 1)):
            key = {"model": model, "way": way, "seed": seed}
            if not table.has(**key):
                case = {"what": "shape", **key, "cache": arguments.cache}
                table.add(key | process.measure(__file__, case, limit=arguments.limit))


if __name__ == "__main__":
    process.answer(answered) or main()
