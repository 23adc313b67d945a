"""Which lanes kill the replicas that compute them.

A lane of a step in which a replica died is suspect: it is retried last, alone on one replica, while another holds the state.
When enough different replicas have died in it, it is poison: the samples are to blame, not the hosts.
"""

from collections.abc import Iterable

import msgspec

from regrow.core.lanes import Cell
from regrow.core.roster import Suspect

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
        self._dead: dict[Cell, set[str]] = {suspect.cell: set(suspect.replicas) for suspect in suspects}

    def blame(self, cell: Cell, replica: str) -> Poison | None:
        """A replica died in this lane."""
        dead = self._dead.setdefault(cell, set())
        dead.add(replica)
        if len(dead) < self._enough:
            return None
        del self._dead[cell]
        return Poison(cell=cell, replicas=tuple(sorted(dead)))

    def forget(self, below: int) -> None:
        """These steps are committed: whatever it was, it passed."""
        self._dead = {cell: dead for cell, dead in self._dead.items() if cell.step >= below}

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        return tuple(Suspect(cell=cell, replicas=tuple(sorted(dead))) for cell, dead in sorted(self._dead.items()))
