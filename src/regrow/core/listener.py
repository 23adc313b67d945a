"""Listeners: joiners that the members feed with committed records, and how each is told from the others.

A listener is in no group. Whatever becomes of it, a step neither waits for it nor notices it.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from regrow.core.lanes import Node
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency

_ALIGN_BYTES = 512
"""Parts of a record begin at multiples of it."""


class Listener(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One try of a joiner to listen. A later try is another listener: its lines may reach some members before others."""

    member: Member
    attempt: int

    def __str__(self) -> str:
        return f"{self.member} (try {self.attempt})"

    @property
    def number(self) -> int:
        """As a row states it; never 0."""
        return int.from_bytes(blake2b(str(self).encode(), digest_size=8).digest(), "little") or 1


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """What a listener is sent by this member: its part of every record, one for each of those who feed it."""

    listener: Listener
    feeder: Member
    feeders: tuple[Member, ...]

    @property
    def is_first(self) -> bool:
        """Of the feeders one sends what is no bytes, too."""
        return self.feeders[0] == self.feeder

    def among(self, members: tuple[Member, ...]) -> "Feed":
        """Goes on with those of them who are left."""
        return msgspec.structs.replace(self, feeders=tuple(each for each in self.feeders if each in members))

    def span(self, size_bytes: int) -> tuple[int, int]:
        """Where this member's part of so many bytes starts and stops."""
        return part_of(size_bytes, self.feeders.index(self.feeder), len(self.feeders))


def part_of(size_bytes: int, index: int, count: int) -> tuple[int, int]:
    """Where this one of so many parts starts and stops."""
    start, stop = (size_bytes * i // count // _ALIGN_BYTES * _ALIGN_BYTES for i in (index, index + 1))
    return start, size_bytes if index + 1 == count else stop


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that a member computed, and the digest of its gradient: a joiner must come to the same."""

    lane: int
    digest: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed step was, but for the bytes of its gradient."""

    step: int
    attempt: Version
    digest: int
    holdings: tuple[tuple[Node, ...], ...]
    last: int
    """The job ends before this step; 0, where it was logged by another run: as this run knows."""
    switch: Version | None = None
    """The planned roster that its members went on under."""
    save: Urgency = Urgency.NONE
    """The wish to save that gave way to that: whoever enters by this record has it, too."""
    lane: Lane | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A committed record that is whole here."""

    record: Record
    gradient: Any
    """The shell's own; here it is only handed on."""
