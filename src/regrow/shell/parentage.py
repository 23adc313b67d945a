"""Processes that must not outlive their parent."""

import ctypes

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this process the signal when its parent's thread that made it ends; 0: no longer. The parent may be
    gone already: compare os.getppid() with what it must be, afterwards."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
