"""Signals that tell a job to end: a scheduler may send them to all of its processes at once, and one alone answers."""

import signal

from regrow.core.notices import SIGNALS

IGNORES = "REGROW_IGNORES"
"""In the warm parent's environment: the signal that is a notice to the launcher. Workers are to ignore it as well."""


def turn_deaf(*names: str) -> None:
    """To these, and if none is named to all that may be told for this. On the main thread; forked children are deaf too."""
    for name in names or ("SIGINT", "SIGTERM", *SIGNALS):
        signal.signal(signal.Signals[name], signal.SIG_IGN)
