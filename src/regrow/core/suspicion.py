"""Which lanes kill the replicas that compute them.

A lane of a step in which a replica died is suspect: it is retried last, alone on one replica, while another holds the state.
When enough different replicas have died in it, it is poison: the samples are to blame, not the hosts.

A SIGKILL that nothing here explains (no hang, no lack of memory) comes from outside, and whoever kills one replica may well
kill the next one a moment later, in the very lane that it took over. One such death is therefore never counted; and where a
vault holds the state as well nobody waits because of it.
"""

from collections.abc import Iterable

import msgspec

from regrow.core.lanes import Cell
from regrow.core.roster import Member, Suspect

_SHOWN = 32


class Poison(msgspec.Struct, frozen=True, kw_only=True):
    """This lane of this step has killed these replicas."""

    cell: Cell
    replicas: tuple[str, ...]

    def words(self, samples: tuple[int, ...]) -> str:
        shown = ", ".join(map(str, samples[:_SHOWN])) + (f" and {len(samples) - _SHOWN} more" if samples[_SHOWN:] else "")
        what = f"{self.cell} is poison: it killed {' and '.join(self.replicas)}"
        return f"{what}; its samples are {shown}" if samples else what


class Suspicion:
    """`enough`: so many different replicas."""

    def __init__(self, enough: int, suspects: Iterable[Suspect] = ()) -> None:
        self._enough = enough
        self._suspects: dict[Cell, Suspect] = {suspect.cell: suspect for suspect in suspects}

    def blame(self, cell: Cell, member: Member, struck: bool) -> Poison | None:
        """A member died in this lane. May be told again."""
        known = self._suspects.get(cell, Suspect(cell=cell, dead=()))
        dead = tuple(sorted({*known.dead, member}))
        suspect = self._suspects[cell] = Suspect(cell=cell, dead=dead, struck=known.struck or struck)
        if len(suspect.replicas) < self._enough or len(dead) - suspect.struck < self._enough:
            return None
        del self._suspects[cell]
        return Poison(cell=cell, replicas=suspect.replicas)

    def forget(self, below: int) -> None:
        """These steps are committed: whatever it was, it passed."""
        self._suspects = {cell: suspect for cell, suspect in self._suspects.items() if cell.step >= below}

    @property
    def counted(self) -> tuple[Suspect, ...]:
        """Those in which more has struck than one kill from outside."""
        return tuple(suspect for suspect in self.suspects if len(suspect.dead) > suspect.struck)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        return tuple(suspect for _, suspect in sorted(self._suspects.items()))
