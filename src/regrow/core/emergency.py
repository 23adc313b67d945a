"""The last state of a job whose time is short: to which place first, and what is not begun any more.

Places do not take it side by side then, as they do else: each would have only its share of the disks and the network, and
none be done in time. But a place may stand still, and say nothing: each has a turn, and when that is over the next one is
begun beside it. Pure functions; times are those that were measured, with what a place is still busy with.
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
    is_failing: bool = False
    """It refused what it was given last, or gets nothing done: what was measured before says little."""


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The fastest first of those that outlive the machine, then the others; of both, one that nothing is known of after
    those that are known, and one that fails last."""
    return sorted(candidates, key=_rank)


def _rank(one: Candidate) -> tuple[bool, bool, bool, float, int]:
    return not one.outlives, one.is_failing, one.seconds is None, one.seconds or 0.0, one.number


def is_begun(candidate: Candidate, left_s: float, is_spared: bool) -> bool:
    """Is it worth a try? Everything is; where something is to be spared, only what should be done in time."""
    return not is_spared or candidate.seconds is None or candidate.seconds <= left_s


def chosen(candidates: Iterable[Candidate], left_s: float, is_spared: bool) -> Candidate | None:
    """Which one to begin now; None: nothing that is worth it. Something is to be spared once the state is safe, and while a
    place may be at work on it yet, though its turn is over."""
    if left_s <= 0:
        return None
    return next((one for one in in_order(candidates) if is_begun(one, left_s, is_spared)), None)


def turn_s(candidate: Candidate, others: Iterable[Candidate], left_s: float) -> float:
    """So long a place that is begun now has the time for itself, unless it fails. Half of it at most: one that stands still
    leaves as much to the others. Where there is time for two, no more than twice what it should take, and none after the
    last moment at which one of the others can be begun: at half the speed it is done in time as well."""
    if candidate.is_failing:
        return 0.0
    half_s = left_s / 2
    if candidate.seconds is None or candidate.seconds > half_s:
        return half_s
    known_s = [one.seconds for one in others if one.seconds is not None and not one.is_failing]
    last_calls_s = [left_s - last_call_s(seconds) for seconds in known_s if seconds <= left_s]
    return max(0.0, min(half_s, 2 * candidate.seconds, *last_calls_s))


def is_insured(candidate: Candidate, left_s: float, is_safe: bool) -> bool:
    """Is the newest state of this moment sent there at once, in case the last one never comes? Where there is time for both;
    while nothing is safe, where nothing speaks against it or nothing is left to wait for; and when it is now or never."""
    if candidate.seconds is None or candidate.seconds > left_s:
        return not is_safe
    return 2 * candidate.seconds <= left_s or left_s <= last_call_s(candidate.seconds)


def last_call_s(seconds: float) -> float:
    """With so much time left what takes so long is begun, or it is not done in time."""
    return _SLACK * seconds
