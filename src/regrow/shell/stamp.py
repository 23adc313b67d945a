"""A worker's stamp: one page of shared memory in which it says where it is, and which its agent reads.

The agent makes the page (a memfd: no name, nothing to clean up) and hands its descriptor over with the order to launch. One
thread writes each part, so nothing is locked:

- the place, by the training thread: what it does, since when. Framed by a count before and behind; the reader takes it only
  when both are equal and a second look finds the same.
- the experience, by the training thread: how often each phase was completed and the longest of the recent ones. The agent
  looks too rarely to see a phase of a millisecond; the worker sees them all.
- the pulse, by the session thread. It stands still when the process is stopped or frozen, or when C code holds the GIL.
- the garbage collection, by whichever thread collects.
- the call, by whichever thread brings what the training thread waits for; it holds for the place whose count it bears.

Behind the page, in the same memfd, lie the Python stacks that the worker dumps on DUMP_SIGNAL.
"""

import contextlib
import faulthandler
import gc
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator

from regrow.core.progress import Experience, Phase, Place, Stamped

PAGE_BYTES = 4096
DUMP_SIGNAL = signal.SIGRTMIN + 8
"""A real-time signal: scripts and schedulers use SIGUSR1 and SIGUSR2 for their own purposes."""

# Words of the page, eight bytes each. The worker writes word by word, in order: a store of one is never seen half done.
# (struct.pack_into is no way to write here: it fills with zeros first, and a reader may come between.)
_PLACE = 10
"""Count, step, lane, phase, since, collected before, phase aside (-1: none), since, at most, count. Times in nanoseconds."""
_PULSE = 32
"""When it last beat, and the longest recent pause between two beats."""
_COLLECTION = 40
"""Since when a full collection runs (0: none does), and how long all before took together."""
_CALL = 48
"""Count, since, count."""
_EXPERIENCE = 64
"""Of each phase: how often completed, and the longest of the recent ones."""
_NAME_AT, _NAME_BYTES = 128, 64
_PHASES = list(Phase)
_INDEX = {phase: index for index, phase in enumerate(_PHASES)}
_RECENT = 32
"""The longest of at least the last so many counts, and of at most twice as many."""


