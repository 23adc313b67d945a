"""The memory that a neighbour may give to all runs together."""

import threading

from regrow.core.errors import NoRoom


class Room:
    """Taken before anything is kept there, from any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """NoRoom, and nothing is taken, where that would be beyond the limit."""
        with self._lock:
            if self.used_bytes + size_bytes > self.limit_bytes:
                raise NoRoom(
                    f"it is full: {size_bytes / 1e6:.3f} MB more are beyond its {self.limit_bytes / 1e6:.0f} MB, of which "
                    f"{self.used_bytes / 1e6:.1f} are used: give it more with --memory-mb, or end a run that it keeps"
                )
            self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        with self._lock:
            self.used_bytes -= size_bytes
