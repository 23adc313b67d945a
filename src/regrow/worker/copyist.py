"""A worker's log, copied to the neighbour part by part while it is written here (rule L8).

    whoever writes      begin, put ... ──> the part into this host's log ──> end ──> wait ──> the row
    regrow-neighbour    ......... sends the pieces .................. sends the entry, hears how far all count

A part may be begun while its record is still being reduced (worker.early). The entry, with its digests, is sent last: a part
without one is not there. Where the neighbour is away, slow or full, the line is given up, and the training thread waits for
it no more until there is another one.
"""

import os
import threading
from queue import SimpleQueue

import msgspec
import torch

from regrow.core.errors import ConfigError, Fenced, RegrowError
from regrow.core.neighbour_messages import Done, LogBegun, LogCounted, LogEntry, LogPiece, OpenLog
from regrow.shell.backoff import Backoff
from regrow.state.log import Entry
from regrow.state.memory import bytes_of
from regrow.state.neighbour_store import Address
from regrow.wire.blocking import Blocking
from regrow.wire.visit import heard, visit

_CONNECT_S = 5.0
_FAREWELL_S = 0.5


class Piece(msgspec.Struct, frozen=True):
    at: int
    data: torch.Tensor
    """Held until it is sent: whoever gives up does not wait for that. What is sent of a part that was begun in vain may be
    anything."""


class Closing(msgspec.Struct, frozen=True):
    entry: Entry
    tail: bytes


class Copyist:
    """For each part of a record `begin`, `put` of its pieces and `end`; for each record `wait`. One thread at a time."""

    def __init__(self, address: Address, token: str, claim: int, patience_s: float, member: str, root: str) -> None:
        self._address = address
        self._token = token
        self._claim = claim
        self._patience_s = patience_s
        self._opening = OpenLog(member=member, root=root)
        self._asked: SimpleQueue[tuple[Blocking, LogBegun | Piece | Closing | None]] = SimpleQueue()
        self._changed = threading.Condition()
        """Guards what follows."""
        self._line: Blocking | None = None
        self._used: Blocking | None = None
        """For the record under way."""
        self._is_tried = False
        """To connect, once."""
        self._open = 0
        """Parts of it that are written and not answered yet."""
        self._through = 0
        self._why = "it has not answered yet"
        """Why there is no line."""
        self._backoff = Backoff()
        """Since it took something last."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regrow-neighbour", daemon=True)

    def open(self) -> None:
        os.register_at_fork(after_in_child=self._let_go)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._give_up("the job is over")
        self._thread.join(_FAREWELL_S)  # it may be dialling somebody who does not answer

    # Whoever writes the log

    def begin(self, size_bytes: int, part_bytes: int) -> None:
        """A part is about to be written, into a slot of this size. The first one of all waits for a line."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_tried, self._patience_s)
            self._is_tried = True
            self._used = self._line if not self._open else self._used
        self._ask(LogBegun(size_bytes=size_bytes, part_bytes=part_bytes))

    def put(self, at: int, data: torch.Tensor) -> None:
        self._ask(Piece(at, data))

    def end(self, entry: Entry, tail: bytes) -> None:
        """It is written."""
        with self._changed:
            self._open += 1
        self._ask(Closing(entry, tail))

    def _ask(self, what: LogBegun | Piece | Closing) -> None:
        if self._used is not None:
            self._asked.put((self._used, what))

    def wait(self) -> tuple[int | None, str]:
        """Until all parts of a record are answered: how far the records count there; None, and why: they do not all lie
        there."""
        with self._changed:
            used, self._used = self._used, None
            if used is not None:
                self._changed.wait_for(lambda: not self._open or self._line is not used, self._patience_s)
                if self._open and self._line is used:
                    self._give_up(f"{self._address.endpoint} does not answer for {self._patience_s:g} s")
            is_there, self._open = used is not None and self._line is used, 0
            return (self._through, "") if is_there else (None, self._why)

    # Its own thread

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                line = self._connected()
            except (Fenced, ConfigError) as error:  # it stays so
                self._give_up(str(error))
                return
            except (RegrowError, OSError) as error:
                self._give_up(str(error))
                self._ended.wait(self._backoff.delay_s())
                continue
            with self._changed:
                self._line, self._is_tried = line, True
                self._changed.notify_all()
            try:
                self._serve(line)
            except (RegrowError, OSError) as error:
                self._give_up(str(error))
            line.close()
            self._ended.wait(self._backoff.delay_s())

    def _connected(self) -> Blocking:
        address = self._address
        line = visit(address.endpoint, self._token, address.run, self._claim, _CONNECT_S, self._opening.member)
        line.send(self._opening)
        heard(line, Done, _CONNECT_S)
        return line

    def _serve(self, line: Blocking) -> None:
        """Until it breaks, or was given up."""
        while True:
            its, what = self._asked.get()
            if its is not line:
                continue
            if what is None:
                return
            if isinstance(what, LogBegun):
                line.send(what)
                continue
            if isinstance(what, Piece):
                view = bytes_of(what.data)
                line.send(LogPiece(at=what.at, size_bytes=len(view)))
                line.send_raw(view)
                continue
            line.send(LogEntry(entry=msgspec.msgpack.encode(what.entry), tail_bytes=len(what.tail)))
            line.send_raw(memoryview(what.tail))
            counted = heard(line, LogCounted)
            self._backoff = Backoff()
            with self._changed:
                if self._line is line:  # else it was given up: what is open now is of another record
                    self._open, self._through = self._open - 1, counted.through
                    self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        """From any thread."""
        with self._changed:
            line, self._line, self._is_tried, self._why = self._line, None, True, why
            self._changed.notify_all()
        if line is not None:
            line.shut()
            self._asked.put((line, None))

    def _let_go(self) -> None:
        """In a forked child, which must not keep the line open once this worker is gone."""
        line, self._line = self._line, None
        if line is not None:
            line.let_go()
