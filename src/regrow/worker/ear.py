"""A joiner's lines from the members that it listens to: a snapshot taken by all of them, then record after record.

Lives on the session's loop. One try at a time. A line that is lost once all have begun is the others' to make up for, as far
as they can; whatever else goes wrong ends the try. What came and is not yet committed here counts against the room there is:
a joiner that has none left cannot keep up.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from regrow.core.errors import ConfigError, PeerError
from regrow.core.events import Event, Overran, Recorded, SnapshotsTaken, Unheard
from regrow.core.hearing import Hearing
from regrow.core.listener import Heard, Listener, Record
from regrow.core.messages import Attend, Begin, Part, Thanks
from regrow.core.roster import Endpoint, Member, Roster, Seat
from regrow.shell.backoff import Backoff
from regrow.state.memory import bytes_of
from regrow.wire.tcp import Connection, connect
from regrow.worker.session import or_end

_CONNECT_S = 10.0


class HeardGradient:
    """A record's bytes, until the training thread has taken them."""

    def __init__(self, data: torch.Tensor, done: Callable[[torch.Tensor], None]) -> None:
        self.data = data
        self.summary = b""
        self._done = done

    def release(self) -> None:
        self._done(self.data)


class _Full(Exception):
    pass


class _Lost(Exception):
    """The line is gone, which is nobody's mistake."""


@contextmanager
def _losing() -> Iterator[None]:
    try:
        yield
    except PeerError as error:
        raise _Lost(str(error)) from error


class _Try:
    def __init__(self, listener: Listener, roster: Roster) -> None:
        self.listener = listener
        self.roster = roster
        self.hearing = Hearing(roster.members)
        self.lines: dict[Member, Connection] = {}
        self.gradients: dict[int, HeardGradient] = {}
        """Of the records that are not whole yet, by step."""
        self.waiting_bytes = 0
        self.free: list[torch.Tensor] = []
        """Memory of records that are committed here."""
        self.task: asyncio.Task[None] | None = None


class Ear:
    """`call` runs something on the session's loop."""

    def __init__(
        self,
        token: str,
        room_bytes: int,
        notify: Callable[[Event], None],
        call: Callable[[Callable[[], object]], None],
    ) -> None:
        self._token = token
        self._room_bytes = room_bytes
        self._notify = notify
        self._call = call
        self._try: _Try | None = None
        self._backoff = Backoff()

    def hear(self, listener: Listener, roster: Roster) -> None:
        self.hush()
        self._try = _Try(listener, roster)
        self._try.task = asyncio.create_task(or_end(self._listen(self._try)))

    def hush(self) -> None:
        tried, self._try = self._try, None
        if tried is not None and tried.task is not None:
            tried.task.cancel()

    def lose(self, peers: tuple[Member, ...]) -> None:
        """They are members no more, and may live on without another word."""
        for peer in peers:
            if self._try is not None and peer in self._try.lines:
                self._try.lines[peer].abort()

    async def thank(self) -> None:
        """The snapshot is loaded: nobody need keep it any longer."""
        for line in list(self._try.lines.values()) if self._try else ():
            with suppress(PeerError):  # one that is lost needs no thanks
                await line.send(Thanks())

    async def _listen(self, tried: _Try) -> None:
        listener = tried.listener
        try:
            async with asyncio.TaskGroup() as lines:
                for seat in tried.roster.seats:
                    lines.create_task(self._line(tried, seat))
        except BaseExceptionGroup as errors:
            if errors.split((PeerError, _Full))[1] is not None:
                raise
            first = errors.exceptions[0]
            if any(isinstance(error, _Full) for error in errors.exceptions):
                self._notify(Overran(listener=listener, why=f"{tried.waiting_bytes} bytes of records wait to be replayed"))
                return
            if not tried.hearing.has_begun:
                await asyncio.sleep(self._backoff.delay_s())
            self._notify(Unheard(listener=listener, why=str(first), named=tried.hearing.is_named))

    async def _line(self, tried: _Try, seat: Seat) -> None:
        connection = await self._reach(tried.listener, seat.endpoint)
        tried.lines[seat.member] = connection
        try:
            await connection.send(Attend(listener=tried.listener))
            await self._receive(tried, seat, connection)
        except _Lost:
            self._give(tried, tried.hearing.lost(seat.member))
        finally:
            del tried.lines[seat.member]
            connection.abort()

    async def _receive(self, tried: _Try, seat: Seat, connection: Connection) -> None:
        while True:
            with _losing():
                message = await connection.receive()
            match message:
                case Begin(step=step):
                    if (begun := tried.hearing.begins(seat.member, step)) is not None:
                        self._backoff = Backoff()
                        self._notify(SnapshotsTaken(listener=tried.listener, step=begun.step))
                case Part() as part:
                    await self._part(tried, seat, part, connection)
                case _:
                    raise PeerError(f"{seat.member} sent {type(message).__name__} to a listener")

    async def _reach(self, listener: Listener, endpoint: Endpoint) -> Connection:
        """Strangers may crowd the peer's door: try again. If it is dead, a newer roster says so."""
        backoff = Backoff()
        while True:
            try:
                return await connect(endpoint, self._token, str(listener.member), _CONNECT_S)
            except (PeerError, ConfigError):
                await asyncio.sleep(backoff.delay_s())

    async def _part(self, tried: _Try, seat: Seat, part: Part, connection: Connection) -> None:
        step = part.record.step
        if step not in tried.gradients:
            tried.waiting_bytes += part.total_bytes
            if tried.waiting_bytes > self._room_bytes:
                raise _Full

            def done(data: torch.Tensor) -> None:
                tried.waiting_bytes -= data.numel()
                tried.free.append(data)

            is_fit = tried.free and tried.free[-1].numel() == part.total_bytes
            data = tried.free.pop() if is_fit else torch.empty(part.total_bytes, dtype=torch.uint8)
            tried.gradients[step] = HeardGradient(data, lambda data: self._call(lambda: done(data)))
        gradient = tried.gradients[step]
        if part.total_bytes != gradient.data.numel() or part.start + part.size_bytes > part.total_bytes:
            raise PeerError(f"{seat.member} sends {part.size_bytes} bytes of step {step} for a place that is not there")
        span = part.start, part.start + part.size_bytes
        with _losing():
            await connection.receive_raw_into(bytes_of(gradient.data)[slice(*span)])
        gradient.summary = gradient.summary or part.tail
        self._give(tried, tried.hearing.part(seat.member, part.record, span, part.total_bytes, bool(part.tail)))

    def _give(self, tried: _Try, whole: list[Record]) -> None:
        for record in whole:
            heard = Heard(record=record, gradient=tried.gradients.pop(record.step))
            self._notify(Recorded(listener=tried.listener, heard=heard))
