"""Write RESULTS.md, and the numbers of the README, from the measurements in benchmarks/results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

import compare_table
import facts
import waits
from formatting import Row, groups, markdown, numbers, small, span
from process import read

# Results of an early prototype: evaluations, ELBO, its standard error, KL/d.
PROTOTYPE = {
    "kidscore_momiq": (1569, -1881.668, 0.001, 0.0003),
    "kilpisjarvi": (1505, -103.250, 0.003, 0.0008),
    "mesquite": (1729, -277.904, 0.007, 0.002),
    "nes1972": (1441, -2738.841, 0.001, 0.0003),
    "sblrc": (1761, -194.996, 0.003, 0.0005),
    "eight_schools_centered": (1473, -32.67, 0.007, 1.1),
    "eight_schools_noncentered": (1713, -31.515, 0.004, 0.034),
    "diamonds": (1585, 3190.594, 0.001, 0.0007),
    "arK": (1777, 58.566, 0.003, 0.0002),
    "gp_regr": (1665, -27.568, 0.002, 0.0002),
    "low_dim_gauss_mix": (1505, -2115.687, 0.001, 0.0003),
    "garch11": (1457, -450.513, 0.010, 0.07),
}
HARD = ("eight_schools_centered", "eight_schools_noncentered")
SKEWED = ("garch11", "low_dim_gauss_mix")
MOST_EVALUATIONS = 120
LINES = {"pymc6": "PyMC 6", "pymc5": "PyMC 5"}


def write(results: Path) -> None:
    """Write RESULTS.md beside the folder of measurements, and the numbers of the README."""
    sections = [
        _INTRODUCTION,
        compare_table.section(results),
        *(_engine(read(results / f"engine-{line}.csv"), name) for line, name in LINES.items()),
        _peers(read(results / "engine-pymc6.csv"), read(results / "peers-pymc6.csv")),
        _trajectory(read(results / "trajectory-pymc6.csv")),
        _calibration(read(results / "calibration-pymc6.csv")),
        _growth(read(results / "growth-pymc6.csv")),
        _untuned(read(results / "untuned-pymc6.csv")),
        _verdict(read(results / "verdict-pymc6.csv")),
        _families(read(results / "families-pymc6.csv")),
        *[_shape(read(results / f"shape-pymc{line}.csv"), line) for line in (6, 5)],
        _matched(read(results / "shape-matched-pymc6.csv")),
        _needless(read(results / "shape-needless-pymc6.csv")),
        _sampled(read(results / "shape-nuts-pymc6.csv")),
        _warm_start(read(results / "warm-start-pymc6.csv")),
        *_subsampling(results),
        *_distributed(results),
        *waits.sections(results),
        _core_step(read(results / "core-step-pymc6.csv")),
    ]
    (results.parent / "RESULTS.md").write_text("\n\n".join(filter(None, sections)) + "\n")
    facts.write(results)


def _share(rows: Sequence[Row]) -> str:
    warned = sum(bool(row["warned"]) for row in rows)
    return f"{warned} of {len(rows)}" if warned else "none"


def _shape(rows: list[Row], line: int) -> str:
    if not rows:
        return ""
    lines = []
    for (model, way), found in groups(rows, "model", "way").items():
        if not numbers(found, "mean_worst"):
            lines.append(
                (model, way, len(found), next(row["problem"][:60] for row in found), *[""] * 9)
            )
            continue
        lines.append(
            (
                model,
                way,
                len(numbers(found, "elbo")),
                f"{median(numbers(found, 'elbo')):.2f}",
                f"{median(numbers(found, 'khat')):.2f}",
                f"{median(_effective(found)):.0%}",
                f"{median(numbers(found, 'evaluations')):,.0f}",
                f"{median(numbers(found, 'mean_worst')):.2f}",
                f"{min(numbers(found, 'sd_low')):.2f} to {max(numbers(found, 'sd_high')):.2f}",
                found[0]["worst"],
                f"{sum('Unreliable' in row['warned'] for row in found)} of {len(found)}",
                small(median(numbers(found, "cpu_s"))),
                small(median(numbers(found, "nuts_s"))),
            )
        )
    header = ("model", "way", "seeds", "ELBO", "k-hat", "effective", "evaluations", "worst mean")
    header += ("sds", "worst component", "warned", "CPU s", "NUTS s")
    return f"""## Posteriors that are not one Gaussian, PyMC {line}

