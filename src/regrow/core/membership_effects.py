"""What the coordinator is told to do, in order."""

from typing import Literal

import msgspec

from regrow.core.budget import Restart
from regrow.core.comebacks import Comebacks
from regrow.core.lanes import Cell
from regrow.core.messages import Raised, ToMember
from regrow.core.origin import Founding, Origin
from regrow.core.roster import Halt, Member, Roster, Suspect, Version
from regrow.core.staff import Staff
from regrow.core.suspicion import Poison
from regrow.core.wishes import Wish


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The job is over. Whoever still runs is ended, unless the job finished."""

    outcome: str
    """finished, stopped, failed, state-lost."""
    why: str
    first: Raised | None = None
    """The first exception that led here."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What must outlive the coordinator."""

    term: int
    roster: Roster | None = None
    base: Roster | None = None
    """The roster that a planned one is entered from, until all have entered it."""
    lives: dict[str, int] = {}
    """The newest incarnation of each replica."""
    floor: int = 0
    founding: Founding = Founding()
    comebacks: Comebacks = Comebacks()
    staff: Staff | None = None
    wishes: tuple[Wish, ...] = ()
    """Granted, and not held yet."""
    wished: int = 0
    """How many were ever granted."""
    weights: dict[str, int] = {}
    """Of replicas that are not of normal speed."""
    lanes: int | None = None
    ending: bool = False
    """Some member has committed the last step."""
    spent: dict[str, tuple[float, ...]] = {}
    """When each replica was restarted, on the host's monotonic clock, which outlives every process of the host."""
    stopping: bool = False
    """The operator asked for a stop."""
    skips: tuple[Cell, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    halt: Halt | None = None
    doomed: tuple[Member, ...] = ()
    """Members to be killed whose death is not proven yet: the order may have been lost."""
    end: End | None = None
    """How the job ended: whoever has not heard of it yet must hear the same."""


class Persist(msgspec.Struct, frozen=True, kw_only=True):
    """Make this durable before carrying out any later effect."""

    saved: Saved


class Send(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """To this member, if it is connected; a member that connects later is sent the newest roster."""

    member: Member
    message: ToMember


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Start this worker after the delay."""

    member: Member
    delay_s: float
    why: str


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """End this worker's process."""

    member: Member
    why: str


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A roster was made: for the journal."""

    roster: Roster
    why: str
    staff: Staff


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """The budget allows a restart: for the journal, and for people."""

    member: Member
    """Who will be started."""
    restart: Restart
    why: str


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """This replica will not be restarted. The job goes on while `left` is at least `needed`."""

    replica: str
    why: str
    left: int
    """Replicas that may still run."""
    needed: int
    """--min-replicas."""


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """Have the agent find an origin and hold it in memory. Answered by OriginCame."""

    number: int
    """The answer to the newest one counts."""
    step: int | None
    """None: the newest state that is whole."""


class Unfounded(msgspec.Struct, frozen=True, kw_only=True):
    """Every member is lost, and an origin is sought: for people."""

    reached: int
    why: str


class Founded(msgspec.Struct, frozen=True, kw_only=True):
    """The job is founded from a saved state: for the journal, and for people."""

    version: Version
    origin: Origin
    reached: int
    """The job was known to have committed every step below this one."""
    is_start: bool = False
    """It begins so: nobody was lost, and how far a job before it had come nobody knows."""
    differences: tuple[str, ...] = ()
    """In which its mathematics is another from here on."""
    data_from: tuple[int, int] = (0, 0)
    """From this step on samples are taken from this place of the stream."""


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """This member hangs and is left alone: nobody else is known to hold the state."""

    member: Member
    why: str


class Poisoned(msgspec.Struct, frozen=True, kw_only=True):
    """A lane kills whoever computes it: for the journal, and for people."""

    poison: Poison
    samples: tuple[int, ...]
    """The data set's indices in that lane; empty when they are not known."""
    decision: Literal["stop", "skip"]


class WishTold(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a wish: for the journal, for people, and for the operator who waits under this ticket."""

    wish: Wish
    state: Literal["granted", "refused", "fulfilled", "overtaken"]
    why: str = ""
    ticket: int | None = None


MembershipEffect = (
    Persist | Send | Start | Kill | Made | Granted | Lost | Seek | Unfounded | Founded | Spared | Poisoned | WishTold | End
)
