"""Varying intercepts by R's glmmTMB and lme4, beside NGVI on the same data.

    python benchmarks/large_in_r.py                        # 50,000 groups, Gaussian and Poisson
    python benchmarks/large_in_r.py --groups 2000

Needs Rscript with the packages glmmTMB and lme4 (on Debian r-cran-glmmtmb and r-cran-lme4); says so
and ends where they are missing. Each fit is a process of its own. Seconds and CPU seconds are those
of the whole process, reading the data included; NGVI's include imports, building, compiling, the
verdict and 1,000 draws. R gives maximum likelihood, so estimates agree with posterior means up to
the priors. Rows go to benchmarks/results/large-r-LINE.csv.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import process

COLUMNS = ("kind", "groups", "method", "seconds", "cpu_s", "peak_mb", "estimates", "problem")
MODELS = {"gaussian": "varying_intercepts", "poisson": "varying_intercepts_poisson"}
R = """
arguments <- commandArgs(TRUE)
data <- data.frame(y = scan(file.path(arguments[1], "y"), quiet = TRUE),
                   x = scan(file.path(arguments[1], "x"), quiet = TRUE))
data$group <- factor(rep(seq_len(nrow(data) / 10), each = 10))
fixed <- function(fit) unname(if (arguments[2] == "lme4") lme4::fixef(fit) else
                              glmmTMB::fixef(fit)$cond)
if (arguments[2] == "lme4") {
    suppressPackageStartupMessages(library(lme4))
    fit <- if (arguments[3] == "gaussian") lmer(y ~ x + (1 | group), data)
           else glmer(y ~ x + (1 | group), data, family = poisson)
    spread <- as.data.frame(VarCorr(fit))$sdcor
} else {
    suppressPackageStartupMessages(library(glmmTMB))
    fit <- glmmTMB(y ~ x + (1 | group), data, family = get(arguments[3])())
    spread <- c(attr(VarCorr(fit)$cond$group, "stddev"), sigma(fit))
    effects <- ranef(fit, condVar = TRUE)
}
cat(sprintf("%.6g", c(fixed(fit), spread)), "\\n")
"""


def data_of(model: Any) -> tuple[Any, Any]:
    """Return outcomes and predictor of a model of `large_models`."""
    import large_models

    (observed,) = model.observed_RVs
    y = model.rvs_to_values[observed].eval()
    _, _, x = large_models._grouped(len(y) // 10)
    return y, x


def measure(kind: str, groups: int, method: str, folder: str) -> Iterator[process.Row]:
    """Write the data for R, or fit by NGVI."""
    import large_models
    import numpy as np

    built = large_models.MODELS[MODELS[kind]](groups)
    if method == "data":
        for name, values in zip("yx", data_of(built), strict=True):
            np.savetxt(Path(folder, name), values, fmt="%.9g")
        return
    import pymc_ngvi as ngvi

    approx = ngvi.NGVI(model=built).fit(random_seed=1, progressbar=False)
    posterior = approx.sample(1000, random_seed=1)["posterior"]
    yield {"seconds": process.since_start(), **process.used()}
    names = ["mu", "slope", "tau", *(["sigma"] if kind == "gaussian" else [])]
    yield {"estimates": " ".join(f"{float(posterior[n].mean()):.6g}" for n in names)}


def by_r(kind: str, method: str, folder: str, limit: float) -> process.Row:
    """Fit by a package of R, and tell what the process took."""
    script, begin = Path(folder, "fit.R"), time.perf_counter()
    script.write_text(R)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["Rscript", str(script), folder, method, kind]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {limit:g} s"}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row: process.Row = {"seconds": time.perf_counter() - begin, "cpu_s": spent}
    if ended.returncode:
        return row | {"problem": ended.stderr.strip().splitlines()[-1][:200]}
    return row | {"estimates": ended.stdout.strip()}


def main() -> None:
    """Measure all methods on both kinds of data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=50_000)
    parser.add_argument("--limit", type=float, default=900, help="seconds of each fit")
    arguments = parser.parse_args()
    if shutil.which("Rscript") is None:
        parser.exit(message="Rscript is not installed: nothing was measured\n")
    table = process.Table("large-r", ("kind", "groups", "method"), COLUMNS)
    for kind in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            case = {"kind": kind, "groups": arguments.groups, "folder": folder}
            written = False
            for method in ("ngvi", "lme4", "glmmTMB"):
                key = {"kind": kind, "groups": arguments.groups, "method": method}
                if table.has(**key):
                    continue
                if method == "ngvi":
                    row = process.measure(
                        __file__, {**case, "method": method}, limit=arguments.limit
                    )
                else:
                    if not written:
                        process.measure(__file__, {**case, "method": "data"}, limit=600)
                        written = True
                    row = by_r(kind, method, folder, arguments.limit)
                table.add(row | key)


if __name__ == "__main__":
    process.answer(measure) or main()