<!-- shape {line} -->
`python benchmarks/shape.py --seeds 5`, PyMC {line}, medians of the seeds: one Gaussian on the model
as it is written (`plain`), one on values that the fit chooses (`recentred`: `remedy=None`), the
default call (`default`) and a grid of variables that are named (`nested`), each in a fresh process.
Evaluations are those of all that was tried. Errors are those of 4,000 draws against 4 x 2,000 draws
of nutpie, over all components on the unconstrained scale: the largest error of a mean, in standard
deviations, and the smallest and the largest ratio of standard deviations, of all seeds. CPU seconds
are those of the whole process, imports and building included; seconds of NUTS are those of
compiling and sampling by the clock, on one core of a machine that was not quiet.

{markdown(header, lines)}
<!-- shape {line} ends -->"""


def _matched(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (
            model,
            way,
            draws,
            len(found),
            f"{median(numbers(found, 'elbo')):.2f}",
            f"{median(numbers(found, 'weighed_draws')):,.0f}",
            f"{median(numbers(found, 'khat_before')):.2f}",
            f"{median(numbers(found, 'khat')):.2f}",
            f"{median(numbers(found, 'ess')):,.0f}",
            f"{median(numbers(found, 'mean_worst')):.2f}",
            f"{median(numbers(found, 'hyper_sd_ratio')):.2f}",
        )
        for (model, way, draws), found in groups(rows, "model", "way", "draws").items()
    ]
    header = ("model", "way", "draws", "seeds", "ELBO", "weighed", "k-hat before", "k-hat after")
    header += ("effective", "worst mean", "sd of log tau")
    return f"""### Draws that are weighed and matched

<!-- matched -->
`python benchmarks/shape.py --matched --seeds 5`, medians of the seeds: 4,000 draws as they are
(`plain`), with importance weights (`importance="psis"`), and matched (`importance="match"`: chosen
from ten times as many, which are matched and weighed). k-hat is that before and after matching,
and effective draws are those of all that are weighed. Errors as above, of weighted draws; the ratio
of standard deviations is that of the log of the scale.

{markdown(header, lines)}
<!-- matched ends -->"""


def _needless(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for (model,), found in groups(rows, "model").items():
        by_way = {way: found for (way,), found in groups(found, "way").items()}
        counts = [numbers(by_way.get(way, []), "evaluations") for way in ("plain", "default")]
        if all(counts):
            before, after = map(median, counts)
            seeds = len(counts[1])
            lines.append((model, seeds, f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}"))
    header = ("model", "seeds", "one Gaussian", "default call", "ratio")
    return f"""### What models pay that need none of it

<!-- needless -->
`python benchmarks/shape.py --needless`: evaluations of `remedy=None, reparametrize=False` and of
the default call, on regressions of posteriordb and two hierarchies with many rows for each group.

{markdown(header, lines)}
<!-- needless ends -->"""


def _sampled(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (
            model,
            way,
            len(found),
            f"{median(numbers(found, 'divergences')):.0f}",
            f"{median(numbers(found, 'gradients')):,.0f}",
            f"{median(numbers(found, 'ess')):.0f}",
            f"{1000 * median(numbers(found, 'ess_per_gradient')):.2g}",
        )
        for (model, way), found in groups(rows, "model", "way").items()
    ]
    header = ("model", "way", "seeds", "divergences", "gradients", "ESS", "ESS per 1,000 gradients")
    return f"""### NUTS on the values of a fit

