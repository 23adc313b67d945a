"""What became of a job's saves, by its facts: the newest state of each tier, what failed, and what training waited for.

Told to people (`regrow why`, `regrow status`); nothing is decided by it. Any of the facts may be missing.
"""

from math import fsum

import msgspec

from regrow.core.records import (
    IntervalChosen,
    Line,
    LogWaited,
    OriginFound,
    OriginMended,
    OriginPassedOver,
    SaveDurable,
    SaveFailed,
    SaveVoided,
    SaveWaited,
    StateKept,
    VaultEnded,
    VaultStarted,
)

MEMORY = "memory"


class Setback(msgspec.Struct, frozen=True, kw_only=True):
    """A save that came to nothing, or a saved state that was harmed."""

    step: int
    at: float
    """Wall clock, seconds."""
    why: str
    where: str = MEMORY


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    """memory, or a URL."""
    saves: int
    step: int | None
    """Of the newest state there."""
    at: float | None
    """When it was safe there; wall clock, seconds."""
    size_bytes: int | None
    seconds: float | None
    """How long it took: into memory since the first member began, elsewhere since it was in memory."""
    refusals: int
    """After which it was tried again."""
    trouble: str
    """What went wrong there since the newest state; empty when nothing did."""
    interval: IntervalChosen | None = None
    """From one state to the next there, with what it rests on; None when nobody noted it."""


class VaultDeath(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    at: float
    how: str
    """As the end of a sentence."""
    is_replaced: bool


class SaveStory(msgspec.Struct, frozen=True, kw_only=True):
    tiers: tuple[Tier, ...]
    """Memory first, then the places in the order in which they were heard of."""
    voided: tuple[Setback, ...]
    """Saves that never became whole. The members wished another one."""
    given_up: tuple[Setback, ...]
    """Saves that a place did not take in the end."""
    passed_over: tuple[Setback, ...]
    """Saved states that were harmed when one was looked for, as a whole or in parts."""
    vault_deaths: tuple[VaultDeath, ...]
    waits: int
    """How often a replica's training stood still for a save."""
    waited_s: float
    """Of all replicas together."""
    longest_wait_s: float
    longest_why: str


class Saves:
    """Takes the facts of all journals, those of each one in their order."""

    def __init__(self) -> None:
        self.found: list[tuple[Line, OriginFound]] = []
        """Saved states that were brought into memory for founders."""
        self._kept: dict[str, list[tuple[Line, StateKept | SaveDurable]]] = {}
        self._failed: dict[str, list[tuple[Line, SaveFailed]]] = {}
        self._intervals: dict[str, IntervalChosen] = {}
        self._voided: list[Setback] = []
        self._passed: list[Setback] = []
        self._waited: list[SaveWaited | LogWaited] = []
        self._vault: list[tuple[Line, VaultStarted | VaultEnded]] = []

    def hear(self, line: Line) -> None:
        match line.what:
            case StateKept():
                self._kept.setdefault(MEMORY, []).append((line, line.what))
            case SaveDurable(url=url):
                self._kept.setdefault(url, []).append((line, line.what))
            case SaveFailed(url=url):
                self._failed.setdefault(url, []).append((line, line.what))
            case SaveVoided(step=step, why=why):
                self._voided.append(Setback(step=step, at=line.at, why=why))
            case OriginPassedOver(step=step, where=where, why=why):
                self._passed.append(Setback(step=step, at=line.at, why=why, where=where))
            case OriginMended(step=step, where=where, lacking_bytes=lacking_bytes, why=why):
                why = f"{lacking_bytes} bytes of it came from elsewhere: {why}"
                self._passed.append(Setback(step=step, at=line.at, why=why, where=where))
            case OriginFound():
                self.found.append((line, line.what))
            case IntervalChosen(where=where):
                self._intervals[where] = line.what
            case SaveWaited() | LogWaited():
                self._waited.append(line.what)
            case VaultStarted() | VaultEnded():
                self._vault.append((line, line.what))

    def story(self, ended: Line | None) -> SaveStory | None:
        """`ended`: the job's end. None: nothing was saved, and nobody tried."""
        if not (self._kept or self._failed or self._voided or self._passed or self.found or self._vault or self._waited):
            return None
        longest = max(self._waited, key=lambda wait: (wait.seconds, wait.step, wait.why), default=None)
        places = [where for where in dict.fromkeys([*self._kept, *self._failed, *self._intervals]) if where != MEMORY]
        return SaveStory(
            tiers=tuple(self._tier(where) for where in (MEMORY, *places)),
            voided=tuple(self._voided),
            given_up=tuple(
                Setback(step=fact.step, at=line.at, why=reason(fact), where=where)
                for where, failed in self._failed.items()
                for line, fact in failed
                if fact.is_final
            ),
            passed_over=tuple(self._passed),
            vault_deaths=self._deaths(ended),
            waits=len(self._waited),
            waited_s=fsum(wait.seconds for wait in self._waited),
            longest_wait_s=longest.seconds if longest is not None else 0.0,
            longest_why=longest.why if longest is not None else "",
        )

    def _tier(self, where: str) -> Tier:
        kept, failed = self._kept.get(where, []), self._failed.get(where, [])
        line, fact = kept[-1] if kept else (None, None)
        last = failed[-1] if failed else None
        is_since = last is not None and (line is None or last[0].ns > line.ns)
        return Tier(
            where=where,
            saves=len(kept),
            step=fact.step if fact is not None else None,
            at=line.at if line is not None else None,
            size_bytes=fact.size_bytes if fact is not None else None,
            seconds=fact.seconds if fact is not None else None,
            refusals=sum(not found.is_final for _, found in failed),
            trouble=_trouble(last[1]) if last is not None and is_since else "",
            interval=self._intervals.get(where),
        )

    def _deaths(self, ended: Line | None) -> tuple[VaultDeath, ...]:
        """One that ends before the job does has died, whatever it says."""
        deaths = []
        for number, (line, fact) in enumerate(self._vault):
            if isinstance(fact, VaultStarted):
                continue
            is_replaced = any(isinstance(later, VaultStarted) for _, later in self._vault[number + 1 :])
            if is_replaced or ended is None or line.ns < ended.ns:
                how = f"was {fact.how}" if fact.how.startswith("killed") else fact.how
                deaths.append(VaultDeath(pid=fact.pid, at=line.at, how=how, is_replaced=is_replaced))
        return tuple(deaths)


def _trouble(fact: SaveFailed) -> str:
    then = "given up" if fact.is_final else f"attempt {fact.attempt}, tried again"
    return f"the save of step {fact.step} failed ({then}): {reason(fact)}"


def reason(fact: SaveFailed) -> str:
    """Without what whoever tells it has said already."""
    return fact.why.removeprefix(f"step {fact.step} is not saved: ")
