"""Resolve: what the members of a new roster make of the step in doubt.

Each states what it holds; the resolution is a pure function of that table, so all reach the same one.

A result is keyed by its attempt (step, roster version). Step t is committed if some member passed its boundary, or if
every state-holding member holds the complete result of the newest attempt at t. Whoever passed proves that all had stated
"ok", so all who were members of that attempt hold its result: committing never rests on the passer surviving, nor on
determinism. Members that hold state but were not in the newest attempt do not exist: one roster without you ends you.

Except for those that leave as planned. One that has stated its last row does not know whether the others have gone on
without it, so it testifies only beside one of them; and once they have committed a step without it, it has left.

Otherwise the step is redone, and only what is missing is computed: subtrees that are held stay with one named holder.
"""

from collections.abc import Sequence

import msgspec

from regrow.core.errors import Invariant
from regrow.core.lanes import Node, lanes_in, spread
from regrow.core.roster import NO_VERSION, Member, Roster, Version

Manifest = tuple[tuple[str, str], ...]
"""Path of each tensor, and what it is: dtype, shape, digest of its content."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What one member holds when a roster is formed."""

    member: Member
    holds_state: bool
    """Has parameters and optimizer state as of `step`. A joiner that is not healed yet has not."""
    step: int
    """Every step below this one is committed here."""
    attempt: Version = NO_VERSION
    """The newest attempt at `step` this member took part in."""
    complete: bool = False
    """Holds the complete result of that attempt."""
    digest: int = 0
    """Of that result."""
    reporter: Member | None = None
    """Who reports that attempt, if its boundary is passed."""
    held: tuple[Node, ...] = ()
    """Subtrees of `step` whose sum this member holds."""
    handed: tuple[Member, ...] = ()
    """Those who have gone on without this member, or may have: the members of a planned roster that has no seat for it."""
    last: int
    """The job ends before this step."""
    manifest: Manifest = ()
    """At step 0: each tensor's path with its shape and digest. All replicas must have built the same state."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One member's part of the step in doubt."""

    member: Member
    keep: tuple[Node, ...]
    compute: tuple[int, ...]


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """What everyone does next. Members still below `step` commit the result they hold, then go on at `step`."""

    version: Version
    step: int
    """The step in doubt: the first one not committed."""
    last: int
    shares: tuple[Share, ...]
    donors: dict[str, Member]
    """For each joiner (by its name), the member it is healed from."""
    reporter: Member
    """Reports the steps whose boundary is passed under this roster."""
    late: Member | None
    """Reports the step that this resolution itself commits, if it commits one."""
    why: str
    is_planned: bool = False
    """Entered by the verdict of a boundary, without a table."""
    left: tuple[Member, ...] = ()
    """The others have gone on without them, as planned."""

    def share(self, member: Member) -> Share:
        return next(share for share in self.shares if share.member == member)


