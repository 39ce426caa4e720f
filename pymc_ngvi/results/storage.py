"""Fits in files: netCDF and nothing else, so that a file is data and never code.

A fit is written in the classic netCDF format, which SciPy reads and writes, with a checksum of its
contents. Reading executes nothing from the file, and what is not exactly such a file is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from pymc_ngvi._version import __version__
from pymc_ngvi.core.algorithm import Info
from pymc_ngvi.core.families import FullGaussian, Gaussian, get_family
from pymc_ngvi.engine.search import Attempt
from pymc_ngvi.errors import FileFormatError
from pymc_ngvi.model.layout import Outline
from pymc_ngvi.results.report import Report

_FORMAT = "pymc_ngvi approximation"
_FORMAT_VERSION = 1

#: Fields of a family that are enough to build the same member again, to the last bit.
_ARRAYS = {"fullrank": "factor", "meanfield": "precision", "centred_meanfield": "precision"}


@dataclass(frozen=True)
class SavedFit:
    """What a file keeps of a fit.

    Attributes
    ----------
    gaussian : Gaussian
    outline : Outline
        Variables and components of the flat vector.
    losses : array
        Negative ELBO of each iteration, if they were kept.
    history : list of Info
    report : Report or None
    seed : int, list or None
    loaded : tuple of str
        Names of the containers that were fed by a loader.
    """

    gaussian: Gaussian
    outline: Outline
    losses: NDArray[np.float64]
    history: list[Info]
    report: Report | None
    seed: Any
    loaded: tuple[str, ...] = ()


def write(path: str | os.PathLike[str], fit: SavedFit) -> None:
    """Write a fit, all of it or nothing: an existing file is replaced at the very end."""
    path = Path(path)
    content = memoryview(_to_dataset(fit).to_netcdf(engine="scipy"))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def read(path: str | os.PathLike[str]) -> SavedFit:
    """Read a fit.

    Raises
    ------
    FileFormatError
        The file is something else, is damaged, or was written by a later version.
    """
    content = Path(path).read_bytes()
    try:
        with xarray.open_dataset(
            io.BytesIO(content), engine="scipy", decode_times=False, mask_and_scale=False
        ) as opened:
            dataset = opened.load()
    # A damaged file makes the reader stumble in any way.
    except Exception as error:
        raise FileFormatError(
            f"{path} is no approximation saved by pymc_ngvi, or is cut short: it cannot be read as "
            f"netCDF ({type(error).__name__})"
        ) from error
    if dataset.attrs.get("format") != _FORMAT:
        raise FileFormatError(
            f"{path} is netCDF but no approximation saved by pymc_ngvi. Draws, as sample returns "
            "them, are read by az.from_netcdf"
        )
    if dataset.attrs.get("format_version") != _FORMAT_VERSION:
        raise FileFormatError(
            f"{path} was written by pymc_ngvi {dataset.attrs.get('library_version')} in a format "
            f"that {__version__} does not know: read it with that version"
        )
    try:
        if dataset.attrs["checksum"] != _checksum(dataset):
            raise ValueError("the checksum of its contents is not the one it was written with")
        return _from_dataset(dataset)
    except Exception as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


def _to_dataset(fit: SavedFit) -> xarray.Dataset:
    gaussian = fit.gaussian
    if gaussian.name not in _ARRAYS:
        raise TypeError(f"a {type(gaussian).__name__} cannot be saved yet")
    array = np.asarray(getattr(gaussian, _ARRAYS[gaussian.name]))
    dims = ("parameter", "parameter_bis")[: array.ndim]
    variables: dict[str, Any] = {
        "mean": ("parameter", gaussian.mean),
        _ARRAYS[gaussian.name]: (dims, array),
        "name": ("parameter", np.array(fit.outline.names)),
    }
    # An empty dimension has another meaning in netCDF.
    if fit.losses.size:
        variables["losses"] = ("loss", fit.losses)
    if fit.history:
        variables |= {
            f"history_{field.name}": ("step", _column(fit.history, field.name))
            for field in dataclasses.fields(Info)
        }
    dataset = xarray.Dataset(
        variables,
        attrs={
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "library_version": __version__,
            "family": gaussian.name,
            "shapes": json.dumps(fit.outline.shapes),
            "report": _report_as_json(fit.report),
            "seed": json.dumps(fit.seed),
            "loaded": json.dumps(fit.loaded),
        },
    )
    return dataset.assign_attrs(checksum=_checksum(dataset))


def _from_dataset(dataset: xarray.Dataset) -> SavedFit:
    attrs = dataset.attrs
    losses = dataset["losses"].values.astype(float) if "losses" in dataset else np.empty(0)
    return SavedFit(
        gaussian=_gaussian(dataset),
        outline=Outline(
            json.loads(attrs["shapes"]), [str(name) for name in dataset["name"].values]
        ),
        losses=losses,
        history=_history(dataset),
        report=_report(json.loads(attrs["report"])),
        seed=json.loads(attrs["seed"]),
        loaded=tuple(json.loads(attrs.get("loaded", "[]"))),
    )


def _gaussian(dataset: xarray.Dataset) -> Gaussian:
    family = get_family(dataset.attrs["family"])
    mean = np.array(dataset["mean"].values, dtype=np.float64)
    array = np.array(dataset[_ARRAYS[family.name]].values, dtype=np.float64)
    if family is FullGaussian:
        if not (np.isfinite([*array, mean]).all() and (array.diagonal() > 0).all()):
            raise ValueError("its factor of the precision is none")
        return FullGaussian(mean, array @ array.T, array)
    return family.from_mean_precision(mean, array)


def _column(history: Sequence[Info], name: str) -> NDArray[np.float64]:
    return np.array([getattr(info, name) for info in history], dtype=np.float64)


def _history(dataset: xarray.Dataset) -> list[Info]:
    # The types of the fields, by their names: annotations are not evaluated.
    kinds = {"int": int, "float": float, "bool": bool}
    columns = {
        field.name: [kinds[str(field.type)](value) for value in dataset[f"history_{field.name}"]]
        for field in dataclasses.fields(Info)
        if f"history_{field.name}" in dataset
    }
    if not columns:
        return []
    rows = zip(*columns.values(), strict=True)
    return [Info(**dict(zip(columns, row, strict=True))) for row in rows]


def _report_as_json(report: Report | None) -> str:
    values = None if report is None else dataclasses.asdict(report)
    return json.dumps(values, default=lambda number: number.item())  # those of NumPy


def _report(values: Mapping[str, Any] | None) -> Report | None:
    if values is None:
        return None
    starts = tuple(Attempt(**attempt) for attempt in values["starts"])
    return Report(**{**values, "starts": starts})


def _checksum(dataset: xarray.Dataset) -> str:
    """Digest of every array and attribute, however a file format keeps them."""
    digest = hashlib.sha256()
    for name, variable in sorted(dataset.variables.items()):
        digest.update(f"{name}{variable.shape}".encode())
        values = variable.values
        numeric = values.dtype.kind in "biuf"
        digest.update(
            values.astype("<f8").tobytes() if numeric else json.dumps(values.tolist()).encode()
        )
    for name, value in sorted(dataset.attrs.items()):
        if name != "checksum":
            digest.update(f"{name}={value}".encode())
    return digest.hexdigest()
