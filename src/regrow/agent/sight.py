"""A worker as its agent sees it at one moment: for people, nothing is decided by it."""

import msgspec

from regrow.core.progress import Stamped
from regrow.core.roster import Member


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    member: Member
    starts_s: float | None = None
    """When its delay is over, on the host's monotonic clock; None when it is."""
    pid: int | None = None
    """None before it runs."""
    stamped: Stamped | None = None
    """None before an order to launch it has gone out."""
    is_hung: bool = False
    is_doomed: bool = False
    """The agent is ending it."""
