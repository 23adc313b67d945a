"""The boundary: the one barrier of a step, just before the optimizer step.

Every member states a row, everyone receives the whole table, and the verdict is a pure function of that table, so all
members reach the same one. To state a row is to state "ok": this member holds the complete result of this attempt.
"""

import struct
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

import msgspec

from regrow.core.errors import Invariant
from regrow.core.resolve import Manifest
from regrow.core.roster import NO_VERSION, Member, Roster, Version
from regrow.core.saves import Urgency

T = TypeVar("T", bound=Hashable)

_FORMAT = struct.Struct("<QQQQQQQQQ")
ROW_BYTES = _FORMAT.size
_STOP = 1
_SAVE_SHIFT = 1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one member states at the boundary of an attempt."""

    version: Version
    step: int
    digest: int
    """64-bit digest of the result this member holds."""
    stop: bool
    """The member wishes to stop after this step."""
    state: int = 0
    """64-bit digest of the part of the state before this step that is compared now."""
    ready: Version = NO_VERSION
    """The planned roster that this member could go on under after this step."""
    listener: int = 0
    """The listener that this member could begin to feed after this step, by its number."""
    save: Urgency = Urgency.NONE
    """How much this member wishes that the state after this step is saved."""

    def pack(self) -> bytes:
        """Fixed size, so that the table is one all-gather."""
        flags = (_STOP if self.stop else 0) | self.save << _SAVE_SHIFT
        version, ready = self.version, self.ready
        return _FORMAT.pack(
            version.term, version.n, self.step, self.digest, flags, self.state, ready.term, ready.n, self.listener
        )

    @staticmethod
    def unpack(data: bytes) -> "Row":
        term, n, step, digest, flags, state, ready_term, ready_n, listener = _FORMAT.unpack(data)
        return Row(
            version=Version(term, n),
            step=step,
            digest=digest,
            stop=bool(flags & _STOP),
            state=state,
            ready=Version(ready_term, ready_n),
            listener=listener,
            save=Urgency(flags >> _SAVE_SHIFT),
        )


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """Commit the result; stop after it if anybody wished so."""

    stop: bool
    switch: Version | None = None
    """Go on under this planned roster: everybody is ready for it."""
    listener: int | None = None
    """Begin to feed this listener: everybody has a line to it."""
    save: Urgency = Urgency.NONE
    """Save the state after this step."""


class Corrupt(msgspec.Struct, frozen=True, kw_only=True):
    """These members hold a result that differs from the majority's; without a majority, everyone is named."""

    members: tuple[Member, ...]


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """These members hold another state than the majority; without a majority, everyone is named.

    Lanes were computed with it, and nobody knows since when: no result can be trusted to be that of an undisturbed run.
    """

    members: tuple[Member, ...]


Verdict = Pass | Corrupt | Parted


def verdict(roster: Roster, rows: Sequence[Row]) -> Verdict:
    """Rows in the order of the roster's seats."""
    if len(rows) != len(roster.seats) or len({(row.version, row.step) for row in rows}) != 1:
        raise Invariant(f"the table of roster {roster.version} does not speak of one attempt: {rows}")
    if odd := outvoted(roster.members, [row.digest for row in rows]):
        return Corrupt(members=odd)
    if odd := outvoted(roster.members, [row.state for row in rows]):
        return Parted(members=odd)
    ready, heard = {row.ready for row in rows}, {row.listener for row in rows}
    return Pass(
        stop=any(row.stop for row in rows),
        switch=max(ready) if len(ready) == 1 and ready != {NO_VERSION} else None,
        listener=max(heard) if len(heard) == 1 and heard != {0} else None,
        save=max(row.save for row in rows),
    )


def outvoted(members: Sequence[Member], said: Sequence[T]) -> tuple[Member, ...]:
    """Who said something else than the majority; everyone, when there is none."""
    votes = Counter(said)
    if len(votes) == 1:
        return ()
    value, count = votes.most_common(1)[0]
    return tuple(m for m, its in zip(members, said, strict=True) if its != value or 2 * count <= len(said))


def first_parted(members: Sequence[Member], manifests: Sequence[Manifest]) -> str:
    """The first tensor on which the members' states differ, and whose it is."""
    tables = [dict(manifest) for manifest in manifests]
    for path, _ in manifests[0]:
        if odd := outvoted(members, [table.get(path, "absent") for table in tables]):
            return f"{path} on {', '.join(map(str, odd))}"
    return "nothing that is tracked any more"
