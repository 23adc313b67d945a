"""What a loss would cost: foretold from who holds the state, by the rules that the coordinator goes by.

Nothing is decided by it, and nothing is asked. What it says is true of the moment at which the holders were looked at: a
save that is on its way may be whole before the loss comes, which then costs less.
"""

from collections.abc import Collection

import msgspec

from regrow.core.budget import Budget, Exhausted
from regrow.core.errors import ConfigError
from regrow.core.holders import Copy, Holders, led_on
from regrow.core.roster import Present, Roster, at_home, compose
from regrow.core.save_story import MEMORY

HOST, LAUNCHER, COORDINATOR, VAULT = "host", "launcher", "coordinator", "vault"
_PLACE = "place "
_FAILED, _STATE_LOST = 1, 3
"""Exit codes of `regrow run`."""


class Unharmed(msgspec.Struct, frozen=True, kw_only=True, tag="unharmed", tag_field="kind"):
    """Training goes on as it is."""


class Redealt(msgspec.Struct, frozen=True, kw_only=True, tag="redealt", tag_field="kind"):
    """Others hold the state as well: they finish the step under way, and go on."""

    holders: tuple[str, ...]
    lanes: dict[str, tuple[int, ...]]
    """Of those that are left, which lanes each computes from then on."""
    waits: str
    """Why they compute nothing until somebody is back; empty when they do."""


class Founded(msgspec.Struct, frozen=True, kw_only=True, tag="founded", tag_field="kind"):
    """Nobody is left who holds the state: the job goes back to a saved one."""

    where: str
    step: int
    records: int
    """So many committed steps follow it in the logs, and are replayed."""
    redone: int
    """So many steps are computed again."""
    redone_s: float | None


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended", tag_field="kind"):
    """The job is over."""

    exit: int | None
    """The exit code of `regrow run`; None when it is killed itself."""
    where: str | None
    """What a new run can begin from with --resume latest; None: nothing is left."""
    step: int
    redone: int
    """So many steps are computed again by it."""
    redone_s: float | None


Outcome = Unharmed | Redealt | Founded | Ended


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    lost: tuple[str, ...]
    """All at once."""
    outcome: Outcome
    why: tuple[str, ...]
    """The reasons, each a clause of its own."""

    @property
    def redone(self) -> int:
        return self.outcome.redone if isinstance(self.outcome, Founded | Ended) else 0


def known(holders: Holders) -> tuple[str, ...]:
    """All that can be asked about."""
    vault = (VAULT,) if holders.keeps else ()
    return (*holders.staff.runs, HOST, LAUNCHER, COORDINATOR, *vault, *(f"{_PLACE}{url}" for url in holders.places))


def named(holders: Holders, text: str) -> tuple[str, ...]:
    """What somebody wrote: names with commas between. A place may be called by its URL alone."""
    names, there = [], known(holders)
    for word in [text] if text in (*there, *holders.places) else text.split(","):
        name = f"{_PLACE}{word.strip()}" if word.strip() in holders.places else word.strip()
        if name not in there:
            raise ConfigError(f"--what-if {text}: there is no {name or 'such thing'} to lose; there is {', '.join(there)}")
        names.append(name)
    return tuple(dict.fromkeys(names))


