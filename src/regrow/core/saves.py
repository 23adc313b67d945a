"""When a state is saved, and which tier takes it: pure functions of steps.

A save is decided at a boundary (core.boundary) for the state of the step after it. Which tiers make it durable is the
vault's affair, by the same intervals, so that a save which came a step late is taken in place of the one that was due.
"""

from collections.abc import Iterable
from enum import IntEnum


class Urgency(IntEnum):
    """How much a save is wished; the highest of all members counts."""

    NONE = 0
    DUE = 1
    """An interval has passed, or the last try was void."""
    ASKED = 2
    """An operator asked: every tier takes it, whatever its interval."""
    LAST = 3
    """The job ends with this state: every tier takes it, and no other follows."""


def is_due(step: int, every: Iterable[int]) -> bool:
    """Is the state of so many committed steps to be saved? Intervals in steps; none of them: never."""
    return step > 0 and any(step % interval == 0 for interval in every)


def takes(step: int, every: int, last: int, urgency: Urgency) -> bool:
    """Does a tier with this interval take this save? `last`: the newest step that it took, or the job's origin."""
    return step > last and (urgency >= Urgency.ASKED or step // every > last // every)
