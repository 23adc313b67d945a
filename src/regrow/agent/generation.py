"""A generation: room for one state in the host's memory, and a label that says whether one lies there whole.

The arena is a file in memory, and so is the label. The agent holds both open, so that they outlive the vault, and they are
two because workers are lent the first and must never reach the second. A label carries a digest of itself: one that was
being written when its vault died is not believed. It is erased before anything else is done to the arena.

    digest, 16 bytes | a byte for each place: did it take this later than the label says, is it done with it | a byte: was
    there anything newer, which was harmed | the label
"""

import mmap
import os
from typing import Any

import msgspec
import xxhash

from regrow.core.draft import ALIGNED_BYTES, Draft
from regrow.core.errors import InfraError
from regrow.core.roster import Version
from regrow.state.pieces import Digests

_DIGEST_BYTES = 16
PLACES = 240
"""At most."""
_TAKEN, _DONE = 1, 2
_OUTDONE_AT = _DIGEST_BYTES + PLACES
_HEAD_BYTES = _OUTDONE_AT + 1


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the arena, whole."""

    draft: Draft
    """With its term."""
    digests: Digests
    version: Version
    """Under which it was saved: what was committed after it is of this one or a newer one."""
    inode: int
    """Of the arena that is meant: it may have been exchanged."""
    lasts: tuple[int, ...]
    """Of each place, the newest step that it took, this one included."""
    takers: tuple[int, ...]
    """The places that took this one, by number."""

    @property
    def age(self) -> tuple[int, int]:
        """The higher, the newer."""
        return self.draft.term, self.draft.step

    @property
    def root(self) -> str:
        return self.digests.root


class Generation:
    """The vault's hold on it. The loop's thread owns it, but for a time in which it `is_busy`."""

    def __init__(self, number: int, arena: int, label: int) -> None:
        """Takes two descriptors over."""
        self.number = number
        self.fd = arena
        self._label_fd = label
        self._memory: mmap.mmap | None = None
        self.size_bytes = os.fstat(arena).st_size
        self.label = _read(label)
        if self.label is not None and (
            self.label.inode != os.fstat(arena).st_ino or self.label.draft.arena_bytes > self.size_bytes
        ):
            self.label = None
        self._is_made = self.label is not None
        self.is_busy = False
        """It is being made ready, lent, digested or read into."""
        self.is_tainted = self.label is None and self.size_bytes > 0
        """Somebody may still write into it, whom nobody waits for: another arena must take the place of this one."""
        self.wanted: set[int] = set()
        """By which places: numbers."""

    def has_room(self, size_bytes: int) -> bool:
        """At once."""
        return not self.is_tainted and self._is_made and self.size_bytes >= size_bytes

    def renew(self, size_bytes: int) -> bool:
        """Another arena, where this one cannot serve for so many bytes; was there a need?"""
        if not self.is_tainted and (not self.size_bytes or self.size_bytes >= size_bytes):
            return False
        fresh = os.memfd_create("regrow-arena", os.MFD_CLOEXEC)
        self._unmap()
        os.close(self.fd)
        self.fd, self.size_bytes, self.is_tainted, self._is_made = fresh, 0, False, False
        return True

    def fit(self, size_bytes: int) -> None:
        """Room for so many bytes with all pages made, in a thread: this takes long. InfraError where there is no memory."""
        size_bytes = max(self.size_bytes, -(-max(size_bytes, 1) // ALIGNED_BYTES) * ALIGNED_BYTES)
        try:
            if self.size_bytes < size_bytes:
                os.ftruncate(self.fd, size_bytes)
            if not self._is_made:
                os.posix_fallocate(self.fd, 0, size_bytes)  # says so where there is none; a bare write would be a SIGBUS
        except OSError as error:
            raise InfraError(
                f"there is no shared memory of {size_bytes / 1e9:.2f} GB for a copy of the state ({error.strerror}): a job "
                "that saves needs up to three times the size of its state on each host; give it more memory"
            ) from error
        self.size_bytes, self._is_made = size_bytes, True

    def view(self, size_bytes: int) -> memoryview:
        """So many bytes of it, also for writing."""
        if self._memory is None and self.size_bytes:
            self._memory = mmap.mmap(self.fd, self.size_bytes)
        return memoryview(b"" if self._memory is None else self._memory)[:size_bytes]

    def write_label(self, label: Label) -> None:
        """From here on what lies here counts."""
        body = msgspec.json.encode(label)
        os.ftruncate(self._label_fd, 0)
        _write(self._label_fd, xxhash.xxh3_128_digest(body) + bytes(_HEAD_BYTES - _DIGEST_BYTES) + body)
        self.label = label

    def mark_taken(self, place: int) -> None:
        """Behind the label's back, which is never written twice."""
        self._mark(place, _TAKEN)

    def mark_done(self, place: int) -> None:
        """It is durable there, or was given up: a vault that comes after this one need not see to it."""
        self._mark(place, _DONE)

    def mark_outdone(self) -> None:
        """Something newer lay in memory, and was harmed."""
        if self.label is not None:
            os.pwrite(self._label_fd, b"\1", _OUTDONE_AT)

    @property
    def is_outdone(self) -> bool:
        return os.pread(self._label_fd, 1, _OUTDONE_AT) == b"\1"

    def unsettled(self) -> list[int]:
        """The places that took it, and are not known to be done with it."""
        if self.label is None:
            return []
        marks = os.pread(self._label_fd, PLACES, _DIGEST_BYTES)
        return [place for place, mark in enumerate(marks) if mark == _TAKEN or (place in self.label.takers and not mark)]

    def _mark(self, place: int, mark: int) -> None:
        if self.label is not None:
            os.pwrite(self._label_fd, bytes([mark]), _DIGEST_BYTES + place)

    def erase_label(self) -> None:
        """From here on nobody believes that anything lies here."""
        os.ftruncate(self._label_fd, 0)
        self.label = None

    def _unmap(self) -> None:
        # A thread may still hold a view, of an arena that is given up: then the mapping goes with the last view.
        self._memory = None

    def inode(self) -> int:
        return os.fstat(self.fd).st_ino


def free(generations: list[Generation]) -> list[Generation]:
    """Those that may be lent: neither in use, nor wanted by a place, nor the newest that is whole (rule S4)."""
    keep = newest(generations)
    return [one for one in generations if one is not keep and not one.is_busy and not one.wanted]


def freest(generations: list[Generation], size_bytes: int) -> Generation | None:
    """Of those the one to lend: with room at once if there is one, rather where nothing lies whole, else the oldest."""

    def worth(one: Generation) -> tuple[bool, bool, tuple[int, int]]:
        term, step = (0, 0) if one.label is None else one.label.age
        return one.has_room(size_bytes), one.label is None, (-term, -step)

    return max(free(generations), key=worth, default=None)


def newest(generations: list[Generation]) -> Generation | None:
    """Of those that are whole."""
    return max((one for one in generations if one.label is not None), key=_age, default=None)


def _age(generation: Generation) -> tuple[int, int]:
    assert generation.label is not None
    return generation.label.age


def _read(fd: int) -> Label | None:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    digest, body = data[:_DIGEST_BYTES], data[_HEAD_BYTES:]
    if not body or xxhash.xxh3_128_digest(body) != digest:
        return None
    try:
        return msgspec.json.decode(body, type=Label)
    except msgspec.DecodeError:
        return None


def _write(fd: int, data: Any) -> None:
    rest, at = memoryview(data), 0
    while rest:
        count = os.pwrite(fd, rest, at)
        rest, at = rest[count:], at + count
