"""Where a worker is: the step, the lane and the phase its training thread was last seen in."""

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
    """Regrow's own work between two waits: adding partials, publishing a result."""
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
    """Past the last step."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    step: int | None
    lane: int | None
    """None outside lanes."""
    phase: str

    def __str__(self) -> str:
        """As the end of a sentence."""
        if self.step is None:
            return f"before its first step ({self.phase})"
        lane = "" if self.lane is None else f", lane {self.lane}"
        return f"in step {self.step}{lane} ({self.phase})"
