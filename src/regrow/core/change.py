"""A roster as a change of one that its reader holds: one death is as small in a job of ten thousand as in a job of two.

What would make it large is never said. Lanes move with every death, but by a rule of the seats alone, so the reader deals
them itself; a roster whose lanes follow no rule names each seat that differs, and is still right. The reader trusts nothing:
it applies a change only to the very roster it was made from, and takes the outcome only if its digest is the one that was
meant. Whatever does not fit is answered by asking for the whole roster.
"""

from hashlib import blake2b

import msgspec

from regrow.core.lanes import Cell
from regrow.core.origin import Origin
from regrow.core.roster import Halt, Member, Roster, Seat, Suspect, Version, dealt


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of a roster but the seats that it has in common with `since`."""

    since: Version
    """The roster that its reader must hold."""
    version: Version
    digest: int
    """Of the roster that must come out."""
    gone: tuple[Member, ...] = ()
    come: tuple[Seat, ...] = ()
    """Seats that were not there, or were others but for their lanes; those too whose lanes no rule tells."""
    lanes: int | None = None
    """So many are dealt anew among the seats; None: whoever stays keeps its lanes."""
    floor: int = 0
    cause: str = ""
    skips: tuple[Cell, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    halt: Halt | None = None
    shrinks: bool = False
    base: Version | None = None
    waits: str = ""
    origin: Origin | None = None


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """A change cannot be applied here: ask for the whole roster."""

    why: str


_SEATLESS = tuple(name for name in Roster.__struct_fields__ if name not in ("version", "seats"))
"""What a change repeats as it is: small, whatever the size of the job."""


def change(old: Roster, new: Roster) -> Change:
    """For whoever holds `old`: what makes it `new`."""
    gone = tuple(seat.member for seat in old.seats if new.seat(seat.member) is None)
    come = tuple(seat for seat in new.seats if not _stays(old.seat(seat.member), seat))
    lanes = _dealt_lanes(new)
    if lanes is None:
        come = tuple(seat for seat in new.seats if seat != old.seat(seat.member))
    return Change(
        since=old.version,
        version=new.version,
        digest=digest(new),
        gone=gone,
        come=come,
        lanes=lanes,
        **{name: getattr(new, name) for name in _SEATLESS},
    )


def apply(old: Roster | None, change: Change) -> Roster | Misfit:
    """The roster that was meant, or why it cannot be told from here."""
    if old is None or old.version != change.since:
        held = "none is held" if old is None else f"{old.version} is held"
        return Misfit(why=f"the change to roster {change.version} is one since {change.since}, and {held}")
    seats = {seat.member: seat for seat in old.seats}
    for member in change.gone:
        seats.pop(member, None)
    seats.update((seat.member, seat) for seat in change.come)
    ordered = tuple(seats[member] for member in sorted(seats)) if change.come else tuple(seats.values())
    if change.lanes is not None:
        ordered = dealt(ordered, change.lanes)
    new = Roster(version=change.version, seats=ordered, **{name: getattr(change, name) for name in _SEATLESS})
    if digest(new) != change.digest:
        return Misfit(why=f"the change since {change.since} does not lead to roster {change.version} here")
    return new


def digest(roster: Roster) -> int:
    return int.from_bytes(blake2b(msgspec.msgpack.encode(roster), digest_size=8).digest(), "big")


def _stays(old: Seat | None, new: Seat) -> bool:
    """The same but for its lanes."""
    return old is not None and (old is new or msgspec.structs.replace(old, lanes=new.lanes) == new)


def _dealt_lanes(roster: Roster) -> int | None:
    """How many lanes were dealt, if they were dealt by the rule."""
    lanes = sum(len(seat.lanes) for seat in roster.seats)
    return lanes if lanes and not roster.shrinks and dealt(roster.seats, lanes) == roster.seats else None
