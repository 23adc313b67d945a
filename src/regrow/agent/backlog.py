"""What a place has taken and not made durable yet, and what of it gives way to newer states where the place fails.

A place that is slow keeps all that it took: saves wait for it, and none is dropped. One that fails, which is to say that it
gave a save up, or gets nothing done while somebody waits for memory, keeps the newest alone until a save is durable there:
neither training nor the other places are to wait for it. It is tried with little patience, which grows. What an operator
asked for, and a job's last state, has all the patience there is, and what takes its place inherits that.
"""

import time
from collections import deque

import msgspec

from regrow.agent.generation import Generation, Label
from regrow.core.draft import Draft
from regrow.core.saves import Urgency

_STALLED_S = 10.0
"""Somebody waits for memory, and nothing was written for so long: the place fails. Also the patience of its next try."""
_IN_VAIN_S = 1.0
"""Without progress for so long, a try at a place that gave a save up gives way to a newer state, for the same reason."""
_UNSURE_S = 4 * _STALLED_S
"""And so long at one that has not given up any yet: it may be slow, and two slow places must not take turns in vain."""


class Taken(msgspec.Struct, kw_only=True):
    """One save of one place."""

    label: Label
    """Of the generation, as it was when this was taken: another place that finds it harmed erases it there, and what is
    written here is still held to its root."""
    generation: Generation
    urgency: Urgency
    begun_s: float

    @property
    def draft(self) -> Draft:
        return self.label.draft

    @property
    def is_urgent(self) -> bool:
        return self.urgency >= Urgency.ASKED


class Backlog:
    """Oldest first; the first is at work, or is to be next."""

    def __init__(self, patience_s: float, gives_way: bool = False) -> None:
        """`gives_way`: of what waits only the newest is wanted, however well the place gets on."""
        self._patience_s = patience_s
        self._gives_way = gives_way
        self._taken: deque[Taken] = deque()
        self._failures = 0
        """Tries that were given up since the last success."""
        self.is_failing = False
        self.is_at_work = False

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def first(self) -> Taken | None:
        return self._taken[0] if self._taken else None

    @property
    def newest(self) -> Taken:
        return self._taken[-1]

    def take(self, label: Label, generation: Generation, urgency: Urgency) -> None:
        self._taken.append(Taken(label=label, generation=generation, urgency=urgency, begun_s=time.monotonic()))

    def patience_s(self, taken: Taken) -> float:
        """How long it may get nothing done."""
        if taken.is_urgent or not self.is_failing:
            return self._patience_s
        return min(self._patience_s, _STALLED_S * (1 << min(max(self._failures - 1, 0), 16)))

    def succeeded(self) -> None:
        """The first is durable."""
        self._taken.popleft()
        self.is_at_work = self.is_failing = False
        self._failures = 0

    def failed(self, is_the_place: bool) -> None:
        """The first is given up; is that the fault of the place?"""
        self._taken.popleft()
        self.is_at_work = False
        if is_the_place:
            self.is_failing, self._failures = True, self._failures + 1

    def is_stuck(self, idle_s: float, has_refused: bool) -> bool:
        """It fails, or would if somebody waited for memory: nothing of the first was written for so long."""
        return self.is_failing or (self.is_at_work and (has_refused or idle_s >= _STALLED_S))

    def press(self, idle_s: float, has_refused: bool) -> bool:
        """Somebody waits for memory: does the place begin to fail?"""
        begins = not self.is_failing and self.is_stuck(idle_s, has_refused)
        self.is_failing |= begins
        return begins

    def superseded(self) -> list[Taken]:
        """Those that give way to the newest: all that wait besides it, where the place fails, or wants no other."""
        at_work = [self._taken[0]] if self.is_at_work else []
        waiting = list(self._taken)[len(at_work) :]
        if not (self.is_failing or self._gives_way) or len(waiting) < 2:
            return []
        *older, newest = waiting
        newest.urgency = max(one.urgency for one in waiting)
        self._taken = deque([*at_work, newest])
        return older

    def is_in_vain(self, idle_s: float) -> bool:
        """Should the one at work give way as well?"""
        if not (self.is_failing and self.is_at_work) or len(self._taken) < 2 or self._taken[0].is_urgent:
            return False
        enough_s = _IN_VAIN_S if self._failures else _UNSURE_S
        return self._taken[0].generation is not self._taken[-1].generation and idle_s >= enough_s
