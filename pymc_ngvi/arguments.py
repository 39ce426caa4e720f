"""Checks of arguments, with errors that name the argument and its valid values."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def check_count(name: str, value: float) -> int:
    """Return a positive integer, or raise an error that names the argument.

    Examples
    --------
    >>> check_count("draws", 10.0)
    10
    """
    if not is_positive_integer(value):
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def is_positive_integer(value: float) -> bool:
    """Whether a value is a whole number above zero; True and False do not count as numbers."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return bool(real and math.isfinite(value) and value >= 1 and value == value // 1)


def check_choice(name: str, value: Any, valid: Sequence[Any]) -> None:
    """Raise an error where a value is not among the valid ones, and suggest the nearest.

    Examples
    --------
    >>> check_choice("guard", "linn", ["lin", "none"])
    Traceback (most recent call last):
    ValueError: guard 'linn' is none of 'lin', 'none'; did you mean 'lin'?
    """
    if not (isinstance(value, str | None) and value in valid):
        words = [word for word in valid if isinstance(word, str)]
        hint = did_you_mean(value, words)
        raise ValueError(f"{name} {value!r} is none of {', '.join(map(repr, valid))}{hint}")


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message: the nearest known word, or `otherwise` if none is near.

    Examples
    --------
    >>> did_you_mean("famly", ["family", "guard"])
    "; did you mean 'family'?"
    """
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else otherwise


def as_generator(random_seed: Any) -> np.random.Generator:
    """Return the random generator for any kind of seed that PyMC accepts.

    Examples
    --------
    >>> int(as_generator(3).integers(100)) == int(as_generator(3).integers(100))
    True
    """
    if isinstance(random_seed, np.random.RandomState):
        random_seed = random_seed.randint(2**32, size=4, dtype=np.uint32)
    try:
        return np.random.default_rng(random_seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"random_seed {random_seed!r} is not a seed: give a non-negative integer, a sequence "
            "of them, a numpy.random.Generator, or None"
        ) from error
