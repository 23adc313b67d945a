"""How a job began from a saved state: which tier served it, how much of it, and how long that took. For people."""

import msgspec

from regrow.core.chronicle import Chronicle
from regrow.core.records import Served
from regrow.core.roster import Version


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    """The job began from a saved state: when it was resumed, or after every replica was lost."""

    roster: str
    at: float
    """Wall clock, seconds."""
    step: int
    where: str
    """The tiers that served it, in words."""
    reached: int
    """Every step below this one had been committed."""
    records: int
    """So many committed steps followed it in the logs, and were replayed."""
    differences: tuple[str, ...]
    """In which terms of its mathematics it is another job from here on."""
    size_bytes: int | None
    served: tuple[Served, ...]
    """By each of those tiers, the nearest first; none where nobody noted it."""
    found_s: float | None
    """Until it was found, and in memory."""
    loaded_s: float | None
    """Until the slowest founder held it."""
    replayed_s: float | None = None
    """Until the slowest founder had been through them."""

    @property
    def through(self) -> int:
        """The job went on at this step."""
        return self.step + self.records


def founding(chronicle: Chronicle, version: Version) -> Founding | None:
    """By the roster of this version; None when it did not found the job from a saved state."""
    if version not in chronicle.taken:
        return None
    line, taken = chronicle.taken[version]
    # One that was found for the job's start is in memory from then on, and is found there when it is looked for again.
    every = [found for _, found in chronicle.saves.found if (found.step, found.root) == (taken.step, taken.root)]
    founds = every[:1] if version == min(chronicle.taken) else every[-1:]
    recalled = chronicle.recalled.get(version, [])
    sizes = [found.size_bytes for found in founds] + [fact.size_bytes for fact in recalled]
    return Founding(
        roster=str(version),
        at=line.at,
        step=taken.step,
        where=founds[0].where if founds else taken.where,
        reached=taken.reached,
        records=taken.records,
        differences=taken.differences,
        size_bytes=max(sizes, default=None),
        served=founds[0].served if founds else (),
        found_s=founds[0].seconds if founds else None,
        loaded_s=max((fact.seconds for fact in recalled), default=None),
        replayed_s=max((fact.seconds for fact in chronicle.replayed.get(version, [])), default=None),
    )
