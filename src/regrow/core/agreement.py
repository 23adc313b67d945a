"""Which state is the job's, when donors declare what they hold: the root of their state, one digest over all of it.

A donor's own digest proves that its bytes survived the way, not that they were right when they left: memory that went bad
before the snapshot matches itself. So donors are compared: the root of more than half of those that can still declare one
decides. Where two roots stand against each other, nobody is believed: to train on from a wrong state is worse than to wait
for a right one.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from regrow.core.roster import Member


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """What these will declare may still decide it."""

    awaited: tuple[Member, ...]


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    witnesses: tuple[Member, ...]
    """Who declared it. One alone proves no more than that nothing happened on the way."""


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing decides between the donors."""

    why: str


Verdict = Undecided | Agreed | Parted


class Agreement:
    """Who has declared what."""

    def __init__(self, donors: Iterable[Member]) -> None:
        self._awaited = set(donors)
        self.roots: dict[Member, str] = {}

    def declare(self, donor: Member, root: str) -> None:
        """It counts from now on, also when the donor dies later."""
        if donor in self._awaited:
            self._awaited.remove(donor)
            self.roots[donor] = root

    def leave(self, donor: Member) -> None:
        """It will not declare anything any more."""
        self._awaited.discard(donor)

    def withdraw(self, donor: Member) -> None:
        """It gave other bytes than it declared: its word is worth nothing."""
        self._awaited.discard(donor)
        self.roots.pop(donor, None)

    def verdict(self) -> Verdict:
        votes = Counter(self.roots.values())
        root = self._decided(votes)
        if root is not None:
            return Agreed(root=root, witnesses=tuple(sorted(donor for donor, said in self.roots.items() if said == root)))
        if self._awaited:
            return Undecided(awaited=tuple(sorted(self._awaited)))
        said = ", ".join(f"{donor} {root}" for donor, root in sorted(self.roots.items())) or "nobody says anything"
        return Parted(why=f"the donors hold different states and no majority tells which is the job's: {said}")

    def _decided(self, votes: Counter[str]) -> str | None:
        if not votes:
            return None
        root, count = votes.most_common(1)[0]
        return root if 2 * count > votes.total() + len(self._awaited) else None
