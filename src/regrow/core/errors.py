"""Every error Regrow raises, sorted by who must act.

RegrowError
├── ConfigError    the user: a flag, an argument, a loop body
├── PeerError      nobody yet: another process failed, the protocol will deal with it
├── InfraError     the operator: a disk, a port, a machine
│   └── NoRoom     the same: what is full may have leftovers to give up
├── DataError      the user: a data worker dies or hangs at the same microbatch again and again
├── HaltError      the user, elsewhere: the job ends before its time, and this replica holds its last state
│   └── PoisonError  the user: samples that kill whoever computes them
├── StateError     the operator: training state is missing, different or damaged
│   ├── Mismatch   this replica alone: its state or settings are not the job's
│   ├── Fenced     nobody: another process saves here now, or has got further
│   └── Harmed     this host's memory: what lies there is not what was put there
└── Invariant      us: a bug in Regrow; carries the story that led there
"""


class RegrowError(Exception):
    """Base of all errors of this package."""

    scope = "step"
    """How far it reaches when a worker raises it: see messages.Raised.scope."""


class ConfigError(RegrowError):
    """Something the user wrote or asked for cannot work; the message says what to change."""

    scope = "job"


class PeerError(RegrowError):
    """A collective or a connection broke because of another process."""


class InfraError(RegrowError):
    """The machine refused: disk full, port taken, process limit."""


class NoRoom(InfraError):
    """A place for checkpoints is full."""


class DataError(RegrowError):
    """A microbatch cannot be made: its data workers die or hang one after another, or what they raise cannot travel."""


class HaltError(RegrowError):
    """The job ends before its time, in good order: the parameters are those of the last step that was committed."""

    scope = "job"


class PoisonError(HaltError):
    """A lane kills whoever computes it, and the job halts before its step; the parameters are as before that step."""


class StateError(RegrowError):
    """State is missing, differs between replicas, or does not match its digest."""


class Mismatch(StateError):
    """This replica's state or settings are not the job's: it cannot take part, the others go on."""

    scope = "replica"


class Fenced(StateError):
    """This save may not become the latest: a newer term has taken over, or its own has got further. Never tried again."""


class Harmed(StateError):
    """A state that lies in memory has changed since it was whole: it is never saved."""


class Invariant(RegrowError):
    """A rule of the protocol was broken: a bug in Regrow, never the user's fault."""

    scope = "job"
