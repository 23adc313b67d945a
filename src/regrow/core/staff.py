"""Who is to work: the replicas of a job by name, and what becomes of each.

A *place* is a replica's right to lanes. There are as many as the operator wants replicas to work. Whoever is seated without
a place spectates; whoever is not seated and not needed is parked. A place whose replica is not there is taken over by one
that is there without; when nobody is, it waits for its replica's next life.

Names are given once: a replica that has left is not called back, and one that is added gets the next number. So a name means
one thing in the journals, and a life that is still on its way out is never in the way of its successor.

A value: each decision makes another staff, and the coordinator makes it durable with the roster that follows from it.
"""

from collections import deque
from collections.abc import Collection, Iterable

import msgspec


class Staff(msgspec.Struct, frozen=True, kw_only=True):
    target: int
    """How many are to work."""
    places: tuple[str, ...]
    """Who works, or will once it is back; at most `target`."""
    names: tuple[str, ...]
    """Every replica that was ever started, in the order of their numbers."""
    lost: tuple[str, ...] = ()
    """Will not be restarted, and not be replaced unless the operator asks again."""
    retired: tuple[str, ...] = ()
    """Have left as planned."""
    leaving: tuple[str, ...] = ()
    """Have no place, and leave at the next boundary that may be their last."""
    moving: tuple[str, ...] = ()
    """Leave once another has taken their place."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Everyone that may still run."""
        over = {*self.lost, *self.retired}
        return tuple(name for name in self.names if name not in over)

    @property
    def stays(self) -> tuple[str, ...]:
        """Everyone that is not about to leave either."""
        leaving = set(self.leaving)
        return tuple(name for name in self.runs if name not in leaving)

    @property
    def strength(self) -> int:
        """How many can be expected to work."""
        return self.target - len(set(self.places) & set(self.lost))

    def cast(self, there: Collection[str]) -> "Staff":
        """The places, once these are seated: open ones are taken over, those that move are relieved last.

        Somebody has to work: where nobody is there who stays, those who leave go on.
        """
        leaving, placed = set(self.leaving), set(self.places)
        able = [name for name in self.names if name in there and name not in leaving] or [
            name for name in self.names if name in there
        ]
        at_work = set(able)
        free = deque(name for name in able if name not in placed)
        places = list(self.places)
        for index, name in enumerate(places):
            if name not in at_work and free:
                places[index] = free.popleft()
        while free and len(places) < self.target:
            places.append(free.popleft())
        relief = deque(name for name in free if name not in self.moving)
        for index, name in enumerate(places):
            if name in self.moving and relief:
                places[index] = relief.popleft()
        return msgspec.structs.replace(self, places=tuple(places))

    def wanted(self, there: Collection[str]) -> int:
        """How many more are to be seated."""
        lost, leaving = set(self.lost), set(self.leaving)
        awaited = [name for name in self.places if name not in lost and (name not in there or name in leaving)]
        moving = [name for name in self.places if name in self.moving and name in there]
        return len(awaited) + max(0, self.target - len(self.places)) + len(moving)

    def goes(self, name: str) -> bool:
        """May it leave, as far as the work is concerned?"""
        return name in self.leaving or (name in self.moving and name not in self.places)

    # What the operator wants

    def scaled(self, target: int, there: Collection[str]) -> "Staff":
        """So many are to work. Those that are dropped leave: whoever is not there first, then the highest numbers."""
        kept = [name for name in self.places if name not in self.lost]
        number = self._numbers()
        order = sorted(kept, key=lambda name: (name in there, name not in self.moving, -number[name]))
        dropped = order[: max(0, len(kept) - target)]
        gone = set(dropped)
        places = tuple(name for name in kept if name not in gone)
        return msgspec.structs.replace(self, target=target, places=places)._parting(dropped)

    def without(self, name: str) -> "Staff":
        """It leaves; nobody takes its place."""
        places = tuple(other for other in self.places if other != name)
        target = self.target - (name in self.places)
        return msgspec.structs.replace(self, target=target, places=places)._parting([name])._afforded()

    def moved(self, name: str) -> "Staff":
        """It leaves once another has taken its place."""
        return msgspec.structs.replace(self, moving=(*self.moving, name))

    def trimmed(self, spares: int, there: Collection[str]) -> "Staff":
        """Those without a place, beyond so many spares, leave: whoever is not there first, then the highest numbers."""
        number = self._numbers()
        idle = sorted(self._idle(), key=lambda name: (name in there, -number[name]))
        surplus = len(self.stays) - self.target - spares - len(self.moving)
        return self._parting(idle[: max(0, surplus)])

    def hired(self, count: int) -> "Staff":
        """So many more, with names of their own."""
        fresh: list[str] = []
        number = len(self.names)
        while len(fresh) < count:
            if (name := f"r{number}") not in self.names:
                fresh.append(name)
            number += 1
        return msgspec.structs.replace(self, names=(*self.names, *fresh))

    # What becomes of it

    def losing(self, name: str) -> "Staff":
        """It will not be restarted. A spare takes its place; without one the place stays empty, and what was to be filled or
        relieved by it is given up."""
        idle = [other for other in self._idle() if other != name]
        places = self.places
        if name in places and idle:
            places = tuple(idle[0] if other == name else other for other in places)
        staff = msgspec.structs.replace(self, places=places, lost=(*self.lost, name))
        return staff._afforded()._forgetting(name)

    def recalled(self) -> "Staff":
        """Nobody leaves after all: the job cannot do without them."""
        return msgspec.structs.replace(self, leaving=())

    def retiring(self, name: str) -> "Staff":
        """It is gone for good, as was wished."""
        return msgspec.structs.replace(self, retired=(*self.retired, name))._forgetting(name)

    def _idle(self) -> list[str]:
        """Those without a place who stay."""
        placed = set(self.places)
        return [name for name in self.stays if name not in placed]

    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def _afforded(self) -> "Staff":
        """Without those places and reliefs that nobody is left for."""
        idle = self._idle()
        # One that left before it was relieved holds a place for its relief: without one nobody ever comes to take it.
        vacant = [name for name in self.places if name in self.retired]
        places = tuple(name for name in self.places if name not in vacant[len(idle) :])
        spare = max(0, len(idle) - len(vacant))
        target = min(self.target, len(places) + spare)
        moving = self.moving[: len(places) + spare - target]
        return msgspec.structs.replace(self, target=target, places=places, moving=moving)

    def _parting(self, names: Iterable[str]) -> "Staff":
        gone = [name for name in names if name not in self.leaving]
        moving = tuple(name for name in self.moving if name not in gone)
        return msgspec.structs.replace(self, leaving=(*self.leaving, *gone), moving=moving)

    def _forgetting(self, name: str) -> "Staff":
        leaving = tuple(other for other in self.leaving if other != name)
        moving = tuple(other for other in self.moving if other != name)
        return msgspec.structs.replace(self, leaving=leaving, moving=moving)


def found(replicas: tuple[str, ...], spares: int) -> Staff:
    """The staff of a new job."""
    return Staff(target=len(replicas), places=replicas, names=replicas).hired(spares)
