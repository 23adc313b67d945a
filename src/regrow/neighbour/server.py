"""Lines to a neighbour: each has a thread, which does what is asked of its run's shelf and answers.

Whoever is at the door has proven the token (wire.tcp). A line does one thing at a time. When a run is taken over, the lines
of whoever had it before are shut: one that was cut off comes back to learn that it is fenced.
"""

import os
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from regrow.core.errors import ConfigError, Fenced, InfraError, NoRoom, PeerError, StateError
from regrow.core.messages import Message
from regrow.core.neighbour_messages import (
    Done,
    Drop,
    File,
    Get,
    GetLogs,
    LogBegun,
    LogCounted,
    LogEntry,
    LogFile,
    LogPiece,
    Look,
    OpenLog,
    Put,
    Seen,
    TakenOver,
    TakeOver,
    Unwilling,
    Visit,
)
from regrow.neighbour.room import Room
from regrow.neighbour.shelf import Shelf
from regrow.state.log import PART_AT, Entry
from regrow.state.log_filling import Filling
from regrow.wire.blocking import Blocking
from regrow.wire.tcp import Connection
from regrow.wire.violation import Violation

_VISIT_S = 10.0
_BLOCK_BYTES = 4 << 20


class Neighbour:
    """All that this process keeps, and who is there."""

    def __init__(self, limit_bytes: int, say: Callable[[str], None]) -> None:
        """`say`: from any thread, for people."""
        self.room = Room(limit_bytes)
        self._say = say
        self._shelves: dict[str, Shelf] = {}
        self._guests: set[_Guest] = set()
        self._lock = threading.Lock()

    async def welcome(self, connection: Connection) -> None:
        """One that has passed the door: it is served by a thread from here on."""
        name = connection.name
        line = Blocking(*connection.detach(), f"{name} ({connection.peer})")
        threading.Thread(target=self._serve, args=(line,), name=f"regrow-{name}", daemon=True).start()

    def _serve(self, line: Blocking) -> None:
        guest: _Guest | None = None
        try:
            visit = line.receive(_VISIT_S)
            if not isinstance(visit, Visit):
                raise Violation(f"begins with {type(visit).__name__}")
            with self._lock:
                shelf = self._shelves.setdefault(visit.run, Shelf(visit.run, self.room, self._say))
                guest = _Guest(line, shelf, visit.claim, self._taken_over)
                self._guests.add(guest)
            guest.run()
        except Violation as error:
            self._say(f"{line.peer} is sent away: {error}")
        except PeerError:
            pass  # it is gone: what it wrote stays
        finally:
            if guest is not None:
                guest.leave()
                with self._lock:
                    self._guests.discard(guest)
            line.close()

    def _taken_over(self, shelf: Shelf, claim: int) -> None:
        with self._lock:
            for guest in self._guests:
                if guest.shelf is shelf and 0 < guest.claim < claim:
                    guest.line.shut()
        self._say(f"{shelf.run}: taken over by a `regrow run` that goes on from here")