<!-- sampled -->
`python benchmarks/shape.py --nuts`: PyMC's NUTS, 2 chains of 1,000 draws, on the model as it is
written with 1,000 tuning steps, and with `approx.nuts_kwargs()`. Gradients are those of tuning and
drawing, and not those of the fit; ESS is the smallest in bulk. Medians of the seeds.

{markdown(header, lines)}
<!-- sampled ends -->"""


def _warm_start(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (
            f"`{row['way']}`",
            *(f"{int(row[part]):,}" for part in ("tuning", "sampling")),
            f"{float(row['ess']):,.0f}",
            small(float(row["ess_per_1000"])),
            small(float(row["cpu_s"])),
        )
        for row in rows
    ]
    header = ("call", "gradients, tuning", "gradients, sampling", "smallest ESS")
    header += ("ESS per 1,000 gradients", "CPU s")
    return f"""### NUTS from a fit, correlated predictors

<!-- warm start -->
`python benchmarks/warm_start.py`: a regression with eight predictors that correlate at 0.99 (10
parameters), two chains of 500 draws, PyMC {rows[-1]["pymc"]}. The fit took
{rows[-1]["fit_evaluations"]} evaluations of the gradient and the Hessian, and
{rows[-1]["fit_gradients"]} of gradients or log densities alone. CPU seconds include compiling where
the caches had nothing.

{markdown(header, lines)}
<!-- warm start ends -->"""


def _core_step(rows: list[Row]) -> str:
    if not rows:
        return ""
    kinds = list(groups(rows, "samples", "guard"))
    lines = [
        (dim, *(f"{float(row['ratio']):.1f}" for row in found))
        for (dim,), found in groups(rows, "dim").items()
    ]
    header = ["d", *(f"N = {n}" + (", guard acts" if how == "acts" else "") for n, how in kinds)]
    return f"""## What a step of the core costs

<!-- core step -->
`make bench` compares a step of the full family, without the target's own cost, with one Cholesky
factorisation plus one triangular solve with a d x d right-hand side, in CPU seconds of one thread;
{rows[-1]["versions"]}. Ratios, for N draws:

{markdown(header, lines)}
<!-- core step ends -->"""


def _effective(rows: Sequence[Row]) -> list[float]:
    pairs = zip(numbers(rows, "ess"), numbers(rows, "verdict_draws"), strict=True)
    return [ess / draws for ess, draws in pairs]


_INTRODUCTION = """# Measured

Everything here is written by `python benchmarks/run.py table` from `benchmarks/results/*.csv`. The
command that measured a table is given above it. The commands of `benchmarks/run.py` need a clone of
[posteriordb](https://github.com/stan-dev/posteriordb) (`--posteriordb PATH`, or the environment
variable POSTERIORDB), and for the untuned models the draws of NUTS, which they make and keep.

An evaluation is the log density with its gradient and Hessian at one draw. ELBOs are means of
log p - log q over 4,000 fresh draws, the same for every fit of a model. KL/d is
KL(N(m, S), q) / d on the unconstrained space, with m and S the moments of the reference draws; it
is not what VI minimises, and a fit with a poorer ELBO can have a smaller KL/d. Times were measured
on one shared core."""


def _engine(rows: list[Row], line: str) -> str:
    if not rows:
        return ""
    lines = []
    for (name,), group in groups(rows, "model").items():
        spent, elbo, error, divergence = PROTOTYPE[name]
        elbos, divergences = numbers(group, "elbo"), numbers(group, "kl_per_dim")
        slack = 0.05 if name in HARD else 0.02 + 2 * max(error, *numbers(group, "elbo_se"))
        budget = 20_000 if name in HARD else 2_000 if name in SKEWED else MOST_EVALUATIONS
        held = {
            "ELBO": min(elbos) >= elbo - slack,
            "KL": name in HARD or max(divergences) <= max(1.5 * divergence, 0.001),
            "evaluations": median(numbers(group, "evaluations")) <= budget,
        }
        missed = ", ".join(what for what, ok in held.items() if not ok)
        lines.append(
            (
                f"{name} ({group[0]['dim']})",
                _spent(group),
                spent,
                f"{median(numbers(group, 'fit_s')):.2g}",
                span(elbos, "{:.3f}".format),
                f"{elbo} ({error})",
                span(divergences, small),
                divergence,
                span(numbers(group, "khat"), "{:.2f}".format),
                _share(group),
                missed or "yes",
            )
        )
    header = ("model (d)", "evaluations (+ gradients)", "prototype's", "fit s", "ELBO")
    header += ("prototype's (s.e.)",)
    header += ("KL/d", "prototype's", "k-hat", "warned", "holds")
    return f"""## The posteriors of posteriordb, {line}

