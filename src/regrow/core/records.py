"""The facts a journal holds. One line is one fact: who saw it, when, and what.

Journals of several processes are merged by roster, step and cause, never by clock; the clocks are for people and for
measuring phases on one machine.
"""

import msgspec

from regrow.core.errands import Errand
from regrow.core.interval import Interval
from regrow.core.lanes import Cell, Node
from regrow.core.listener import Listener
from regrow.core.memory import Memory
from regrow.core.progress import Place
from regrow.core.roster import Halt, Member, Suspect, Version


class _Fact(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="fact"):
    pass


class JobOpened(_Fact, frozen=True, kw_only=True):
    job: str
    replicas: tuple[str, ...]
    lanes: int
    command: tuple[str, ...]
    every_step: bool = False
    """Each committed step is in logs that outlive the replicas."""


class SeatTaken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    member: Member
    founder: bool
    lanes: tuple[int, ...]
    spectates: bool = False


class RosterMade(_Fact, frozen=True, kw_only=True):
    version: Version
    cause: str
    why: str
    floor: int
    seats: tuple[SeatTaken, ...]
    skips: tuple[Cell, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    halt: Halt | None = None
    shrinks: bool = False
    base: Version | None = None
    waits: str = ""
    steps: int | None = None
    """Of the whole job; None when no member has said so yet."""
    places: tuple[str, ...] = ()
    """The replicas that are to work, there or not."""
    target: int = 0
    """How many are to."""
    origin: int | None = None
    """Its founders begin from the saved state of this step."""


class WorkerStarted(_Fact, frozen=True, kw_only=True):
    member: Member
    pid: int
    host: str
    why: str


class WorkerExited(_Fact, frozen=True, kw_only=True):
    member: Member
    pid: int
    how: str
    clean: bool
    cause: str
    place: Place | None = None
    """Where it was, by its own last stamp."""
    memory: Memory | None = None
    """When the kernel killed it for lack of memory, or may have."""


class WorkerRaised(_Fact, frozen=True, kw_only=True):
    member: Member
    kind: str
    place: str
    step: int | None
    lane: int | None
    scope: str
    traceback: str
    memory: Memory | None = None
    """When it raised for lack of memory."""


class RestartPlanned(_Fact, frozen=True, kw_only=True):
    """The budget allows one more life. Counts are of the window, this restart included."""

    member: Member
    delay_s: float
    used: int
    limit: int
    job_used: int
    job_limit: int
    window_s: float
    why: str


class WorkerHung(_Fact, frozen=True, kw_only=True):
    """The agent's verdict: this worker, at this place, was silent for longer than its limit."""

    member: Member
    place: Place
    silent_s: float
    limit_s: float
    why: str
    evidence: str
    """A file, relative to the run directory."""
    cause: str


class WorkerSpared(_Fact, frozen=True, kw_only=True):
    """It hangs, and is not replaced: nobody else is known to hold the state."""

    member: Member
    why: str


class WorkerDismissed(_Fact, frozen=True, kw_only=True):
    """It was told to end (SIGTERM), and hands over if it can within this time."""

    member: Member
    within_s: float


class ReplicaLost(_Fact, frozen=True, kw_only=True):
    """It will not be restarted. The job goes on while `left` is at least `needed`."""

    replica: str
    why: str
    left: int | None = None
    needed: int | None = None


class LanePoisoned(_Fact, frozen=True, kw_only=True):
    """This lane of this step killed these replicas. `samples`: its indices in the data set."""

    cell: Cell
    replicas: tuple[str, ...]
    samples: tuple[int, ...]
    decision: str


class WishNoted(_Fact, frozen=True, kw_only=True):
    """The operator's wish, and what became of it: granted, refused, fulfilled or overtaken."""

    number: int
    """0 when it was refused."""
    wish: str
    state: str
    why: str = ""


class RosterReceived(_Fact, frozen=True, kw_only=True):
    version: Version
    cause: str


class GroupsAborted(_Fact, frozen=True, kw_only=True):
    below: Version


class GroupsFormed(_Fact, frozen=True, kw_only=True):
    version: Version


class GroupsBroke(_Fact, frozen=True, kw_only=True):
    version: Version
    why: str


class RosterAdopted(_Fact, frozen=True, kw_only=True):
    """The resolve table was seen: what this member makes of the step in doubt."""

    version: Version
    step: int
    keep: tuple[Node, ...]
    compute: tuple[int, ...]
    drop: tuple[Node, ...]
    why: str


class LaneComputed(_Fact, frozen=True, kw_only=True):
    """start and stop: the lane's samples, as places in the endless stream; its microbatches, where no such stream is."""

    step: int
    lane: int
    start: int
    stop: int


class Committed(_Fact, frozen=True, kw_only=True):
    step: int
    attempt: Version
    digest: int
    holdings: tuple[tuple[Node, ...], ...]
    by: str
    loss: float | None
    metrics: dict[str, float | None] = {}


class StateFetched(_Fact, frozen=True, kw_only=True):
    version: Version
    step: int
    donor: Member
    size_bytes: int
    digest: str


class StateServed(_Fact, frozen=True, kw_only=True):
    version: Version
    step: int
    joiners: tuple[Member, ...]


class ListenerAttached(_Fact, frozen=True, kw_only=True):
    """A joiner has a line to this member, and wants to be fed."""

    listener: Listener


class ListenerFed(_Fact, frozen=True, kw_only=True):
    """A snapshot of this step was taken for it, and every record from there on is sent."""

    listener: Listener
    step: int


class ListenFailed(_Fact, frozen=True, kw_only=True):
    """A try of this joiner to listen is over; it tries again, or is seated as it is."""

    listener: Listener
    why: str


class SnapshotLoaded(_Fact, frozen=True, kw_only=True):
    """What a joiner holds from here on: the state of this step, as these members had it."""

    listener: Listener
    step: int
    donors: tuple[Member, ...]
    size_bytes: int
    digest: str
    blamed: tuple[Member, ...] = ()
    """Donors whose state, or whose bytes, were not those of the others."""


class Audited(_Fact, frozen=True, kw_only=True):
    """A joiner has come to the same gradient of this lane as the member that computed it."""

    step: int
    lane: int


class Departed(_Fact, frozen=True, kw_only=True):
    """Takes no further part. `digest` is that of the tracked state, when the job ended as planned."""

    step: int
    why: str
    fault: str | None
    digest: str | None


class DataWorkerReplaced(_Fact, frozen=True, kw_only=True):
    """A data worker of this member died or hung. What it was making, and had still to make, is made again."""

    pid: int
    how: str
    """As the end of a sentence."""
    making: Errand | None
    losses: int
    """Data workers lost at that microbatch, this one included."""


class Refused(_Fact, frozen=True, kw_only=True):
    """A connection or a message was turned away at the door."""

    peer: str
    why: str


class StateKept(_Fact, frozen=True, kw_only=True):
    """The vault: the state of this step is whole in the host's memory."""

    step: int
    root: str
    size_bytes: int
    seconds: float
    """Since the first member asked for the arena."""


class StateUnique(_Fact, frozen=True, kw_only=True):
    """A member: from this roster on nobody else holds the state, and it wishes a save at the next boundary."""

    version: Version
    step: int


class SaveVoided(_Fact, frozen=True, kw_only=True):
    """The vault: this save will never be whole; the members wish another one."""

    step: int
    why: str


class SaveDurable(_Fact, frozen=True, kw_only=True):
    """The vault: the state of this step is durable there."""

    step: int
    url: str
    term: int
    number: int
    size_bytes: int
    seconds: float
    """Since it was whole in memory."""


class SaveFailed(_Fact, frozen=True, kw_only=True):
    """The vault: a place refused it; tried again unless final."""

    step: int
    url: str
    attempt: int
    why: str
    is_final: bool
    newer: int | None = None
    """It was skipped there for the state of this step."""


class SaveCosted(_Fact, frozen=True, kw_only=True):
    """The vault: what the save of this step cost training, by the member whom it cost most: all others wait for that one."""

    step: int
    seconds: float


class IntervalChosen(_Fact, frozen=True, kw_only=True):
    """The vault: how often this tier takes a state from here on."""

    where: str
    every: int
    """Steps, as the operator said; 0: it is on auto."""
    interval: Interval | None = None
    """Of one on auto."""


class SaveWaited(_Fact, frozen=True, kw_only=True):
    """A worker: its training stood still until a copy was done, or until there was an arena."""

    step: int
    seconds: float
    why: str


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier gave of a saved state."""

    where: str
    size_bytes: int
    seconds: float
    """From when it was asked for the first of it until the last was there."""


class OriginFound(_Fact, frozen=True, kw_only=True):
    """The vault: a saved state is in memory, for founders to load."""

    step: int
    root: str
    where: str
    """The tiers that served it, in words."""
    size_bytes: int
    seconds: float
    served: tuple[Served, ...] = ()
    """By each of them, the nearest first."""


class OriginPassedOver(_Fact, frozen=True, kw_only=True):
    """The vault: a saved state was harmed, and another one has to do."""

    step: int
    where: str
    why: str


class OriginMended(_Fact, frozen=True, kw_only=True):
    """The vault: a saved state was harmed in parts, and another copy of it gave what was lacking."""

    step: int
    where: str
    lacking_bytes: int
    why: str


class LogMeasured(_Fact, frozen=True, kw_only=True):
    """A worker: so large is its log. Told when it has doubled, and when a saved state has made room."""

    step: int
    base: int
    """The newest state that is whole, as far as it has heard; -1: none is."""
    used_bytes: int
    """By records that are still needed."""
    made_bytes: int
    limit_bytes: int


class LogOutgrown(_Fact, frozen=True, kw_only=True):
    """A worker: its log is full, no save is on its way that could make room, and so it goes beyond its limit."""

    step: int
    used_bytes: int
    limit_bytes: int


class LogUnheld(_Fact, frozen=True, kw_only=True):
    """A worker: no vault has come for long, and so nobody else holds its log. What it logs dies with it. Said again
    and again until somebody does."""

    step: int


class NeighbourLost(_Fact, frozen=True, kw_only=True):
    """A worker: from this step on its records do not lie at the neighbour, or do not lead on from what does."""

    step: int
    why: str


class NeighbourBack(_Fact, frozen=True, kw_only=True):
    """They do again, from this step on."""

    step: int


class BaseDue(_Fact, frozen=True, kw_only=True):
    """A worker of an every-step job wishes a newer base."""

    step: int
    why: str


class LogWaited(_Fact, frozen=True, kw_only=True):
    """A worker: its training stood still until a save had made room in its log, or until its log was held."""

    step: int
    seconds: float
    why: str


class RecordsReplayed(_Fact, frozen=True, kw_only=True):
    """A founder: it has been through the committed steps that follow its origin, and goes on at `through`."""

    version: Version
    """Of the roster that named the origin."""
    step: int
    through: int
    size_bytes: int
    seconds: float
    """Since it held the origin."""


class OriginTaken(_Fact, frozen=True, kw_only=True):
    """The coordinator: the job is founded from a saved state."""

    version: Version
    step: int
    root: str
    where: str
    reached: int
    """The job was known to have committed every step below this one."""
    differences: tuple[str, ...] = ()
    """In which terms of its mathematics it is another job from here on, by the operator's word."""
    data_from: tuple[int, int] = (0, 0)
    """From this step on samples are taken from this place of the stream."""
    records: int = 0
    """So many committed steps follow it in the logs of an every-step job: the job goes on behind them."""

    @property
    def through(self) -> int:
        """The job goes on at this step."""
        return self.step + self.records


class StateRecalled(_Fact, frozen=True, kw_only=True):
    """A founder: it holds the origin."""

    version: Version
    step: int
    digest: str
    size_bytes: int
    seconds: float


class VaultStarted(_Fact, frozen=True, kw_only=True):
    """The agent."""

    pid: int
    incarnation: int


class VaultEnded(_Fact, frozen=True, kw_only=True):
    """The agent: it died, or ended with the job."""

    pid: int
    how: str


class NoticeSeen(_Fact, frozen=True, kw_only=True):
    """The agent: word came that this machine will be taken away."""

    what: str
    within_s: float


class JobEnded(_Fact, frozen=True, kw_only=True):
    outcome: str
    why: str


class Gap(_Fact, frozen=True, kw_only=True):
    """So many lines could not be written (disk full); what follows is whole again."""

    lost: int


Fact = (
    JobOpened
    | RosterMade
    | WorkerStarted
    | WorkerExited
    | WorkerRaised
    | RestartPlanned
    | WorkerHung
    | WorkerSpared
    | WorkerDismissed
    | ReplicaLost
    | LanePoisoned
    | WishNoted
    | RosterReceived
    | GroupsAborted
    | GroupsFormed
    | GroupsBroke
    | RosterAdopted
    | LaneComputed
    | Committed
    | StateFetched
    | StateServed
    | ListenerAttached
    | ListenerFed
    | ListenFailed
    | SnapshotLoaded
    | Audited
    | Departed
    | DataWorkerReplaced
    | Refused
    | StateKept
    | StateUnique
    | SaveVoided
    | SaveDurable
    | SaveFailed
    | SaveCosted
    | IntervalChosen
    | SaveWaited
    | OriginFound
    | OriginPassedOver
    | OriginMended
    | LogMeasured
    | LogOutgrown
    | LogUnheld
    | NeighbourLost
    | NeighbourBack
    | BaseDue
    | LogWaited
    | RecordsReplayed
    | OriginTaken
    | StateRecalled
    | VaultStarted
    | VaultEnded
    | NoticeSeen
    | JobEnded
    | Gap
)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A fact as the journal keeps it."""

    at: float
    """Wall clock, seconds."""
    ns: int
    """Monotonic clock of the host, nanoseconds."""
    who: str
    """The process: "r0.1" (replica r0, incarnation 1), "agent", "coordinator"."""
    what: Fact
