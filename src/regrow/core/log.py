"""The log of an every-step job: what a member writes ahead of a commit, and what a founding makes of it (rules L1 to L7).

Every member has a log of its own in memory of the host, which outlives it. Before it says that it holds the complete result
of an attempt, its part of that result lies there, closed by a header. So when all have said so, the logs together hold the
whole record, whoever dies next. Pure bookkeeping over headers: the bytes are the shell's, and whoever calls `follow` has
held the bytes of each part to their digest.
"""

from collections.abc import Iterable, Sequence

import msgspec

from regrow.core.listener import Record
from regrow.core.resolve import Statement
from regrow.core.roster import Member, Version

UNHELD_STEPS = 20
"""A member whose log nobody else holds says so again after so many steps."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of a part says. It is part_of(all bytes, index, count); the first carries what is no bytes, too."""

    record: Record
    stop: bool
    """The member that wrote it wished to stop after this step."""
    index: int
    count: int


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The committed records that follow a base, in order."""

    records: tuple[Record, ...]
    """Each says when the job ends as far as the newest of them knows: whatever an older one says is overtaken by it."""
    beyond: int | None
    """The newest step that any log speaks of, where that is not the one that comes next: a record before it was harmed or
    given up, and with it committed steps are lost."""


def follow(step: int, since: Version, parts: Iterable[Part]) -> Chain:
    """What was committed after the state of this step, which was saved under this version.

    A record is whole when all parts of one attempt with one digest are there, whoever wrote them. Versions only grow along
    the steps of one job: what is older than what comes before it was given up by a founding, and is of another lineage.
    """
    heads: dict[int, dict[tuple[Version, int, int], dict[int, list[Part]]]] = {}
    for part in parts:
        attempt = part.record.attempt, part.record.digest, part.count
        heads.setdefault(part.record.step, {}).setdefault(attempt, {}).setdefault(part.index, []).append(part)
    found: list[list[Part]] = []
    newest = max(heads, default=step)
    while True:
        whole = [
            (attempt, [part for each in indexed.values() for part in each])
            for (attempt, _, count), indexed in heads.get(step, {}).items()
            if attempt >= since and indexed.keys() == set(range(count))
        ]
        if not whole:
            break
        since, counted = max(whole, key=lambda each: each[0])
        found.append(counted)
        step += 1
    last = _last(found[-1]) if found else 0
    records = tuple(msgspec.structs.replace(counted[0].record, last=last) for counted in found)
    return Chain(records=records, beyond=newest if newest > step else None)


def _last(parts: Sequence[Part]) -> int:
    """By the newest record alone: that a step follows shows that nobody stopped before it."""
    return min(part.record.step + 1 if part.stop else part.record.last for part in parts)


def unlogged(table: Sequence[Statement], members: Sequence[Member], step: int, attempt: Version) -> tuple[int, ...]:
    """Who commits this step by what a table says: whose parts of this attempt may lie in no log, by their places among its
    members. Whoever is past the step saw that all had logged theirs, or has logged what was lacking itself."""
    if any(s.holds_state and s.step > step for s in table):
        return ()
    logged = {s.member for s in table if s.holds_state and s.step == step and s.complete and s.attempt == attempt}
    return tuple(index for index, member in enumerate(members) if member not in logged)
