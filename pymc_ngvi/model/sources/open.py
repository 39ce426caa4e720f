"""Finding the source that reads an array, without importing a package that is not in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from pymc_ngvi.model.sources.arrays import ArraySource, HDF5Source, MemorySource, mapped_source
from pymc_ngvi.model.sources.base import MASKED, Source, first_row


def open_source(name: str, array: Any, client: Any = None) -> Source:
    """Return the source of the rows of an array.

    Parameters
    ----------
    name : str
        For messages.
    array : array or Source
        Of NumPy, zarr, h5py or dask, a dataframe of dask, columns of a
        :class:`~pymc_ngvi.model.sources.parquet.Parquet`, or anything with a shape and slices.
    client : distributed.Client, optional
        Computes what dask has to; by default its default scheduler does.

    Raises
    ------
    TypeError, ValueError
        Where rows of numbers cannot be read by position from the array.
    """
    if isinstance(array, Source):
        source = array
    elif _package(array) in ("dask", "dask_expr"):
        from pymc_ngvi.model.sources.dask import dask_source

        source = dask_source(name, array, client)
    else:
        array = _unmasked(name, array)
        _check_array(name, array)
        if _package(array) == "h5py":
            source = HDF5Source(array)
        elif isinstance(array, np.ndarray):
            source = mapped_source(name, array) or MemorySource(array)
        else:
            source = ArraySource(array)
    if source.dtype.kind not in "biuf":
        raise TypeError(f"{name} has the type {source.dtype}: a Loader reads real numbers only")
    return source


def _package(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _unmasked(name: str, array: Any) -> Any:
    """Return the data of a masked array in memory that hides nothing."""
    if not np.ma.isMaskedArray(array):
        return array
    if array.ndim and np.ma.is_masked(array):
        row = first_row(np.ma.getmaskarray(array))
        raise ValueError(MASKED.format(f"{name} is masked in row {row}"))
    return np.ma.getdata(array)


def _check_array(name: str, array: Any) -> None:
    """Raise where rows of numbers cannot be read by position from an array."""
    kind = type(array).__name__
    if not hasattr(array, "shape"):
        raise TypeError(f"{name} is a {kind}, not an array: convert it to one")
    if hasattr(array, "iloc"):
        # pandas takes row numbers for labels, or for the names of columns.
        raise TypeError(f"{name} is a pandas {kind}, not an array: give its .to_numpy()")
    if scipy.sparse.issparse(array):
        raise TypeError(f"{name} is a sparse {kind}: a Loader reads dense rows only")
    if not np.shape(array):
        raise ValueError(f"{name} has no rows to load batches of: its shape is ()")
    try:
        np.dtype(array.dtype)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{name} is a {kind}, not an array of NumPy's types") from error
