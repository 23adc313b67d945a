"""Wishes: which are granted, what the coordinator makes of them, and when they hold."""

import msgspec
import pytest
from test_membership import CONFIG, A, B, C, Desk, join, rosters

from regrow.core.membership_effects import Kill, MembershipEffect, Persist, Send, Start, WishTold
from regrow.core.membership_events import StopRequested, Ticked, WishCame
from regrow.core.messages import CaughtUp, Complain, Dismissed, Ending, Entered, Listen, Released, Stop
from regrow.core.resolve import Resolution, Stateless, Statement, resolve
from regrow.core.roster import Endpoint, Member, Roster, Seat, Version
from regrow.core.staff import found
from regrow.core.wishes import Limits, Wish, refusal

D = Member("r3", 0)


def asks(desk: Desk, **wish: object) -> list[MembershipEffect]:
    return desk._take(WishCame(now=desk.now, ticket=7, wish=Wish(**wish)))  # type: ignore[arg-type]


def told(effects: list[MembershipEffect]) -> list[tuple[str, str]]:
    return [(effect.state, str(effect.wish)) for effect in effects if isinstance(effect, WishTold)]


def enter(desk: Desk, step: int = 1) -> list[MembershipEffect]:
    """Every member of the newest roster goes on under it."""
    roster = desk.machine.roster
    assert roster is not None
    return desk.hears(*(Entered(member=m, version=roster.version, step=step) for m in roster.members))


def desk(**config: object) -> Desk:
    desk = Desk(config=msgspec.structs.replace(CONFIG, **config)).founded()
    enter(desk, 0)
    return desk


def members(roster: Roster) -> list[str]:
    return [str(member) for member in roster.members]


STAFF = found(("r0", "r1", "r2"), 0)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish(kind="scale", replicas=0), "at least 1 replica: stop it with Ctrl-C"),
        (Wish(kind="scale", replicas=1), "fewer than the job needs (--min-replicas 2)"),
        (Wish(kind="scale", replicas=6), "more than the job may have (--max-replicas 5)"),
        (Wish(kind="leave", replica="r9"), "there is no replica r9: the job has r0, r1, r2"),
        (Wish(kind="migrate", replica="r9"), "there is no replica r9: the job has r0, r1, r2"),
    ],
)
def test_a_refusal_says_what_can_be_had(wish: Wish, says: str) -> None:
    assert says in (refusal(wish, STAFF, Limits(least=2, most=5)) or "")


def test_nobody_leaves_below_the_minimum_nor_twice_nor_as_the_last() -> None:
    limits = Limits(least=2, most=None)
    leaves = Wish(kind="leave", replica="r2")
    assert refusal(leaves, STAFF, limits) is None
    fewer = STAFF.without("r2")
    assert "is leaving already" in (refusal(leaves, fewer, limits) or "")
    assert "--min-replicas" in (refusal(Wish(kind="leave", replica="r1"), fewer, limits) or "")
    last = fewer.without("r1")
    assert "the only one that works" in (refusal(Wish(kind="leave", replica="r0"), last, Limits(least=1, most=None)) or "")


def test_what_became_of_a_wish_is_told_before_it_is_forgotten() -> None:
    """A coordinator that died in between would never have said it, and nobody else knows of the wish."""
    job = desk()
    asks(job, kind="leave", replica="r1")
    enter(job)
    effects = [type(effect) for effect in job.all]
    assert effects.count(WishTold) == 2 and effects[::-1].index(Persist) < effects[::-1].index(WishTold)


def test_a_job_that_has_not_begun_or_is_ending_grants_nothing() -> None:
    fresh = Desk()
    (effect,) = asks(fresh, kind="scale", replicas=4)
    assert isinstance(effect, WishTold) and effect.state == "refused" and "has not begun" in effect.why
    ending = desk()
    ending.hears(Ending(member=A, step=9))
    (effect,) = asks(ending, kind="leave", replica="r1")
    assert isinstance(effect, WishTold) and effect.state == "refused" and "is ending" in effect.why


