"""A notice: word that this machine will soon be taken away. Where it may come from, and what counts as one.

A file that appears, a signal, or an answer over HTTP. Clouds tell of it at an address that says nothing, or that there is
nothing, until the day comes; what each of them says then does not matter here.
"""

import json

import msgspec


class NoticeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where notices are looked for."""

    file: str = ""
    """A path. It is a notice that something is there."""
    signal: str = ""
    """A signal's name, as SIGUSR1."""
    url: str = ""
    """Asked again and again; see `is_notice`."""
    within_s: float = 30.0
    """So long after a notice the machine may be gone."""


SIGNALS = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPWR")
"""Those that may be a notice: nothing else of Regrow means something else by them."""
_NOTHING = ("", "none", "null", "false", "0", "no")
"""As words on their own."""


def is_notice(status: int, body: bytes) -> bool:
    """Does this answer announce the end of the machine?

    Only status 200 does, with a body that says something: none of the words for nothing, not an empty object or list, and
    not an object whose `Events` is empty. So it is with the services of AWS (`spot/instance-action`: 404 until then), of
    Google (`preempted`: FALSE; `maintenance-event`: NONE) and of Azure (`scheduledevents`: no events).
    """
    text = body.decode("utf-8", "replace").strip()
    if status != 200 or text.lower() in _NOTHING:
        return False
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return True
    if isinstance(said, dict) and "Events" in said:
        return bool(said["Events"])
    return bool(said)
