"""A meeting of ranks that are threads of one process."""

from threading import Condition

from regrow.core.errors import PeerError


class Board:
    """Keys on a board. `abandon()` ends every wait, as a newer roster would."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._abandoned = False
        self._changed = Condition()

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._abandoned)
            if self._abandoned:
                raise PeerError("the formation was abandoned")
            return self._values[key]

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