class Stateless(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody in this roster holds the job's state. The job must not go on from initial weights."""

    why: str


class Divided(msgspec.Struct, frozen=True, kw_only=True):
    """The founders' initial states differ. Only the user can mend that."""

    why: str


def resolve(roster: Roster, lanes: int, table: Sequence[Statement]) -> Resolution | Stateless | Divided:
    """Statements in the order of the roster's seats."""
    if tuple(s.member for s in table) != roster.members:
        raise Invariant(f"the table {[str(s.member) for s in table]} is not roster {roster.version}")
    holders = [s for s in table if s.holds_state and not _is_mute(s, roster)]
    if not holders:
        return Stateless(why=f"none of {', '.join(map(str, roster.members))} holds the job's state")
    top = max(s.step for s in holders)
    left = tuple(s.member for s in table if s.holds_state and (_is_mute(s, roster) or _is_passed(s, top)))
    holders = [s for s in holders if s.member not in left]
    step, why = _step_in_doubt(holders)
    if step < roster.floor:
        return Stateless(why=f"step {roster.floor} was reached before, the members of this roster only hold step {step}")
    if step == 0 and (difference := _difference(holders)) is not None:
        return Divided(why=difference)
    shares = _shares(roster, lanes, step, holders, [s.member for s in holders])
    current = [s.member for s in holders if s.step == step] or [s.member for s in holders]
    joiners = [s.member for s in table if not s.holds_state]
    return Resolution(
        version=roster.version,
        step=step,
        last=min([s.last for s in holders] + ([roster.halt.step] if roster.halt else [])),
        shares=shares,
        donors={str(joiner): current[i % len(current)] for i, joiner in enumerate(joiners)},
        reporter=holders[0].member,
        late=_late_reporter(holders, step),
        why=why,
        left=left,
    )


def _is_mute(statement: Statement, roster: Roster) -> bool:
    """Has it handed over, and is nobody here who could say whether they went on?"""
    return bool(statement.handed) and not any(roster.seat(member) is not None for member in statement.handed)


def _is_passed(statement: Statement, top: int) -> bool:
    """Have those it handed over to committed a step that it took no part in?"""
    return bool(statement.handed) and (statement.step < top - 1 or (statement.step < top and not statement.complete))


def begin(roster: Roster, lanes: int, step: int, last: int) -> Resolution:
    """What the verdict that enters a planned roster stands for: all hold the state of this step, and nothing of it yet."""
    return Resolution(
        version=roster.version,
        step=step,
        last=last,
        shares=_shares(roster, lanes, step, [], roster.members),
        donors={},
        reporter=roster.members[0],
        late=None,
        why=f"entered together, from {roster.base}",
        is_planned=True,
    )


def _step_in_doubt(holders: list[Statement]) -> tuple[int, str]:
    top = max(s.step for s in holders)
    behind = [s for s in holders if s.step < top]
    for s in behind:
        if s.step != top - 1 or not s.complete:
            raise Invariant(f"step {top - 1} was passed by another, but {s.member} does not hold its result: {s}")
    if behind:
        return top, f"step {top - 1} was passed: {', '.join(str(s.member) for s in behind)} commit what they hold"
    newest = max(s.attempt for s in holders)
    if all(s.complete and s.attempt == newest and s.digest == holders[0].digest for s in holders):
        return top + 1, f"all hold the result of step {top}, attempt {newest}"
    return top, f"step {top} goes on: not everyone holds a result of attempt {newest}"


def _late_reporter(holders: list[Statement], step: int) -> Member | None:
    """The attempt's own reporter while it lives: it may have passed and reported already. Else the first to commit now."""
    committing = [s for s in holders if s.step < step]
    if not committing:
        return None
    before = committing[0].reporter
    return before if any(s.member == before for s in holders) else committing[0].member


def _difference(holders: list[Statement]) -> str | None:
    """The first tensor of the initial state that is not the same everywhere."""
    first, *others = holders
    for other in others:
        ours, theirs = dict(first.manifest), dict(other.manifest)
        for path in [*ours, *(path for path in theirs if path not in ours)]:
            if ours.get(path) != theirs.get(path):
                return (
                    f"replicas start from different states: {path} is {ours.get(path, '(absent)')} on {first.member}, "
                    f"{theirs.get(path, '(absent)')} on {other.member}"
                )
    return None


def _shares(roster: Roster, lanes: int, step: int, holders: list[Statement], able: Sequence[Member]) -> tuple[Share, ...]:
    """Held subtrees stay with one holder each, larger first; the missing lanes are dealt, but for those left out.

    A step of which nothing is held starts under this roster, so the roster's own lanes hold for it. Otherwise the missing
    lanes go to those who hold state and are `able`: the others are still being healed. Spectators compute only what is lost
    while nobody else can.
    """
    skipped = roster.skipped(step)
    keep: dict[Member, list[Node]] = {member: [] for member in roster.members}
    taken: set[int] = set()
    offers = [(-node.size, roster.index(s.member), node, s.member) for s in holders if s.step == step for node in s.held]
    for _, _, node, member in sorted(offers):
        if taken.isdisjoint(node.lanes) and skipped.isdisjoint(node.lanes):
            taken.update(node.lanes)
            keep[member].append(node)
    seated = {seat.member: [lane for lane in seat.lanes if lane not in skipped] for seat in roster.seats}
    able = [member for member in able if not roster.seats[roster.index(member)].spectates] or list(able)
    if roster.shrinks:
        # Nobody computes another's lanes; who is still being healed has none in a step that is under way.
        dealt = {member: [lane for lane in own if lane not in taken] for member, own in seated.items()}
        dealt = dealt if not taken else {member: dealt[member] for member in able}
    else:
        lost = set(range(lanes)) - taken - skipped
        suspected = {lane: dead for lane, dead in roster.suspected(step).items() if lane in lost}
        if suspected:
            dealt = _deal_suspects(lost, suspected, able, keep)
        elif taken:
            dealt = dict(zip(able, map(list, spread(lost, len(able))), strict=True))
        else:
            dealt = seated
    shares = tuple(
        Share(member=member, keep=tuple(sorted(keep[member])), compute=tuple(dealt.get(member, ())))
        for member in roster.members
    )
    counted = sorted([*lanes_in(n for s in shares for n in s.keep), *(lane for s in shares for lane in s.compute)])
    wanted = counted if roster.shrinks else [lane for lane in range(lanes) if lane not in skipped]
    if counted != wanted or len(set(counted)) != len(counted):
        raise Invariant(f"the plan of step {step} does not list each of lanes {wanted} once: {shares}")
    return shares


def _deal_suspects(
    lost: set[int], suspected: dict[int, tuple[str, ...]], able: list[Member], keep: dict[Member, list[Node]]
) -> dict[Member, list[int]]:
    """All suspects to one member, which computes nothing else: one that has not died of them yet, then one that holds
    little, because what it holds may die with it."""
    dead = {replica for replicas in suspected.values() for replica in replicas}
    tester = min(able, key=lambda member: (member.replica in dead, len(lanes_in(keep[member])), member))
    others = [member for member in able if member != tester] or [tester]
    dealt = dict(zip(others, map(list, spread(lost - suspected.keys(), len(others))), strict=True))
    dealt[tester] = dealt.get(tester, []) + sorted(suspected)
    return dealt
