"""What workers, the agent and the vault say to each other, one JSON message each: none of their rooms imports another.

A worker's line begins with `Came`. It may tell what is `Foreseen`. For a save it says `Deposit`, copies its portion into the
arena that it was `Lent`, and says `Deposited`; later the save is `Kept` or `Void`, and it tells what it `Paid` for it. Of a
job's last save it may be asked for portions that are `Lacking`. When a tier on auto is `Due` it wishes a save. A founder
asks to `Recall` the origin; in an every-step job it is `Shown` the logs that hold what was committed since. There a worker
first brings its own log (`LogOpens`), and states nothing before that is held (`LogHeld`). Whatever is lost with a line is
asked again on the next.
"""

import msgspec

from regrow.core.completion import Completion
from regrow.core.draft import Draft
from regrow.core.interval import CadenceConfig
from regrow.core.listener import Record
from regrow.core.origin import Origin
from regrow.core.retention import Retention
from regrow.core.roster import NO_VERSION, Version
from regrow.core.saves import Urgency


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Place(_Message, frozen=True, kw_only=True):
    """A tier beyond memory: where checkpoints lie, nearest first."""

    url: str
    every: int
    """In steps; 0: on auto."""
    retention: Retention
    bytes_per_s: int = 0
    """Its writer is no faster; 0: as fast as it goes."""
    delta: int = 0
    """At most so many deltas lie on a whole checkpoint; 0: all are whole."""
    outlives: bool = True
    """What lies there is still there when this machine is gone."""


class Setting(_Message, frozen=True, kw_only=True):
    """What a vault is started with."""

    run_dir: str
    address: str
    """Of the socket on which it hears workers, in the abstract namespace, without the leading zero byte."""
    places: tuple[Place, ...]
    patience_s: float
    """A tier gives a save up when nothing of it was written for so long."""
    shard_bytes: int
    memory_every: int = 0
    """In steps; 0: memory takes what is on its way to a place, or is on auto."""
    paces_memory: bool = False
    """Memory is on auto."""
    cadence: CadenceConfig = CadenceConfig()
    """Of the tiers that are."""
    silence_s: float = 60.0
    """A vault that says nothing for so long is killed, and another one started: whoever saves waits for it."""
    incarnation: int = 0
    term: int = 0
    """Under which the vaults before this one saved; 0: none has opened yet, and the places say which one is next."""
    begins: bool = True
    """No state has been whole in memory yet: an every-step job may still begin from its own beginning."""
    faults: str = ""
    """For tests: see shell.faultpoint. The vault is the member "vault", and the first one's writers are "writer"."""


# From a worker


class Came(_Message, frozen=True, kw_only=True):
    member: str
    unsettled: int = -1
    """The step of a save that this worker gave its portion of and has not heard of again; -1: none."""


class Foreseen(_Message, frozen=True, kw_only=True):
    """A save of this size will come: have room for it."""

    arena_bytes: int


class Deposit(_Message, frozen=True, kw_only=True):
    """A portion of a save is about to be copied: lend the arena."""

    step: int
    version: Version
    """The roster whose members give the portions."""
    members: tuple[str, ...]
    index: int
    """Which of them this is: of the arena's pages, so many parts, this one."""
    urgency: Urgency
    layout: str
    """A digest of the draft: all members must have the same."""
    arena_bytes: int
    draft: Draft | None
    """From the first member alone; of the last save from each, since the first may be gone. Its term is 0."""


class Deposited(_Message, frozen=True, kw_only=True):
    step: int
    version: Version
    index: int
    why: str = ""
    """The copy is void, and so is the save; empty when the bytes are there. Either way, whoever says this writes no more."""


class Paid(_Message, frozen=True, kw_only=True):
    """What giving the portion of this save has cost the training of this worker."""

    step: int
    seconds: float


class Recall(_Message, frozen=True, kw_only=True):
    """A founder wants the origin."""

    step: int
    root: str
    records: int = 0
    """So many are to be replayed onto it."""


class LogOpens(_Message, frozen=True, kw_only=True):
    """This worker's log comes with this message: have it held. Said on each line until it is."""


# To a worker


class Lent(_Message, frozen=True, kw_only=True):
    """The arena for this save comes with this message. All of its pages are made."""

    step: int
    version: Version
    size_bytes: int


class Waits(_Message, frozen=True, kw_only=True):
    """Said every second to whoever waits for an arena."""

    why: str


class Kept(_Message, frozen=True, kw_only=True):
    """The state of this step is whole in memory, and so every older wish is met. Every line is opened with one."""

    step: int
    """-1: none is, or it is not decided yet."""


class Due(_Message, frozen=True, kw_only=True):
    """A tier on auto is due: wish a save, unless one is on its way. Said again and again until a state is `Kept`."""


