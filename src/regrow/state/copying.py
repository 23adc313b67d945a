"""How far the copy of one save is: told by the thread that copies, waited for by the keeper's.

What lies below a mark is in the arena for good, unless the whole copy turns out to be void. That is known at its end: the
last bytes are only said to be there once it is known that they all are of one moment.
"""

import threading

from regrow.core.draft import Draft


class Copying:
    def __init__(self, draft: Draft) -> None:
        self.total_bytes = draft.arena_bytes
        self.error: Exception | None = None
        """Why there never will be a copy."""
        stops = [stop for _, stop in draft.extents]
        self._stops = stops[:-1]
        """What somebody waits for: the ends of shards."""
        self._limit_bytes = max(stops, default=0) - 1
        """More than this is not said to be there before the end."""
        self._there_bytes = -1
        self._changed = threading.Condition()

    @staticmethod
    def done(draft: Draft) -> "Copying":
        """Of a state that lies in its arena already."""
        copying = Copying(draft)
        copying.end(None)
        return copying

    def reached(self, size_bytes: int) -> None:
        """All before this byte is there. Called for every tensor: most calls are of no interest to anybody."""
        if self._there_bytes < 0 or (self._stops and size_bytes >= self._stops[0]):
            while self._stops and size_bytes >= self._stops[0]:
                del self._stops[0]
            self._tell(min(size_bytes, self._limit_bytes))

    def end(self, error: Exception | None) -> None:
        """All is there, as it should be; or nothing ever will be."""
        self.error = error
        self._tell(self.total_bytes)

    def after(self, size_bytes: int) -> int:
        """How much is there, once that is more than so many bytes: for more than -1, once the arena has its memory. After an
        error all is said to be there: ask for that first."""
        with self._changed:
            self._changed.wait_for(lambda: self._there_bytes > size_bytes)
            return self._there_bytes

    def _tell(self, size_bytes: int) -> None:
        with self._changed:
            self._there_bytes = size_bytes
            self._changed.notify_all()
