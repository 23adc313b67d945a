"""What goes over a wire. Every struct is one message; the tag is its name. Sizes are bounded by the framing."""

import msgspec

from regrow.core.change import Change
from regrow.core.lanes import Cell
from regrow.core.listener import Listener, Record
from regrow.core.membership_config import MembershipConfig
from regrow.core.memory import Memory
from regrow.core.neighbour_messages import FromNeighbour, ToNeighbour
from regrow.core.order import Plan
from regrow.core.origin import DATASET_SIZE, Origin, data_from
from regrow.core.progress import Place
from regrow.core.roster import NO_VERSION, Endpoint, Member, Roster, Version
from regrow.core.wishes import Wish

PROTOCOL = 6
"""Raised with every change that an older peer would misread. A mismatch is refused by name."""


_PLAN_TERMS = ("seed", "lanes", "microbatches_per_lane", "batch_size", DATASET_SIZE)


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What every replica of a job must agree on, by name: the job's mathematics and its numerics."""

    terms: dict[str, str]

    def difference(self, other: "Contract") -> str | None:
        """The first term on which the other differs from this one, in words."""
        for name in sorted(self.terms.keys() | other.terms.keys()):
            ours, theirs = self.terms.get(name, "(absent)"), other.terms.get(name, "(absent)")
            if ours != theirs:
                return f"{name} is {theirs}, the job has {ours}"
        return None

    def samples(self, cell: Cell) -> tuple[int, ...]:
        """The data set's indices in this lane of this step; none when the terms do not tell."""
        try:
            seed, lanes, microbatches, batch_size, size = (int(self.terms[name]) for name in _PLAN_TERMS)
        except (KeyError, ValueError):
            return ()
        plan = Plan(
            seed=seed,
            lanes=lanes,
            microbatches_per_lane=microbatches,
            data_from=data_from(self.terms),
            batch_size=batch_size,
            dataset_size=size,
        )
        return tuple(index for number in range(microbatches) for index in plan.samples(cell.step, cell.lane, number))


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


# From a member to the coordinator


class Join(_Message, frozen=True, kw_only=True):
    """Ready in its first `job.steps`, or back after a lost connection (then `seen` is the newest roster it knows)."""

    member: Member
    endpoint: Endpoint
    contract: Contract
    lanes: int
    """As the script or the flag has it; a term of the contract too, so all agree."""
    seen: Version
    entered: Version
    """The newest roster it went on under; (0, 0) for none."""
    step: int
    skips: tuple[Cell, ...] = ()
    """Lanes the script leaves out; a term of the contract too."""
    listens: bool = False
    """It has been told to listen, and does."""


class Entered(_Message, frozen=True, kw_only=True):
    """Holds state and goes on at this step under this roster."""

    member: Member
    version: Version
    step: int


class Complain(_Message, frozen=True, kw_only=True):
    """The groups of this roster broke and no newer roster has come."""

    member: Member
    version: Version
    why: str


class StatelessFound(_Message, frozen=True, kw_only=True):
    """The resolve of this roster found nobody who holds the job's state."""

    member: Member
    version: Version
    why: str


class Ending(_Message, frozen=True, kw_only=True):
    """Has committed the job's last step: from here on nobody lost is replaced."""

    member: Member
    step: int


class Left(_Message, frozen=True, kw_only=True):
    """Everyone acknowledged the end; this member takes no further part and will exit by itself."""

    member: Member
    version: Version
    step: int


class Raised(_Message, frozen=True, kw_only=True):
    """The user's script raised; the process is about to exit."""

    member: Member
    kind: str
    place: str
    """file:line of the innermost frame of the user's code."""
    traceback: str
    step: int | None
    lane: int | None
    """None outside lanes."""
    scope: str
    """"step": it may pass elsewhere; "replica": this replica can never take part; "job": only the user can mend it."""
    memory: Memory | None = None
    """When it raised for lack of memory."""


class CaughtUp(_Message, frozen=True, kw_only=True):
    """A listener holds the state that the members hold, and may be seated; with no step: it does no longer."""

    member: Member
    step: int | None


class Overflowed(_Message, frozen=True, kw_only=True):
    """A listener that cannot keep up with the members: they have to wait for it."""

    member: Member
    why: str


