"""What can happen to a member. Facts only: what to do about them is Attendance's to decide."""

import msgspec

from regrow.core.boundary import Row
from regrow.core.resolve import Statement
from regrow.core.roster import Roster, Version


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
    | Reduced
    | Bounded
    | StopAsked
)
