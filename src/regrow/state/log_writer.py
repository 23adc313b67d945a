"""A log's one writer: takes parts of records into slots, and gives slots up once a saved state makes them needless.

Slots are used again, and new ones are made when they are needed; `grow` makes one ahead, on another thread: to touch memory
the first time costs several times as much as to copy into it. The file is locked for as long as its writer lives, however
it ends: so others know when nobody writes there any more.
"""

import ctypes
import fcntl
import mmap
import os
import secrets
import threading
from collections import deque

import msgspec
import xxhash

from regrow.core.errors import InfraError, StateError
from regrow.state import log
from regrow.state.log import PAGE_BYTES, Entry, Head, Held
from regrow.state.log_filling import Filling, Slot, copied

_MAPPED_BYTES = 1 << 20
"""A slot of this size is written through a mapping: three times as fast, but there may not be tens of thousands of these."""
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


class _Slots:
    """Which are taken, oldest first, and which are free, by size: there may be tens of thousands, and none is looked at that
    need not be."""

    def __init__(self) -> None:
        self.taken: deque[tuple[int, Slot]] = deque()
        """Kept, with their steps, which go up as good as always. One that is being filled is in no list: nobody may take it
        from whoever fills it."""
        self.free: dict[int, list[Slot]] = {}
        self.hollow: list[Slot] = []
        """Free, and all but their first pages were given back."""
        self.used_bytes = 0
        self.made_bytes = 0

    def made(self, slot: Slot) -> None:
        self.made_bytes += slot.size_bytes
        self.free.setdefault(slot.size_bytes, []).append(slot)

    def take(self, size_bytes: int) -> Slot | None:
        """The smallest that is large enough, to be filled."""
        fitting = min((size for size, slots in self.free.items() if slots and size >= size_bytes), default=None)
        if fitting is None:
            return None
        self.used_bytes += fitting
        return self.free[fitting].pop()

    def give_back(self, slot: Slot) -> None:
        """It was taken in vain, or is needed no more."""
        self.used_bytes -= slot.size_bytes
        self.free.setdefault(slot.size_bytes, []).append(slot)

    def give_up(self, below: int) -> None:
        while self.taken and self.taken[0][0] < below:
            self.give_back(self.taken.popleft()[1])

    def count_free(self, size_bytes: int) -> int:
        return sum(len(slots) for size, slots in self.free.items() if size >= size_bytes)

    def too_small(self, size_bytes: int) -> list[Slot]:
        """Free ones: they are hollow from here on."""
        found = [slot for size in [size for size in self.free if size < size_bytes] for slot in self.free.pop(size)]
        self.hollow += found
        self.made_bytes -= sum(slot.size_bytes - PAGE_BYTES for slot in found)
        return found

    def refill(self, size_bytes: int) -> Slot | None:
        """A hollow one that would do. Once it has its memory again it is `made`."""
        slot = next((slot for slot in self.hollow if slot.size_bytes >= size_bytes), None)
        if slot is not None:
            self.hollow.remove(slot)
            self.made_bytes -= PAGE_BYTES
        return slot