class Stamp:
    """The worker's end. Without a descriptor (a job of one) nobody reads it, and nothing else differs."""

    def __init__(self, fd: int | None = None) -> None:
        self._map(fd)
        self._count = self._words[0]  # the agent's own stamp came before
        self._step = self._lane = -1
        self._index = _INDEX[Phase.START]
        self._since = time.monotonic_ns()
        self._collected_before = 0
        self._aside, self._aside_since, self._at_most_s = -1, 0, 0.0
        self._recent = [_Recent() for _ in _PHASES]
        self._pauses = _Recent()
        self._pulse = 0
        self._collecting_since = self._collected = 0
        self._write()
        if fd is not None:
            os.register_at_fork(after_in_child=self._detach)

    def enter(self, phase: Phase, step: int | None = None, lane: int | None = None, completed: bool = True) -> None:
        """The training thread begins this phase. No step: the same as before. What was cut short teaches nothing."""
        now = time.monotonic_ns()
        if completed:
            self._learn(self._index, now - self._since - self._collected + self._collected_before)
        if step is not None:
            self._step = step
        self._lane = -1 if lane is None else lane
        self._index, self._since = _INDEX[phase], now
        self._collected_before = self._collected
        self._write()

    def learn(self, phase: Phase, took_s: float) -> None:
        """The training thread: work of this phase was done for it elsewhere, ahead of time. Its own experience would only
        be of not having to wait."""
        self._learn(_INDEX[phase], int(took_s * 1e9))

    def _learn(self, index: int, took: int) -> None:
        recent = self._recent[index]
        recent.add(took)
        at = _EXPERIENCE + 2 * index
        self._words[at + 1] = recent.longest
        self._words[at] = recent.completed

    @contextlib.contextmanager
    def aside(self, phase: Phase, name: str = "", at_most_s: float = 0.0) -> Iterator[None]:
        """Work inside the current phase that has limits of its own; afterwards the phase goes on where it was."""
        outer = (self._aside, self._aside_since, self._at_most_s, self._page[_NAME_AT : _NAME_AT + _NAME_BYTES])
        began, since = time.monotonic_ns(), self._since
        self._name(name.encode("utf-8", "replace"))
        self._aside, self._aside_since, self._at_most_s = _INDEX[phase], began, at_most_s
        self._write()
        try:
            yield
        finally:
            took = time.monotonic_ns() - began
            self._aside, self._aside_since, self._at_most_s, former = outer
            self._aside_since += took
            self._name(former)
            if self._since == since and self._aside < 0:  # else it is the outer one's to count, or another phase has begun
                self._since += took
            self._write()

    def _detach(self) -> None:
        """In a child of the script (a data worker): it shares the page, and is not the one who writes there."""
        self._map(None)

    def _map(self, fd: int | None) -> None:
        self._page = mmap.mmap(-1 if fd is None else fd, PAGE_BYTES)
        self._words = memoryview(self._page).cast("q")

    def pulse(self) -> None:
        """The session thread is alive. Some twenty times a second."""
        now = time.monotonic_ns()
        if self._pulse:
            self._pauses.add(now - self._pulse)
        self._pulse = now
        self._words[_PULSE] = now
        self._words[_PULSE + 1] = self._pauses.longest

    @property
    def count(self) -> int:
        """Names the present place."""
        return self._count

    def call(self, count: int) -> None:
        """Any thread: what the training thread waits for at that place is here. From now on it is its own fault if it does
        not go on."""
        words = self._words
        words[_CALL + 1] = time.monotonic_ns()
        words[_CALL] = words[_CALL + 2] = count

    def watch_collections(self) -> None:
        """Full collections may take seconds, hold the GIL, and are nobody's fault."""
        gc.callbacks.append(self._collection)

    def _collection(self, moment: str, about: dict[str, int]) -> None:
        if about["generation"] < 2:
            return
        now = time.monotonic_ns()
        if moment == "start":
            self._collecting_since = now
        elif self._collecting_since:
            self._collected += now - self._collecting_since
            self._collecting_since = 0
        self._words[_COLLECTION + 1] = self._collected
        self._words[_COLLECTION] = self._collecting_since

    def _name(self, name: bytes) -> None:
        self._page[_NAME_AT : _NAME_AT + _NAME_BYTES] = name[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")

    def _write(self) -> None:
        words = self._words
        self._count = count = self._count + 1
        words[0] = count
        words[1] = self._step
        words[2] = self._lane
        words[3] = self._index
        words[4] = self._since
        words[5] = self._collected_before
        words[6] = self._aside
        words[7] = self._aside_since
        words[8] = int(self._at_most_s * 1e9)
        words[9] = count


class _Recent:
    """The longest of the recent ones: the window before this one, and this one."""

    __slots__ = ("_before", "_within", "completed", "longest")

    def __init__(self) -> None:
        self.completed = 0
        self.longest = 0
        self._before = self._within = 0

    def add(self, took: int) -> None:
        self.completed += 1
        if self.completed == 1:
            return
        if took > self._within:
            self._within = took
            if took > self.longest:
                self.longest = took
        if self.completed % _RECENT == 0:
            self._before, self._within = self._within, 0
            self.longest = self._before


class Page:
    """The agent's end: makes the memfd, reads it, keeps it readable after the worker's death."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"regrow-{name}")
        os.ftruncate(self.fd, PAGE_BYTES)
        os.lseek(self.fd, PAGE_BYTES, os.SEEK_SET)  # shared with the worker: its stacks are written from here on
        self._page = mmap.mmap(self.fd, PAGE_BYTES)
        # Whoever hangs before it can stamp hangs in its start-up.
        start = (1, -1, -1, _INDEX[Phase.START], time.monotonic_ns(), 0, -1, 0, 0, 1)
        self._page[: 8 * _PLACE] = struct.pack("=10q", *start)  # before the worker exists
        self._last = self._stamped(start, b"")

    def read(self) -> Stamped:
        """The newest whole stamp. A torn one is passed over."""
        page = self._page
        for _ in range(3):
            bytes_ = page[: _NAME_AT + _NAME_BYTES]
            fields = struct.unpack_from("=10q", bytes_)
            if fields[0] == fields[-1] and page[: 8 * _PLACE] == bytes_[: 8 * _PLACE]:
                self._last = self._stamped(fields, bytes_[_NAME_AT:])
                break
        return self._last

    def stacks(self) -> bytes:
        """What the worker has dumped so far."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, size - PAGE_BYTES, PAGE_BYTES) if size > PAGE_BYTES else b""

    def close(self) -> None:
        self.read()
        self._page.close()
        os.close(self.fd)

    def _words(self, at: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"={count}q", self._page, 8 * at)

    def _stamped(self, fields: tuple[int, ...], name: bytes) -> Stamped:
        count, step, lane, phase, since, collected_before, aside, aside_since, at_most, _ = fields
        pulse, longest_pause = self._words(_PULSE, 2)
        collecting, collected = self._words(_COLLECTION, 2)
        call = self._words(_CALL, 3)
        is_called = call[0] == call[2] == count and call == self._words(_CALL, 3)
        what = _PHASES[phase]
        # Past the end is past the end, whatever is done aside there.
        shown = _PHASES[aside] if aside >= 0 and what is not Phase.LEAVING else what
        experience = {}
        for index, known in enumerate(_PHASES):
            completed, longest = self._words(_EXPERIENCE + 2 * index, 2)
            if completed:
                experience[known] = Experience(completed=completed, longest_s=longest / 1e9)
        return Stamped(
            place=Place(
                step=step if step >= 0 else None,
                lane=lane if lane >= 0 else None,
                phase=shown.value,
            ),
            phase=what,
            count=count,
            since_s=(since + max(0, collected - collected_before)) / 1e9,
            aside=_PHASES[aside] if aside >= 0 else None,
            aside_since_s=aside_since / 1e9,
            name=name.rstrip(b"\0").decode("utf-8", "replace"),
            at_most_s=at_most / 1e9,
            pulse_s=pulse / 1e9,
            longest_pause_s=longest_pause / 1e9,
            collecting_since_s=collecting / 1e9,
            experience=experience,
            called_s=call[1] / 1e9 if is_called else 0.0,
        )


def dump_on_signal(fd: int) -> None:
    """On DUMP_SIGNAL the stacks of all threads go behind the page, even while C code holds the GIL."""
    faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True, chain=False)
