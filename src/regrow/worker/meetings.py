"""Where the members of a roster leave their addresses for one another: a small store at the roster's first member.

Lives on the session's loop. Values of a roster are forgotten once a newer one is entered; a question that can no longer
be answered is answered with PeerError, so no formation waits for a roster that is over.
"""

import asyncio

from regrow.core.errors import PeerError
from regrow.core.roster import Version

_MAX_KEYS = 4096
"""Per roster: gloo leaves one key a member."""
_MAX_VALUE_BYTES = 64 * 1024


class Meetings:
    def __init__(self) -> None:
        self._floor: Version | None = None
        self._values: dict[Version, dict[str, bytes]] = {}
        self._waiting: dict[tuple[Version, str], list[asyncio.Future[bytes]]] = {}

    def put(self, version: Version, key: str, value: bytes) -> None:
        self._refuse_stale(version)
        values = self._values.setdefault(version, {})
        if len(values) >= _MAX_KEYS or len(value) > _MAX_VALUE_BYTES:
            raise PeerError(f"roster {version} leaves too much at its meeting: {len(values)} keys, {len(value)} bytes")
        values[key] = value
        for future in self._waiting.pop((version, key), []):
            if not future.done():
                future.set_result(value)

    async def get(self, version: Version, key: str) -> bytes:
        self._refuse_stale(version)
        value = self._values.get(version, {}).get(key)
        if value is not None:
            return value
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((version, key), []).append(future)
        return await future

    def forget(self, below: Version) -> None:
        self._floor = below
        for version in [version for version in self._values if version < below]:
            del self._values[version]
        for version, key in [pair for pair in self._waiting if pair[0] < below]:
            for future in self._waiting.pop((version, key)):
                if not future.done():
                    future.set_exception(PeerError(f"roster {version} is over"))

    def is_over(self, version: Version) -> bool:
        return self._floor is not None and version < self._floor

    def _refuse_stale(self, version: Version) -> None:
        if self.is_over(version):
            raise PeerError(f"roster {version} is over, {self._floor} is the newest")
