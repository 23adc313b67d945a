"""Processes that must not outlive their parent, and whose end is its alone to decide."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this process the signal when its parent's thread that made it ends; 0: no longer. The parent may be
    gone already: compare os.getppid() with what it must be, afterwards."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def pass_over_sigterm() -> None:
    """Whoever takes a machine away tells every process of it. The parent decides what that means, and needs this one until
    then: it goes on. What it starts is told as ever, which would not be so if the signal were ignored."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.siginterrupt(signal.SIGTERM, False)
