"""What one training thread is waiting for: a collective or a transfer."""

from enum import Enum
from typing import TYPE_CHECKING

from regrow.core.roster import Member, Version

if TYPE_CHECKING:
    from regrow.sim.groups import Groups
    from regrow.sim.process import Process


class State(Enum):
    WAITING = "for the others"
    DUE = "will complete"
    HANGING = "until its own abort"
    BREAKING = "will fail"
    OVER = "was answered"


class Slot:
    """One wait in a collective."""

    def __init__(self, process: "Process", version: Version) -> None:
        self.process = process
        self.version = version
        self.state = State.WAITING

    def peer_closed(self, peer: Member, groups: "Groups") -> None:
        groups.maybe_break(self)
