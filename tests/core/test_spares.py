"""Spares: parked until they are needed, or in step as shadows."""

import msgspec
from test_membership import CONFIG, A, B, C, Desk, join, rosters
from test_wishes import asks, desk, enter, members, told

from regrow.core.membership_effects import MembershipEffect, Send, Start
from regrow.core.messages import CaughtUp, Listen, Overflowed, Park
from regrow.core.roster import Member

D = Member("r3", 0)


def listens(effects: list[MembershipEffect]) -> list[Member]:
    return [e.member for e in effects if isinstance(e, Send) and isinstance(e.message, Listen)]


def test_a_spare_is_started_with_the_others_and_told_nothing() -> None:
    job = desk(spares=1)
    assert [e.member for e in job.opening if isinstance(e, Start)] == [A, B, C, D]
    assert job.hears(join(D)) == []


def test_a_parked_spare_takes_over_and_who_comes_back_is_parked() -> None:
    job = desk(spares=1)
    job.hears(join(D))
    effects = job.sees_dead(B)
    (made,) = rosters(effects)
    assert members(made) == ["r0.0", "r2.0"]
    assert listens(enter(job)) == [D]
    back = Member("r1", 1)
    assert listens(job.hears(join(back))) == [], "somebody else has begun to catch up"
    (made,) = rosters(job.hears(CaughtUp(member=D, step=1)))
    assert members(made) == ["r0.0", "r2.0", "r3.0"] and not any(seat.spectates for seat in made.seats)
    assert listens(enter(job)) == []
    job.sees_dead(D)
    assert listens(enter(job)) == [back]


def parks(effects: list[MembershipEffect]) -> list[Member]:
    return [e.member for e in effects if isinstance(e, Send) and isinstance(e.message, Park)]


def test_who_is_not_needed_any_more_listens_no_longer() -> None:
    job = desk(spares=1)
    job.hears(join(D))
    assert listens(asks(job, kind="scale", replicas=4)) == [D]
    assert parks(asks(job, kind="scale", replicas=3)) == [D]
    assert listens(asks(job, kind="scale", replicas=4)) == [D]


def test_a_new_coordinator_parks_who_listens_and_is_not_needed() -> None:
    job = desk(spares=1)
    version = job.machine.version
    back = Desk(job.saved, config=msgspec.structs.replace(CONFIG, spares=1), now=job.now)
    back.hears(*(join(m, seen=version, entered=version) for m in (A, B, C)))
    assert parks(back.hears(join(D, listens=True))) == [D]
    assert parks(back.hears(join(D))) == [], "it has heard of it"


def test_a_spare_that_dies_while_it_catches_up_is_relieved() -> None:
    job = desk(spares=1)
    job.hears(join(D))
    job.sees_dead(B)
    enter(job)
    job.hears(join(Member("r1", 1)))
    assert listens(job.sees_dead(D)) == [Member("r1", 1)]


def test_a_shadow_is_seated_without_lanes_and_has_them_with_the_roster_that_answers_a_death() -> None:
    job = desk(spares=1, shadow=True)
    assert listens(job.hears(join(D))) == [D]
    (made,) = rosters(job.hears(CaughtUp(member=D, step=1)))
    assert made.seats[3].member == D and made.seats[3].spectates and made.seats[3].lanes == ()
    enter(job)
    (made,) = rosters(job.sees_dead(B))
    assert [(str(seat.member), seat.lanes) for seat in made.seats] == [("r0.0", (0, 1)), ("r2.0", (2, 3)), ("r3.0", (4, 5))]
    back = Member("r1", 1)
    enter(job)
    assert listens(job.hears(join(back))) == [back]
    (made,) = rosters(job.hears(CaughtUp(member=back, step=2)))
    assert [seat.spectates for seat in made.seats] == [False, True, False, False], "the replica that came back is the shadow"


def test_nobody_waits_for_a_shadow_that_cannot_keep_up() -> None:
    job = desk(spares=1, shadow=True)
    job.hears(join(D))
    assert job.hears(Overflowed(member=D, why="its disk is slow")) == []
    job.sees_dead(B)
    (made,) = rosters(enter(job))
    assert D in made.members and made.base is None, "now it is needed"


def test_scaling_up_seats_the_spares_first_and_hires_others() -> None:
    job = desk(spares=1)
    job.hears(join(D))
    effects = asks(job, kind="scale", replicas=4)
    assert listens(effects) == [D] and [e.member for e in effects if isinstance(e, Start)] == [Member("r4", 0)]
    job.hears(CaughtUp(member=D, step=1))
    assert told(enter(job)) == [("fulfilled", "scale to 4 replicas")]


def test_with_a_shadow_a_migration_needs_nobody_to_catch_up() -> None:
    job = desk(spares=1, shadow=True)
    job.hears(join(D), CaughtUp(member=D, step=1))
    enter(job)
    (made,) = rosters(asks(job, kind="migrate", replica="r0"))
    assert members(made) == ["r1.0", "r2.0", "r3.0"] and made.base is not None
