"""A joiner's way to the state of a running job, from its first line to a peer until it is seated.

It listens to every member, loads the snapshot that they took for it, then replays the records since through the user's own
loop. In the first step for which a member has digested a lane it computes that lane as well: the admission audit. Only then
may a roster with it be formed. Attendance owns one of these per try and asks it what comes next; nothing is done here.
"""

from collections import deque

from regrow.core.listener import Heard, Listener
from regrow.core.roster import Member, Roster


class Listening:
    """One try. It outlives peers that are gone, as long as what they owed comes from the others; the next one begins with
    another snapshot."""

    def __init__(self, listener: Listener, roster: Roster) -> None:
        self.listener = listener
        self.peers = roster.members
        self.roster = roster
        """The newest that it was told of: whose members it listens to, or which of them are left."""
        self.snapshot: int | None = None
        """The step of the snapshot, once every peer has taken it."""
        self.is_loaded = False
        self.has_caught_up = False
        self.is_audited = False
        self.records: deque[Heard] = deque()
        """Those not committed here yet, the next one first."""

    @property
    def donors(self) -> tuple[Member, ...]:
        return self.peers

    def goes_on_with(self, roster: Roster) -> bool:
        """Does anybody who feeds it take part in that?"""
        return self.snapshot is not None and any(roster.seat(peer) is not None for peer in self.peers)
