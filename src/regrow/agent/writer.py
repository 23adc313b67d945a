"""The writer: a process without torch that makes saves durable, straight out of the arena of the process that trains.

    python -m regrow.agent.writer SOCKET PARENT SETTING

It persists one draft at a time and says what became of it (shell.writing). It begins while the copy is still being made, and
reads no byte before that is said to be there. What a store refuses is tried again, later and later, until the training
process kills this one. Killed on any line it leaves a folder without a pointer, which the next writer sweeps away. It ends
with the connection, and with its parent: a save that somebody has given up must not appear later, behind the back of whoever
resumed from an older one.
"""

import contextlib
import gc
import math
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from regrow.core.checkpoint import Pointer
from regrow.core.delta import Cost
from regrow.core.draft import Draft
from regrow.core.errors import ConfigError, Harmed, InfraError, NoRoom, PeerError, StateError
from regrow.core.roster import Member
from regrow.shell import faultpoint
from regrow.shell.deafness import turn_deaf
from regrow.shell.pacing import Pacer
from regrow.shell.parentage import die_with_parent
from regrow.shell.writing import (
    Copied,
    Failed,
    FromWriter,
    Persist,
    Persisted,
    Progress,
    Removing,
    Setting,
    Term,
    ToWriter,
    Undone,
    Unpruned,
    Void,
)
from regrow.state.archive import Archive
from regrow.state.chaining import Chaining
from regrow.state.store import Store
from regrow.state.stores import open_store
from regrow.wire.handover import Handover

NICENESS = 10
_FIRST_RETRY_S = 0.25
_LAST_RETRY_S = 15.0
"""A store that was away is found within so long; one that refuses is not worn down."""
_SAID_S = 0.2
"""Blocks come by the thousand, and nobody hears of them while the copy is being made."""
_REMOVING_S = 1.0
"""And nobody hears of this before the next save, or the end."""


def main(arguments: list[str]) -> None:
    number, parent, setting = arguments
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    turn_deaf()  # a job that is told to end still wants its last save
    os.nice(NICENESS)
    line = Handover(socket.socket(fileno=int(number)))
    try:
        Writer(line, msgspec.json.decode(setting, type=Setting)).run()
    except PeerError:
        pass  # closed: nothing more is wanted


class Writer:
    """One connection's worth of saves."""

    def __init__(self, line: Handover, setting: Setting) -> None:
        if setting.faults:
            faultpoint.arm(setting.faults, Member("writer", setting.incarnation), Path(tempfile.gettempdir()))
        self._line = line
        self._setting = setting
        self._term = 0
        self._is_swept = False
        self._said_s = -math.inf
        """When it last said that it removes something."""
        self._arena = _Mapping()
        self._chaining = Chaining(setting.delta)

    def run(self) -> None:
        while True:
            order = _heard(self._line)
            if not isinstance(order, Persist):
                raise _crossed()
            self._arena.show(self._line.take_fd())
            self._chaining.begun()
            inflow = _Inflow(self._line, order.draft.arena_bytes)
            self._persist(order, inflow)
            inflow.wait_end()

    def _persist(self, order: Persist, inflow: "_Inflow") -> None:
        """Until it is durable, or never can be."""
        attempt, delay_s = 0, _FIRST_RETRY_S
        while True:
            attempt += 1
            try:
                self._attempt(order, inflow)
                return
            except (ConfigError, StateError) as error:
                self._tell(Failed(attempt=attempt, why=str(error), is_final=True, is_harm=isinstance(error, Harmed)))
                return
            except PeerError:
                raise
            except InfraError as error:
                why = str(error)
            except Exception as error:  # the edge of the process: a store's library raises what it likes
                why = f"{type(error).__name__}: {error}"
            self._tell(Failed(attempt=attempt, why=why))
            inflow.wait_end()
            if self._line.receive(delay_s) is not None:
                raise _crossed()
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _attempt(self, order: Persist, inflow: "_Inflow") -> None:
        begun_s = time.monotonic()
        watch = _Watch(self._tell)
        store = open_store(self._setting.url, Pacer(self._setting.bytes_per_s, watch.passed))
        archive = Archive(_Watched(store, watch))
        if not (order.draft.term or self._term):
            self._term = archive.newest_term() + 1
            self._tell(Term(term=self._term))
        if not self._is_swept:
            self._sweep(archive)  # what dead saves left may be the very room that is missing
        draft = msgspec.structs.replace(order.draft, term=order.draft.term or self._term)
        costs: list[Cost] = []
        try:
            pointer = self._written(archive, draft, inflow, order.root, costs)
        except NoRoom:
            # What is ahead of the latest is of a writer that was buried, or replaced.
            self._sweep(archive, (draft.term, draft.step))
            raise
        seconds = time.monotonic() - begun_s
        # What is in the arena may change once the save is known to be durable.
        news = self._chaining.saved(draft, self._arena.view, pointer, next(iter(costs), None), archive.manifest)
        if news:
            self._tell(Undone(why=news))
        self._tell(Persisted(pointer=pointer, seconds=seconds))
        if trouble := self._prune(archive):  # to remove gigabytes takes long, and nobody should wait for it
            self._tell(Unpruned(why=trouble))

    def _written(self, archive: Archive, draft: Draft, inflow: "_Inflow", root: str, costs: list[Cost]) -> Pointer:
        if self._setting.moments:
            return archive.write(*self._fewer(draft, inflow))
        return archive.write(draft, self._arena.view, inflow.reach, root, self._chaining.base(draft), costs.append)

    def _fewer(self, draft: Draft, inflow: "_Inflow") -> tuple[Draft, memoryview]:
        from regrow.state.moments import fewer  # which imports numpy

        inflow.reach(draft.arena_bytes)
        return fewer(draft, self._arena.view, self._setting.moments)

    def _sweep(self, archive: Archive, mine: tuple[int, int] | None = None) -> None:
        """What cannot be removed is told once the save is durable: it may not need the room."""
        with contextlib.suppress(Exception):  # the edge of the process, as above
            archive.sweep(mine, self._removing)

    def _prune(self, archive: Archive) -> str:
        """The save is durable whatever becomes of older ones."""
        try:
            archive.prune(self._setting.retention, self._removing)
            if not self._is_swept:
                archive.sweep(told=self._removing)  # and what the writer before this one left of the same save
                self._is_swept = True
        except Exception as error:  # the edge of the process, as above
            self._is_swept = False  # its pointer may be gone: then it is a leftover
            return f"an old checkpoint cannot be removed: {error}"
        return ""

    def _removing(self, size_bytes: int) -> None:
        if time.monotonic() >= self._said_s + _REMOVING_S:
            self._said_s = time.monotonic()
            with contextlib.suppress(PeerError):  # nobody waits any more, and what is to go goes
                self._tell(Removing())

    def _tell(self, what: FromWriter) -> None:
        self._line.send(msgspec.json.encode(what))