def foretell(holders: Holders, lost: tuple[str, ...]) -> Foretold:
    """All of these are lost at once, and never seen again but for processes, which can be started anew."""
    is_over = HOST in lost or LAUNCHER in lost or (COORDINATOR in lost and not holders.has_own_coordinator)
    left = [copy for copy in holders.copies if f"{_PLACE}{copy.where}" not in lost]
    left = [copy for copy in left if copy.is_far or HOST not in lost]
    left = [copy for copy in left if copy.where != MEMORY or not is_over]
    if is_over:
        return _over(holders, lost, left)
    others = _others(holders, lost, left)
    gone = {name for name in lost if name in holders.staff.runs}
    seated = {seat.member.replica for seat in holders.roster.seats} if holders.roster is not None else set()
    if not gone & seated:
        return Foretold(lost=lost, outcome=Unharmed(), why=(*_idle(holders, gone), *others))
    stays = tuple(name for name in holders.replicas if name not in gone)
    restarts, failure = _restarts(holders, gone)
    place = next((url for url in holders.places if f"{_PLACE}{url}" not in lost), None)
    if stays and failure:
        ended, told = _ended_safely(holders, _FAILED, left, _now(holders, place))
        return Foretold(lost=lost, outcome=ended, why=(failure, *told, *restarts, *others))
    if stays:
        return _gone_on(holders, lost, gone, stays, (*restarts, *others))
    nobody = "nobody else holds the state"
    best = holders.newest(left)
    secured = _secured(place, left)
    if not holders.keeps or holders.is_stopping:
        why = "the job is about to end" if holders.keeps else "nothing is saved (--checkpoint, --memory-every)"
        ended, told = _ended_safely(holders, _STATE_LOST, left, secured)
        return Foretold(lost=lost, outcome=ended, why=(nobody, why, *told, *others))
    if failure:
        ended, told = _ended_safely(holders, _FAILED, left, secured)
        return Foretold(lost=lost, outcome=ended, why=(nobody, failure, *told, *restarts, *others))
    if best is None:
        why = "nothing that was saved is left" if holders.copies else "nothing is saved yet"
        return Foretold(lost=lost, outcome=_ended(holders, _STATE_LOST, left), why=(nobody, why, *others))
    redone = max(0, holders.reached - best.through)
    founded = Founded(
        where=best.where, step=best.step, records=best.records, redone=redone, redone_s=_seconds(holders, redone)
    )
    away = ("the vault is away, and brings it once it is back",) if holders.is_vault_away else ()
    return Foretold(lost=lost, outcome=founded, why=(nobody, _newest(best), *away, *restarts, *others))


def _over(holders: Holders, lost: tuple[str, ...], left: list[Copy]) -> Foretold:
    """`regrow run` is gone, and with it all that it started."""
    if HOST in lost:
        what = "all replicas, `regrow run` and this host's memory and folders are gone with the host"
    elif LAUNCHER in lost:
        what = "its workers, the vault and this host's memory go with `regrow run`"
    else:
        what = "the coordinator is part of `regrow run`, and goes with it"
    best = holders.newest(left)
    why = [what]
    if best is not None:
        why.append(_newest(best))
    elif HOST in lost and any(copy.where != MEMORY for copy in holders.copies):
        near = holders.newest([copy for copy in holders.copies if copy.where != MEMORY])
        assert near is not None
        why.append(f"no place beyond the host has a copy; should its disk come back, {near.where} holds step {near.step}")
    else:
        why.append("nothing is saved at any place that is left" if holders.places else "nothing is saved at any place")
    return Foretold(lost=lost, outcome=_ended(holders, None, left), why=tuple(why))


def _gone_on(
    holders: Holders, lost: tuple[str, ...], gone: Collection[str], stays: tuple[str, ...], others: tuple[str, ...]
) -> Foretold:
    roster = _without(holders, gone)
    lanes = {seat.member.replica: seat.lanes for seat in roster.seats}
    working = len(lanes.keys() & set(holders.staff.cast(frozenset(lanes)).places))
    waits = ""
    if working < holders.min_replicas and not holders.is_stopping and not holders.is_ending:
        waits = f"{working} of the {holders.min_replicas} replicas that the job needs are left"
    why = [f"{_and(stays)} {'hold' if len(stays) > 1 else 'holds'} the state as well"]
    if missing := sorted(set(range(holders.lanes)) - {lane for each in lanes.values() for lane in each}):
        why.append(f"{_lanes(missing)} left out until somebody is back (--on-loss shrink)")
    elif not waits:
        why.append("of the step under way only the lanes that nobody else holds are computed again")
    if len(stays) == 1:
        then = ", and has it saved at once" if holders.keeps else ", and nothing is saved: its loss would end the job"
        why.append(f"{stays[0]} alone holds the state from then on{then}")
    outcome = Redealt(holders=stays, lanes=lanes, waits=waits)
    return Foretold(lost=lost, outcome=outcome, why=(*why, *others))


def _without(holders: Holders, gone: Collection[str]) -> Roster:
    """The roster that follows, as the coordinator makes it."""
    roster = holders.roster
    assert roster is not None, "somebody with a seat is lost"
    seats = [seat for seat in roster.seats if seat.member.replica not in gone]
    staff = holders.staff.cast(frozenset(seat.member.replica for seat in seats))
    present = {
        seat.member: Present(
            endpoint=seat.endpoint,
            founder=seat.founder,
            spectates=seat.member.replica not in staff.places,
            weight=seat.weight,
        )
        for seat in seats
    }
    made = compose(roster.version, present, holders.lanes, roster.floor, "")
    return at_home(made, holders.lanes, staff.places) if roster.shrinks else made


