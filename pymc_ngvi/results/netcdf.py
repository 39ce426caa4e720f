"""The header of a classic netCDF file, read without reading the file.

The header says how many bytes the file has. A file of another length is cut short, or is something
else, and is told by its first bytes, however long it is.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import BinaryIO

_MAGIC = {b"CDF\x01": ">I", b"CDF\x02": ">Q"}  # the second with offsets of 64 bits
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8}  # of the types of the format, by their numbers
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
# A fit has some twenty variables: a damaged count must not keep the reader busy for hours.
_MOST_ENTRIES = 10_000
_LONGEST_WORD = 1024


@dataclass(frozen=True)
class Header:
    """What the header of a file says.

    Attributes
    ----------
    size : int
        Number of bytes of the whole file.
    words : dict of str to str
        The attributes of the file that are short texts.
    """

    size: int
    words: dict[str, str]


def read_header(file: BinaryIO) -> Header:
    """Read the header from the beginning of a file.

    Raises
    ------
    ValueError
        These bytes are no header of a file of arrays of fixed length.
    """
    offset = _MAGIC.get(file.read(4))
    if offset is None:
        raise ValueError("it does not begin as a netCDF file does")
    if _number(file):
        raise ValueError("it has records")
    lengths = []
    for _ in range(_entries(file, _DIMENSIONS)):
        _word(file)
        lengths.append(_number(file))
    words = _attributes(file)
    ends = []
    for _ in range(_entries(file, _VARIABLES)):
        _word(file)
        dimensions = [_number(file) for _ in range(_limited(_number(file)))]
        _attributes(file)
        width = _width(_number(file))
        _number(file)  # the size, which has too few bits for a large array
        begin = _number(file, offset)
        if not all(dimension < len(lengths) for dimension in dimensions):
            raise ValueError("an array has an unknown dimension")
        ends.append(begin + _padded(math.prod(lengths[i] for i in dimensions) * width))
    return Header(max([file.tell(), *ends]), words)


def _attributes(file: BinaryIO) -> dict[str, str]:
    """Pass over a list of attributes; return those that are short texts."""
    words = {}
    for _ in range(_entries(file, _ATTRIBUTES)):
        name = _word(file)
        kind, count = _number(file), _number(file)
        end = file.tell() + _padded(count * _width(kind))
        if kind == 2 and count <= _LONGEST_WORD:
            words[name] = file.read(count).decode("utf-8", "replace")
        file.seek(end)
    return words


def _entries(file: BinaryIO, expected: int) -> int:
    """Read the beginning of a list, and return the number of its entries."""
    tag, count = _number(file), _number(file)
    if tag not in (0, expected) or (tag == 0 and count):
        raise ValueError("a list of its header begins wrongly")
    return _limited(count)


def _limited(count: int) -> int:
    if count > _MOST_ENTRIES:
        raise ValueError(f"its header counts {count} entries")
    return count


def _word(file: BinaryIO) -> str:
    count = _number(file)
    if count > _LONGEST_WORD:
        raise ValueError(f"its header has a name of {count} bytes")
    return file.read(_padded(count))[:count].decode("utf-8", "replace")


def _number(file: BinaryIO, kind: str = ">I") -> int:
    content = file.read(struct.calcsize(kind))
    if len(content) < struct.calcsize(kind):
        raise ValueError("its header is cut short")
    return int(struct.unpack(kind, content)[0])


def _width(kind: int) -> int:
    if kind not in _BYTES:
        raise ValueError(f"its header has an unknown type {kind}")
    return _BYTES[kind]


def _padded(count: int) -> int:
    """Round up to a multiple of four bytes."""
    return -(-count // 4) * 4
