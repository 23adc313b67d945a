"""What a driver needs of the world beyond its process: groups, transfers, a coordinator. Mesh is the real one; Solo is a
job of one. Beside them, what it needs of the host's vault."""

from typing import Protocol

import torch

from regrow.collectives.group import Group
from regrow.core.effects import Fetch, Immediate, Load, Save, Serve, Snap
from regrow.core.events import Event
from regrow.core.listener import Listener
from regrow.core.messages import Offer, Part
from regrow.core.origin import Origin
from regrow.core.roster import Version
from regrow.state.snapshot import Snapshot
from regrow.worker.healing import Received
from regrow.worker.logbook import Logbook
from regrow.worker.replaying import Replaying
from regrow.worker.stripes import Place


class Link(Protocol):
    def perform(self, effect: Immediate) -> list[Event]:
        """Carry out at once, without blocking; the events it causes at once, if any."""

    def group(self, version: Version) -> Group:
        """PeerError when that roster is over."""

    def serve(self, effect: Serve, offer: Offer, views: list[memoryview]) -> None:
        """Blocks; PeerError when the roster is over first."""

    def fetch(self, effect: Fetch) -> Received:
        """Blocks; PeerError when the donor or the roster is gone."""

    def make_room(self, size_bytes: int) -> None:
        """Parts of this size will soon be fed."""

    def snap(self, effect: Snap, snapshot: Snapshot) -> None:
        """Keep this copy of the state for these listeners, who are fed from now on."""

    def load(self, effect: Load, place: Place) -> Received:
        """Blocks; PeerError when no peer has the snapshot, or the try to listen is over."""

    def feed(self, listener: Listener, part: Part, data: torch.Tensor) -> None:
        """Send a part of a record, of whose bytes a copy is made; nobody waits for it."""


class Depot(Protocol):
    def save(self, work: Save) -> None:
        """Have this member's portion copied, beside whatever comes next; the last save of a job before it returns."""

    def recall(self, origin: Origin) -> int:
        """Put the origin in the place of the state; its size in bytes. Blocks; Mismatch or StateError when it cannot be."""

    @property
    def replaying(self) -> Replaying:
        """What was committed after it."""

    @property
    def logbook(self) -> Logbook | None:
        """This worker's log; None but in an every-step job."""
