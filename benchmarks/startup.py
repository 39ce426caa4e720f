"""What a user waits for: from the start of Python to InferenceData, beside ADVI.

    python benchmarks/startup.py --posteriordb PATH
    python benchmarks/startup.py --posteriordb PATH --models sblrc --methods ngvi

Each fit is a process of its own. Its first run has empty caches, in a folder that is made for it,
and the second one finds there what the first has compiled. ADVI runs at its defaults; "compiled" is
ngvi on PyTensor's own backend, Numba on PyMC 6 and C on PyMC 5, which is measured for gp_regr only.
The package has its byte code, as after an installation by pip. Rows go to
benchmarks/results/startup-LINE.csv; what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import compileall
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import process

MODELS = ("kidscore_momiq", "kilpisjarvi", "sblrc", "eight_schools_noncentered")
MODELS += ("cumulative_logit", "gp_regr")
METHODS = ("ngvi", "advi", "compiled")
# The compiled route is what gp_regr is compared with; others are compared with ADVI.
COMPILED = ("gp_regr",)

COLUMNS = ("model", "method", "caches", "seed", "seconds", "cpu_s", "peak_mb", "import_s")
COLUMNS += ("model_s", "build_s", "fit_s", "verdict_s", "draws_s", "elbo", "elbo_se", "status")
COLUMNS += ("evaluations", "backend", "problem")


def measure(model: str, method: str, seed: int, database: str | None) -> Iterator[process.Row]:
    """Fit a model and draw from the result; judge it when the time is taken."""
    import pymc as pm

    if method != "advi":
        import pymc_ngvi  # noqa: F401 - importing it is what makes method="ngvi" work
    yield {"import_s": process.since_start()}
    begin = time.perf_counter()
    built = _build(model, database)
    yield {"model_s": time.perf_counter() - begin}
    options: dict[str, Any] = {"random_seed": seed, "progressbar": False}
    if method == "compiled":
        options["backend"] = "numba" if process.LINE == "pymc6" else "c"
    begin = time.perf_counter()
    with built:
        approx = pm.fit(method="advi" if method == "advi" else "ngvi", **options)
        between = time.perf_counter()
        approx.sample(1000, random_seed=seed)
    end = time.perf_counter()
    yield {"seconds": process.since_start(), "draws_s": end - between, **process.used()}
    if method == "advi":
        yield {"fit_s": between - begin}  # compiling included: PyMC does not tell them apart
    else:
        report = approx.report
        yield {
            "build_s": report.compile_seconds,
            "fit_s": report.fit_seconds,
            "verdict_s": report.verdict_seconds,
            "status": str(report.status),
            "evaluations": report.evaluations,
            "backend": report.backend,
        }
    yield _judged(built, approx, peer=method == "advi")


def _judged(model: Any, approx: Any, *, peer: bool) -> process.Row:
    """ELBO of a fit: that of the report, and for a peer by draws from its Gaussian."""
    if not peer:  # a nested fit is no Gaussian
        return {"elbo": approx.report.elbo, "elbo_se": approx.report.elbo_se}
    from judging import elbo, gaussian_of_peer

    from pymc_ngvi.model.compilation import compile_target

    target = compile_target(model, backend="interpreted", curvature="none")
    value, error = elbo(target, gaussian_of_peer(approx, target))
    return {"elbo": value, "elbo_se": error}


def _build(model: str, database: str | None) -> Any:
    if model == "cumulative_logit":
        return cumulative_logit()
    import posteriordb

    return posteriordb.POSTERIORS[model].model(posteriordb.find_database(database))


def cumulative_logit() -> Any:
    """Ordered logistic regression: 572 ratings in 4 categories, 5 parameters."""
    import numpy as np
    import pymc as pm
    from pymc.distributions.transforms import ordered

    rng = np.random.default_rng(572)
    X = rng.normal(size=(572, 2))
    latent = X @ [0.8, -0.5] + rng.logistic(size=len(X))
    rating = np.searchsorted([-1.5, 0.0, 1.5], latent)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, 2.5, shape=2)
        cutpoints = pm.Normal(
            "cutpoints", 0.0, 5.0, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0]
        )
        pm.OrderedLogistic("rating", X @ slopes, cutpoints, compute_p=False, observed=rating)
    return model


def main() -> None:
    """Measure the models and methods named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900, help="CPU seconds of each fit")
    process.add_posteriordb(parser)
    arguments = parser.parse_args()
    _write_byte_code()
    table = process.Table("startup", ("model", "method", "caches", "seed"), COLUMNS)
    for model in arguments.models:
        for method in arguments.methods:
            if method == "compiled" and model not in COMPILED:
                continue
            for seed in range(1, arguments.seeds + 1):
                case = {"model": model, "method": method, "seed": seed}
                _cold_and_warm(table, case, arguments)


def _write_byte_code() -> None:
    """Do what pip does on installing; where PYTHONDONTWRITEBYTECODE is set, Python would not."""
    found = find_spec("pymc_ngvi")
    assert found is not None
    for folder in found.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=1)


def _cold_and_warm(table: process.Table, case: process.Row, arguments: argparse.Namespace) -> None:
    if table.has(**case, caches="cold") and table.has(**case, caches="warm"):
        return
    with tempfile.TemporaryDirectory() as folder:
        for caches in ("cold", "warm"):
            row = process.measure(
                __file__,
                case | {"database": arguments.posteriordb},
                limit=arguments.limit,
                environment=process.empty_caches(folder),
            )
            if not table.has(**case, caches=caches):
                table.add(case | {"caches": caches} | row)


if __name__ == "__main__":
    process.answer(measure) or main()
