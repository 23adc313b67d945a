"""A process's end, in words."""

import os
import signal

import msgspec

from regrow.core.progress import Place
from regrow.core.roster import Member

NEVER_JOINED = 64
"""Exit code by which a worker says that its script ended without a call of regrow.join()."""

LEFT = 67
"""Exit code by which a worker says that it has handed over and left as planned."""

_NICKNAMES = {
    signal.SIGSEGV: "segfaulted (SIGSEGV)",
    signal.SIGABRT: "aborted (SIGABRT)",
    signal.SIGBUS: "had a bus error (SIGBUS)",
    signal.SIGFPE: "had an arithmetic fault (SIGFPE)",
    signal.SIGILL: "ran an illegal instruction (SIGILL)",
}


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is gone, for certain."""

    member: Member
    how: str
    clean: bool
    code: int | None
    """None when a signal ended it, or when it never ran."""
    place: Place | None = None
    """Where it was last seen, by its own stamp; None when it was never launched."""
    struck: bool = False
    """By a SIGKILL that nothing explains: this agent did not send it, and there was memory enough."""


def describe(status: int) -> str:
    """A wait status as the end of a sentence that begins with the process's name."""
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == LEFT:
        return "left as planned"
    if os.WIFEXITED(status):
        return f"exited with code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number)
    except ValueError:
        return f"killed by signal {number}"  # a real-time signal: the enum names only the first and the last
    return _NICKNAMES.get(name, f"killed by {name.name}")


def is_kill(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def exit_code(status: int) -> int | None:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
