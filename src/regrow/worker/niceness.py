"""Threads that move state beside training: at a low priority, so that they leave a core alone that training has use for."""

import contextlib
import os
import threading

NICENESS = 10
"""A training thread on the same core gets about ten times the share of one of these."""


def be_nice() -> None:
    """From here on, for this thread: Linux has a priority for each."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
