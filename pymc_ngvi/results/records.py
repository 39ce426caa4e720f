"""What is kept of a fit, as arrays and words: the distribution, the iterations, the report.

InferenceData and files are written from the same records. The distribution is the exception: an
analyst reads its mean and covariance, whereas a file keeps the arrays from which the same one is
built again, to the last bit.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas
import xarray

from pymc_ngvi.core.algorithm import Info, Status
from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.families import (
    DiagonalGaussian,
    FullGaussian,
    Gaussian,
    LowRankGaussian,
    SparseGaussian,
    all_families,
)
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.core.nested import Nested
from pymc_ngvi.engine.search import Attempt
from pymc_ngvi.model.centring import Degrees
from pymc_ngvi.model.layout import Layout, Outline
from pymc_ngvi.results.parameters import COLUMNS, empty_table, make_table
from pymc_ngvi.results.report import Report

_AXES = ("parameter", "parameter_bis")


@dataclass(frozen=True)
class SavedFit:
    """What a file keeps of a fit.

    Attributes
    ----------
    distribution : Gaussian or Nested
        The approximation.
    outline : Outline
        Variables and components of the flat vector.
    losses : array
        Negative ELBO of each iteration; empty if the fit did not keep them.
    history : list of Info
        What happened in each iteration.
    report : Report or None
        How the fit went.
    seed : int, list or None
        The `random_seed` of the fit, if it was a number or several.
    loaded : tuple of str
        Names of the data containers that a loader filled.
    centring : dict of str to array
        Degrees of centring of variables that were recentred.
    importance : str or None
        What `sample` does with importance weights unless told otherwise.
    """

    distribution: Distribution
    outline: Outline
    losses: Array
    history: list[Info]
    report: Report | None
    seed: Any
    loaded: tuple[str, ...] = ()
    centring: Degrees = dataclasses.field(default_factory=dict)
    importance: str | None = None

    def to_dataset(self) -> xarray.Dataset:
        """Return the fit as a dataset of numbers and strings."""
        variables: dict[str, Any] = {"name": ("parameter", np.array(self.outline.names))}
        # The classic netCDF format has no dimensions of length 0.
        if self.losses.size:
            variables["losses"] = ("loss", self.losses)
        if self.history:
            variables |= {
                f"history_{name}": ("step", column.values.astype(np.float64))
                for name, column in history_to_dataset(self.history).variables.items()
            }
        if self.report is not None and len(self.report.parameters):
            variables |= {
                f"table_{name}": ("row", column.values)
                for name, column in parameters_to_dataset(self.report.parameters).variables.items()
            }
        return xarray.Dataset(
            distribution_to_variables(self.distribution) | variables,
            attrs={
                **_family_attributes(self.distribution),
                "shapes": json.dumps(self.outline.shapes),
                "report": report_to_json(self.report),
                "seed": json.dumps(self.seed),
                "loaded": json.dumps(self.loaded),
                "centring": degrees_to_json(self.centring),
                "importance": json.dumps(self.importance),
            },
        )

    @classmethod
    def from_dataset(cls, dataset: xarray.Dataset) -> SavedFit:
        """Inverse of `to_dataset`."""
        attrs = dataset.attrs
        losses = dataset["losses"].values.astype(float) if "losses" in dataset else np.empty(0)
        columns = {
            str(name): str(name).removeprefix("history_")
            for name in dataset.data_vars
            if str(name).startswith("history_")
        }
        report = report_from_json(attrs["report"])
        if report is not None:
            report = dataclasses.replace(report, parameters=_saved_parameters(dataset))
        return cls(
            distribution=distribution_from_dataset(dataset),
            outline=Outline(json.loads(attrs["shapes"]), list(map(str, dataset["name"].values))),
            losses=losses,
            history=history_from_dataset(dataset[list(columns)].rename(columns)),
            report=report,
            seed=json.loads(attrs["seed"]),
            loaded=tuple(json.loads(attrs.get("loaded", "[]"))),
            centring=degrees_from_json(attrs.get("centring", "{}")),
            importance=json.loads(attrs.get("importance", "null")),
        )


def distribution_to_variables(distribution: Distribution) -> dict[str, Any]:
    """Return the arrays from which the distribution is built, with names for their axes."""
    variables: dict[str, Any] = {}
    for name, value in distribution.arrays().items():
        try:
            array = np.asarray(value)
            array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
            if name in ("name", "losses") or name.startswith(("history_", "table_")):
                raise ValueError("a file keeps something else under this name")
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"a member of the family {distribution.name!r} cannot be saved by its array "
                f"{name!r} of type {type(value).__name__}: {error}. Define the methods `arrays` "
                f"and `from_arrays` of {type(distribution).__name__}"
            ) from error
        own = array.ndim > 2 or any(size != distribution.dim for size in array.shape)
        dims = [f"{name}_dim_{i}" for i in range(array.ndim)] if own else _AXES[: array.ndim]
        variables[name] = (dims, array)
    return variables


def distribution_from_dataset(dataset: xarray.Dataset) -> Distribution:
    """Build the distribution whose arrays are among the variables of a dataset."""
    arrays = {
        str(name): np.array(variable.values)
        for name, variable in dataset.variables.items()
        if variable.dtype.kind in "fi"
    }
    if dataset.attrs["family"] == Nested.name:
        return Nested.from_arrays(arrays, all_families()[dataset.attrs["family_of_rest"]])
    return all_families()[dataset.attrs["family"]].from_arrays(arrays)


def _family_attributes(distribution: Distribution) -> dict[str, str]:
    of_rest = (
        {"family_of_rest": distribution.family.name} if isinstance(distribution, Nested) else {}
    )
    return {"family": distribution.name} | of_rest


def undefined_family(attrs: Mapping[str, Any]) -> str | None:
    """Return the name of a family that a file needs and nobody has defined, if there is one."""
    names = [attrs.get("family"), attrs.get("family_of_rest", attrs.get("family"))]
    known = {*all_families(), Nested.name}
    return next((repr(name) for name in names if name not in known), None)


def degrees_to_json(degrees: Degrees) -> str:
    """Return degrees of centring as JSON."""
    return json.dumps({name: np.asarray(degree).tolist() for name, degree in degrees.items()})


def degrees_from_json(text: str) -> Degrees:
    """Inverse of `degrees_to_json`."""
    return {name: np.array(degree, float) for name, degree in json.loads(text).items()}


def moments_to_dataset(
    distribution: Distribution, layout: Layout, centring: Degrees | None = None
) -> xarray.Dataset:
    """Return mean and covariance, or variances, by the names of the unconstrained components."""
    gaussian = distribution.gaussian
    dims: tuple[str, ...] = _AXES[:1]
    spread = dict[str, Any](variance=(_AXES[:1], gaussian.variance))
    if gaussian.curvature == "full":
        dims, spread = _AXES, {"covariance": (_AXES, gaussian.covariance)}
    if gaussian.curvature == "sparse":
        spread |= {
            name: ([f"{name}_dim_{i}" for i in range(array.ndim)], array)
            for name, array in gaussian.arrays().items()
            if name != "mean"
        }
    return xarray.Dataset(
        {"mean": (dims[:1], gaussian.mean)} | spread,
        coords={dim: list(layout.names) for dim in dims},
        attrs={"family": distribution.name}
        | ({"centring": degrees_to_json(centring)} if centring else {}),
    )


def moments_from_dataset(dataset: Any) -> tuple[Gaussian, Outline] | None:
    """Return the Gaussian with these moments and the names of its components.

    Returns None where the dataset does not hold them.
    """
    if not {"mean", "parameter"} <= {*dataset, *dataset.coords}:
        return None
    names = Outline(names=[str(name) for name in dataset["parameter"].values])
    mean = dataset["mean"].values
    if {"precision", "rows", "columns", "order"} <= set(dataset):
        arrays = {name: dataset[name].values for name in dataset if name != "variance"}
        family = LowRankGaussian if "low_rank" in arrays else SparseGaussian
        return family.from_arrays(arrays), names
    if "covariance" in dataset:
        return FullGaussian.from_mean_covariance(mean, dataset["covariance"].values), names
    return DiagonalGaussian.from_mean_covariance(mean, dataset["variance"].values), names


def history_to_dataset(history: Sequence[Info]) -> xarray.Dataset:
    """Return what happened in each iteration: ELBO, step and sample size, KL, evaluations."""
    columns = {
        field.name: ("iteration", np.array([getattr(info, field.name) for info in history]))
        for field in dataclasses.fields(Info)
    }
    return xarray.Dataset(columns).set_coords("iteration")


def history_from_dataset(dataset: xarray.Dataset) -> list[Info]:
    """Inverse of `history_to_dataset`; the columns may all be of floats."""
    # Annotations are strings here, which name the types of the fields.
    kinds = {"int": int, "float": float, "bool": bool}
    columns = {
        field.name: [kinds[str(field.type)](value) for value in dataset[field.name].values]
        for field in dataclasses.fields(Info)
        if field.name in dataset.variables
    }
    rows = zip(*columns.values(), strict=True)
    return [Info(**dict(zip(columns, row, strict=True))) for row in rows]


def parameters_to_dataset(table: pandas.DataFrame) -> xarray.Dataset:
    """Return the table of parameters with its labels as a coordinate of strings."""
    columns = {name: table[name].to_numpy() for name in COLUMNS}
    columns["variable"] = columns["variable"].astype(str)
    return xarray.Dataset(
        {name: ("parameter", column) for name, column in columns.items()},
        coords={"parameter": table.index.to_numpy().astype(str)},
    )


def _saved_parameters(dataset: xarray.Dataset) -> pandas.DataFrame:
    """Return the table of parameters in a file; an older file has none, or further columns."""
    if "table_parameter" not in dataset:
        return empty_table()
    columns = {name: dataset[f"table_{name}"].values for name in ("parameter", *COLUMNS)}
    labels, variables = (list(map(str, columns.pop(name))) for name in ("parameter", "variable"))
    return make_table(labels, variables, columns)


def report_to_json(report: Report | None) -> str:
    """Return all fields of a report but the table of parameters as JSON."""
    values = None
    if report is not None:
        values = dataclasses.asdict(dataclasses.replace(report, parameters=empty_table()))
        del values["parameters"]
    return json.dumps(values, default=lambda number: number.item())  # NumPy's numbers


def report_from_json(text: str) -> Report | None:
    """Inverse of `report_to_json`."""
    values = json.loads(text)
    if values is None:
        return None
    starts = tuple(Attempt(**attempt) for attempt in values["starts"])
    notes = tuple(values.get("notes", ()))
    return Report(
        **{**values, "status": Status(values["status"]), "starts": starts, "notes": notes}
    )


def report_to_attributes(report: Report) -> dict[str, Any]:
    """Return the fields of a report that are words or numbers, as attributes of a group."""
    values = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    # netCDF refuses subclasses of str, such as a status.
    words = {name: str(value) for name, value in values.items() if isinstance(value, str)}
    return words | {name: value for name, value in values.items() if isinstance(value, Real)}
