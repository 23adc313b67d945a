"""Reaps every child of this process, its own and those it inherits, and tells whoever waits for one.

This process is made a child subreaper: a worker's orphans come to it instead of to init, so that nothing started below
it can be lost from sight. One mechanism (SIGCHLD, then every exit that is there) serves both kinds; a pidfd per worker
would be a second one beside it, and would race with it. A child stays unreaped until its watcher has been told, so its
pid and process group cannot be reused meanwhile.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36

Watcher = Callable[[int], None]
"""Called with the wait status, while the child is still a zombie."""


class Reaper:
    """One per process, in the main thread: it reaps children that anybody else's wait() would then miss."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watchers: dict[int, Watcher] = {}
        self._introduce: list[Callable[[], None]] = []

    def open(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int, watcher: Watcher) -> None:
        """The pid must be that of a child which nobody has reaped."""
        self._watchers[pid] = watcher
        self._loop.call_soon(self.reap)  # it may have ended before it was watched

    def before_strangers(self, introduce: Callable[[], None]) -> None:
        """Called before a child that nobody watches is reaped: the word that names it may still be on its way."""
        self._introduce.append(introduce)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self._reap_one(seen.si_pid, _status(seen))

    def _reap_one(self, pid: int, status: int) -> None:
        if pid not in self._watchers:
            for introduce in self._introduce:
                introduce()
        watcher = self._watchers.pop(pid, None)
        try:
            if watcher is not None:
                watcher(status)
        finally:
            os.waitpid(pid, 0)


def _status(seen: os.waitid_result) -> int:
    """As waitpid would give it: waitid splits it into a code and a value."""
    if seen.si_code == os.CLD_EXITED:
        return seen.si_status << 8
    return seen.si_status
