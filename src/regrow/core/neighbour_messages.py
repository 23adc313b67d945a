"""What is said to a neighbour, and what it answers. One line does one thing at a time: each request has its answer before
the next, but for LogBegun and LogPiece, which are answered with the LogEntry that closes them."""

from typing import Literal

import msgspec


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


# To the neighbour


class Visit(_Message, frozen=True, kw_only=True):
    """The first on every line: whose shelf is meant. Done."""

    run: str
    claim: int
    """Under which it writes; 0: it only reads."""


class TakeOver(_Message, frozen=True, kw_only=True):
    """From here on the shelf is this run's. TakenOver."""

    resumes: bool
    """What lies there is gone on from: else nothing may lie there."""


class Put(_Message, frozen=True, kw_only=True):
    """A file: Done once there is room, then so many raw bytes, then Done."""

    path: str
    size_bytes: int
    is_new: bool = False
    """Only where there is none of this name: Done says whether that was so."""


class Get(_Message, frozen=True, kw_only=True):
    """So many bytes of a file, from there on. File."""

    path: str
    start: int = 0
    size_bytes: int | None = None
    """None: to its end."""


class Look(_Message, frozen=True, kw_only=True):
    """A file or a folder. Seen."""

    path: str


class Drop(_Message, frozen=True, kw_only=True):
    """A file, or a folder with all below it. Done."""

    path: str


class OpenLog(_Message, frozen=True, kw_only=True):
    """The log of this member is copied over this line from here on. Done."""

    member: str
    root: str


class LogBegun(_Message, frozen=True, kw_only=True):
    """A part of a record is on its way, and will take a slot of this size. One that was begun before, and not closed, will
    not be. No answer."""

    size_bytes: int
    part_bytes: int


class LogPiece(_Message, frozen=True, kw_only=True):
    """So many raw bytes of that part, from there on. No answer."""

    at: int
    size_bytes: int


class LogEntry(_Message, frozen=True, kw_only=True):
    """It is whole, and this closes it: its state.log.Entry; so many raw bytes of its tail follow. LogCounted, once it counts
    there."""

    entry: bytes
    tail_bytes: int


class GetLogs(_Message, frozen=True, kw_only=True):
    """All logs of the run. So many LogFiles, the last one without a name."""


# From the neighbour


class Done(_Message, frozen=True, kw_only=True):
    is_done: bool = True


class TakenOver(_Message, frozen=True, kw_only=True):
    claim: int


class File(_Message, frozen=True, kw_only=True):
    """So many raw bytes follow."""

    size_bytes: int
    """-1: there is no such file, or it has not so many, and none do."""


class Seen(_Message, frozen=True, kw_only=True):
    size_bytes: int
    """-1: there is no such file."""
    names: tuple[str, ...]
    """Directly below it."""


class LogCounted(_Message, frozen=True, kw_only=True):
    through: int
    """See core.neighbour.Count."""


class LogFile(_Message, frozen=True, kw_only=True):
    """A log as it lies there. So many raw bytes follow."""

    name: str
    """No other log has it, of this run or of one before; empty: that was all."""
    size_bytes: int


class Unwilling(_Message, frozen=True, kw_only=True):
    """The answer to anything that was not done."""

    why: str
    kind: Literal["full", "fenced", "wrong", "refused"]
    """There is no room; another run has taken over; what was asked for cannot be; anything else."""


ToNeighbour = Visit | TakeOver | Put | Get | Look | Drop | OpenLog | LogBegun | LogPiece | LogEntry | GetLogs
FromNeighbour = Done | TakenOver | File | Seen | LogCounted | LogFile | Unwilling
