"""What a driver needs of the world beyond its process: groups, transfers, a coordinator. Mesh is the real one; Solo is a
job of one."""

from typing import Protocol

from regrow.collectives.group import Group
from regrow.core.effects import Fetch, Immediate, Serve
from regrow.core.events import Event
from regrow.core.messages import Offer
from regrow.core.roster import Version
from regrow.worker.healing import Received


class Link(Protocol):
    def perform(self, effect: Immediate) -> list[Event]:
        """Carry out at once, without blocking; the events it causes at once, if any."""

    def group(self, version: Version) -> Group:
        """PeerError when that roster is over."""

    def serve(self, effect: Serve, offer: Offer, views: list[memoryview]) -> None:
        """Blocks; PeerError when the roster is over first."""

    def fetch(self, effect: Fetch) -> Received:
        """Blocks; PeerError when the donor or the roster is gone."""