def _restarts(holders: Holders, gone: Collection[str]) -> tuple[tuple[str, ...], str]:
    """What becomes of the replicas themselves, and why the job fails for it; empty when it does not."""
    if holders.is_ending:
        return ("the last step is committed: nobody is replaced any more",), ""
    staff, budget = holders.staff, Budget(holders.budget, holders.spent)
    again, told, lost = [], [], 0
    for name in sorted(gone):
        if name in staff.leaving or name in staff.moving:
            told.append(f"{name} was about to leave, and is not started again")
            continue
        allowed = budget.spend(name, holders.now_s)
        if isinstance(allowed, Exhausted):
            lost += 1
            told.append(f"{name} is not started again: {allowed.why}")
        else:
            again.append(name)
    if again:
        told.insert(0, f"{_and(again)} {'are' if len(again) > 1 else 'is'} started again")
    left = len(staff.runs) - lost
    failure = ""
    if lost and left < max(1, holders.min_replicas):
        failure = f"only {left} replicas may still run, and the job needs {max(1, holders.min_replicas)}"
    return tuple(told), failure


def _others(holders: Holders, lost: tuple[str, ...], left: list[Copy]) -> tuple[str, ...]:
    """What becomes of what is no replica."""
    told = []
    if VAULT in lost:
        told.append("the vault is started again: what is whole in memory stays, and a save under way is made anew")
    if COORDINATOR in lost:
        told.append("healthy steps need no coordinator; until it is started again nobody that is lost is replaced")
    for name in lost:
        if name.startswith(_PLACE):
            best = holders.newest(left)
            rest = f"the newest copy that is left is that of step {best.step}, {_where(best)}" if best else "no copy is left"
            told.append(f"training needs nothing of {name.removeprefix(_PLACE)}; {rest}")
    return tuple(told)


def _idle(holders: Holders, gone: Collection[str]) -> tuple[str, ...]:
    if not gone:
        return ()
    if holders.roster is None:
        return ("no replica holds the state yet: the job is only being founded",)
    has, is_ = ("have", "they are") if len(gone) > 1 else ("has", "it is")
    return (f"{_and(sorted(gone))} {has} no seat and no lanes: {is_} started again, and nobody else notices",)


def _ended(holders: Holders, code: int | None, left: list[Copy], saved: Copy | None = None) -> Ended:
    """`saved`: at a place, before the end."""
    far = [copy for copy in left if copy.where != MEMORY]  # memory ends with `regrow run`
    best = holders.newest(far)
    if saved is not None and (best is None or saved.step > best.step):
        best = led_on(saved, far)
    redone = max(0, holders.reached - (best.through if best is not None else 0))
    return Ended(
        exit=code,
        where=best.where if best is not None else None,
        step=best.step if best is not None else 0,
        redone=redone,
        redone_s=_seconds(holders, redone),
    )


def _ended_safely(holders: Holders, code: int, left: list[Copy], saved: Copy | None) -> tuple[Ended, tuple[str, ...]]:
    """And in words what is saved before, where that is newer than all that lies at places."""
    ended = _ended(holders, code, left, saved)
    if saved is None or ended == _ended(holders, code, left):
        return ended, ()
    return ended, (f"the state of step {saved.step} is made durable first, at {saved.where}",)


def _now(holders: Holders, place: str | None) -> Copy | None:
    """What those who stay save before they end, at the nearest place that is left."""
    if place is None or not holders.keeps:
        return None
    return Copy(where=place, step=holders.reached, through=holders.reached)


def _secured(place: str | None, left: list[Copy]) -> Copy | None:
    """What the vault makes durable there once nobody saves any more. Records beside it go with memory."""
    memory = next((copy for copy in left if copy.where == MEMORY), None)
    return None if place is None or memory is None else Copy(where=place, step=memory.step, through=memory.step)


def _seconds(holders: Holders, steps: int) -> float | None:
    return None if holders.step_s is None else steps * holders.step_s


def _newest(copy: Copy) -> str:
    logged = f"; the logs beside it lead to step {copy.through}" if copy.records else ""
    return f"the newest state that is left is that of step {copy.step}, {_where(copy)}{logged}"


def _where(copy: Copy) -> str:
    return "in this host's memory" if copy.where == MEMORY else f"at {copy.where}"


def _lanes(lanes: list[int]) -> str:
    return f"lane {lanes[0]} is" if len(lanes) == 1 else f"lanes {' '.join(map(str, lanes))} are"


def _and(names: Collection[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
