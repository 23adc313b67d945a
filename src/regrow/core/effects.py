"""What a member is told to do.

The first group may be carried out by any thread at once. The second is the training thread's work: at most one of them is
asked for at a time, and each is answered by one event.
"""

from typing import Any

import msgspec

from regrow.core.boundary import Row
from regrow.core.lanes import Node
from regrow.core.listener import Feed, Lane, Listener, Record
from regrow.core.messages import FromMember
from regrow.core.origin import Origin
from regrow.core.resolve import Resolution, Statement
from regrow.core.roster import Member, Roster, Version
from regrow.core.saves import Urgency


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """Break every group and transfer older than this version: whoever is blocked in one must wake."""

    below: Version


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Start forming this roster's groups. Answered by Formed or FormationFailed."""

    roster: Roster


class Tell(msgspec.Struct, frozen=True, kw_only=True):
    """Send this to the coordinator."""

    message: FromMember


class Hear(msgspec.Struct, frozen=True, kw_only=True):
    """Begin to listen to the members of this roster; every earlier try is over. Answered by SnapshotsTaken or Unheard."""

    listener: Listener
    roster: Roster


class Hush(msgspec.Struct, frozen=True, kw_only=True):
    """Listen no longer: to these, or to anybody."""

    peers: tuple[Member, ...] = ()


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """Copy this member's portion of the state of `step` for the vault, beside whatever comes next; the last save of a job
    before anything else. Not answered."""

    step: int
    version: Version
    members: tuple[Member, ...]
    """Of that roster: each gives the portion of its place."""
    urgency: Urgency


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """Load the origin from the vault, or hold what this script built to its root where it is the job's own beginning.
    Answered by Recalled; who cannot raises."""

    version: Version
    origin: Origin


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Write these parts of the result in hand into this member's log, each closed by its header, before anything that
    follows. Not answered."""

    record: Record
    stop: bool
    """The member wishes to stop after this step."""
    indices: tuple[int, ...]
    """Whose parts, by their places in the roster of the attempt."""
    count: int
    """The members of that roster: into so many parts the result is cut."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Read the record of this step from the logs. Answered by Reread; who cannot read it raises."""

    step: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Gather the resolve table. Answered by Exchanged or Broken."""

    version: Version
    statement: Statement


class Adopt(msgspec.Struct, frozen=True, kw_only=True):
    """A resolution holds from now on. Drop held subtrees that are not kept; a dropped result is void. Not answered."""

    resolution: Resolution
    drop: tuple[Node, ...]
    is_guarded: bool = False
    """Nobody else holds the state from here on, and this member wishes that it is saved."""


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Load the state of this step from the donor. Answered by Fetched or Broken."""

    version: Version
    step: int
    donor: Member


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Offer our state, which is that of this step, to these joiners. Answered by Served or Broken."""

    version: Version
    step: int
    joiners: tuple[Member, ...]


class Reduce(msgspec.Struct, frozen=True, kw_only=True):
    """Reduce what the members hold, in seat order, to the result. Answered by Reduced or Broken."""

    version: Version
    step: int
    holdings: tuple[tuple[Node, ...], ...]


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """Hand the lane's microbatches to the user's loop. Answered by LaneDone."""

    step: int
    lane: int
    digests: bool = False
    """Say the digest of its gradient with LaneDone."""
    is_audit: bool = False
    """Only its digest is wanted: the gradient is dropped."""
    then: Reduce | None = None
    """With the last lane: what will be asked for next unless something happens meanwhile. It may be begun, and counts for
    nothing before it is asked for."""


class Snap(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the state, which is still that of this step, and begin to feed this listener. Not answered."""

    step: int
    feed: Feed


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Load the snapshot of this step from these peers. Answered by Loaded or LoadFailed."""

    listener: Listener
    step: int
    donors: tuple[Member, ...]


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """Add the two children of this node, which are both held. Not answered."""

    parent: Node


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Gather the boundary's table. Answered by Bounded or Broken."""

    version: Version
    row: Row
    """But for the digest of the state, which the shell adds: of all of it at the farewell."""
    farewell: bool = False


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The result in hand, or the gradient given here, is the step's. Leave the inner loop. Answered by StepEntered."""

    step: int
    attempt: Version
    digest: int
    holdings: tuple[tuple[Node, ...], ...]
    by: str
    """"boundary", "resolve" or "record"."""
    reporter: Member | None
    last: int = 0
    """The job ends before this step."""
    switch: Version | None = None
    """The planned roster that its members go on under."""
    save: Urgency = Urgency.NONE
    """The wish that gave way to that."""
    lane: Lane | None = None
    """One of this member's lanes of this step: a listener may compute it again."""
    feeds: tuple[Feed, ...] = ()
    """Who is to be sent a part of the record."""
    gradient: Any = None
    """Of the record, when it is one's."""


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """Take no further part. Not answered."""

    why: str
    fault: str | None
    """None when the job ended as planned; else what is wrong with this member or the job."""


Immediate = Abort | Form | Tell | Hear | Hush
Work = (
    Exchange
    | Adopt
    | Fetch
    | Serve
    | Recall
    | Replay
    | Snap
    | Save
    | Log
    | Load
    | Compute
    | Merge
    | Reduce
    | Bound
    | Commit
    | Leave
)
Effect = Immediate | Work
