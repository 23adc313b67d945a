"""Virtual time: a heap of things that will happen, and who they happen to.

An event addressed to a process waits while that process is hung, and is dropped once it is gone.
"""

import heapq
from collections.abc import Callable
from typing import Any, Protocol


class Addressee(Protocol):
    """Whoever an event happens to."""

    alive: bool
    hung: bool
    backlog: list[tuple[Callable[..., None], tuple[Any, ...]]]


_Entry = tuple[float, int, Addressee | None, Callable[..., None], tuple[Any, ...]]


class Timeline:
    """`after` puts an event on the heap, `advance` makes the next one happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Events that have happened."""
        self._heap: list[_Entry] = []
        self._order = 0

    def after(self, delay_s: float, to: Addressee | None, call: Callable[..., None], *args: Any) -> None:
        # The running number breaks ties, so that two events at one time never depend on how their targets compare.
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._order, to, call, args))

    def advance(self) -> bool:
        """False when nothing is left to happen."""
        if not self._heap:
            return False
        self.now, _, to, call, args = heapq.heappop(self._heap)
        if to is not None:
            if not to.alive:
                return True
            if to.hung:
                to.backlog.append((call, args))
                return True
        self.count += 1
        call(*args)
        return True