def test_whoever_leaves_is_left_out_at_a_boundary_and_not_restarted() -> None:
    job = desk()
    effects = asks(job, kind="leave", replica="r1")
    (made,) = rosters(effects)
    assert members(made) == ["r0.0", "r2.0"] and made.base is not None
    assert told(effects) == [("granted", "r1 leaves")]
    assert told(enter(job)) == [("fulfilled", "r1 leaves")]
    job.hears(Released(member=B, version=made.base, step=1))
    assert not [e for e in job.sees_dead(B) if isinstance(e, Start)] and job.machine.version == made.version


def test_whoever_was_left_out_is_not_asked_back_while_its_word_of_that_is_on_its_way() -> None:
    job = desk()
    (made,) = rosters(job.hears(Dismissed(member=A, within_s=60.0)))
    assert members(made) == ["r1.0", "r2.0"]
    assert job.saved is not None
    back = Desk(job.saved, now=job.now)
    version = made.base
    assert version is not None
    back.hears(*(join(m, seen=made.version, entered=version) for m in (A, B, C)))
    effects = back.hears(*(Entered(member=m, version=made.version, step=1) for m in (B, C)))
    assert not [e for e in effects if isinstance(e, Send) and e.member == A], "it was told to end by a coordinator that died"


def test_a_wish_is_durable_before_it_is_granted_and_outlives_the_coordinator() -> None:
    job = desk()
    effects = asks(job, kind="scale", replicas=4)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(WishTold) < kinds.index(Start)
    assert job.saved is not None
    back = Desk(job.saved, now=job.now)
    assert [e.member for e in back.opening if isinstance(e, Start)] == [A, B, C, D]
    version = job.machine.version
    back.hears(*(join(m, seen=version, entered=version) for m in (A, B, C)))
    assert [e.member for e in back.hears(join(D)) if isinstance(e, Send) and isinstance(e.message, Listen)] == [D]
    (made,) = rosters(back.hears(CaughtUp(member=D, step=1)))
    assert members(made) == ["r0.0", "r1.0", "r2.0", "r3.0"]
    assert told(enter(back)) == [("fulfilled", "scale to 4 replicas")]


def test_a_failure_meanwhile_is_answered_first_and_the_wish_after_it() -> None:
    job = desk()
    asks(job, kind="leave", replica="r1")
    (made,) = rosters(job.sees_dead(A))
    assert made.base is None and members(made) == ["r1.0", "r2.0"], "it may be needed to testify"
    assert [seat.lanes for seat in made.seats] == [(), (0, 1, 2, 3, 4, 5)], "it is given nothing more to do"
    (made,) = rosters(enter(job))
    assert members(made) == ["r2.0"] and made.base is not None


def test_one_that_dies_before_it_could_leave_has_left() -> None:
    job = desk()
    asks(job, kind="leave", replica="r1")
    effects = job.sees_dead(B)
    assert members(rosters(effects)[0]) == ["r0.0", "r2.0"] and not [e for e in effects if isinstance(e, Start)]
    assert told(enter(job)) == [("fulfilled", "r1 leaves")]


def test_a_migration_seats_the_successor_and_leaves_the_other_out_by_one_roster() -> None:
    job = desk()
    (start,) = [e for e in asks(job, kind="migrate", replica="r1") if isinstance(e, Start)]
    assert start.member == D
    job.hears(join(D))
    (made,) = rosters(job.hears(CaughtUp(member=D, step=1)))
    assert members(made) == ["r0.0", "r2.0", "r3.0"] and made.base is not None
    assert told(enter(job)) == [("fulfilled", "r1 is replaced by another replica, and leaves")]


def test_the_only_replica_moves_by_two_rosters() -> None:
    job = desk()
    asks(job, kind="scale", replicas=1)
    enter(job)
    job.sees_dead(B)
    job.sees_dead(C)
    asks(job, kind="migrate", replica="r0")
    job.hears(join(D))
    (both,) = rosters(job.hears(CaughtUp(member=D, step=1)))
    assert members(both) == ["r0.0", "r3.0"], "somebody who holds the state stays"
    (moved,) = rosters(enter(job))
    assert members(moved) == ["r3.0"] and told(enter(job)) != []


