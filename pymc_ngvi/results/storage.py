"""Fits in files: netCDF and nothing else, so that a file holds data and never code.

A fit is written in the classic netCDF format, which SciPy reads and writes, with a checksum of its
contents. Reading executes nothing from the file, and any file that is not a saved fit is refused.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import xarray

from pymc_ngvi._version import __version__
from pymc_ngvi.arguments import as_path
from pymc_ngvi.errors import FileFormatError
from pymc_ngvi.results.netcdf import read_header
from pymc_ngvi.results.records import SavedFit, undefined_family

if sys.platform != "win32":
    import fcntl

_FORMAT = "pymc_ngvi approximation"
_FORMAT_VERSION = 1
_UNREADABLE = (
    "{} is not an approximation saved by pymc_ngvi, or is cut short: it cannot be read as netCDF "
    "({})"
)
_DRAWS = (
    "{} is {} but not an approximation saved by pymc_ngvi. Draws, as sample returns them, are read "
    "by az.from_netcdf"
)
# Windows has no locks of this kind: there, a partial file of this age, in seconds, is abandoned.
_LONGEST_SAVE = 3600


def write(path: str | os.PathLike[str], fit: SavedFit) -> None:
    """Write a fit; where the path is a link, to the file that it points to.

    An existing file is replaced only when the new one is complete, which takes over its mode and
    its owner. Threads and processes may write to one path at the same time: the last one wins.
    """
    destination = _destination(path)
    dataset = fit.to_dataset().assign_attrs(
        format=_FORMAT, format_version=_FORMAT_VERSION, library_version=__version__
    )
    dataset = dataset.assign_attrs(checksum=_checksum(dataset))
    _replace(destination, memoryview(dataset.to_netcdf(engine="scipy")))


def read(path: str | os.PathLike[str]) -> SavedFit:
    """Read a fit.

    Raises
    ------
    FileFormatError
        The file is something else, is damaged, was written by a later version, or holds a member of
        a family that is not defined.
    """
    with open(as_path(path), "rb") as file:
        _check_header(path, file)
        file.seek(0)
        content = file.read()
    try:
        with xarray.open_dataset(
            io.BytesIO(content), engine="scipy", decode_times=False, mask_and_scale=False
        ) as opened:
            dataset = opened.load()
    # A damaged file may make the reader fail with any error.
    except Exception as error:
        raise FileFormatError(_UNREADABLE.format(path, type(error).__name__)) from error
    _check_format(path, dataset)
    try:
        return SavedFit.from_dataset(dataset)
    except Exception as error:
        raise FileFormatError(
            f"{path} does not hold a fit that can be read: {type(error).__name__}: {error}"
        ) from error


# Writing.


def _destination(path: str | os.PathLike[str]) -> Path:
    """Return the file to write: the path itself, or what it links to."""
    path = Path(os.path.realpath(as_path(path)))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no folder to save to", str(path.parent))
    if path.is_symlink():
        raise OSError(errno.ELOOP, "the link to save through leads to itself", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "a fit is saved to a file, and this is none", str(path))
    return path


def _replace(path: Path, content: memoryview) -> None:
    """Write a file beside the path, and move it there when it is complete."""
    _remove_abandoned(path)
    old = path.stat() if path.exists() else None
    # What replaces a private file is private from the first byte.
    with _partial_file(path, 0o666 if old is None else 0o600) as partial:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            with contextlib.suppress(OSError, AttributeError):  # only root may give files away
                os.chown(partial, old.st_uid, old.st_gid)
            os.chmod(partial, stat.S_IMODE(old.st_mode))
        os.replace(partial, path)


@contextlib.contextmanager
def _partial_file(path: Path, mode: int) -> Iterator[Path]:
    """Create a file of this writer's own beside the path; nothing is left of it after an error.

    The writer holds a lock on it, which ends with the writer, even one that is killed.
    """
    descriptor = None
    while descriptor is None:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # some network drives have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not os.fstat(descriptor).st_nlink:  # another writer was faster, and has removed it
            os.close(descriptor)
            descriptor = None
    if sys.platform == "win32":  # where open files cannot be moved
        os.close(descriptor)
    try:
        yield partial
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    finally:
        if sys.platform != "win32":
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove the partial files of writers to this path that were killed."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with contextlib.suppress(OSError):  # its writer is alive, or has just finished
            if sys.platform == "win32":
                if time.time() - partial.stat().st_mtime > _LONGEST_SAVE:
                    partial.unlink()
            else:
                with open(partial, "rb+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    partial.unlink()


# Reading.


def _check_header(path: str | os.PathLike[str], file: BinaryIO) -> None:
    """Raise where the beginning of a file says that it is no fit, or does not have its size."""
    if file.read(4) == b"\x89HDF":
        raise FileFormatError(_DRAWS.format(path, "HDF5, as netCDF-4 is,"))
    file.seek(0)
    try:
        header = read_header(file)
    except ValueError as error:
        raise FileFormatError(_UNREADABLE.format(path, error)) from error
    size = os.fstat(file.fileno()).st_size
    if header.size != size:
        raise FileFormatError(
            f"{path} is damaged or cut short: it has {size} bytes, and {header.size} by its header"
        )
    _check_kind(path, header.words)


def _check_kind(path: str | os.PathLike[str], attrs: Mapping[str, Any]) -> None:
    if attrs.get("format") != _FORMAT:
        raise FileFormatError(_DRAWS.format(path, "netCDF"))


def _check_format(path: str | os.PathLike[str], dataset: xarray.Dataset) -> None:
    attrs = dataset.attrs
    _check_kind(path, attrs)
    if attrs.get("format_version") != _FORMAT_VERSION:
        raise FileFormatError(
            f"{path} was written by pymc_ngvi {attrs.get('library_version')} in a format that "
            f"{__version__} does not know: read it with that version"
        )
    if attrs.get("checksum") != _checksum(dataset):
        raise FileFormatError(
            f"{path} is damaged: the checksum of its contents is not the one it was written with"
        )
    if undefined := undefined_family(attrs):
        raise FileFormatError(
            f"{path} holds a member of the family {undefined}, which is not defined: "
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
