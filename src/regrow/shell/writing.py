"""What a training process and its writer say to each other, one JSON message each: neither room imports the other.

The training process sends one `Persist` at a time, with the arena's descriptor, and `Copied` as its copy goes on, until that
is whole or `Void`. It sends no other before the writer has said `Persisted` of it, or a `Failed` that is final. Whoever
wants a writer to stop closes the connection, or kills it: what it has not finished does not exist. Whoever wants nothing
more of it shuts the sending side: it ends once it has removed what its last save made superfluous, or said why it could not.
"""

import msgspec

from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.retention import Retention


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer is started with."""

    url: str
    retention: Retention
    bytes_per_s: int = 0
    """It writes no faster; 0: as fast as it goes."""
    delta: int = 0
    """At most so many deltas lie on a whole checkpoint; 0: all are whole."""
    moments: str = ""
    """How an optimizer's moments are stored in fewer bits, one of core.inexact.MODES; empty: as they are."""
    faults: str = ""
    """For tests: see shell.faultpoint. The writer is the member "writer", its incarnation how many came before it."""
    incarnation: int = 0


class Persist(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    draft: Draft
    """Where its term is 0 the writer takes the next one, and says which."""
    root: str = ""
    """The digest of the state, where it was taken before: what lies in the arena must still have it. Empty: nobody knows."""


class Copied(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So much of the arena is there. The last byte is only said to be once all are known to be of one moment."""

    size_bytes: int


class Void(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The copy is none: what has been written of it must never count."""

    why: str


class Term(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The saves of this training process have this term from now on, whoever writes them."""

    term: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So much of the save is written: let through to the store, or durable there."""

    size_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    attempt: int
    why: str
    is_final: bool = False
    """To try again would be of no use."""
    is_harm: bool = False
    """What lies in the arena is not what was to be saved."""


class Persisted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pointer: Pointer
    seconds: float


class Removing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Said now and then while old checkpoints are removed: the next save may wait for that, and so may the end."""


class Unpruned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Said some time after a save: an old checkpoint could not be removed."""

    why: str


class Undone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Said with a save: the next ones are written whole, though deltas were asked for."""

    why: str


ToWriter = Persist | Copied | Void
FromWriter = Term | Progress | Failed | Persisted | Removing | Unpruned | Undone