def test_scaling_down_takes_back_what_has_not_come_yet() -> None:
    job = desk()
    asks(job, kind="scale", replicas=4)
    effects = asks(job, kind="scale", replicas=3)
    assert [e.member for e in effects if isinstance(e, Kill)] == [D]
    assert told(effects) == [
        ("granted", "scale to 3 replicas"),
        ("overtaken", "scale to 4 replicas"),
        ("fulfilled", "scale to 3 replicas"),
    ]


def test_below_the_minimum_the_job_waits_and_goes_on_with_the_next_who_comes() -> None:
    job = desk(min_replicas=3)
    (made,) = rosters(job.sees_dead(A))
    assert made.waits == "2 of the 3 replicas that the job needs are here"
    enter(job)
    back = Member("r0", 1)
    (made,) = rosters(job.hears(join(back)))
    assert made.waits == "" and made.base is None and back in made.members


def test_a_job_that_waits_seats_whoever_came_though_not_all_have_entered() -> None:
    """One whose table was lost would never enter: the others do nothing together that could fail and tell of it."""
    job = desk(min_replicas=3)
    (waiting,) = rosters(job.sees_dead(A))
    back = Member("r0", 1)
    assert rosters(job.hears(Entered(member=B, version=waiting.version, step=1), join(back))) == []
    assert rosters(job.waits(10, B, C, back)) == []
    (made,) = rosters(job.waits(1, B, C, back))
    assert made.waits == "" and made.base is None and members(made) == ["r0.1", "r1.0", "r2.0"]


def test_a_job_that_waits_can_be_stopped() -> None:
    job = desk(min_replicas=3)
    job.sees_dead(A)
    (made,) = rosters(job._take(StopRequested(now=job.now)))
    assert made.waits == ""


def test_nobody_leaves_a_job_that_lost_another_for_good_and_needs_it() -> None:
    job = desk(min_replicas=2, budget=msgspec.structs.replace(CONFIG.budget, max_restarts=0))
    asks(job, kind="leave", replica="r1")
    job.sees_dead(A)
    effects = enter(job)
    assert ("overtaken", "r1 leaves") in told(effects)
    roster = job.machine.roster
    assert roster is not None and not roster.waits and members(roster) == ["r1.0", "r2.0"]


def test_one_that_has_handed_over_does_not_testify_alone() -> None:
    board = Roster(version=Version(1, 3), seats=(seat(A), seat(B)), floor=0, cause="died-r2.0")
    gone = says(A, handed=(C,))
    assert isinstance(resolve(board, 6, [gone, says(B, handed=(C,))]), Stateless)
    beside = resolve(board, 6, [says(A, handed=(B,)), says(B)])
    assert isinstance(beside, Resolution) and beside.left == () and beside.share(A).member == A


def test_one_that_the_others_are_far_ahead_of_has_left() -> None:
    board = Roster(version=Version(1, 3), seats=(seat(A), seat(B)), floor=0, cause="died-r2.0")
    outcome = resolve(board, 6, [says(A, handed=(B,), step=1), says(B, step=3)])
    assert isinstance(outcome, Resolution)
    assert outcome.left == (A,) and outcome.step == 3 and outcome.share(A).compute == ()


def test_one_that_has_handed_over_and_was_passed_has_left_though_it_is_only_a_step_behind() -> None:
    board = Roster(version=Version(1, 3), seats=(seat(A), seat(B)), floor=0, cause="died-r2.0")
    outcome = resolve(board, 6, [says(A, handed=(B,), step=2), says(B, step=3)])
    assert isinstance(outcome, Resolution) and outcome.left == (A,)


def test_a_replica_that_was_given_up_does_not_count_for_the_minimum() -> None:
    limits = Limits(least=2, most=None)
    assert refusal(Wish(kind="leave", replica="r1"), STAFF.losing("r2"), limits) is not None


