"""What one evaluation costs, beside NumPy by hand and beside a loop over draws.

    python benchmarks/evaluation.py rows                       # log density, gradient, Hessian
    python benchmarks/evaluation.py draws --posteriordb PATH   # 64 draws of small models
    python benchmarks/evaluation.py import                     # what importing the package adds

Each case is a process of its own, in which both sides are timed in turn; the best of several
rounds counts. Rows go to benchmarks/results/evaluation-PART-LINE.csv; what is there already is not
measured again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import process

LIKELIHOODS = ("logistic", "poisson", "negative_binomial", "student", "ordered", "softmax")
SHAPES = ((10_000, 50), (1_000_000, 20))
SMALL = ("kidscore_momiq", "eight_schools_noncentered", "arK", "nes1972")
DRAWS = 64
# Rounds go on for this many seconds, and for this many at least.
SECONDS, ROUNDS = 3.0, 5

COLUMNS = {
    "rows": "likelihood rows predictors draws route backend build_s average_ms hand_ms ratio "
    "gradient_ms density_ms disagreement peak_mb problem",
    "draws": "model dim draws route build_s batched_ms jacobians_ms looped_ms chosen_ms average_ms "
    "ratio chosen_ratio disagreement peak_mb problem",
    "import": "round pymc_s pymc_ngvi_s problem",
}
KEYS = {"rows": ("likelihood", "rows", "predictors"), "draws": ("model",), "import": ("round",)}


def measure(part: str, **case: Any) -> Iterator[process.Row]:
    """Measure one case of a part."""
    parts = {"rows": measure_rows, "draws": measure_draws, "import": measure_import}
    return parts[part](**case)


def best(*functions: Callable[[], Any], seconds: float = SECONDS) -> list[float]:
    """Milliseconds of each function, called in turn: the best of the rounds."""
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(times[0]) < ROUNDS or time.perf_counter() < end:
        for function, taken in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            taken.append(1e3 * (time.perf_counter() - begin))
    return [min(taken) for taken in times]


def measure_rows(likelihood: str, rows: int, predictors: int) -> Iterator[process.Row]:
    """Time one evaluation of a regression, at one draw as the engine asks for it."""
    import numpy as np
    import regressions

    from pymc_ngvi.model.compilation import compile_target

    model, by_hand = regressions.MODELS[likelihood](rows, predictors)
    begin = time.perf_counter()
    target = compile_target(model, backend="auto")
    rng = np.random.default_rng(1)
    x = (target.initial_point + 0.05 * rng.standard_normal((1, target.dim))).astype(float)
    yield {"draws": len(x), "route": target.hessian_route}
    ours = target.average(x, "full")
    yield {"build_s": time.perf_counter() - begin}
    sides = [lambda: target.average(x, "full"), lambda: target.evaluate(x, "none")]
    sides += [lambda: target.log_density(x), lambda: by_hand(x[0])]
    value, gradient, hessian = by_hand(x[0])
    pairs = [(ours.log_density[0], value), (ours.gradient[0], gradient), (ours.hessian, hessian)]
    yield {"disagreement": max(float(_relative(a, b)) for a, b in pairs)}
    average, slope, density, hand = best(*sides)
    yield {"average_ms": average, "gradient_ms": slope, "density_ms": density}
    yield {"hand_ms": hand, "ratio": average / hand, "backend": target.backend, **process.used()}


def _relative(ours: Any, theirs: Any) -> float:
    import numpy as np

    return np.max(np.abs(ours - theirs)) / max(np.max(np.abs(theirs)), 1e-300)


def measure_draws(model: str, database: str | None) -> Iterator[process.Row]:
    """Time the Hessians of 64 draws: in batches, and in loops over draws.

    There are two loops: one that evaluates the Jacobian of a gradient for each draw, and the one
    that the package falls back on, of a product for each draw and column. Ratios are to the faster
    one: of batches, and of the route that the package chooses, which may be by sums over rows. What
    the engine asks for is the mean of the Hessians, "average".
    """
    import numpy as np
    import posteriordb
    import pytensor
    from pytensor.gradient import jacobian

    from pymc_ngvi.model.compilation import compile_target
    from pymc_ngvi.model.evaluators import Batched, Looped

    built = posteriordb.POSTERIORS[model].model(posteriordb.find_database(database))
    target = compile_target(built, backend="interpreted")
    yield {"dim": target.dim, "draws": DRAWS, "route": target.hessian_route}
    rng = np.random.default_rng(1)
    x = target.initial_point + 0.1 * rng.standard_normal((DRAWS, target.dim))
    graph, compiler = target._functions.graph, target._functions.compiler
    batched, looped = Batched(graph, compiler), Looped(graph, compiler)
    begin = time.perf_counter()
    found = batched.hessians(x).hessian
    yield {"build_s": time.perf_counter() - begin}
    with pytensor.config.change_flags(traceback__limit=0):
        whole = jacobian(graph.gradient, graph.x, vectorize=True)
    function = compiler.function([graph.checked, graph.gradient, whole], [graph.x])

    def jacobians() -> Any:
        return np.array([function(draw)[2] for draw in x])

    others = [jacobians(), looped.hessians(x).hessian]
    yield {"disagreement": max(float(_relative(found, other)) for other in others)}
    times = best(
        lambda: batched.hessians(x),
        jacobians,
        lambda: looped.hessians(x),
        lambda: target.evaluate(x, "full"),
        lambda: target.average(x, "full"),
    )
    names = ("batched_ms", "jacobians_ms", "looped_ms", "chosen_ms", "average_ms")
    yield dict(zip(names, times, strict=True))
    loop = min(times[1:3])
    yield {"ratio": times[0] / loop, "chosen_ratio": times[3] / loop, **process.used()}


def measure_import(**_: Any) -> Iterator[process.Row]:
    """Time `import pymc`, and `import pymc_ngvi` after it."""
    begin = time.perf_counter()
    import pymc  # noqa: F401

    between = time.perf_counter()
    import pymc_ngvi  # noqa: F401

    yield {"pymc_s": between - begin, "pymc_ngvi_s": time.perf_counter() - between}


def main() -> None:
    """Measure the parts named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*COLUMNS])
    parser.add_argument("--models", nargs="+", choices=[*LIKELIHOODS, *SMALL])
    parser.add_argument("--shapes", nargs="+", metavar="ROWSxPREDICTORS", help="of `rows`")
    parser.add_argument("--limit", type=float, default=300, help="CPU seconds of each case")
    process.add_posteriordb(parser)
    arguments = parser.parse_args()
    part = arguments.part
    table = process.Table(f"evaluation-{part}", KEYS[part], COLUMNS[part].split())
    for key, more in _cases(arguments):
        if not table.has(**key):
            case = {"part": part, **key, **more}
            table.add(key | process.measure(__file__, case, limit=arguments.limit))


def _cases(arguments: argparse.Namespace) -> Iterator[tuple[process.Row, process.Row]]:
    """Give the key of each case, and what else measuring it takes."""
    if arguments.part == "rows":
        given = [tuple(map(int, text.split("x"))) for text in arguments.shapes or ()]
        for likelihood in arguments.models or LIKELIHOODS:
            for rows, predictors in given or SHAPES:
                yield {"likelihood": likelihood, "rows": rows, "predictors": predictors}, {}
    elif arguments.part == "draws":
        for model in arguments.models or SMALL:
            yield {"model": model}, {"database": arguments.posteriordb}
    else:
        # A first round that does not count brings the files into memory.
        process.measure(__file__, {"part": "import"}, limit=arguments.limit)
        for i in range(1, 6):
            yield {"round": i}, {}


if __name__ == "__main__":
    process.answer(measure) or main()