class Void(_Message, frozen=True, kw_only=True):
    """This save will never be whole: wish another one at the next boundary."""

    step: int
    why: str
    is_final: bool = False
    """Of a job's last save, after which there is no boundary: nor will another try of it be."""


class Lacking(_Message, frozen=True, kw_only=True):
    """Of a job's last save: whoever hears this first gives this portion as well."""

    step: int
    version: Version
    index: int


class LogHeld(_Message, frozen=True, kw_only=True):
    """The agent holds this worker's log open: it outlives the worker."""


class Shown(_Message, frozen=True, kw_only=True):
    """The log of this member comes with this message, to be read: pieces of the records to replay lie there."""

    member: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a log."""

    member: str
    at: int
    size_bytes: int


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A committed record, and where it lies."""

    record: Record
    tail: Piece
    """What is no bytes of a gradient."""
    pieces: tuple[Piece, ...]
    """In their order: together they are all of it."""


class Recalled(_Message, frozen=True, kw_only=True):
    """The arena that holds the origin comes with this message. It stays as it is until a newer state is whole."""

    draft: Draft | None
    """None, and no arena: the origin is what the script built."""
    root: str
    records: tuple[Whole, ...] = ()
    """In order; their logs were shown before."""


class Unknown(_Message, frozen=True, kw_only=True):
    """The vault does not hold that origin."""

    why: str


# From the agent


class Seek(_Message, frozen=True, kw_only=True):
    """Find an origin and bring it into memory."""

    number: int
    """The answer has the same."""
    step: int | None = None
    """None: the newest state that is whole."""
    term: int = 0
    """That of whoever asks: what is brought from a place is older than everything that is logged under it."""


class Holds(_Message, frozen=True, kw_only=True):
    """The log of this member is held open."""

    member: str


class Hurry(_Message, frozen=True, kw_only=True):
    """The job is to end, and all that is to become durable must be so by then."""

    by_s: float
    """On the host's monotonic clock."""


class Finish(_Message, frozen=True, kw_only=True):
    """Nobody will save any more: make durable what was taken, and the newest state, and end."""

    completion: Completion | None = None
    """The job is finished: mark it where its last state is. Step and root are the vault's to fill in."""


# To the agent


class Opened(_Message, frozen=True, kw_only=True):
    """Every place answered: training may begin."""

    newest: tuple[int | None, ...]
    """Of each place, the step of its newest checkpoint; () from a vault that was started again."""
    term: int
    """Under which it saves."""
    finished: tuple[Completion | None, ...] = ()
    """Of each place, whether the newest checkpoint is the last one of a finished job."""


class Unusable(_Message, frozen=True, kw_only=True):
    """A place cannot be used: said instead of Opened."""

    why: str


class Sought(_Message, frozen=True, kw_only=True):
    number: int
    """Of the question."""
    origin: Origin | None
    """None: there is no state that is whole."""
    mathematics: dict[str, str]
    """What it was saved with."""
    since: Version = NO_VERSION
    """The newest version of a roster that any of it belongs to."""
    why: str
    """What was passed over, or why there is none; empty when the first candidate did."""


class Renewed(_Message, frozen=True, kw_only=True):
    """This generation has another arena, which comes with this message: hold that one open. Somebody who was lent the old
    one may still write there."""

    generation: int


class LogOpened(_Message, frozen=True, kw_only=True):
    """The log of this member comes with this message: hold it open, and say so."""

    member: str


class LogSpent(_Message, frozen=True, kw_only=True):
    """Nobody writes to the log of this member any more, and nothing in it is needed: let it go."""

    member: str


class Based(_Message, frozen=True, kw_only=True):
    """A state is whole in memory: from now on the job never begins from its own beginning."""


MEMORY = -1
"""In place of a place's number."""


class Held(_Message, frozen=True, kw_only=True):
    """This state is whole in memory, or durable at that place, from now on."""

    place: int
    """By its number, or MEMORY."""
    step: int


class Finished(_Message, frozen=True, kw_only=True):
    """All that was taken is durable but for this, and the vault ends."""

    failures: tuple[str, ...]


class Alive(_Message, frozen=True, kw_only=True):
    """Said again and again by a vault whose loop runs."""


class Said(_Message, frozen=True, kw_only=True):
    """For people."""

    text: str
    is_routine: bool = False


FromWorker = Came | Foreseen | Deposit | Deposited | Paid | Recall | LogOpens
ToWorker = Lent | Waits | Kept | Due | Void | Lacking | Recalled | Unknown | LogHeld | Shown
FromAgent = Seek | Hurry | Holds | Finish
ToAgent = Opened | Unusable | Sought | Renewed | LogOpened | LogSpent | Based | Held | Finished | Alive | Said
