"""Where the members of a roster leave each other their addresses, and how gloo is made to use it.

Each formation has its own meeting: gloo's keys are the same every time.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Store


class Meeting(Protocol):
    """A place of one formation, shared by its members."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """Blocks until the key is there; raises PeerError when the formation is abandoned."""
        ...


class MeetingStore(Store):
    """A meeting in the shape gloo asks for. It remembers what passed, which names the group's connections."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting
        self.said: dict[str, bytes] = {}
        self.heard: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.said[key] = data
        self._meeting.put(key, data)

    def get(self, key: str) -> bytes:
        if key not in self.heard:
            self.heard[key] = self._meeting.get(key)
        return self.heard[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """The meeting decides how long: it knows when the formation is abandoned."""
        for key in keys:
            self.get(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return False
