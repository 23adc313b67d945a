"""How far long work is, on stderr: one line that is rewritten on a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from types import TracebackType

_SILENT_S = 2.0
_TERMINAL_S = 0.2
_ELSEWHERE_S = 10.0


class Gauge:
    """Says nothing about work that is done within `silent_s`."""

    def __init__(self, what: str, total_bytes: int, silent_s: float = _SILENT_S) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._is_terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next = self._started + silent_s
        self._has_spoken = False

    def __enter__(self) -> "Gauge":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._has_spoken and self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def add(self, size_bytes: int) -> None:
        """So much more is done. From any thread."""
        with self._lock:
            self._done_bytes += size_bytes
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + (_TERMINAL_S if self._is_terminal else _ELSEWHERE_S)
            self._has_spoken = True
            speed = self._done_bytes / (now - self._started)
            line = f"{self._what}: {size(self._done_bytes)} of {size(self._total_bytes)}, {size(int(speed))}/s"
            sys.stderr.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            sys.stderr.flush()


def size(size_bytes: int) -> str:
    """As people say it, in powers of ten."""
    number = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.5 else f"{number:.3g} {unit}"
