"""Lanes that are left out, suspects and poison: what the coordinator decides, and what a resolve makes of it."""

import msgspec
import pytest
from test_membership import CONFIG, A, B, C, Desk, ends, join, raised, rosters
from test_resolve import LANES, V1, roster, says

from regrow.core.lanes import Cell, Node
from regrow.core.membership_effects import MembershipEffect, Poisoned
from regrow.core.membership_events import Died, Hung
from regrow.core.messages import CaughtUp, Contract, Entered, Left
from regrow.core.progress import Place
from regrow.core.resolve import Resolution, resolve
from regrow.core.roster import Halt, Member, Roster, Suspect, at_home

CELL = Cell(0, 2)


def dies_in_lane(desk: Desk, member: Member, struck: bool = False) -> list[MembershipEffect]:
    place = Place(step=CELL.step, lane=CELL.lane, phase="microbatch")
    return desk._take(Died(now=desk.now, member=member, how="was killed", clean=False, place=place, struck=struck))


def is_poison(effects: list[MembershipEffect]) -> bool:
    return any(isinstance(effect, Poisoned) for effect in effects)


def shares(board: Roster, *table) -> dict[str, tuple[tuple[Node, ...], tuple[int, ...]]]:
    outcome = resolve(board, LANES, list(table))
    assert isinstance(outcome, Resolution)
    return {str(share.member): (share.keep, share.compute) for share in outcome.shares}


def test_a_lane_somebody_died_in_is_suspect_and_forgotten_once_passed() -> None:
    desk = Desk().founded()
    (made,) = rosters(dies_in_lane(desk, A))
    assert made.suspects == (Suspect(cell=CELL, dead=(A,)),) and made.skips == ()
    desk.hears(*(Entered(member=m, version=made.version, step=1) for m in (B, C)))
    (made,) = rosters(desk.sees_dead(C))
    assert made.suspects == ()


def test_the_same_replica_twice_is_no_poison() -> None:
    desk = Desk().founded()
    dies_in_lane(desk, A)
    again = Member("r0", 1)
    desk.hears(*(Entered(member=m, version=desk.machine.version, step=0) for m in (B, C)), join(again))
    desk.hears(CaughtUp(member=again, step=0))
    effects = dies_in_lane(desk, again)
    assert not [e for e in effects if isinstance(e, Poisoned)] and rosters(effects)[0].suspects[0].replicas == ("r0",)


@pytest.mark.parametrize("struck", [(True, True, True), (True, False, False), (False, True, False), (False, True, True)])
def test_one_kill_from_outside_is_not_counted(struck: tuple[bool, bool, bool]) -> None:
    desk = Desk().founded()
    assert not is_poison(dies_in_lane(desk, A, struck[0]))
    assert not is_poison(dies_in_lane(desk, A, struck[0])), "told again"
    assert not is_poison(dies_in_lane(desk, B, struck[1]))
    back = Desk(desk.saved, now=desk.now)
    assert is_poison(dies_in_lane(back, C, struck[2])), "the coordinator forgot who died"


def test_two_replicas_make_it_poison_and_the_job_halts_in_good_order() -> None:
    desk = Desk().founded()
    dies_in_lane(desk, A)
    effects = dies_in_lane(desk, B)
    (poisoned,) = [e for e in effects if isinstance(e, Poisoned)]
    assert (poisoned.poison.cell, poisoned.poison.replicas, poisoned.decision) == (CELL, ("r0", "r1"), "stop")
    (made,) = rosters(effects)
    assert made.halt is not None and made.halt.step == CELL.step and made.members == (C,)
    assert "--on-poison skip" in made.halt.why and ends(effects) == []
    desk.hears(Left(member=C, version=made.version, step=0))
    assert ends(desk.sees_dead(C, clean=True)) == ["failed"]


def test_poison_that_is_skipped_is_in_every_later_roster_and_outlives_the_coordinator() -> None:
    config = msgspec.structs.replace(CONFIG, on_poison="skip")
    desk = Desk(config=config).founded()
    dies_in_lane(desk, A)
    (made,) = rosters(dies_in_lane(desk, B))
    assert (made.skips, made.suspects, made.halt) == ((CELL,), (), None)
    back = Desk(desk.saved, config, now=desk.now)
    assert not [e for e in dies_in_lane(back, A) + dies_in_lane(back, B) if isinstance(e, Poisoned)], "told again: old news"
    assert back.saved is not None and back.saved.skips == (CELL,)


def test_a_hang_in_a_lane_counts_like_a_death_in_it() -> None:
    desk = Desk().founded()
    place = Place(step=CELL.step, lane=CELL.lane, phase="microbatch")
    (made,) = rosters(desk._take(Hung(now=desk.now, member=A, why="hangs", place=place)))
    assert made.suspects == (Suspect(cell=CELL, dead=(A,)),)
    assert [e for e in dies_in_lane(desk, B) if isinstance(e, Poisoned)]


