"""Command line of the experiments: ``python -m examples.paper gaussian --output FOLDER``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from examples.paper.common import Settings
from examples.paper.conjugate import gaussian, subsampling
from examples.paper.influence import growth, neighbourhood
from examples.paper.logistic import logistic, nonnegative
from examples.paper.student import student


class Experiment(NamedTuple):
    """A command, with its default size and the paper's."""

    function: Callable[[Settings], Any]
    runs: int
    iterations: int
    paper_runs: int
    paper_iterations: int


EXPERIMENTS = {
    "gaussian": Experiment(gaussian, 100, 3000, 100, 10_000),
    "subsampling": Experiment(subsampling, 100, 3000, 100, 20_000),
    "logistic": Experiment(logistic, 50, 300, 50, 1000),
    "neighbourhood": Experiment(neighbourhood, 20, 3500, 100, 5000),
    "growth": Experiment(growth, 100, 5000, 100, 5000),
    "student": Experiment(student, 50, 600, 50, 1000),
    "nonnegative": Experiment(nonnegative, 50, 300, 50, 1000),
}


def main() -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.paper", description="Experiments of the paper."
    )
    commands = parser.add_subparsers(dest="experiment", required=True)
    for name, experiment in EXPERIMENTS.items():
        summary = (experiment.function.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--runs", type=int, help=f"default {experiment.runs}")
        command.add_argument("--iterations", type=int, help=f"default {experiment.iterations}")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--data", type=Path, help="folder of the gas-turbine data")
        command.add_argument("--output", type=Path, default=Path("paper-output"))
        command.add_argument("--paper", action="store_true", help="the paper's sizes")
    arguments = parser.parse_args()
    experiment = EXPERIMENTS[arguments.experiment]
    paper = arguments.paper
    settings = Settings(
        runs=arguments.runs or (experiment.paper_runs if paper else experiment.runs),
        iterations=arguments.iterations
        or (experiment.paper_iterations if paper else experiment.iterations),
        seed=arguments.seed,
        output=arguments.output,
        data=arguments.data,
        paper=paper,
    )
    begin = time.perf_counter()
    try:
        experiment.function(settings)
    except (FileNotFoundError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{time.perf_counter() - begin:.0f} s; files in {settings.output}")


if __name__ == "__main__":
    main()
