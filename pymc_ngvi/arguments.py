"""Checks of arguments, with errors that name the argument and its valid values."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def check_count(name: str, value: float, *, least: int = 1, most: int = sys.maxsize) -> int:
    """Return an integer from `least` to `most`, or raise an error that names the argument.

    Examples
    --------
    >>> check_count("draws", 10.0)
    10
    """
    if not (is_whole(value) and value >= least):
        kind = {0: "zero or a positive integer", 1: "a positive integer"}[least]
        raise ValueError(f"{name} must be {kind}, got {told(value)}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {told(value)}")
    return int(value)


def is_positive_integer(value: float) -> bool:
    """Whether a value is a whole number above zero; True and False do not count as numbers."""
    return is_whole(value) and value >= 1


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; True and False do not count as numbers."""
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real) and math.isfinite(value) and value == value // 1


def check_number(name: str, value: float, least: float, most: float) -> float:
    """Return a number from `least` to `most`, or raise an error that names the argument.

    Examples
    --------
    >>> check_number("accuracy", "high", 1e-6, 1e6)
    Traceback (most recent call last):
    TypeError: accuracy must be a number from 1e-06 to 1e+06, got 'high'
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and least <= value <= most):
        error = ValueError if is_number else TypeError
        raise error(f"{name} must be a number from {least:g} to {most:g}, got {told(value)}")
    return float(value)


def check_flag(name: str, value: Any, *, optional: bool = False) -> bool | None:
    """Return True or False, or None where that is a value too, or raise an error.

    Examples
    --------
    >>> check_flag("averaging", "no")
    Traceback (most recent call last):
    TypeError: averaging must be True or False, got 'no'
    """
    if value is None and optional:
        return None
    if not isinstance(value, bool | np.bool_):
        choices = "True, False or None" if optional else "True or False"
        raise TypeError(f"{name} must be {choices}, got {told(value)}")
    return bool(value)


def check_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a dictionary with words as keys, or raise an error; None is an empty one."""
    if value is None:
        return {}
    if not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise TypeError(f"{name} must be a dictionary with words as keys, got {told(value)}")
    return dict(value)


def check_callable(name: str, value: Any, *arguments: str) -> None:
    """Raise an error where a value cannot be called with these arguments.

    Examples
    --------
    >>> check_callable("projection", lambda: None, "q")
    Traceback (most recent call last):
    TypeError: projection must be callable as projection(q), got <function <lambda> at ...>
    """
    try:
        inspect.signature(value).bind(*arguments)
    except ValueError:  # of some built-in functions the signature is unknown
        return
    except TypeError as error:
        raise TypeError(
            f"{name} must be callable as {name}({', '.join(arguments)}), got {told(value)}"
        ) from error


def as_path(value: Any) -> str:
    """Return the path of a file as a string, or raise an error.

    Python would take a number for an open file, and close it.

    Examples
    --------
    >>> as_path(3)
    Traceback (most recent call last):
    TypeError: path must be a string or a path, got 3
    """
    try:
        path = os.fsdecode(value)
    except TypeError as error:
        raise TypeError(f"path must be a string or a path, got {told(value)}") from error
    if not path or "\0" in path:
        raise ValueError(f"path must name a file, got {told(value)}")
    return path


def told(value: object) -> str:
    """Return a value as a message shows it: on one line, and not longer than that."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a huge integer has no digits to show, and a repr may fail
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


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
        raise ValueError(f"{name} {told(value)} is none of {', '.join(map(repr, valid))}{hint}")


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message: the nearest known word, or `otherwise` if none is near.

    Examples
    --------
    >>> did_you_mean("famly", ["family", "guard"])
    "; did you mean 'family'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
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
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"random_seed {told(random_seed)} is not a seed: give a non-negative integer, a "
            "sequence of them, a numpy.random.Generator, or None"
        ) from error