`python benchmarks/run.py engine --posteriordb PATH`: one Gaussian for the model as it is written
(`family="fullrank", reparametrize=False`), from PyMC's initial point, 5 seeds. "Holds" is against
the prototype: the ELBO no lower by more than 0.02 nats and two standard errors (eight schools: 0.05
nats of its long run), KL/d at most 1.5 times its own or 0.001, and a median of at most
{MOST_EVALUATIONS} evaluations with Hessians (eight schools: 20,000; garch11 and the mixture:
2,000).

{markdown(header, lines)}"""


def _peers(ours: list[Row], rows: list[Row]) -> str:
    if not rows:
        return ""
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    by_model, engine = groups(rows, "model", "peer"), groups(ours, "model")
    lines = []
    for (name,), group in engine.items():
        cells = [
            f"{mean(numbers(group, 'elbo')):.2f}",
            span(numbers(group, "kl_per_dim"), small),
        ]
        for peer in peers:
            found = by_model.get((name, peer), [])
            values = numbers(found, "kl_per_dim")
            failed = len(found) - len(values)
            cells.append(
                (f"{max(numbers(found, 'elbo')):.2f}; {span(values, small)}" if values else "")
                + (f" ({failed} failed)" if failed else "")
            )
        lines.append((name, f"{cells[0]}; {cells[1]}", *cells[2:]))
    return f"""## Against ADVI

`python benchmarks/run.py peers --posteriordb PATH`: PyMC's `advi` and `fullrank_advi` at 30,000
iterations, at their default optimiser and with Adam at 0.01, 2 seeds. Each cell is the ELBO (of the
better seed; higher is better) and the KL/d of all seeds.

{markdown(("model", "ngvi", *peers), lines)}"""


def _trajectory(rows: list[Row]) -> str:
    if not rows:
        return ""
    best = {name: max(numbers(group, "elbo")) for (name,), group in groups(rows, "model").items()}
    lines = []
    for (name, method), group in groups(rows, "model", "method").items():
        ends = list({row["seed"]: row for row in group}.values())  # the last row of each seed
        gaps = [best[name] - value for value in numbers(ends, "elbo")]
        lines.append(
            (
                name,
                method,
                " and ".join(map(small, gaps)),
                " and ".join(map(small, numbers(ends, "seconds"))),
            )
        )
    header = ("model", "method", "nats below the best ELBO", "seconds after compiling")
    return f"""## Accuracy against time

`python benchmarks/run.py trajectory --posteriordb PATH` measures, and
`python benchmarks/run.py picture` draws. The end of each run, 2 seeds: ngvi at its defaults, the
others at 30,000 iterations. Seconds count from the first iteration and do not include
compiling, for all methods. Gaps below 0.01 nats are Monte-Carlo noise.

![Nats below the best ELBO against seconds](../docs/pictures/accuracy_against_time.png)

