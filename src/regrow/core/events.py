"""What can happen to a member. Facts only: what to do about them is Attendance's to decide."""

import msgspec

from regrow.core.boundary import Row
from regrow.core.listener import Heard, Listener
from regrow.core.resolve import Statement
from regrow.core.roster import Roster, Version
from regrow.core.saves import Urgency


class RosterPushed(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator sent a roster; it may be old news."""

    roster: Roster


class Formed(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of this roster stand."""

    version: Version


class FormationFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of this roster could not be formed."""

    version: Version
    why: str


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """The collective or transfer the training thread was told to do under this roster failed."""

    version: Version
    why: str


class StepEntered(msgspec.Struct, frozen=True, kw_only=True):
    """The user's loop asks for its next step: parameters are those after every step below it."""


class LaneDone(msgspec.Struct, frozen=True, kw_only=True):
    """The user's loop finished all microbatches of this lane."""

    lane: int
    digest: int | None = None
    """Of its gradient, where that was asked for."""


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The resolve table of this roster, in seat order."""

    version: Version
    table: tuple[Statement, ...]


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The donor's state is loaded here and its digest verified."""

    version: Version


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A joiner took our state, or gave up."""

    version: Version


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """The complete result of this attempt is held here."""

    version: Version
    digest: int


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """The boundary's table, in seat order."""

    version: Version
    rows: tuple[Row, ...]
    parted: str = ""
    """What differs, where the rows say that the states do."""


class ParkTold(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator does not need this joiner now."""


class ListenTold(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator names the members to listen to; it may be old news."""

    roster: Roster


class SnapshotsTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Every peer has taken a snapshot of this step for us, and sends every record from it on."""

    listener: Listener
    step: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot's state is loaded here and its digest verified."""

    listener: Listener


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True):
    """No peer has the snapshot any more, or none can be reached."""

    listener: Listener
    why: str


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A committed record is here, whole."""

    listener: Listener
    heard: Heard


class Unheard(msgspec.Struct, frozen=True, kw_only=True):
    """A line to a peer is lost, or what came is not of one piece: this try to listen is over."""

    listener: Listener
    why: str
    named: bool = False
    """A boundary had named this listener: some peer had taken a snapshot for it."""


class Overran(msgspec.Struct, frozen=True, kw_only=True):
    """More records came than there is room for: this joiner cannot keep up."""

    listener: Listener
    why: str


class ListenerCame(msgspec.Struct, frozen=True, kw_only=True):
    """A joiner has a line to us, and wants to be fed."""

    listener: Listener


class Housed(msgspec.Struct, frozen=True, kw_only=True):
    """There is memory for a snapshot: training need not wait for that."""


class ListenerGone(msgspec.Struct, frozen=True, kw_only=True):
    """The line to a listener is lost, or it takes too little."""

    listener: Listener


class DismissalCame(msgspec.Struct, frozen=True, kw_only=True):
    """This process was told to end, and has so long to hand over."""

    within_s: float


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """The origin is loaded here, and has its root."""

    version: Version


class Reread(msgspec.Struct, frozen=True, kw_only=True):
    """The record that was asked for is here, and has its digest."""

    heard: Heard


class SaveWished(msgspec.Struct, frozen=True, kw_only=True):
    """The vault could not complete a save that this member gave a portion of, or the operator wants one."""

    urgency: Urgency


class SaveDue(msgspec.Struct, frozen=True, kw_only=True):
    """The vault says so, again and again: a tier on auto wants a state."""


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The user or the operator wishes to stop at the next boundary."""


Event = (
    RosterPushed
    | Formed
    | FormationFailed
    | Broken
    | StepEntered
    | LaneDone
    | Exchanged
    | Fetched
    | Served
    | Recalled
    | Reread
    | Reduced
    | Bounded
    | ListenTold
    | ParkTold
    | SnapshotsTaken
    | Loaded
    | LoadFailed
    | Recorded
    | Unheard
    | Overran
    | ListenerCame
    | Housed
    | ListenerGone
    | StopAsked
    | SaveWished
    | SaveDue
    | DismissalCame
)
