"""Rosters: which members take part, and which lanes each computes in steps that start under it.

Only the coordinator makes rosters. A version is (term, n) and only ever grows: the term rises with each start of a
coordinator, n with each roster of that term.
"""

import msgspec

from regrow.core.errors import Invariant
from regrow.core.lanes import Cell, deal, deal_by_weight


class Version(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names a roster, and with it an attempt at a step."""

    term: int
    n: int

    def __str__(self) -> str:
        return f"{self.term}.{self.n}"


NO_VERSION = Version(0, 0)


class Member(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One life of one replica. A restarted replica is a new member."""

    replica: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.replica}.{self.incarnation}"


class Endpoint(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place in a roster."""

    member: Member
    endpoint: Endpoint
    founder: bool
    """True when this member's own initial state is the job's state at step 0."""
    lanes: tuple[int, ...]
    spectates: bool = False
    """It has no place among those who compute, and stays in step with them."""


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
    """The job ends before this step: nobody can compute it."""

    step: int
    why: str


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part from now on."""

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

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(seat.member for seat in self.seats)

    def seat(self, member: Member) -> Seat | None:
        return next((seat for seat in self.seats if seat.member == member), None)

    def index(self, member: Member) -> int:
        for index, seat in enumerate(self.seats):
            if seat.member == member:
                return index
        raise Invariant(f"{member} has no seat in roster {self.version}")

    def skipped(self, step: int) -> frozenset[int]:
        return frozenset(cell.lane for cell in self.skips if cell.step == step)

    def suspected(self, step: int) -> dict[int, tuple[str, ...]]:
        """Suspect lanes of this step, with the replicas that died in them."""
        return {suspect.cell.lane: suspect.replicas for suspect in self.suspects if suspect.cell.step == step}


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What a roster has to know of a member."""

    endpoint: Endpoint
    founder: bool
    spectates: bool = False
    weight: int = 1
    """How many lanes it computes while one of weight 1 computes one."""


def compose(version: Version, present: dict[Member, Present], lanes: int, floor: int, cause: str) -> Roster:
    """The roster of these members: sorted, so that every path to the same set gives the same seats and lanes.

    Spectators get no lanes, unless there is nobody else.
    """
    members = sorted(present)
    working = [member for member in members if not present[member].spectates] or members
    dealt = dict(zip(working, deal_by_weight(lanes, [present[member].weight for member in working]), strict=True))
    seats = tuple(
        Seat(
            member=member,
            endpoint=present[member].endpoint,
            founder=present[member].founder,
            lanes=tuple(dealt.get(member, ())),
            spectates=member not in dealt,
        )
        for member in members
    )
    return Roster(version=version, seats=seats, floor=floor, cause=cause)


def at_home(roster: Roster, lanes: int, places: tuple[str, ...]) -> Roster:
    """The same members, each with the lanes that are its own while every place is taken; nobody takes over another's."""
    homes = dict(zip(places, deal(lanes, len(places)), strict=True))
    seats = tuple(msgspec.structs.replace(seat, lanes=tuple(homes.get(seat.member.replica, ()))) for seat in roster.seats)
    return msgspec.structs.replace(roster, seats=seats, shrinks=True)
