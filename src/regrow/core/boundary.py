"""The boundary: the one barrier of a step, just before the optimizer step.

Every member states a row, everyone receives the whole table, and the verdict is a pure function of that table, so all
members reach the same one. To state a row is to state "ok": this member holds the complete result of this attempt.
"""

import struct
from collections import Counter
from collections.abc import Sequence

import msgspec

from regrow.core.errors import Invariant
from regrow.core.roster import Member, Roster, Version

_FORMAT = struct.Struct("<QQQQQ")
ROW_BYTES = _FORMAT.size
_STOP = 1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one member states at the boundary of an attempt."""

    version: Version
    step: int
    digest: int
    """64-bit digest of the result this member holds."""
    stop: bool
    """The member wishes to stop after this step."""

    def pack(self) -> bytes:
        """Fixed size, so that the table is one all-gather."""
        flags = _STOP if self.stop else 0
        return _FORMAT.pack(self.version.term, self.version.n, self.step, self.digest, flags)

    @staticmethod
    def unpack(data: bytes) -> "Row":
        term, n, step, digest, flags = _FORMAT.unpack(data)
        return Row(version=Version(term, n), step=step, digest=digest, stop=bool(flags & _STOP))


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """Commit the result; stop after it if anybody wished so."""

    stop: bool


class Corrupt(msgspec.Struct, frozen=True, kw_only=True):
    """These members hold a result that differs from the majority's; without a majority, everyone is named."""

    members: tuple[Member, ...]


Verdict = Pass | Corrupt


def verdict(roster: Roster, rows: Sequence[Row]) -> Verdict:
    """Rows in the order of the roster's seats."""
    if len(rows) != len(roster.seats) or len({(row.version, row.step) for row in rows}) != 1:
        raise Invariant(f"the table of roster {roster.version} does not speak of one attempt: {rows}")
    votes = Counter(row.digest for row in rows)
    if len(votes) > 1:
        digest, count = votes.most_common(1)[0]
        majority = digest if 2 * count > len(rows) else None
        return Corrupt(members=tuple(m for m, row in zip(roster.members, rows, strict=True) if row.digest != majority))
    return Pass(stop=any(row.stop for row in rows))
