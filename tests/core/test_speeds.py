"""Uneven lanes: how they are dealt, what a worker tells, and when the coordinator changes its mind."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_membership import CONFIG, A, B, C, Desk, rosters
from test_wishes import desk, enter

from regrow.core.lanes import deal, deal_by_weight
from regrow.core.membership_effects import Made
from regrow.core.messages import Timed
from regrow.core.roster import Member, Roster
from regrow.core.speeds import NORMAL, Gauge, SpeedConfig, Speeds


@given(st.integers(1, 24), st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_every_lane_is_dealt_once_in_order_and_nobody_goes_without(lanes: int, weights: list[int]) -> None:
    dealt = deal_by_weight(lanes, weights)
    assert [lane for own in dealt for lane in own] == list(range(lanes))
    assert len(dealt) == len(weights) and (len(weights) > lanes or all(dealt))


@given(st.integers(3, 9), st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_no_other_deal_is_done_earlier(lanes: int, weights: list[int]) -> None:
    def done(counts: tuple[int, ...]) -> float:
        return max(count / weight for count, weight in zip(counts, weights, strict=True))

    ways = [counts for counts in product(range(1, lanes + 1), repeat=3) if sum(counts) == lanes]
    ours = done(tuple(map(len, deal_by_weight(lanes, weights))))
    assert ours == min(map(done, ways))


def test_equal_weights_are_dealt_as_without() -> None:
    assert deal_by_weight(10, [NORMAL] * 4) == deal(10, 4)


def test_a_gauge_tells_at_first_when_it_changed_and_now_and_then() -> None:
    gauge = Gauge(least=3, change=0.1, every=6)
    assert [gauge.computed(2, 1.0) for _ in range(8)] == [None, None, 0.5, None, None, None, None, None]
    assert gauge.computed(2, 1.0) == 0.5, "now and then"
    told = [gauge.computed(1, 1.0) for _ in range(6)]
    assert 1.0 in told, "it has become slow"
    assert gauge.computed(0, 3.0) is None, "nothing was computed"


def test_one_odd_step_is_not_told() -> None:
    gauge = Gauge(least=3, every=1000)
    for _ in range(6):
        gauge.computed(1, 1.0)
    assert gauge.computed(1, 60.0) is None


def speeds(**config: object) -> Speeds:
    return Speeds(SpeedConfig(**config))  # type: ignore[arg-type]


def hear(known: Speeds, step: int = 0, **lane_s: float) -> None:
    for name, taken_s in lane_s.items():
        known.hear(name, taken_s, step)


EVEN = {"r0": 4, "r1": 4, "r2": 4}


def test_lanes_are_dealt_anew_only_when_a_step_becomes_much_shorter() -> None:
    known = speeds()
    hear(known, r0=1.0, r1=1.0, r2=1.1)
    assert known.reconsider(EVEN, 12) is None and known.weights == {}
    hear(known, r0=1.0, r1=1.0, r2=2.0)
    why = known.reconsider(EVEN, 12)
    assert why is not None and "2.0 times as long on r2" in why
    assert known.weights == {"r2": 50}


def test_lanes_that_take_no_time_do_not_move() -> None:
    known = speeds()
    hear(known, r0=0.001, r1=0.001, r2=0.003)
    assert known.reconsider(EVEN, 12) is None and known.weights == {}


def test_they_rest_between_two_changes_and_do_not_swing() -> None:
    known = speeds(rest_steps=20)
    hear(known, r0=1.0, r1=1.0, r2=2.0)
    assert known.reconsider(EVEN, 12) is not None
    uneven = {"r0": 5, "r1": 5, "r2": 2}
    hear(known, step=5, r2=1.0)
    assert known.reconsider(uneven, 12) is None, "too soon"
    hear(known, step=20, r2=2.0)
    assert known.reconsider(uneven, 12) is None, "well dealt already"
    hear(known, step=40, r2=1.0)
    assert known.reconsider(uneven, 12) is not None and known.weights == {}


def test_nobody_is_judged_before_all_are_known() -> None:
    known = speeds()
    hear(known, r0=1.0, r2=9.0)
    assert known.reconsider(EVEN, 12) is None


def test_the_operators_word_is_not_measured() -> None:
    known = speeds(fixed={"r1": 0.5})
    assert known.weight("r1") == 50
    hear(known, r0=1.0, r1=0.01, r2=1.0)
    assert known.reconsider({"r0": 5, "r1": 2, "r2": 5}, 12) is None and known.weights == {"r1": 50}


def lanes(roster: Roster) -> list[int]:
    return [len(seat.lanes) for seat in roster.seats]


def slow(job: Desk, *taken_s: float, step: int = 3) -> list[Roster]:
    timed = [Timed(member=m, lane_s=s, step=step) for m, s in zip((A, B, C), taken_s, strict=True)]
    assert job.hears(*timed) == [], "thousands say so: they are looked at together"
    return rosters(job.waits(1.0, A, B, C))


def test_a_slow_replica_gets_fewer_lanes_at_a_boundary() -> None:
    job = desk()
    (made,) = slow(job, 1.0, 1.0, 3.0)
    assert lanes(made) == [3, 2, 1] and made.base is not None
    assert "dealt by speed" in next(e.why for e in reversed(job.all) if isinstance(e, Made))
    enter(job)
    assert slow(job, 1.0, 1.0, 3.1, step=50) == [], "it does not swing"
    (made,) = rosters(job.sees_dead(A))
    assert lanes(made) == [5, 1], "the weight is kept, and outlives the replica's lives"


def test_weights_outlive_the_coordinator() -> None:
    job = desk()
    slow(job, 1.0, 1.0, 3.0)
    enter(job)
    assert job.saved is not None and job.saved.weights == {"r2": 33}
    (made,) = rosters(Desk(job.saved, now=job.now).sees_dead(A))
    assert lanes(made) == [5, 1]


def test_the_first_roster_already_goes_by_the_operators_word() -> None:
    job = Desk(config=msgspec.structs.replace(CONFIG, speeds=SpeedConfig(fixed={"r0": 0.5}))).founded()
    roster = job.machine.roster
    assert roster is not None and lanes(roster) == [1, 3, 2]


def test_a_job_that_shrinks_leaves_its_lanes_at_home() -> None:
    assert slow(desk(on_loss="shrink"), 1.0, 1.0, 9.0) == []


@pytest.mark.parametrize("weights", [[1, 0], []])
def test_a_weight_is_at_least_one(weights: list[int]) -> None:
    with pytest.raises(Exception, match="whole numbers from 1"):
        deal_by_weight(4, weights)


def test_who_joins_later_is_of_normal_speed() -> None:
    assert speeds().weight(Member("r9", 0).replica) == NORMAL
