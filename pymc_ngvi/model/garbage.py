"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Look for no garbage while a graph is built.

    Building makes hundreds of thousands of objects and drops few, and each look at all that PyMC
    has loaded takes a tenth of a second or two: a third of the time of building a small regression
    on PyMC 5. What is dropped is found later, with all else.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
