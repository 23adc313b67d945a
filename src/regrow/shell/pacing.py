"""A writer's pace on this machine's clock, for all threads that write."""

import threading
import time
from collections.abc import Callable

from regrow.core.pace import Pace


class Pacer:
    """`passed` hears of each block that was let through: a store that is fed slowly, or takes slowly, is not
    one that stands still."""

    def __init__(self, bytes_per_s: int = 0, passed: Callable[[int], None] = lambda _: None) -> None:
        self._pace = Pace(bytes_per_s)
        self._passed = passed
        self._lock = threading.Lock()

    def delay_s(self, size_bytes: int) -> float:
        """So long to wait before these are written; then they have `passed`."""
        with self._lock:
            return self._pace.wait_s(size_bytes, time.monotonic())

    def passed(self, size_bytes: int) -> None:
        self._passed(size_bytes)

    def wait(self, size_bytes: int) -> None:
        """Both, for a thread."""
        delay_s = self.delay_s(size_bytes)
        if delay_s > 0:
            time.sleep(delay_s)
        self.passed(size_bytes)
