"""Who holds a job's state: its replicas, this host's memory, the places that it is saved to.

Every member of a roster holds the whole state, and the positions of lanes in their data are committed with the step. So
nobody holds anything that the others lack, until one member is left: then what it holds is unique. Told to people (`regrow
status`); nothing is decided by it, what a member does about it is core.saving's.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from regrow.core.budget import BudgetConfig
from regrow.core.roster import Roster
from regrow.core.save_story import MEMORY
from regrow.core.staff import Staff

_NEAR = ("file", "local", "memory")
"""Schemes of what lies on this host."""
_PACE_STEPS = 32


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """The newest state that is whole in one tier."""

    where: str
    """memory, or a URL."""
    step: int
    through: int
    """A job founded from it goes on at this step: its own, or a later one that records kept beside it lead to."""

    @property
    def records(self) -> int:
        """So many committed records are kept beside it."""
        return self.through - self.step

    @property
    def is_far(self) -> bool:
        """Does it outlive this host?"""
        return self.where != MEMORY and is_far(self.where)


class Holders(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a running job at one moment, as far as it decides what becomes of it."""

    reached: int
    """Every step below this one is committed."""
    step_s: float | None
    """How long a step takes; None while nobody knows."""
    replicas: tuple[str, ...]
    """Those that live and hold the whole state."""
    copies: tuple[Copy, ...]
    """Nearest first."""
    places: tuple[str, ...]
    """Where it is saved to, whether anything lies there or not."""
    keeps: bool
    """It has a vault."""
    roster: Roster | None
    staff: Staff
    lanes: int
    min_replicas: int
    budget: BudgetConfig
    spent: dict[str, tuple[float, ...]]
    """When each replica was restarted."""
    now_s: float
    """On the same clock."""
    has_own_coordinator: bool
    """It is no part of `regrow run`."""
    is_vault_away: bool = False
    """Nothing is saved, and nothing that was saved is found, until it is back."""
    is_stopping: bool = False
    """A stop, poison or the end itself is about to end the job: it is founded from nothing any more."""
    is_ending: bool = False
    """The last step is committed: nobody is replaced any more."""

    @property
    def sole(self) -> str | None:
        """The only replica that holds the state. At the end others have left with it: nothing is at stake then."""
        return self.replicas[0] if len(self.replicas) == 1 and not self.is_ending else None

    def newest(self, copies: Iterable[Copy]) -> Copy | None:
        """What a job would be founded from: the newest, and of equals the nearest."""
        there = list(copies)
        best = max(there, key=lambda copy: (copy.step, -self.copies.index(copy)), default=None)
        return None if best is None else led_on(best, there)


def led_on(best: Copy, there: Iterable[Copy]) -> Copy:
    """Records that lead on from an older state lead on from this one, too: whoever holds them is there."""
    return msgspec.structs.replace(best, through=max([best.through, *(copy.through for copy in there)]))


def is_far(url: str) -> bool:
    """Does this place outlive the host? Of a folder nobody can tell, so it counts as being on it."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.lower() not in _NEAR


def step_s(commits: Iterable[tuple[int, int]]) -> float | None:
    """How long a step takes, by one member's journal: steps, and when it committed them in nanoseconds. The median of the
    last ones: what a loss or an evaluation takes is not the pace of training."""
    last = list(commits)[-_PACE_STEPS:]
    spans = sorted(
        (ns - before_ns) / (step - before)
        for (before, before_ns), (step, ns) in pairwise(last)
        if step > before and ns > before_ns
    )
    return spans[len(spans) // 2] / 1e9 if spans else None
