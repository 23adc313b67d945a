"""A save while its portions come in: who has yet to give which, and who does it in whose place where it is a job's last.

Decides nothing about arenas and lines: the vault does what this says.
"""

from regrow.agent.generation import Generation
from regrow.core.roster import Version
from regrow.core.saves import Urgency
from regrow.shell.vaulting import Deposit

Key = tuple[int, Version]
"""The step and the roster that a save belongs to; the higher, the later."""


def key_of(deposit: Deposit) -> Key:
    return deposit.step, deposit.version


class Gathering:
    """Of one save."""

    def __init__(self, first: Deposit, begun_s: float) -> None:
        self.first = first
        self.key = key_of(first)
        self.begun_s = begun_s
        self.draft = first.draft
        self.generation: Generation | None = None
        """Once there is one to lend."""
        self.borrowers: set[str] = set()
        """Members that asked for the arena."""
        self._givers: dict[int, str | None] = dict(enumerate(first.members))
        """Who is to give each portion that is not there; None: whoever comes."""
        self._refused: set[tuple[int, str]] = set()
        self.loans: set[tuple[str, int]] = set()
        """Member and portion: it may be writing, until it says that it has given it."""

    @property
    def is_last(self) -> bool:
        return self.first.urgency is Urgency.LAST

    @property
    def is_complete(self) -> bool:
        return not self._givers

    def misfit(self, other: Deposit) -> str:
        """Why these two cannot be portions of one state, naming both members."""
        if (other.layout, other.arena_bytes, other.members) == (
            self.first.layout,
            self.first.arena_bytes,
            self.first.members,
        ):
            return ""
        mine, theirs = self.first.members[self.first.index], other.members[other.index]
        return (
            f"{mine} and {theirs} lay their states out differently ({self.first.layout} of {self.first.arena_bytes} bytes, "
            f"{other.layout} of {other.arena_bytes}): their states have other tensors, or tensors of other shapes"
        )

    def join(self, member: str, deposit: Deposit) -> None:
        """It is there, and gives its own portion."""
        self.borrowers.add(member)
        self.draft = self.draft or deposit.draft
        if deposit.index in self._givers and (deposit.index, member) not in self._refused:
            self._givers[deposit.index] = member

    def awaits(self, member: str) -> list[int]:
        """Which portions it is to give."""
        return [index for index, giver in self._givers.items() if giver == member]

    def give(self, member: str, index: int) -> None:
        """The portion is there."""
        self.loans.discard((member, index))
        self._givers.pop(index, None)

    def refuse(self, member: str, index: int) -> None:
        """The portion will not come from this member."""
        self.loans.discard((member, index))
        self._refused.add((index, member))
        if self._givers.get(index) == member:
            self._givers[index] = None

    def lose(self, member: str) -> list[int]:
        """It is gone: which portions were to come from it."""
        lost = self.awaits(member)
        self.borrowers.discard(member)
        for index in lost:
            self._givers[index] = None
        return lost

    def reassign(self) -> list[tuple[str, int]]:
        """Who gives now what nobody is to give: of a last save, with somebody there to ask."""
        asked = []
        for index in [index for index, giver in self._givers.items() if giver is None]:
            able = sorted(member for member in self.borrowers if (index, member) not in self._refused)
            if able:
                # Of several the one that has least to do already.
                giver = min(able, key=lambda member: len(self.awaits(member)))
                self._givers[index] = giver
                asked.append((giver, index))
        return asked

    @property
    def has_orphans(self) -> bool:
        """Portions that nobody who is there can give."""
        orphans = [index for index, giver in self._givers.items() if giver is None]
        return any(all((index, member) in self._refused for member in self.borrowers) for index in orphans)
