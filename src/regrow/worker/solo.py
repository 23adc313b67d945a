"""The link of a job of one: `python train.py`. The same Attendance, with a roster of one that is always formed."""

import msgspec
import torch

from regrow.collectives.group import Group, Solo
from regrow.core.effects import Fetch, Form, Immediate, Load, Serve, Snap
from regrow.core.errors import Invariant
from regrow.core.events import Event, Formed, RosterPushed
from regrow.core.lanes import Cell
from regrow.core.listener import Listener
from regrow.core.messages import Offer, Part
from regrow.core.roster import Endpoint, Member, Present, Version, compose
from regrow.state.snapshot import Snapshot
from regrow.worker.healing import Received
from regrow.worker.stripes import Place

ME = Member("solo", 0)


def founding(lanes: int, skips: tuple[Cell, ...]) -> RosterPushed:
    roster = compose(Version(1, 1), {ME: Present(endpoint=Endpoint("", 0), founder=True)}, lanes, 0, "alone")
    return RosterPushed(roster=msgspec.structs.replace(roster, skips=skips))


class SoloLink:
    def __init__(self) -> None:
        self._group = Solo()

    def perform(self, effect: Immediate) -> list[Event]:
        return [Formed(version=effect.roster.version)] if isinstance(effect, Form) else []

    def group(self, version: Version) -> Group:
        return self._group

    def serve(self, effect: Serve, offer: Offer, views: list[memoryview]) -> None:
        raise Invariant("a job of one has nobody to serve")

    def fetch(self, effect: Fetch) -> Received:
        raise Invariant("a job of one has nobody to fetch from")

    def make_room(self, size_bytes: int) -> None:
        raise Invariant("nobody listens to a job of one")

    def snap(self, effect: Snap, snapshot: Snapshot) -> None:
        raise Invariant("nobody listens to a job of one")

    def load(self, effect: Load, place: Place) -> Received:
        raise Invariant("a job of one has nobody to load from")

    def feed(self, listener: Listener, part: Part, data: torch.Tensor) -> None:
        raise Invariant("nobody listens to a job of one")