{markdown(header, lines)}"""


def _spent(group: list[Row]) -> str:
    """Say how many evaluations had Hessians, and how many gradients or log densities alone."""
    kinds = (span(numbers(group, kind), "{:.0f}".format) for kind in ("evaluations", "gradients"))
    return " + ".join(kinds)


def _calibration(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (
            row["model"],
            row["accuracy"],
            f"{float(row['within']):.1%}",
            f"{float(row['largest']):.2g}",
            f"{row['converged']} of {row['seeds']}",
            f"{float(row['evaluations']):.0f} + {float(row['gradients']):.0f}",
        )
        for row in rows
    ]
    header = ("model", "accuracy", "errors below it", "largest error", "converged")
    header += ("evaluations (+ gradients)",)
    return f"""## Is the accuracy what it says?

`python benchmarks/run.py calibration --posteriordb PATH`: fits of one Gaussian with many seeds; the
error of every mean, in posterior standard deviations, against a fit with an accuracy of 0.0002. At
least 90% of the errors should be below the accuracy. Evaluations are the median; a fit that did not
converge stopped at its budget of 20,000, with a warning. "logistic_d" has d coefficients and 50 d
rows.

{markdown(header, lines)}"""


def _growth(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (name, group[0]["dim"], group[0]["family"], len(group), _spent(group), _share(group))
        for (name, _), group in groups(rows, "model", "size").items()
    ]
    header = ("model", "d", "family", "seeds", "evaluations (+ gradients)", "warned")
    return f"""## Do more parameters take more evaluations?

`python benchmarks/run.py growth`: the default call on logistic regressions of 50 rows for each
coefficient, and on varying intercepts of 10 rows for each group.

{markdown(header, lines)}"""


def _untuned(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for (name,), group in groups(rows, "model").items():
        worst = max(group, key=lambda row: float(row["worst_error"]))
        lines.append(
            (
                f"{name} ({group[0]['dim']})",
                span(numbers(group, "evaluations"), "{:.0f}".format),
                f"{median(numbers(group, 'fit_s')):.2g}",
                ", ".join(sorted({row["status"] for row in group})),
                span(numbers(group, "khat"), "{:.2f}".format),
                f"{float(worst['worst_error']):.2f} ({worst['worst']})",
                f"{min(numbers(group, 'within')):.0%}",
                _share(group),
            )
        )
    header = ("model (d)", "evaluations", "fit s", "status", "k-hat", "largest error of a mean")
    header += ("means within 0.15", "warned")
    return f"""## Models no one tuned for, against NUTS

`python benchmarks/run.py untuned --cache FOLDER`: 3 seeds; errors of posterior means on the model's
own scale, deterministics included, in the standard deviations of NUTS (4 chains, R-hat below 1.01,
no divergences). The Lotka-Volterra model's initial point overflows; NUTS was started at the truth.

{markdown(header, lines)}"""


def _verdict(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for (name, way), group in groups(rows, "model", "way").items():
        worst = max(group, key=lambda row: float(row["error"]))
        lines.append(
            (
                f"{name} ({worst['dim']})",
                ", ".join(sorted({row["family"] for row in group}))
                + (" only" if way == "one" else ""),
                span(numbers(group, "khat"), "{:.2f}".format),
                span(numbers(group, "draws"), "{:.0f}".format),
                f"{worst['worst']}: {float(worst['shift']):.2f}, {float(worst['sd_ratio']):.2f}",
                f"{float(worst['said_shift']):.2f} ({float(worst['shift_error']):.2f}), "
                f"{float(worst['said_sd_ratio']):.2f} ({float(worst['sd_ratio_error']):.2f})",
                span(numbers(group, "off"), "{:.0f}".format),
                f"{span(numbers(group, 'called'), '{:.0f}'.format)} of {worst['parameters']}",
                f"{sum(row['warned'] == '1' for row in group)} of {len(group)}",
            )
        )
    counts = "; ".join(
        f"{what}: {_warned(each)}"
        for what, each in (
            ("one Gaussian", [row for row in rows if row["way"] == "one"]),
            ("the default call", [row for row in rows if row["way"] == "default"]),
        )
    )
    header = ("model (d)", "fit", "k-hat", "draws", "worst: shift, sd ratio")
    header += ("as the report says (s.e.)", "off", "called off", "warned")
    return f"""## Does the verdict warn where it should?

