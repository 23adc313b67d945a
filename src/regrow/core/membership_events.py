"""What can happen to the coordinator."""

import msgspec

from regrow.core.messages import FromMember
from regrow.core.origin import Origin
from regrow.core.progress import Place
from regrow.core.roster import NO_VERSION, Member, Version
from regrow.core.wishes import Wish


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator starts."""

    now: float


class Heard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member sent a message."""

    now: float
    message: FromMember


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """An agent proves that a worker's process is gone. May be reported more than once."""

    now: float
    member: Member
    how: str
    clean: bool
    """Exit code 0."""
    place: Place | None = None
    """Where it was, by its own last stamp."""
    struck: bool = False
    """By a SIGKILL that nothing explains."""
    never_joined: bool = False
    """Its script ran to the end without a call of regrow.join()."""


class AgentGone(msgspec.Struct, frozen=True, kw_only=True):
    """There is no line to the agent, which may be gone with all its workers. Only a coordinator of its own says so."""

    now: float


class AgentCame(msgspec.Struct, frozen=True, kw_only=True):
    """The agent is on the line, for the first time or again."""

    now: float


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """An agent judges that a worker hangs. May be wrong, and is repeated while the verdict stands."""

    now: float
    member: Member
    why: str
    place: Place | None = None


class Stalled(msgspec.Struct, frozen=True, kw_only=True):
    """An agent sees its workers wait for one another, and no culprit. May be wrong."""

    now: float
    why: str


class OriginCame(msgspec.Struct, frozen=True, kw_only=True):
    """The agent answers a Seek."""

    now: float
    number: int
    origin: Origin | None
    """None: there is none."""
    mathematics: dict[str, str]
    why: str
    is_final: bool = False
    """It is the last state of a job that was finished."""
    since: Version = NO_VERSION
    """The newest version of a roster that any of it belongs to."""


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """Time passed."""

    now: float


class StopRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The operator wants the job to stop at the next boundary."""

    now: float


class WishCame(msgspec.Struct, frozen=True, kw_only=True):
    """The operator wants other replicas."""

    now: float
    ticket: int
    """Under which the answer is awaited."""
    wish: Wish


MembershipEvent = (
    Opened | Heard | Died | Hung | Stalled | AgentGone | AgentCame | OriginCame | Ticked | StopRequested | WishCame
)