class _Inflow:
    """The copy into the arena, as far as has been heard of it. Until its end, nothing else comes over the line."""

    def __init__(self, line: Handover, size_bytes: int) -> None:
        self._line = line
        self._size_bytes = size_bytes
        self._there_bytes = -1
        self._error: StateError | PeerError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="regrow-inflow", daemon=True)
        self._thread.start()

    def reach(self, size_bytes: int) -> None:
        """Returns once so many bytes are there, whichever thread asks. StateError when they never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._there_bytes >= size_bytes or self._error is not None)
        if self._error is not None:
            raise self._error

    def wait_end(self) -> None:
        """Until there is nothing more to hear of it."""
        self._thread.join()

    def _run(self) -> None:
        while self._there_bytes < self._size_bytes and self._error is None:
            there_bytes = self._there_bytes
            error: StateError | PeerError | None = None
            try:
                match _heard(self._line):
                    case Copied(size_bytes=size_bytes):
                        there_bytes = size_bytes
                    case Void(why=why):
                        error = StateError(why)
                    case Persist():
                        error = _crossed()
            except PeerError as gone:
                error = gone
            with self._changed:
                self._there_bytes, self._error = there_bytes, error
                self._changed.notify_all()


class _Mapping:
    """The arena that is being read from; the same one is mapped once, unless it has grown."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._shown = (-1, 0)
        """The inode, and its size."""
        self.view = memoryview(b"")

    def show(self, fd: int) -> None:
        """Takes the descriptor over."""
        try:
            status = os.fstat(fd)
            if (status.st_ino, status.st_size) != self._shown:
                self.view.release()
                self._memory = None
                gc.collect()  # a try that failed may hold views in the frames of its error, and the memory with them
                self._memory = mmap.mmap(fd, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
                self._shown = status.st_ino, status.st_size
                self.view = memoryview(self._memory)
        finally:
            os.close(fd)


class _Watch:
    """How far a save is: what was let through to the store, and what is durable there."""

    def __init__(self, tell: Callable[[FromWriter], None]) -> None:
        self._tell = tell
        self._durable_bytes = 0
        self._passed_bytes = 0
        self._said_s = -math.inf
        self._lock = threading.Lock()

    def durable(self, size_bytes: int) -> None:
        with self._lock:
            self._durable_bytes += size_bytes
            self._say()

    def passed(self, size_bytes: int) -> None:
        with self._lock:
            self._passed_bytes += size_bytes
            if time.monotonic() >= self._said_s + _SAID_S:
                self._say()

    def _say(self) -> None:
        self._said_s = time.monotonic()
        self._tell(Progress(size_bytes=max(self._durable_bytes, self._passed_bytes)))


class _Watched:
    """A store that tells how much has become durable."""

    def __init__(self, store: Store, watch: _Watch) -> None:
        self._store = store
        self._watch = watch
        self.url = store.url

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        views = list(parts)
        self._store.put(path, views)
        self._watch.durable(sum(view.nbytes for view in views))

    def create(self, path: str, data: bytes) -> bool:
        return self._store.create(path, data)

    def read(self, path: str) -> bytes | None:
        return self._store.read(path)

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        self._store.read_into(path, start, view)

    def size_bytes(self, path: str) -> int | None:
        return self._store.size_bytes(path)

    def names(self, folder: str = "") -> list[str]:
        return self._store.names(folder)

    def settle(self, folder: str) -> None:
        self._store.settle(folder)

    def remove(self, path: str) -> None:
        self._store.remove(path)


def _crossed() -> PeerError:
    return PeerError("something else was said than what comes next: see shell.writing")


def _heard(line: Handover) -> ToWriter:
    payload = line.receive(None)
    assert payload is not None  # without a timeout it waits
    order: ToWriter = msgspec.json.decode(payload, type=ToWriter)
    return order


if __name__ == "__main__":
    main(sys.argv[1:])