def test_the_same_exception_is_the_lanes_fault_only_in_the_same_lane() -> None:
    def heard(lane: int | None) -> list[str]:
        desk = Desk().founded()
        told = [msgspec.structs.replace(raised(m), step=0, lane=at) for m, at in ((A, 2), (B, lane))]
        return ends(desk.hears(*told))

    assert (heard(2), heard(3), heard(None)) == ([], ["failed"], ["failed"])


def test_with_a_vault_one_kill_from_outside_makes_no_lane_suspect() -> None:
    config = msgspec.structs.replace(CONFIG, keeps=True)
    desk = Desk(config=config).founded()
    (made,) = rosters(dies_in_lane(desk, A, struck=True))
    assert made.suspects == (), "a lone survivor goes on at once"
    back = Desk(desk.saved, config, now=desk.now)
    (made,) = rosters(dies_in_lane(back, B, struck=True))
    assert made.suspects == (Suspect(cell=CELL, dead=(A, B), struck=True),), "it is remembered, and the second one counts"


@pytest.mark.parametrize(("keeps", "struck"), [(True, False), (False, True)])
def test_a_death_that_is_explained_or_has_no_vault_makes_its_lane_suspect(keeps: bool, struck: bool) -> None:
    desk = Desk(config=msgspec.structs.replace(CONFIG, keeps=keeps)).founded()
    (made,) = rosters(dies_in_lane(desk, A, struck))
    assert made.suspects == (Suspect(cell=CELL, dead=(A,), struck=struck),)


def test_suspects_bind_the_last_holder_only_while_another_may_come() -> None:
    alone = msgspec.structs.replace(CONFIG, budget=msgspec.structs.replace(CONFIG.budget, max_restarts=0))
    desk = Desk(config=alone).founded()
    desk.sees_dead(B)
    (made,) = rosters(dies_in_lane(desk, A))
    assert made.members == (C,) and made.suspects, "r0's budget is not judged yet"
    (made,) = rosters(desk.waits(1, C))
    assert (made.members, made.cause, made.suspects) == ((C,), "alone", ())


def test_the_samples_of_a_lane_follow_from_the_contract() -> None:
    terms = {"seed": "5", "lanes": "6", "microbatches_per_lane": "2", "batch_size": "3", "dataset size": "97"}
    assert len(set(Contract(terms=terms).samples(CELL))) == 6
    assert Contract(terms={}).samples(CELL) == ()


# Resolve


def test_a_suspect_goes_to_one_member_that_computes_nothing_else() -> None:
    board = msgspec.structs.replace(roster(A, B, C), suspects=(Suspect(cell=Cell(5, 1), dead=(A,)),))
    told = shares(board, says(A, held=()), says(B, held=(Node(3, 4),)), says(C, held=()))
    assert told["r2.0"] == ((), (1,)), "not r0, which died of it; not r1, which would lose a lane"
    assert told["r0.0"][1] + told["r1.0"][1] == (0, 2)


def test_a_skipped_lane_is_nobodys_and_what_contains_it_is_dropped() -> None:
    board = msgspec.structs.replace(roster(A, B), skips=(Cell(5, 1),))
    told = shares(board, says(A, held=(Node(0, 2),)), says(B, held=(Node(2, 4),)))
    assert told == {"r0.0": ((), (0,)), "r1.0": ((Node(2, 4),), ())}
    assert shares(board, says(A, 6), says(B, 6)) == {"r0.0": ((), (0, 1)), "r1.0": ((), (2, 3))}, "in another step it counts"


def test_in_a_shrinking_job_nobody_takes_over_anothers_lanes() -> None:
    board = at_home(roster(A, C), LANES, ("r0", "r1", "r2"))
    assert [seat.lanes for seat in board.seats] == [(0,), (2, 3)], "lane 1 is r1's"
    told = shares(board, says(A, held=()), says(C, held=(Node(2, 3),)))
    assert told == {"r0.0": ((), (0,)), "r2.0": ((Node(2, 3),), (3,))}
    told = shares(board, says(A, held=(Node(0, 1),)), says(C, holds_state=False, step=0, attempt=V1))
    assert told["r2.0"] == ((), ()), "it is still being healed"


@pytest.mark.parametrize("halted", [4, 5])
def test_a_halt_ends_the_job_before_its_step(halted: int) -> None:
    board = msgspec.structs.replace(roster(A, B), halt=Halt(step=halted, why="poison"))
    outcome = resolve(board, LANES, [says(A), says(B)])
    assert isinstance(outcome, Resolution) and outcome.last == halted
