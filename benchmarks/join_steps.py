"""What the journals of join.py's jobs say: where the time of a join goes, and what it costs those who are there."""

import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise

from regrow.core.records import (
    Audited,
    Committed,
    Fact,
    ListenerAttached,
    ListenerFed,
    RosterAdopted,
    RosterMade,
    SnapshotLoaded,
    WorkerExited,
)

Facts = list[tuple[int, Fact]]
"""With their times in nanoseconds."""

Steps = dict[str, list[float]]
"""Of each member, in milliseconds."""

MARKS = ("seen", "roster", "attached", "fed", "loaded", "audited", "entered", "committed")
HEALED = ("seen", "roster", "entered", "committed")
"""Of a shadow, or of one that was waited for."""
AT_MOST = 40
"""Steps of one stretch: its last ones."""
ENOUGH = 4
LONG_NS = 10**12


def measured(facts: dict[str, Facts], stay: list[str], sent_ns: int, used: float) -> dict[str, float]:
    """After a kill."""
    ends, is_planned = _marks(facts, stay, sent_ns)
    found = _parts(ends, sent_ns, MARKS if is_planned else HEALED)
    before = _stretch(facts, stay, sent_ns - LONG_NS, sent_ns)
    after = _stretch(facts, stay, ends["committed"], ends["committed"] + LONG_NS)
    found |= {"step": _worst(before), "after": _worst(after), "back": _ratio(after, before)}
    if not is_planned or ends["attached"] is None:
        return found
    # The first step without the one that is lost has what was left of another.
    alone = {who: taken[1:] for who, taken in _stretch(facts, stay, ends["roster"], ends["attached"]).items()}
    beside = _stretch(facts, stay, ends["attached"], ends["entered"])
    found |= {"cpu": used} | _beside(beside)
    if min(map(len, alone.values())) > ENOUGH and all(beside.values()):
        found |= {"alone": _worst(alone), "ratio": _ratio(beside, alone)}
    return found


def grown(facts: dict[str, Facts], stay: list[str], asked_ns: int, left_ns: int, used: float) -> dict[str, float]:
    """After a wish for one more, who has been asked to leave again since."""
    ends, _ = _marks(facts, stay, asked_ns)
    before = _stretch(facts, stay, asked_ns - LONG_NS, asked_ns)
    beside = _stretch(facts, stay, ends["attached"], ends["entered"])
    last = next(fact for _, fact in reversed(facts["coordinator"]) if isinstance(fact, RosterMade))
    alike_ns = _first(facts, "r0.0", left_ns, Committed, lambda fact: fact.attempt == last.version)
    after = _stretch(facts, stay, alike_ns, alike_ns + LONG_NS)
    found = _parts(ends, asked_ns, MARKS[2:]) | {"cpu": used} | _beside(beside)
    if all(beside.values()):
        found["ratio"] = _ratio(beside, before)
    return found | {"step": _worst(before), "after": _worst(after), "back": _ratio(after, before)}


def _marks(facts: dict[str, Facts], stay: list[str], since_ns: int) -> tuple[dict[str, int | None], bool]:
    """When each was reached on the way to one more than these, and whether that was planned."""
    rosters = [(ns, fact) for ns, fact in facts["coordinator"] if ns > since_ns and isinstance(fact, RosterMade)]
    full = next(fact for _, fact in rosters if sum(bool(seat.lanes) for seat in fact.seats) == len(stay) + 1)
    comes = next(str(seat.member) for seat in full.seats if seat.lanes and str(seat.member) not in stay)

    def first(who: str, kind: type[Fact], matches: Callable[[Fact], bool] = lambda _: True) -> int | None:
        return _first(facts, who, since_ns, kind, matches)

    ends = {
        "seen": first("agent", WorkerExited),
        "roster": rosters[0][0],
        "attached": first("r0.0", ListenerAttached),
        "fed": first("r0.0", ListenerFed),
        "loaded": first(comes, SnapshotLoaded),
        "audited": first(comes, Audited),
        "entered": first(comes, RosterAdopted, lambda fact: fact.version == full.version),
        "committed": first("r0.0", Committed, lambda fact: fact.attempt == full.version),
    }
    return ends, full.base is not None


def _first(
    facts: dict[str, Facts], who: str, since_ns: int, kind: type[Fact], matches: Callable[[Fact], bool]
) -> int | None:
    return next((ns for ns, fact in facts[who] if ns > since_ns and isinstance(fact, kind) and matches(fact)), None)


def _parts(ends: dict[str, int | None], since_ns: int, names: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds to each of these marks from the one before, and seconds to the last."""
    marks = [(name, ns) for name, ns in ends.items() if ns is not None and name in names]
    found = {
        f"to {name}": (ns - before) / 1e6
        for (name, ns), before in zip(marks, [since_ns, *(ns for _, ns in marks)], strict=False)
    }
    return found | {"full": (ends["committed"] - since_ns) / 1e9}


def _stretch(facts: dict[str, Facts], stay: list[str], start: int, stop: int) -> Steps:
    commits = {who: [(ns, fact) for ns, fact in facts[who] if isinstance(fact, Committed)] for who in stay}
    return {who: list(steps(found, start, stop)) for who, found in commits.items()}


def steps(commits: Facts, start: int, stop: int) -> Iterator[float]:
    """Milliseconds between two commits that both lie within."""
    within = [ns for ns, _ in commits if start <= ns <= stop][-AT_MOST:]
    return ((after - before) / 1e6 for before, after in pairwise(within))


def _beside(taken: Steps) -> dict[str, float]:
    found = [step for steps_of in taken.values() for step in steps_of]
    return {"beside": _worst(taken), "slowest": max(found)} if found else {}


def _worst(taken: Steps) -> float:
    """The median step of whose is the longest."""
    return max(statistics.median(steps_of) for steps_of in taken.values() if steps_of)


def _ratio(taken: Steps, than: Steps) -> float:
    """Of the medians, whose is the highest."""
    return max(statistics.median(steps_of) / statistics.median(than[who]) for who, steps_of in taken.items())


def spread(values: list[float]) -> list[float]:
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]