def seat(member: Member) -> Seat:
    lanes = () if member == A else tuple(range(6))
    return Seat(member=member, endpoint=Endpoint(str(member), 1), founder=True, lanes=lanes, spectates=not lanes)


def says(member: Member, step: int = 2, handed: tuple[Member, ...] = ()) -> Statement:
    return Statement(member=member, holds_state=True, step=step, attempt=Version(1, 1), handed=handed, last=9)


def dismissed(job: Desk, *told_to_end: Member) -> list[MembershipEffect]:
    return job.hears(*(Dismissed(member=member, within_s=20.0) for member in told_to_end))


def test_whoever_is_told_to_end_is_left_out_at_a_boundary_and_has_another_life() -> None:
    job = desk()
    (made,) = rosters(dismissed(job, B))
    assert members(made) == ["r0.0", "r2.0"] and made.base is not None
    job.hears(Released(member=B, version=made.base, step=1))
    enter(job)
    (start,) = [e for e in job.sees_dead(B) if isinstance(e, Start)]
    assert start.member == Member("r1", 1) and job.machine.version == made.version
    job.hears(join(start.member))
    (made,) = rosters(job.hears(CaughtUp(member=start.member, step=3)))
    assert members(made) == ["r0.0", "r1.1", "r2.0"]


def test_it_goes_though_too_few_are_left_and_these_wait() -> None:
    job = desk(min_replicas=3)
    (made,) = rosters(dismissed(job, B))
    assert members(made) == ["r0.0", "r2.0"] and made.base is not None and made.waits


def test_one_that_is_told_to_end_while_the_job_waits_is_not_waited_for() -> None:
    job = desk(min_replicas=3)
    job.sees_dead(A)
    enter(job)
    effects = dismissed(job, B)
    (made,) = rosters(effects)
    assert members(made) == ["r2.0"] and [e.member for e in effects if isinstance(e, Kill)] == [B]


def test_when_all_are_told_to_end_and_nobody_comes_the_job_stops() -> None:
    job = desk()
    dismissed(job, A, B)
    assert not [e for e in job.all if isinstance(e, Send) and isinstance(e.message, Stop)]
    effects = dismissed(job, C)
    assert [e.member for e in effects if isinstance(e, Send) and isinstance(e.message, Stop)] == [A, B, C]


def test_whoever_is_told_to_end_while_the_job_stops_stops_with_it() -> None:
    job = desk()
    job._take(StopRequested(now=job.now))
    assert not rosters(dismissed(job, B))


def test_whoever_was_to_leave_stops_with_a_job_that_stops_before_it_could() -> None:
    """All were told to end, so nobody could leave yet; when they stop together nobody has to (seed 101, 40 faults)."""
    job = desk(spares=1)
    job.hears(join(D))
    job.hears(Complain(member=A, version=job.machine.version, why="a reset line"))
    asks(job, kind="leave", replica="r0")
    dismissed(job, A, B, C)
    job.waits(2, A, B, C, D)
    enter(job)
    before = job.machine.version
    job._take(StopRequested(now=job.now))
    job.sees_dead(D)
    assert job.machine.version == before


def test_the_last_that_is_told_to_end_waits_for_another_while_there_is_time() -> None:
    job = desk()
    job.sees_dead(A)
    job.sees_dead(B)
    enter(job)
    dismissed(job, C)
    assert job.saved is not None and not job.saved.stopping, "r0 and r1 are on their way"
    job.now = 11.0
    job._take(Ticked(now=job.now))
    assert job.saved.stopping


def test_a_parked_or_listening_one_that_is_told_to_end_ends() -> None:
    job = desk()
    asks(job, kind="scale", replicas=4)
    job.hears(join(D))
    assert [e.member for e in dismissed(job, D) if isinstance(e, Kill)] == [D]
    assert [e.member for e in job.sees_dead(D) if isinstance(e, Start)] == [Member("r3", 1)]
