"""The last state of a job whose time is short: to which place first, and what is not begun any more.

Places do not take it side by side then, as they do else: each would have only its share of the disks and the network, and
none be done in time. Pure functions; times are those that were measured, with what a place is still busy with.
"""

from collections.abc import Iterable

import msgspec

_SLACK = 1.25
"""A place may be slower than it was."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A place that is to take it."""

    number: int
    """The lower, the nearer."""
    outlives: bool
    """What is there is still there when the machine is gone."""
    seconds: float | None
    """Until it should be durable there, if that were begun now; None: nothing was measured yet."""


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The fastest first of those that outlive the machine, then the others. One that nothing is known of comes after those
    that are known."""
    return sorted(candidates, key=lambda one: (not one.outlives, one.seconds is None, one.seconds or 0.0, one.number))


def is_begun(candidate: Candidate, left_s: float, is_safe: bool) -> bool:
    """Is it worth a try? While the state is safe nowhere everything is; then only what should be done in time."""
    return not is_safe or candidate.seconds is None or candidate.seconds <= left_s


def is_insured(candidate: Candidate, left_s: float, is_safe: bool) -> bool:
    """Is the newest state of this moment sent there at once, in case the last one never comes? Where there is time for both;
    while nothing is safe, where nothing speaks against it or nothing is left to wait for; and when it is now or never."""
    if candidate.seconds is None or candidate.seconds > left_s:
        return not is_safe
    return 2 * candidate.seconds <= left_s or left_s <= last_call_s(candidate.seconds)


def last_call_s(seconds: float) -> float:
    """With so much time left what takes so long is begun, or it is not done in time."""
    return _SLACK * seconds
