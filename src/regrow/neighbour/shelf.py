"""What a neighbour keeps of one run: the files of its newest states, as any store does, and its logs.

The logs are files in memory of the very form that they have on the run's own host (state.log), so that what is fetched is
what is read there. A record is given up once a whole state of a later step lies here, and for no other reason.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.errors import ConfigError, Fenced, InfraError
from regrow.core.neighbour import Count, fenced
from regrow.core.neighbour_messages import Done, LogBegun
from regrow.core.roster import NO_VERSION
from regrow.neighbour.room import Room
from regrow.state.log import PAGE_BYTES, Entry
from regrow.state.log_filling import Filling
from regrow.state.log_writer import LogWriter
from regrow.state.manifests import MANIFEST
from regrow.state.pointers import FOLDER as POINTERS


class Shelf:
    """From any thread. Whoever writes names the claim under which: Fenced where a newer one has been made since."""

    def __init__(self, run: str, room: Room, say: Callable[[str], None]) -> None:
        self.run = run
        self._room = room
        self._say = say
        self._claim = 0
        self._files: dict[str, bytearray] = {}
        self._logs: dict[str, LogWriter] = {}
        self._lines: Counter[str] = Counter()
        """Over which each log is written: of one without, whoever wrote it may be gone."""
        self._count = Count()
        self._lock = threading.RLock()

    def take_over(self, resumes: bool) -> int:
        """A claim that is newer than any before it, also where this process was started again since."""
        with self._lock:
            if not resumes and (self._files or self._logs):
                raise ConfigError(
                    f"it keeps the state of a run called {self.run}: go on from it with --resume latest, or give this job a "
                    "name of its own (--neighbour HOST:PORT/NAME)"
                )
            self._claim = max(self._claim + 1, time.time_ns())
            return self._claim

    def enter(self, claim: int) -> None:
        """Somebody writes under this claim. One that this process knows nothing of was made before it was started."""
        with self._lock:
            if why := fenced(claim, self._claim):
                raise Fenced(why)
            self._claim = claim

    @property
    def limit_bytes(self) -> int:
        return self._room.limit_bytes

    # Files

    def reserve(self, claim: int, size_bytes: int) -> Done:
        """Room for a file that is about to be put."""
        self.enter(claim)
        self._room.take(size_bytes)
        return Done()

    def release(self, size_bytes: int) -> None:
        """It has not come."""
        self._room.give(size_bytes)

    def put(self, claim: int, path: str, data: bytearray, is_new: bool) -> bool:
        """Room was reserved for it. False, and nothing was done, where only a new one was wanted and there is one."""
        with self._lock:
            older = self._files.get(path)
            is_kept = not (older is not None and is_new)
            try:
                self.enter(claim)
            except Fenced:
                is_kept = False
                raise
            finally:
                self._room.give(len(data) if not is_kept else len(older or b""))
            if not is_kept:
                return False
            self._files[path] = data
            if path.startswith(f"{POINTERS}/"):
                with contextlib.suppress(msgspec.MsgspecError, KeyError):  # whoever reads it finds what is wrong with it
                    self._based(msgspec.json.decode(data, type=Pointer))
            return True

    def get(self, path: str) -> bytearray | None:
        return self._files.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        start = f"{folder}/" if folder else ""
        with self._lock:
            return tuple(sorted({path[len(start) :].split("/")[0] for path in self._files if path.startswith(start)}))

    def drop(self, claim: int, path: str) -> None:
        with self._lock:
            self.enter(claim)
            for gone in [one for one in self._files if one == path or one.startswith(f"{path}/")]:
                self._room.give(len(self._files.pop(gone)))

    def _based(self, pointer: Pointer) -> None:
        """A state is whole here from now on."""
        found = msgspec.json.decode(self._files[f"{pointer.folder}/{MANIFEST}"], type=Manifest)
        self._count.rebase(pointer.step, found.roster or NO_VERSION)
        for name, writer in list(self._logs.items()):
            writer.free(pointer.step)
            if not self._lines[name] and writer.oldest is None:
                del self._logs[name]
                self._room.give(PAGE_BYTES + writer.made_bytes)
                writer.close()
        self._say(f"{self.run}: the state of step {pointer.step} lies here")

    # Logs

    def open_log(self, claim: int, member: str, root: str) -> str:
        """Its name here. One that was opened before goes on."""
        with self._lock:
            self.enter(claim)
            name = f"{member}@{claim}"
            if name not in self._logs:
                self._room.take(PAGE_BYTES)
                self._logs[name] = LogWriter.new(member, root)
            self._lines[name] += 1
            return name

    def close_log(self, name: str) -> None:
        """One of its lines is gone."""
        with self._lock:
            self._lines[name] -= 1

    def begin_part(self, claim: int, name: str, begun: LogBegun) -> Filling:
        """A part is on its way into this log."""
        with self._lock:
            self.enter(claim)
            writer = self._logs[name]
            taken_bytes = 0 if writer.count_free(begun.size_bytes) else begun.size_bytes
            self._room.take(taken_bytes)
        try:
            return writer.begin(begun.size_bytes, begun.part_bytes)
        except InfraError:  # no slot was made
            self._room.give(taken_bytes)
            raise

    def keep_part(self, claim: int, name: str, filling: Filling, entry: Entry, tail: memoryview) -> int:
        """How far the records lead from here on. StateError where what came is not what the entry says."""
        with self._lock:
            writer = self._logs[name]
            try:
                self.enter(claim)
            except Fenced:
                writer.drop(filling)
                raise
        writer.keep(filling, entry, tail, entry)
        with self._lock:
            self._count.hear(entry.said)
            return self._count.through

    def drop_part(self, name: str, filling: Filling) -> None:
        """It was begun in vain."""
        with self._lock:
            self._logs[name].drop(filling)

    def logs(self) -> dict[str, int]:
        """Descriptors by name, for somebody who reads and closes them."""
        with self._lock:
            return {name: os.dup(writer.fd) for name, writer in self._logs.items()}
