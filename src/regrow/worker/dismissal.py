"""SIGTERM to a worker is a notice: it hands over at a boundary and leaves, or ends when its time is up.

The handler runs on the main thread, wherever that is, perhaps with a lock held; so it does nothing but pass the notice on to
another thread. A handler that the script had installed before is called as well; one that it installs later replaces this.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

TOLD_CODE = 128 + signal.SIGTERM
"""Exit code when the time was up, or at a second notice: as a shell tells the signal's own end."""


class Dismissal:
    """`call` runs work on another thread, soon, and takes no lock: Session.call. `notify` is told there, once, how much time
    there is."""

    def __init__(
        self, call: Callable[[Callable[[], object]], None], notify: Callable[[float], None], within_s: float
    ) -> None:
        self._call = call
        self._notify = notify
        self._within_s = within_s
        self._is_told = False
        self._former: object = None

    def install(self) -> None:
        """On the main thread. Elsewhere nobody can, and SIGTERM ends the process as ever."""
        with contextlib.suppress(ValueError):
            self._former = signal.signal(signal.SIGTERM, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._is_told:
            os._exit(TOLD_CODE)
        self._is_told = True
        self._call(self._begin)
        if callable(self._former):
            self._former(number, frame)

    def _begin(self) -> None:
        timer = threading.Timer(self._within_s, os._exit, (TOLD_CODE,))
        timer.daemon = True
        timer.start()
        self._notify(self._within_s)
