"""A connection to a member or to the agent, seen from the coordinator."""

import asyncio
import contextlib

from regrow.core.errors import PeerError
from regrow.core.messages import ToAgent, ToMember
from regrow.wire.tcp import Connection


class Line:
    """What is said goes out in order, and never waits for another one's socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = asyncio.Event()
        self._queue: asyncio.Queue[ToMember | ToAgent] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send())

    def say(self, message: ToMember | ToAgent) -> None:
        self._queue.put_nowait(message)

    def close(self) -> None:
        self._sender.cancel()
        self.closed.set()

    async def _send(self) -> None:
        with contextlib.suppress(PeerError):  # its receiving side sees the same and ends the line
            while True:
                await self.connection.send(await self._queue.get())
