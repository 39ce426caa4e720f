"""Command line of the experiments: ``python -m examples.paper gaussian --output FOLDER``."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from examples.paper.common import Settings
from examples.paper.conjugate import gaussian, subsampling
from examples.paper.influence import growth, neighbourhood
from examples.paper.logistic import logistic, nonnegative
from examples.paper.output import write_rows
from examples.paper.rates import TooFewIterationsError
from examples.paper.student import student, student_pymc


class Experiment(NamedTuple):
    """A command, with its default size and the paper's."""

    function: Callable[[Settings], Any]
    runs: int
    iterations: int
    paper_runs: int
    paper_iterations: int


EXPERIMENTS = {
    "gaussian": Experiment(gaussian, 100, 3000, 100, 10_000),
    "subsampling": Experiment(subsampling, 100, 2000, 100, 20_000),
    "logistic": Experiment(logistic, 50, 300, 50, 1000),
    "neighbourhood": Experiment(neighbourhood, 10, 3500, 100, 5000),
    "growth": Experiment(growth, 40, 5000, 100, 5000),
    "student": Experiment(student, 50, 600, 50, 1000),
    "student-pymc": Experiment(student_pymc, 1, 100, 1, 1000),
    "nonnegative": Experiment(nonnegative, 50, 300, 50, 1000),
}


def main() -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.paper", description="Experiments of the paper."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, experiment in EXPERIMENTS.items():
        command = add_command(commands, name, experiment.function)
        command.add_argument("--runs", type=positive, help=f"default {experiment.runs}")
        command.add_argument("--iterations", type=positive, help=f"default {experiment.iterations}")
        command.add_argument("--seed", type=int, default=1, help="of the first run; default 1")
        command.add_argument("--paper", action="store_true", help="the paper's sizes")
    arguments = parser.parse_args()
    experiment = EXPERIMENTS[arguments.command]
    settings = settings_of(arguments, experiment)
    begin = time.process_time()
    try:
        experiment.function(settings)
    except (FileNotFoundError, TooFewIterationsError) as error:
        parser.exit(2, f"{error}\n")
    seconds = time.process_time() - begin
    note_time(arguments, settings, seconds)
    print(f"{seconds:.0f} s of one core; files in {settings.output}")


def add_command(commands: Any, name: str, function: Callable[..., Any]) -> argparse.ArgumentParser:
    """Add a command with what all of them take, described by the first line of a docstring."""
    summary = (function.__doc__ or "").splitlines()[0]
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    command.add_argument("--data", type=Path, help="folder of the gas-turbine data")
    command.add_argument("--output", type=Path, default=Path("paper-output"))
    return command


def positive(text: str) -> int:
    """Read a positive number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def settings_of(arguments: argparse.Namespace, experiment: Experiment) -> Settings:
    """Fill in what was not given."""
    runs, iterations = experiment.runs, experiment.iterations
    if arguments.paper:
        runs, iterations = experiment.paper_runs, experiment.paper_iterations
    return Settings(
        runs=arguments.runs or runs,
        iterations=arguments.iterations or iterations,
        seed=arguments.seed,
        output=arguments.output,
        data=arguments.data,
        paper=arguments.paper,
    )


def note_time(arguments: argparse.Namespace, settings: Settings, seconds: float) -> None:
    """Add what the command took to the table of times in its folder, or replace its row."""
    path = settings.output / "times.csv"
    rows = []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    row = {
        "command": f"{arguments.command}{' --paper' if settings.paper else ''}",
        "runs": settings.runs,
        "iterations": settings.iterations,
        "seconds_of_one_core": round(seconds),
    }
    commands = [each["command"] for each in rows]
    at = commands.index(row["command"]) if row["command"] in commands else len(rows)
    rows[at : at + 1] = [row]
    write_rows(path, rows)


if __name__ == "__main__":
    main()
