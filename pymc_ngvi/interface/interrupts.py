"""Ctrl-C, held back while what was fitted is put away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Shield:
    """Holds back Ctrl-C, except where it is lifted.

    An interrupt between two lines that belong together, such as writing the fitted Gaussian and its
    report, would leave one without the other. Inside the shield it waits until the shield is lifted
    for something that may take long, and is dropped where nothing long follows: the fit is
    returned. Only the main thread receives signals; in others there is nothing to hold back.
    """

    def __init__(self) -> None:
        self._before: Callable[[int, FrameType | None], object] | None = None
        self._lifted = False
        self._waiting = False

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        # What is not callable is the system's handling: nothing is raised that could be held back.
        if callable(before) and threading.current_thread() is threading.main_thread():
            self._before = before
            signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._lifted and self._before is not None:
            self._before(number, frame)
        else:
            self._waiting = True

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let interrupts through, one that waits first of all."""
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt
        self._lifted = True
        try:
            yield
        finally:
            self._lifted = False
