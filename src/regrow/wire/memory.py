"""An in-memory twin of a TCP connection, for tests. Messages go through the real codec and frames, so that limits and
round trips are the same; only the socket is missing. Nothing holds a sender back: the bytes wait in memory."""

import asyncio

from regrow.core.errors import PeerError
from regrow.core.messages import Message
from regrow.wire.codec import decode, encode
from regrow.wire.framing import PEER_LIMIT_BYTES, Decoder, frame

_HERE = "closed here"


class MemoryChannel:
    """One end of a pair."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._arrived = Decoder(PEER_LIMIT_BYTES)
        self._news = asyncio.Event()
        self._peer: MemoryChannel | None = None
        self._closed_by: str | None = None

    async def send(self, message: Message) -> None:
        self._deliver(frame(encode(message)))

    async def receive(self) -> Message:
        while True:
            self._check_open_here()
            payload = self._arrived.next_payload()
            if payload is not None:
                return decode(payload)
            await self._wait_news()

    async def send_raw(self, data: memoryview) -> None:
        self._deliver(data.cast("B") if data.nbytes else b"")

    async def receive_raw_into(self, view: memoryview) -> None:
        rest = view.cast("B") if view.nbytes else memoryview(b"")
        while len(rest):
            self._check_open_here()
            rest = rest[self._arrived.take_raw(rest) :]
            if len(rest):
                await self._wait_news()

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._end(_HERE)
        if self._peer is not None:
            self._peer._end("closed by the peer")

    def _deliver(self, data: bytes | memoryview) -> None:
        if self._closed_by is not None or self._peer is None:
            raise PeerError(f"the connection {self.name} was {self._closed_by}")
        self._peer._arrived.feed(data)
        self._peer._news.set()

    def _check_open_here(self) -> None:
        """What had arrived before the peer closed is still read; after closing here nothing is."""
        if self._closed_by == _HERE:
            raise PeerError(f"the connection {self.name} was {self._closed_by}")

    async def _wait_news(self) -> None:
        if self._closed_by is not None:
            raise PeerError(f"the connection {self.name} was {self._closed_by}")
        self._news.clear()
        await self._news.wait()

    def _end(self, closed_by: str) -> None:
        if self._closed_by != _HERE:
            self._closed_by = closed_by
        self._news.set()


def pair(name_a: str, name_b: str) -> tuple[MemoryChannel, MemoryChannel]:
    """Two connected ends; the first is called name_a, the second name_b."""
    a, b = MemoryChannel(name_a), MemoryChannel(name_b)
    a._peer, b._peer = b, a
    return a, b
