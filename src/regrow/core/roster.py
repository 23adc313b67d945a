"""Rosters: which members take part, and which lanes each computes in steps that start under it.

Only the coordinator makes rosters. A version is (term, n) and only ever grows: the term rises with each start of a
coordinator, n with each roster of that term.

What there is one of for each member is nothing for the garbage collector (gc=False): it holds no cycles, and looking through
thousands of them takes longer than everything else.
"""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from regrow.core.errors import Invariant
from regrow.core.lanes import Cell, deal, deal_by_weight
from regrow.core.origin import Origin


class Version(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Names a roster, and with it an attempt at a step."""

    term: int
    n: int

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"


NO_VERSION = Version(0, 0)


class Member(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One life of one replica. A restarted replica is a new member."""

    replica: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.replica}.{self.incarnation}"


class Endpoint(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Seat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member's place in a roster."""

    member: Member
    endpoint: Endpoint
    founder: bool
    """True when this member's own initial state is the job's state at step 0."""
    lanes: tuple[int, ...]
    spectates: bool = False
    """It has no place among those who compute, and stays in step with them."""
    is_new: bool = False
    """Of a planned roster: it has no seat in the base, and forms this one once it can enter it."""
    weight: int = 1
    """How many lanes it computes while one of weight 1 computes one."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a step that a replica died in."""

    cell: Cell
    dead: tuple[Member, ...]
    """Those that died in it."""
    struck: bool = False
    """One of them by a SIGKILL that nothing explains."""

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(sorted({member.replica for member in self.dead}))


class Halt(msgspec.Struct, frozen=True, kw_only=True):
    """The job ends before its time, in good order: its members end with the state before this step, or the first one after
    that they can."""

    step: int
    why: str
    is_poison: bool = True
    """Nobody can compute the step. Else what ends the job is nothing that a step is to blame for."""


class Roster(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Who takes part from now on. It never changes, so what is looked up in it is found once."""

    version: Version
    seats: tuple[Seat, ...]
    floor: int
    """The job has committed every step below this one; a roster that would resolve lower is refused."""
    cause: str
    """Id of the observation that led to this roster."""
    skips: tuple[Cell, ...] = ()
    """Lanes left out by decision."""
    suspects: tuple[Suspect, ...] = ()
    """Lanes that are computed last, by one member, while another holds the state."""
    halt: Halt | None = None
    """The job ends before its time."""
    shrinks: bool = False
    """Lanes that nobody sits at are left out, not dealt to others."""
    base: Version | None = None
    """Planned: the members of that roster form this one beside it, and enter it together by the verdict of a boundary. None:
    entered at once, from whatever was before, by a resolve."""
    waits: str = ""
    """Why its members compute nothing until a newer roster comes; empty when they do."""
    origin: Origin | None = None
    """The state that its founders load before they hold any; None when they built it, or all of them have loaded it."""

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return tuple(seat.member for seat in self.seats)

    @cached_property
    def _places(self) -> dict[Member, int]:
        return {seat.member: index for index, seat in enumerate(self.seats)}

    def seat(self, member: Member) -> Seat | None:
        index = self._places.get(member)
        return None if index is None else self.seats[index]

    def index(self, member: Member) -> int:
        index = self._places.get(member)
        if index is None:
            raise Invariant(f"{member} has no seat in roster {self.version}")
        return index

    def skipped(self, step: int) -> frozenset[int]:
        return frozenset(cell.lane for cell in self.skips if cell.step == step)

    def suspected(self, step: int) -> dict[int, tuple[str, ...]]:
        """Suspect lanes of this step, with the replicas that died in them."""
        return {suspect.cell.lane: suspect.replicas for suspect in self.suspects if suspect.cell.step == step}


class Present(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a roster has to know of a member."""

    endpoint: Endpoint
    founder: bool
    spectates: bool = False
    is_new: bool = False
    weight: int = 1
    """How many lanes it computes while one of weight 1 computes one."""


def compose(version: Version, present: dict[Member, Present], lanes: int, floor: int, cause: str) -> Roster:
    """The roster of these members: sorted, so that every path to the same set gives the same seats and lanes.

    Spectators get no lanes, unless there is nobody else.
    """
    members = sorted(present)
    is_idle = all(present[member].spectates for member in members)
    seats = (
        Seat(
            member=member,
            endpoint=present[member].endpoint,
            founder=present[member].founder,
            lanes=(),
            spectates=present[member].spectates and not is_idle,
            is_new=present[member].is_new,
            weight=present[member].weight,
        )
        for member in members
    )
    return Roster(version=version, seats=dealt(seats, lanes), floor=floor, cause=cause)


def dealt(seats: Iterable[Seat], lanes: int) -> tuple[Seat, ...]:
    """The same seats with so many lanes dealt among those that do not spectate."""
    taken = tuple(seats)
    shares = iter(deal_by_weight(lanes, [seat.weight for seat in taken if not seat.spectates]))
    return tuple(_with_lanes(seat, () if seat.spectates else tuple(next(shares))) for seat in taken)


def _with_lanes(seat: Seat, lanes: tuple[int, ...]) -> Seat:
    return seat if seat.lanes == lanes else msgspec.structs.replace(seat, lanes=lanes)


def at_home(roster: Roster, lanes: int, places: tuple[str, ...]) -> Roster:
    """The same members, each with the lanes that are its own while every place is taken; nobody takes over another's."""
    homes = dict(zip(places, deal(lanes, len(places)), strict=True))
    seats = tuple(msgspec.structs.replace(seat, lanes=tuple(homes.get(seat.member.replica, ()))) for seat in roster.seats)
    return msgspec.structs.replace(roster, seats=seats, shrinks=True)