class LogWriter:
    """From any thread; a part is filled, kept or dropped by one at a time."""

    def __init__(self, fd: int, head: Head) -> None:
        """Takes the descriptor over, which is the only one of this process: with another one the lock would go."""
        self.fd = fd
        self.head = head
        fcntl.lockf(fd, fcntl.LOCK_EX)
        log.write_head(fd, head)
        self._slots = _Slots()
        self._mapped: dict[int, memoryview] = {}
        """Large slots, by their places, as far as the kernel maps them."""
        self._size_bytes = PAGE_BYTES
        self._lock = threading.Lock()
        """Guards the slots."""
        self._growing = threading.Lock()
        """Held by whoever makes one."""

    @staticmethod
    def new(member: str, root: str) -> "LogWriter":
        fd = os.memfd_create("regrow-log", os.MFD_CLOEXEC)
        return LogWriter(fd, Head(member=member, root=root, nonce=secrets.token_hex(8)))

    @property
    def made_bytes(self) -> int:
        """Of memory."""
        return self._slots.made_bytes

    @property
    def used_bytes(self) -> int:
        """Of slots that hold something that is still needed."""
        return self._slots.used_bytes

    @property
    def oldest(self) -> int | None:
        """The oldest step that is still needed."""
        with self._lock:
            return self._slots.taken[0][0] if self._slots.taken else None

    def has_room(self, size_bytes: int, limit_bytes: int) -> bool:
        """For a slot of this size, within this limit. What is free does not count: it is used, or its memory given back."""
        return self.used_bytes + size_bytes <= limit_bytes

    def has_room_made(self, size_bytes: int, limit_bytes: int) -> bool:
        """May one more slot of this size be made within this limit? What is free counts: it has its memory."""
        return self.made_bytes + size_bytes <= limit_bytes

    def write(self, entry: Entry, tail: bytes | memoryview, part: memoryview, rest_bytes: int = 0) -> Entry:
        """A part that is at hand: `begin` and `keep` at once, with room for no less than so much behind it. InfraError where
        there is no memory."""
        rest_bytes = max(rest_bytes, log.rest_of(entry, [len(part)], len(tail)))
        filling = self.begin(log.slot_bytes(len(part), rest_bytes), len(part))
        filling.put(0, len(part), copied(part))
        return self.keep(filling, entry, tail)

    def begin(self, size_bytes: int, part_bytes: int) -> Filling:
        """A slot of at least this size, for a part. InfraError where there is no memory."""
        slot = self._taken(size_bytes)
        log.erase(self.fd, slot.at)
        rest_bytes = size_bytes - log.aligned(log.PART_AT + part_bytes)
        return Filling(self.fd, slot, part_bytes, rest_bytes, self._mapped.get(slot.at))

    def keep(self, filling: Filling, entry: Entry, tail: bytes | memoryview, expected: Entry | None = None) -> Entry:
        """Its part is there whole: with the tail, and the entry that says so, with pieces, sizes and digests as they are
        here. StateError, and it is dropped, where another entry is expected, or there is no room for it in the slot."""
        entry = msgspec.structs.replace(
            entry,
            pieces=filling.pieces,
            tail_bytes=len(tail),
            tail_digest=xxhash.xxh3_128_digest(tail),
        )
        if expected not in (None, entry):
            self.drop(filling)
            raise StateError(f"what came of step {entry.said.record.step} is not what was sent")
        slot = filling.slot
        held = Held(entry=entry, slot_at=slot.at)
        if held.stop > slot.at + slot.size_bytes:
            self.drop(filling)
            raise StateError(f"what is to be said of step {entry.said.record.step} does not fit in {slot.size_bytes} bytes")
        log.write(self.fd, tail, held.tail_at)
        log.write_entry(self.fd, self.head, held)
        with self._lock:
            self._slots.taken.append((entry.said.record.step, slot))
        return entry

    def drop(self, filling: Filling) -> None:
        """It will not be kept."""
        with self._lock:
            self._slots.give_back(filling.slot)

    def free(self, below: int) -> None:
        """A state of this step is whole: no record before it is needed any more. What lies there counts until it is written
        over."""
        with self._lock:
            self._slots.give_up(below)

    def count_free(self, size_bytes: int) -> int:
        """Slots of at least this size."""
        with self._lock:
            return self._slots.count_free(size_bytes)

    def grow(self, size_bytes: int) -> None:
        """One more slot, with its pages made. InfraError: there is no memory."""
        with self._growing:
            self._grow(size_bytes)

    def empty(self, size_bytes: int) -> None:
        """Give back the memory of free slots that are too small for this size."""
        with self._growing, self._lock:
            for slot in self._slots.too_small(size_bytes):
                log.erase(self.fd, slot.at)
                if slot.size_bytes > PAGE_BYTES:
                    _libc.fallocate(self.fd, _PUNCH_HOLE, slot.at + PAGE_BYTES, slot.size_bytes - PAGE_BYTES)

    def close(self) -> None:
        """What was written stays for as long as somebody else holds the file open. Again, it does nothing: a forked child
        closes it as well, and the number may be another file's by then."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _taken(self, size_bytes: int) -> Slot:
        while (slot := self._take(size_bytes)) is None:
            with self._growing:
                if not self.count_free(size_bytes):  # else another thread has just made one
                    self._grow(size_bytes)
        return slot

    def _take(self, size_bytes: int) -> Slot | None:
        with self._lock:
            return self._slots.take(size_bytes)

    def _grow(self, size_bytes: int) -> None:
        with self._lock:
            hollow = self._slots.refill(size_bytes)
        at, wanted = (hollow.at, hollow.size_bytes) if hollow is not None else (self._size_bytes, log.paged(size_bytes))
        try:
            os.posix_fallocate(self.fd, at, wanted)  # says so where there is none
        except OSError as error:
            raise InfraError(
                f"there is no shared memory for {wanted / 1e6:.1f} MB more of the log, which has "
                f"{self._size_bytes / 1e6:.1f} MB ({error.strerror}): give the job more memory, lower --log-mb, or save "
                "more often (--memory-every)"
            ) from error
        if hollow is None:
            if wanted >= _MAPPED_BYTES:
                self._map(at, wanted)
            log.write_frame(self.fd, self.head, at, wanted)
            self._size_bytes = at + wanted
        with self._lock:
            self._slots.made(Slot(at, wanted))

    def _map(self, at: int, size_bytes: int) -> None:
        """Its pages are at hand from here on. One that cannot be mapped (vm.max_map_count) is written as small ones are."""
        before = at % mmap.ALLOCATIONGRANULARITY  # a kernel's pages may be larger than the log's
        try:
            mapped = mmap.mmap(self.fd, before + size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=at - before)
        except OSError:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)  # Python has closed a descriptor of its own again: with it went the lock
        else:
            self._mapped[at] = memoryview(mapped)[before:]


def is_written(fd: int) -> bool:
    """Does the writer of this log live? Asked by another process."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False
