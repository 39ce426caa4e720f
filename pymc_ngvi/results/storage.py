"""Fits in files: netCDF and nothing else, so that a file holds data and never code.

A fit is written in the classic netCDF format, which SciPy reads and writes, with a checksum of its
contents. Reading executes nothing from the file, and any file that is not a saved fit is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path

import xarray

from pymc_ngvi._version import __version__
from pymc_ngvi.core.families import all_families
from pymc_ngvi.errors import FileFormatError
from pymc_ngvi.results.records import SavedFit

_FORMAT = "pymc_ngvi approximation"
_FORMAT_VERSION = 1


def write(path: str | os.PathLike[str], fit: SavedFit) -> None:
    """Write a fit. An existing file is replaced only when the new one is complete."""
    path = Path(path)
    dataset = fit.to_dataset().assign_attrs(
        format=_FORMAT, format_version=_FORMAT_VERSION, library_version=__version__
    )
    dataset = dataset.assign_attrs(checksum=_checksum(dataset))
    content = memoryview(dataset.to_netcdf(engine="scipy"))
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
        The file is something else, is damaged, was written by a later version, or holds a member of
        a family that is not defined.
    """
    content = Path(path).read_bytes()
    try:
        with xarray.open_dataset(
            io.BytesIO(content), engine="scipy", decode_times=False, mask_and_scale=False
        ) as opened:
            dataset = opened.load()
    # A damaged file may make the reader fail with any error.
    except Exception as error:
        raise FileFormatError(
            f"{path} is not an approximation saved by pymc_ngvi, or is cut short: it cannot be "
            f"read as netCDF ({type(error).__name__})"
        ) from error
    _check_format(path, dataset)
    try:
        return SavedFit.from_dataset(dataset)
    except Exception as error:
        raise FileFormatError(
            f"{path} does not hold a fit that can be read: {type(error).__name__}: {error}"
        ) from error


def _check_format(path: str | os.PathLike[str], dataset: xarray.Dataset) -> None:
    attrs = dataset.attrs
    if attrs.get("format") != _FORMAT:
        raise FileFormatError(
            f"{path} is netCDF but not an approximation saved by pymc_ngvi. Draws, as sample "
            "returns them, are read by az.from_netcdf"
        )
    if attrs.get("format_version") != _FORMAT_VERSION:
        raise FileFormatError(
            f"{path} was written by pymc_ngvi {attrs.get('library_version')} in a format that "
            f"{__version__} does not know: read it with that version"
        )
    if attrs.get("checksum") != _checksum(dataset):
        raise FileFormatError(
            f"{path} is damaged: the checksum of its contents is not the one it was written with"
        )
    if attrs.get("family") not in all_families():
        raise FileFormatError(
            f"{path} holds a member of the family {attrs.get('family')!r}, which is not defined: "
            "define or import the class with this name first"
        )


def _checksum(dataset: xarray.Dataset) -> str:
    """Digest of all arrays and attributes, the same for every byte order of the file."""
    digest = hashlib.sha256()
    for name, variable in sorted(dataset.variables.items()):
        digest.update(f"{name}{variable.shape}".encode())
        values = variable.values
        numeric = values.dtype.kind in "biuf"
        digest.update(
            values.astype("<f8").tobytes()
            if numeric
            else json.dumps(values.tolist(), default=repr).encode()
        )
    for name, value in sorted(dataset.attrs.items()):
        if name != "checksum":
            digest.update(f"{name}={value}".encode())
    return digest.hexdigest()