class Released(_Message, frozen=True, kw_only=True):
    """The members went on under a planned roster without this one: it has handed over, and exits."""

    member: Member
    version: Version
    step: int


class Dismissed(_Message, frozen=True, kw_only=True):
    """Told to end by whoever runs its machine: it has this long to hand over."""

    member: Member
    within_s: float


class Timed(_Message, frozen=True, kw_only=True):
    """How long a lane takes here: told when it is known, when it has changed, and now and then."""

    member: Member
    lane_s: float
    step: int


class Beat(_Message, frozen=True, kw_only=True):
    """Still here."""

    member: Member


class Missed(_Message, frozen=True, kw_only=True):
    """A change does not fit the roster that is held here: say the newest one whole."""

    member: Member
    why: str


FromMember = (
    Join
    | Entered
    | Complain
    | StatelessFound
    | Ending
    | Left
    | Raised
    | CaughtUp
    | Overflowed
    | Released
    | Dismissed
    | Timed
    | Beat
    | Missed
)


# From the coordinator to a member


class Push(_Message, frozen=True, kw_only=True):
    """The newest roster."""

    roster: Roster


class Listen(_Message, frozen=True, kw_only=True):
    """Listen to the members of this roster: you will be seated once you have caught up with them."""

    roster: Roster


class Park(_Message, frozen=True, kw_only=True):
    """Listen no longer: you are not needed now."""


class Refuse(_Message, frozen=True, kw_only=True):
    """You cannot take part; says why."""

    why: str
    is_lost: bool = False
    """True: nor can any later life of this replica. False: this life is over, the next may join."""


class Stop(_Message, frozen=True, kw_only=True):
    """Wish to stop at the next boundary."""


class SaveState(_Message, frozen=True, kw_only=True):
    """Wish a save at the next boundary."""


ToMember = Push | Listen | Park | Refuse | Stop | SaveState


class Amend(_Message, frozen=True, kw_only=True):
    """A Push as it travels to whoever holds the roster that this is a change of."""

    change: Change


# From the agent to a coordinator elsewhere: every connection begins with Enlist, then all reports so far, in order


AGENT = "agent"
"""The name under which an agent comes through the door."""


class Enlist(_Message, frozen=True, kw_only=True):
    """This agent runs this job, and asks to be told what to start."""

    agent: str
    """Names one `regrow run` for good: a coordinator serves one."""
    job: str
    command: tuple[str, ...]
    config: MembershipConfig


class Exited(_Message, frozen=True, kw_only=True):
    """A worker's process is gone, with its whole group."""

    member: Member
    how: str
    clean: bool
    """Exit code 0."""
    place: Place | None = None
    """Where it was, by its own last stamp."""
    struck: bool = False
    """By a SIGKILL that nothing explains."""
    never_joined: bool
    """Its script ran to the end without a call of regrow.join()."""


class HangSeen(_Message, frozen=True, kw_only=True):
    """The agent judges that this worker hangs. Told again while it does."""

    member: Member
    why: str
    place: Place


class StallSeen(_Message, frozen=True, kw_only=True):
    """All workers wait for one another, and none of them is at fault. Told again while they do."""

    why: str


class StopWanted(_Message, frozen=True, kw_only=True):
    """The operator wants the job to stop at the next boundary."""


class StateSought(_Message, frozen=True, kw_only=True):
    """What came of a SeekState."""

    number: int
    origin: Origin | None
    mathematics: dict[str, str]
    why: str
    is_final: bool = False
    """It is the last state of a job that was finished."""
    since: Version = NO_VERSION
    """The newest version of a roster that any of it belongs to."""


class Abandoned(_Message, frozen=True, kw_only=True):
    """The job is over by the operator's word or the agent's own failure; its workers are being ended."""

    outcome: str
    why: str


Report = Exited | HangSeen | StallSeen | StopWanted | StateSought | Abandoned
"""What an agent reports, over a wire or from the same process."""

FromAgent = Enlist | Report


# From a coordinator elsewhere to the agent; also Refuse, when it serves another job


class StartWorker(_Message, frozen=True, kw_only=True):
    """Start this worker after the delay, if it was never started before."""

    member: Member
    delay_s: float
    why: str


