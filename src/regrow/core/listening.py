"""A joiner's way to the state of a running job, from its first line to a peer until it is seated.

It listens to every member, loads the snapshot that they took for it, then replays the records since through the user's own
loop. In the first step for which a member has digested a lane it computes that lane as well: the admission audit. Only then
may a roster with it be formed. Attendance owns one of these per try and asks it what comes next; nothing is done here.
"""

from collections import deque

from regrow.core.listener import Heard, Listener
from regrow.core.roster import Member, Roster


class Listening:
    """One try. It ends when a line is lost; the next one begins with another snapshot."""

    def __init__(self, listener: Listener, roster: Roster) -> None:
        self.listener = listener
        self.roster = roster
        """Whose members it listens to."""
        self.snapshot: int | None = None
        """The step of the snapshot, once every peer has taken it."""
        self.is_loaded = False
        self.has_caught_up = False
        self.is_audited = False
        self.records: deque[Heard] = deque()
        """Those not committed here yet, the next one first."""

    @property
    def donors(self) -> tuple[Member, ...]:
        return self.roster.members

    def goes_on_with(self, roster: Roster) -> bool:
        """Are all its peers still members, and do all of them feed it?"""
        return self.snapshot is not None and all(roster.seat(peer) is not None for peer in self.donors)
