"""What the coordinator is told to do, in order."""

import msgspec

from regrow.core.messages import Raised, ToMember
from regrow.core.roster import Member, Roster


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What must outlive the coordinator."""

    term: int
    roster: Roster | None = None
    lives: dict[str, int] = {}
    """The newest incarnation of each replica."""
    floor: int = 0
    lost: tuple[str, ...] = ()
    """Replicas that will not be restarted."""
    lanes: int | None = None
    ending: bool = False
    """Some member has committed the last step."""


class Persist(msgspec.Struct, frozen=True, kw_only=True):
    """Make this durable before carrying out any later effect."""

    saved: Saved


class Send(msgspec.Struct, frozen=True, kw_only=True):
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


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """This replica will not be restarted."""

    replica: str
    why: str


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """This member hangs and is left alone: nobody else is known to hold the state."""

    member: Member
    why: str


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The job is over. Whoever still runs is ended, unless the job finished."""

    outcome: str
    """finished, stopped, failed, state-lost."""
    why: str
    first: Raised | None = None
    """The first exception that led here."""


MembershipEffect = Persist | Send | Start | Kill | Made | Lost | Spared | End