class KillWorker(_Message, frozen=True, kw_only=True):
    """End this worker's process."""

    member: Member
    why: str


class SeekState(_Message, frozen=True, kw_only=True):
    """Find a saved state, and hold it in memory."""

    number: int
    step: int | None
    """None: the newest that is whole."""


class Notice(_Message, frozen=True, kw_only=True):
    """A line for the operator's terminal."""

    text: str
    is_routine: bool = False
    """Nobody has to do anything about it."""


class Ended(_Message, frozen=True, kw_only=True):
    """The job is over: end whatever still runs, and hang up."""

    outcome: str
    why: str
    raised: tuple[Raised, ...]
    """The exceptions of the script that were heard, the one to show first ahead."""


ToAgent = StartWorker | KillWorker | SeekState | Notice | Ended | Refuse


# From an operator to the coordinator, and back


OPERATOR = "operator"
"""The name under which an operator's command comes through the door."""


class Request(_Message, frozen=True, kw_only=True):
    """The operator wants other replicas."""

    wish: Wish


class Reply(_Message, frozen=True, kw_only=True):
    """Granted, and durable; or refused. `number` is what the wish is called from here on."""

    is_granted: bool
    why: str
    number: int


# Between members


class Meet(_Message, frozen=True, kw_only=True):
    """This connection is one of that roster's group: from the next byte on it is no longer ours."""

    member: Member
    version: Version


class Ask(_Message, frozen=True, kw_only=True):
    """A joiner asks its donor for the state of this step."""

    member: Member
    version: Version
    step: int


class Offer(_Message, frozen=True, kw_only=True):
    """The donor's answer: what follows as raw bytes, in this order."""

    step: int
    structure: tuple[tuple[str, str], ...]
    """Path, dtype and shape of each tensor as the donor's script first built it."""
    frozen: tuple[str, ...]
    """Parameters that are not trained just now."""
    skeleton: bytes
    """JSON of the tracked state with tensors replaced by their index."""
    sizes: tuple[int, ...]
    digest: str
    """Empty in a donor's answer to a Want: Digests follow."""


class Attend(_Message, frozen=True, kw_only=True):
    """A joiner asks to be fed on this connection."""

    listener: Listener


class Begin(_Message, frozen=True, kw_only=True):
    """A snapshot of this step was taken for the listener: every record from it on follows."""

    step: int


class Part(_Message, frozen=True, kw_only=True):
    """One part of a committed record. So many raw bytes follow, which belong at this place of the gradient."""

    record: Record
    total_bytes: int
    """Of the whole gradient."""
    start: int
    size_bytes: int
    tail: bytes = b""
    """What is no bytes of the gradient: of the first part alone."""


class Thanks(_Message, frozen=True, kw_only=True):
    """The state arrived whole."""


class Want(_Message, frozen=True, kw_only=True):
    """A joiner wants the snapshot that this donor holds under this key, or will. Nothing else goes over this connection: an
    Offer, then Digests and Pieces one way and Needs the other."""

    member: Member
    key: str
    step: int


class Digests(_Message, frozen=True, kw_only=True):
    """Of the pieces from this one on, as the donor holds them, one after the other."""

    start: int
    digests: bytes


class Need(_Message, frozen=True, kw_only=True):
    """Send these pieces, in this order, after those you were asked for before."""

    pieces: tuple[int, ...]


class Piece(_Message, frozen=True, kw_only=True):
    """Its raw bytes follow."""

    number: int


Between = Meet | Ask | Offer | Thanks | Attend | Begin | Part | Want | Digests | Need | Piece


# The door: before anything else, both sides prove that they know the job's token


class Challenge(_Message, frozen=True, kw_only=True):
    protocol: int
    nonce: bytes


class Hello(_Message, frozen=True, kw_only=True):
    protocol: int
    name: str
    nonce: bytes
    proof: bytes


class Welcome(_Message, frozen=True, kw_only=True):
    proof: bytes


class Denied(_Message, frozen=True, kw_only=True):
    why: str


Door = Challenge | Hello | Welcome | Denied

Message = (
    FromMember | ToMember | Amend | FromAgent | ToAgent | Request | Reply | Between | ToNeighbour | FromNeighbour | Door
)
