"""Threads of linear algebra: one for a small model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.model.target import ModelTarget

# Matrices of more rows, or log densities of which one goes through more numbers times rows, gain
# from a second thread.
_SMALL_DIMENSION, _SMALL_WORK = 256, 2**19


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def suitable_threads(target: ModelTarget, q: Gaussian) -> AbstractContextManager[Any]:
    """Keep linear algebra to one thread where its matrices are small.

    Two threads gain nothing there. On a machine that has other things to do they lose much, as each
    waits for the other at every product: with six other programs on two cores, Cholesky factors and
    products of 104 x 104 took 70 times as long as on one thread. A sparse precision has dense rows
    for its hubs alone: with two threads the verdict on 504 parameters took 0.17 s, with one 0.12.
    """
    hubs = q.hubs()
    rows = target.dim if hubs is None else len(hubs)
    small = rows <= _SMALL_DIMENSION and rows * target.numbers <= _SMALL_WORK
    return _controller().limit(limits=1, user_api="blas") if small else nullcontext()
