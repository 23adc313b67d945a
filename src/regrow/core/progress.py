"""Where a worker is: the step, the lane and the phase its training thread was last seen in, and how long these take."""

from enum import Enum

import msgspec


class Phase(Enum):
    """What the training thread is doing. The order is that of the slots in a stamp's page: append, never reorder."""

    START = "start"
    """The script, until it enters its first step."""
    DATA = "data"
    """Fetching a microbatch."""
    MICROBATCH = "microbatch"
    """The user's forward and backward."""
    TURN = "turn"
    """Regrow's own few lines between two phases."""
    MERGE = "merge"
    """Adding partial sums."""
    COMMIT = "commit"
    """Publishing a step's result."""
    EXCHANGE = "exchange"
    """Waiting for the others' statements of what they hold."""
    REDUCE = "reduce"
    BOUND = "bound"
    """Waiting for the others' rows."""
    FETCH = "fetch"
    """A joiner, waiting for its donor."""
    SERVE = "serve"
    """A donor, waiting for its joiners."""
    HEAL = "heal"
    """Its own part of a transfer: taking the digest of a state, loading one."""
    WAIT = "wait"
    """For a roster whose groups stand."""
    BETWEEN = "between"
    """The user's code between the loops."""
    BUSY = "busy"
    """Inside job.busy(name, at_most_s=...)."""
    COMPILE = "compile"
    """torch.compile is at work inside something else."""
    LEAVING = "leaving"
    """Past the last boundary."""
    SEEK = "seek"
    """A stream is read up to where its lane stands, inside the fetching of a microbatch."""
    FLOW = "flow"
    """Waiting for a reduce that began beside backward: as long as all of its rounds together, and not learned with them."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    step: int | None
    lane: int | None
    """None outside lanes."""
    phase: str

    @property
    def is_past_the_end(self) -> bool:
        """It has seen every row of the last boundary, whether or not its word of that has come."""
        return self.phase == Phase.LEAVING.value

    def __str__(self) -> str:
        """As the end of a sentence."""
        if self.step is None:
            return f"before its first step ({self.phase})"
        lane = "" if self.lane is None else f", lane {self.lane}"
        return f"in step {self.step}{lane} ({self.phase})"


class Experience(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows of one phase."""

    completed: int
    longest_s: float
    """Of the recent ones. The first is not counted: it warms caches, compiles and allocates."""


class Stamped(msgspec.Struct, frozen=True, kw_only=True):
    """A page, as read at one moment. Times are seconds of the host's monotonic clock."""

    place: Place
    phase: Phase
    count: int
    """Changes with every place."""
    since_s: float
    """When the phase began, moved on by what was done aside and by collections meanwhile."""
    aside: Phase | None
    """What is done inside the phase just now that does not count as part of it."""
    aside_since_s: float
    name: str
    """Of the busy work."""
    at_most_s: float
    pulse_s: float
    """0 before the first beat."""
    longest_pause_s: float
    collecting_since_s: float
    """0 while nothing is collected."""
    experience: dict[Phase, Experience]
    called_s: float = 0.0
    """Since when what it waits for is there and need only be taken; 0 while it is not."""