`python benchmarks/run.py verdict --posteriordb PATH --cache FOLDER`: 2 seeds, first one Gaussian
only (`remedy=None`), then the default call, which does what it can about a bad verdict. A parameter
is off if its mean is off by more than 0.2 standard deviations of the reference, or its standard
deviation by more than 20%, on the unconstrained or on its own scale, by the draws that a user gets.
References of the untuned models are of nutpie (`python benchmarks/untuned.py --sampler nutpie`).
The worst parameter is that of the worst seed. Models and seeds that are not in the table were not
measured. Fits of garch11 were looked at when the rule for moved draws was made: what it finds there
is not independent evidence for it.

How many fits with no parameter off were warned of, and how many with one or more off: {counts}.

{markdown(header, lines)}"""


def _warned(rows: list[Row]) -> str:
    """Say of how many good and bad fits the verdict warned."""
    bad = [row for row in rows if int(row["off"])]
    good = [row for row in rows if not int(row["off"])]
    told = [sum(row["warned"] == "1" for row in group) for group in (good, bad)]
    return f"{told[0]} of {len(good)} good ones and {told[1]} of {len(bad)} bad ones"


def _families(rows: list[Row]) -> str:
    if not rows:
        return ""
    lines = [
        (
            name,
            variant,
            span(numbers(group, "evaluations"), "{:.0f}".format),
            ", ".join(sorted({row["status"] for row in group})),
            span(numbers(group, "elbo"), "{:.3f}".format),
            span(numbers(group, "kl_per_dim"), small),
            span(numbers(group, "khat"), "{:.2f}".format),
            _share(group),
        )
        for (name, variant), group in groups(rows, "model", "variant").items()
    ]
    header = ("model", "variant", "evaluations", "status", "ELBO", "KL/d", "k-hat", "warned")
    return f"""## Mean-field, and gradients only

`python benchmarks/run.py families --posteriordb PATH`: 3 seeds. Mean-field ignores correlations,
and its fits come with a warning where that matters; `estimator="stein"` needs no second
derivatives.

{markdown(header, lines)}"""


def _subsampling(results: Path) -> list[str]:
    """Describe the fits of data in batches, one section for each experiment that was run."""
    sections = [
        (
            """## Batches of a million rows

`python -m benchmarks.subsampling logistic`: a logistic regression, a million rows, 20 parameters.
The errors are against the fit of all the data, the last row, for which a pass is an evaluation.
CPU seconds are those of building, fitting and the verdict; "times less" is by them. Peak memory is
what the fit adds to the data.""",
            "logistic",
            {
                "data": "data",
                "seed": "seed",
                "passes": "passes",
                "cpu_seconds": "CPU s",
                "peak_MB": "peak MB",
                "khat": "k-hat",
                "mean_error": "error of a mean, sd",
                "log_sd_error": "error of a log sd",
                "times_faster": "times less",
            },
        ),
        (
            """## Batches and anchors on the gas-turbine data

`python -m benchmarks.subsampling gas-turbine --data FOLDER`: the linear regression of the paper,
36,733 rows and 9 parameters. Passes over the data until the Bregman distance from the exact
posterior is below 0.01 per dimension: with control variates in batches of 100, and with plain
batches of 10,000 and expectations in closed form, the best that plain subsampling can do. Plain
fits are stopped there or after 5,445 passes.""",
            "gas-turbine",
            {
                "method": "method",
                "seed": "seed",
                "passes_until_close": "passes until close",
                "passes": "passes in all",
                "anchors": "anchors",
                "distance_per_dimension": "distance / d at the end",
            },
        ),
        (
            """## Data on disk

