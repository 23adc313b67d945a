"""A member's lines to listeners: each is sent its part of every record, in order, while the step goes on.

Lives on the session's loop. A listener that takes less than it is sent is let go once too much waits for it: nobody else
notices.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch

from regrow.core.errors import PeerError
from regrow.core.events import Event, ListenerCame, ListenerGone
from regrow.core.listener import Listener
from regrow.core.messages import Begin, Part, Thanks
from regrow.core.records import Fact, ListenerAttached
from regrow.shell.faultpoint import faultpoint
from regrow.state.memory import bytes_of
from regrow.wire.tcp import Connection

_KEPT = 2


class _Item(NamedTuple):
    message: Begin | Part
    data: torch.Tensor


class _Line:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.items: asyncio.Queue[_Item] = asyncio.Queue()
        self.waiting_bytes = 0


class Feeds:
    """`done(listener)` is called once a listener needs its snapshot no longer."""

    def __init__(
        self,
        room_bytes: int,
        notify: Callable[[Event], None],
        note: Callable[[Fact], None],
        done: Callable[[Listener], None],
    ) -> None:
        self._room_bytes = room_bytes
        self._notify = notify
        self._note = note
        self._done = done
        self._free: deque[torch.Tensor] = deque(maxlen=_KEPT)
        """Memory of what was sent: untouched memory costs more than the copy."""
        self._lines: dict[Listener, _Line] = {}

    async def attend(self, connection: Connection, listener: Listener) -> None:
        """Returns when the line is lost."""
        line = self._lines[listener] = _Line(connection)
        self._note(ListenerAttached(listener=listener))
        faultpoint("attached")
        self._notify(ListenerCame(listener=listener))
        sending = asyncio.create_task(self._send(line))
        try:
            while isinstance(await connection.receive(), Thanks):
                self._done(listener)
        finally:
            sending.cancel()
            self._lines.pop(listener, None)
            self._done(listener)
            if not self._lines:
                self._free.clear()
            self._notify(ListenerGone(listener=listener))

    def make_room(self, size_bytes: int) -> None:
        """On any thread: have touched memory for a part of this size."""
        self._free.append(torch.empty(size_bytes, dtype=torch.uint8).zero_())

    def copied(self, data: torch.Tensor) -> torch.Tensor:
        """On the training thread: a copy on the host, to be sent once it has gone on."""
        with suppress(IndexError):  # the loop may let go of them at any moment, with the last listener
            while True:
                copy = self._free.popleft()
                if copy.numel() == data.numel():
                    return copy.copy_(data)
        return data.to("cpu", copy=True)

    def send(self, listener: Listener, message: Begin | Part, data: torch.Tensor) -> None:
        line = self._lines.get(listener)
        if line is None:
            return
        waits = line.waiting_bytes > 0 and not line.items.empty()  # behind a Begin alone nothing does
        line.waiting_bytes += data.numel()
        if waits and line.waiting_bytes > self._room_bytes:
            line.connection.abort()
            return
        line.items.put_nowait(_Item(message, data))

    async def _send(self, line: _Line) -> None:
        try:
            while True:
                item = await line.items.get()
                await line.connection.send(item.message)
                data = bytes_of(item.data)
                await line.connection.send_raw(data[: len(data) // 2])
                if isinstance(item.message, Part):
                    faultpoint("feeding", step=item.message.record.step)
                await line.connection.send_raw(data[len(data) // 2 :])
                line.waiting_bytes -= item.data.numel()
                if item.data.numel():
                    self._free.append(item.data)
        except PeerError:
            line.connection.abort()  # whoever receives on it wakes, and ends this
