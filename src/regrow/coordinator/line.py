"""A connection to a member or to the agent, seen from the coordinator."""

import asyncio
import contextlib
from collections import deque

from regrow.core.errors import PeerError
from regrow.core.messages import ToAgent, ToMember
from regrow.core.roster import NO_VERSION
from regrow.wire.codec import encode
from regrow.wire.framing import frame
from regrow.wire.tcp import Connection


class Line:
    """What is said goes out in order and at once, and never waits for another one's socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = asyncio.Event()
        self.told = NO_VERSION
        """The roster that the other end holds, once it has heard all that was said."""
        self._unsent: deque[memoryview] = deque()
        self._sender: asyncio.Task[None] | None = None

    def say(self, message: ToMember | ToAgent) -> None:
        self.post(frame(encode(message)))

    def post(self, data: bytes) -> None:
        """A message that is a frame already: what goes to many is made once."""
        rest = memoryview(data)
        if self._sender is None:
            try:
                rest = self.connection.send_now(rest)
            except PeerError:
                return  # its receiving side sees the same and ends the line
        if rest:
            self._unsent.append(rest)
            if self._sender is None:
                self._sender = asyncio.create_task(self._send())

    def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
        self.closed.set()

    async def _send(self) -> None:
        with contextlib.suppress(PeerError):
            while self._unsent:
                await self.connection.send_raw(self._unsent.popleft())
            self._sender = None
