"""What rows of data are read from: one class for each kind of storage, behind one protocol.

A :class:`~pymc_ngvi.model.sources.base.Source` has a shape and a type, reads rows, says where the
pieces begin that it is stored in, and gives pieces of itself that other processes can read.
"""

from pymc_ngvi.model.sources.base import Piece, Source
from pymc_ngvi.model.sources.open import open_source
from pymc_ngvi.model.sources.parquet import Parquet

__all__ = ["Parquet", "Piece", "Source", "open_source"]