class _Guest:
    """One line."""

    def __init__(self, line: Blocking, shelf: Shelf, claim: int, taken_over: Callable[[Shelf, int], None]) -> None:
        self.line = line
        self.shelf = shelf
        self.claim = claim
        self._taken_over = taken_over
        self._log = ""
        """Its name, where this is a line on which one is copied."""
        self._begun: LogBegun | None = None
        self._filling: Filling | None = None
        """None: nothing is begun, or it was refused."""
        self._refusal: ConfigError | InfraError | StateError | None = None
        """Of what is begun: told where an answer is waited for."""

    def run(self) -> None:
        """Until the line is gone."""
        self._try(self._enter)
        while True:
            message = self.line.receive()
            if isinstance(message, LogBegun):
                self._begin_part(message)
            elif isinstance(message, LogPiece):
                self._receive_piece(message)
            elif isinstance(message, LogEntry):
                self._keep_part(message)
            elif isinstance(message, Put):
                self._put(message)
            elif isinstance(message, Get):
                self._get(message)
            elif isinstance(message, GetLogs):
                self._send_logs()
            else:
                self._try(lambda message=message: self._answer(message))  # type: ignore[misc]

    def leave(self) -> None:
        self._drop_part()
        if self._log:
            self.shelf.close_log(self._log)

    def _enter(self) -> Message:
        if self.claim:
            self.shelf.enter(self.claim)
        return Done()

    def _answer(self, message: Message) -> Message:
        match message:
            case TakeOver(resumes=resumes):
                self.claim = self.shelf.take_over(resumes)
                self._taken_over(self.shelf, self.claim)
                return TakenOver(claim=self.claim)
            case Look(path=path):
                data = self.shelf.get(path)
                return Seen(size_bytes=-1 if data is None else len(data), names=self.shelf.names(path))
            case Drop(path=path):
                self.shelf.drop(self.claim, path)
                return Done()
            case OpenLog(member=member, root=root) if not self._log:
                self._log = self.shelf.open_log(self.claim, member, root)
                return Done()
        raise Violation(f"sent {type(message).__name__}")

    def _try(self, work: Callable[[], Message]) -> bool:
        """Answers with what comes of it, or with why nothing does; was it done?"""
        try:
            answer = work()
        except (ConfigError, InfraError, StateError) as error:
            self.line.send(Unwilling(why=str(error), kind=_kind(error)))
        except msgspec.MsgspecError as error:
            raise Violation(f"cannot be read: {error}") from error
        else:
            self.line.send(answer)
            return True
        return False

    def _begin_part(self, begun: LogBegun) -> None:
        self._drop_part()
        if not self._log or not 0 <= begun.part_bytes <= begun.size_bytes - PART_AT <= self.shelf.limit_bytes:
            raise Violation(f"begins a part of {begun.part_bytes} bytes in a slot of {begun.size_bytes}")
        self._begun = begun
        try:
            self._filling = self.shelf.begin_part(self.claim, self._log, begun)
        except (InfraError, StateError) as error:
            self._refusal = error

    def _receive_piece(self, piece: LogPiece) -> None:
        if self._begun is None or not 0 <= piece.at <= piece.at + piece.size_bytes <= self._begun.part_bytes:
            raise Violation(f"sends {piece.size_bytes} bytes of a part that has not so many")
        if self._filling is None:
            self.line.receive_raw_into(memoryview(bytearray(piece.size_bytes)))
        else:
            self._filling.put(piece.at, piece.size_bytes, lambda block, _: self.line.receive_raw_into(block))

    def _keep_part(self, closing: LogEntry) -> None:
        if self._begun is None or not 0 <= closing.tail_bytes <= self.shelf.limit_bytes:
            raise Violation(f"closes a part with a tail of {closing.tail_bytes} bytes")
        tail = memoryview(bytearray(closing.tail_bytes))
        self.line.receive_raw_into(tail)
        self._try(lambda: self._kept(closing, tail))
        self._begun = self._filling = self._refusal = None

    def _kept(self, closing: LogEntry, tail: memoryview) -> Message:
        if self._filling is None:
            assert self._refusal is not None, "what was begun and not refused is being filled"
            raise self._refusal
        if not self._filling.is_whole:
            raise Violation("closes a part that lacks a piece")
        entry = msgspec.msgpack.decode(closing.entry, type=Entry)
        filling, self._filling = self._filling, None
        return LogCounted(through=self.shelf.keep_part(self.claim, self._log, filling, entry, tail))

    def _drop_part(self) -> None:
        if self._filling is not None:
            self.shelf.drop_part(self._log, self._filling)
        self._begun = self._filling = self._refusal = None

    def _put(self, put: Put) -> None:
        if not self._try(lambda: self.shelf.reserve(self.claim, put.size_bytes)):
            return
        try:
            data = bytearray(put.size_bytes)
            self.line.receive_raw_into(memoryview(data))
        except BaseException:
            self.shelf.release(put.size_bytes)
            raise
        self._try(lambda: Done(is_done=self.shelf.put(self.claim, put.path, data, put.is_new)))

    def _get(self, get: Get) -> None:
        data = self.shelf.get(get.path)
        if data is None or get.start + (get.size_bytes or 0) > len(data):
            self.line.send(File(size_bytes=-1))
            return
        view = memoryview(data)[get.start :][: get.size_bytes]
        self.line.send(File(size_bytes=len(view)))
        self.line.send_raw(view)

    def _send_logs(self) -> None:
        logs = self.shelf.logs()
        try:
            for name, fd in logs.items():
                size_bytes = os.fstat(fd).st_size
                self.line.send(LogFile(name=name, size_bytes=size_bytes))
                for at in range(0, size_bytes, _BLOCK_BYTES):
                    self.line.send_raw(memoryview(os.pread(fd, min(_BLOCK_BYTES, size_bytes - at), at)))
        finally:
            for fd in logs.values():
                os.close(fd)
        self.line.send(LogFile(name="", size_bytes=0))


def _kind(error: Exception) -> Literal["full", "fenced", "wrong", "refused"]:
    match error:
        case NoRoom():
            return "full"
        case Fenced():
            return "fenced"
        case ConfigError():
            return "wrong"
    return "refused"
