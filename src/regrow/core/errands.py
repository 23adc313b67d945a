"""Which data worker is asked for which microbatch: the decisions of a replica's prefetch.

An errand is a microbatch to be made. What is wanted is a guess, soonest first, of what the replica will be asked for, and
changes with the roster. A wrong guess costs time and nothing else: a microbatch is the same whenever and wherever it is
made, so one that was made for nothing is dropped, and one that comes twice is taken once. Where a lane is read from a
stream, the errand says from which position: a guess of another position is another errand.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec


class Errand(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One microbatch, to be made ahead of its use."""

    step: int
    lane: int
    microbatch: int
    start: bytes | None = None
    """Where the lane's stream stands before it; None where there is no stream."""

    def __str__(self) -> str:
        return f"microbatch {self.microbatch} of lane {self.lane} of step {self.step}"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Send this worker on this errand, after those it has."""

    worker: int
    errand: Errand


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """It need not begin this one any more."""

    worker: int
    errand: Errand


class Errands:
    """Who is on which errand, and what is ready. Workers are numbered from 0."""

    def __init__(self, workers: int, ahead: int, keeps_lanes: bool = False) -> None:
        """ahead: how many errands one worker has at a time. keeps_lanes: all of a lane's go to the same worker, which has
        its stream open there."""
        self._ahead = ahead
        self._homes: dict[int, int] | None = {} if keeps_lanes else None
        self._asked: list[list[Errand]] = [[] for _ in range(workers)]
        self._ready: set[Errand] = set()
        self._losses: Counter[Errand] = Counter()

    @property
    def reach(self) -> int:
        """How many microbatches ahead it is worth to know."""
        return self._ahead * len(self._asked)

    def holder(self, errand: Errand) -> int | None:
        """The worker that is on this errand."""
        return next((worker for worker, asked in enumerate(self._asked) if errand in asked), None)

    def want(self, wanted: Sequence[Errand]) -> tuple[list[Drop | Ask], set[Errand]]:
        """What to tell the workers, and which ready ones to forget. The first one wanted is needed now."""
        wanted = wanted[: self.reach]
        orders: list[Drop | Ask] = []
        for worker, asked in enumerate(self._asked):
            # The first is under way: it cannot be called back, and its worker is not free before it is done.
            for errand in asked[1:]:
                if errand not in wanted:
                    asked.remove(errand)
                    orders.append(Drop(worker=worker, errand=errand))
        stale = self._ready - set(wanted)
        self._ready -= stale
        for errand in wanted:
            if errand in self._ready or self.holder(errand) is not None:
                continue
            worker = self._worker(errand, wanted)
            asked = self._asked[worker]
            if len(asked) >= self._ahead and errand is not wanted[0]:
                continue  # another worker may have time for the next one
            while len(asked) > max(1, self._ahead - 1):  # the one that is needed: others make room
                orders.append(Drop(worker=worker, errand=asked.pop()))
            asked.append(errand)
            orders.append(Ask(worker=worker, errand=errand))
        return orders, stale

    def _worker(self, errand: Errand, wanted: Sequence[Errand]) -> int:
        numbers = range(len(self._asked))
        if self._homes is None:
            return min(numbers, key=lambda number: len(self._asked[number]))
        if errand.lane not in self._homes:
            lanes = {other.lane for other in wanted}
            here = Counter(home for lane, home in self._homes.items() if lane in lanes)
            self._homes[errand.lane] = min(numbers, key=lambda number: here[number])
        return self._homes[errand.lane]

    def done(self, worker: int, errand: Errand) -> None:
        """It is made, and ready until it is used or no longer wanted."""
        if errand in self._asked[worker]:
            self._asked[worker].remove(errand)
        self._ready.add(errand)

    def give_up(self, errand: Errand) -> None:
        """Nobody can make it: whoever needs it is told so, and not before he needs it."""
        self._ready.add(errand)

    def used(self, errand: Errand) -> None:
        self._ready.discard(errand)
        self._losses.pop(errand, None)

    def lost(self, worker: int) -> tuple[Errand | None, int]:
        """The worker died: the errand it was on, and how many have died on that one. Its errands are asked for again."""
        asked, self._asked[worker] = self._asked[worker], []
        if not asked:
            return None, 0
        self._losses[asked[0]] += 1
        return asked[0], self._losses[asked[0]]
