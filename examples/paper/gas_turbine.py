"""The gas-turbine data (Kaya, Tufekci and Uzun 2019): five files, ``gt_2011.csv`` to 2015."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from examples.paper.common import Array

VARIABLE = "GAS_TURBINE"
YEARS = range(2011, 2016)
COLUMNS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX")
SOURCE = "https://archive.ics.uci.edu/dataset/551"


def folder(data: Path | None) -> Path:
    """Folder of the files: the one given, or that of the environment variable GAS_TURBINE."""
    given = data or os.environ.get(VARIABLE)
    if not given:
        raise FileNotFoundError(
            "this experiment needs the gas-turbine data, which is not part of the project: "
            f"download it from {SOURCE} and give its folder by --data, or in {VARIABLE}"
        )
    path = Path(given)
    missing = [name for name in map(file_name, YEARS) if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{path} has no {', '.join(missing)}; they come from {SOURCE}")
    return path


def file_name(year: int) -> str:
    """Name of a year's file."""
    return f"gt_{year}.csv"


def read_year(path: Path, year: int) -> Array:
    """One year's rows, with the columns of COLUMNS."""
    return np.loadtxt(path / file_name(year), delimiter=",", skiprows=1)


def emissions(data: Path | None) -> tuple[Array, Array]:
    """Nine covariates of all years and the NOx emissions, as they are; CO is left out."""
    path = folder(data)
    table = np.concatenate([read_year(path, year) for year in YEARS])
    return table[:, :9], table[:, COLUMNS.index("NOX")]


def energy_yield(data: Path | None) -> tuple[Array, Array]:
    """Ten covariates and the energy yield, first 715 rows of 2013, standardised."""
    table = read_year(folder(data), 2013)[:715]
    table = (table - table.mean(axis=0)) / table.std(axis=0, ddof=1)
    response = COLUMNS.index("TEY")
    return np.delete(table, response, axis=1), table[:, response]