`python -m benchmarks.subsampling memory`: the logistic regression from `numpy.memmap` arrays
through a Loader, batches of 1,000. Peak memory is what the fit adds, without pages that map
files; that of the first includes the compiler's.""",
            "memory",
            {
                "rows": "rows",
                "data_MB": "data MB",
                "peak_MB": "peak MB",
                "passes": "passes",
                "fit_seconds": "fit s",
            },
        ),
        (
            """## Batches of other models

`python -m benchmarks.subsampling models`: against fits of all the data at an accuracy of 0.005.""",
            "models",
            {
                "model": "model",
                "parameters": "parameters",
                "rows": "rows",
                "batch": "batch",
                "seed": "seed",
                "passes": "passes",
                "status": "status",
                "khat": "k-hat",
                "mean_error": "error of a mean, sd",
                "log_sd_error": "error of a log sd",
                "elbo_error": "error of the ELBO",
            },
        ),
    ]
    return _tables(results, "subsampling", sections)


def _distributed(results: Path) -> list[str]:
    """Describe passes over the data on a cluster."""
    sections = [
        (
            """## Passes on a cluster

`python -m benchmarks.distributed same`: fits on one process and with passes on two workers of one
thread each, processes on the same machine; same seed, interpreted. The difference is the largest of
a mean, in standard deviations, and of a covariance, relative to them. All on two cores, with one
thread of linear algebra in each process.""",
            "same",
            {
                "model": "model",
                "rows": "rows",
                "parameters": "parameters",
                "anchors": "anchors",
                "passes": "passes",
                "difference": "difference",
                "seconds_alone": "one process s",
                "seconds_cluster": "two workers s",
            },
        ),
        (
            """### Parquet files larger than what the client may add to its memory

`python -m benchmarks.distributed parquet --rows 10000000`: logistic regression, 20 columns, in row
groups of 100,000 rows. The limit is one of the operating system on what the client may allocate in
the fit, beyond 1.6 GB that it had reserved, though not used, before. A pass is the log density,
gradient and Hessian of all rows. One process reads the files in it. Two workers keep the rows that
fit into their memory, here all; "reading" is a pass in which they may keep none. CPU s: of the
process, of the busier worker. The runs are the same but for the other users of the machine, on
which two threads take 0.75 of the time of one for the same sums over rows in memory.""",
            "parquet",
            {
                "rows": "rows",
                "data_MB": "data MB",
                "client_limit_MB": "limit MB",
                "passes": "passes",
                "seconds": "fit s",
                "kB_to_client": "kB to client",
                "client_peak_MB": "client peak MB",
                "worker_peak_MB": "worker peak MB",
                "pass_alone_s": "pass, one process s",
                "pass_cluster_s": "pass, two workers s",
                "ratio": "ratio",
                "pass_cluster_reading_s": "two workers, reading s",
                "ratio_reading": "ratio, reading",
                "cpu_alone_s": "CPU s",
                "cpu_busiest_worker_s": "CPU s of a worker",
                "cpu_ratio": "ratio of CPU",
                "same_bits": "same bits",
            },
        ),
        (
            """### Workers that are killed

`python -m benchmarks.distributed killed`: one of two workers is killed again and again at random
moments of fits.""",
            "killed",
            {
                "rows": "rows",
                "fit": "fit",
                "workers_killed": "workers killed",
                "difference": "difference from a fit on one process",
            },
        ),
        (
            """### What a cluster adds to a small fit

`python -m benchmarks.distributed overhead`: from making the loader to the end of the fit. In the
first row the workers import PyMC, and the process builds the target.""",
            "overhead",
            {
                "rows": "rows",
                "seconds_alone": "one process s",
                "seconds_cluster": "two workers s",
                "overhead_seconds": "difference s",
            },
        ),
    ]
    return _tables(results, "distributed", sections)


def _tables(
    results: Path, group: str, sections: Sequence[tuple[str, str, dict[str, str]]]
) -> list[str]:
    """Return a text and a table for each experiment of a group that was run."""
    told = []
    for text, name, columns in sections:
        rows = read(results / f"{group}-{name}.csv")
        if rows:
            cells = ([row[column] for column in columns] for row in rows)
            told.append(f"{text}\n\n{markdown(tuple(columns.values()), cells)}")
    return told
