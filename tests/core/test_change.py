"""Rosters as changes: what comes out is the roster that was meant, or nothing does."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.change import Change, Misfit, apply, change
from regrow.core.lanes import Cell
from regrow.core.messages import Amend
from regrow.core.roster import Endpoint, Halt, Member, Present, Roster, Suspect, Version, at_home, compose

REPLICAS = tuple(f"r{number}" for number in range(12))
V1, V2 = Version(1, 1), Version(2, 7)

presents = st.dictionaries(
    st.builds(Member, st.sampled_from(REPLICAS), st.integers(0, 2)),
    st.builds(
        Present,
        endpoint=st.builds(Endpoint, st.just("h"), st.integers(1, 3)),
        founder=st.booleans(),
        spectates=st.booleans(),
    ),
    min_size=1,
    max_size=10,
)
cells = st.builds(Cell, st.integers(0, 9), st.integers(0, 3))


@st.composite
def rosters(draw: st.DrawFn, version: Version) -> Roster:
    lanes = draw(st.integers(1, 20))
    roster = compose(version, draw(presents), lanes, draw(st.integers(0, 9)), draw(st.text(max_size=9)))
    if draw(st.booleans()):
        roster = at_home(roster, lanes, REPLICAS)
    return msgspec.structs.replace(
        roster,
        skips=tuple(draw(st.lists(cells, max_size=2))),
        suspects=tuple(Suspect(cell=cell, dead=(Member("r0", 0),)) for cell in draw(st.lists(cells, max_size=2))),
        halt=draw(st.none() | st.builds(Halt, step=st.integers(0, 9), why=st.text(max_size=9))),
        base=draw(st.none() | st.just(V1)),
        waits=draw(st.text(max_size=9)),
    )


def of(count: int, version: Version, lanes: int, without: int = -1) -> Roster:
    there = {
        Member(f"r{number}", 0): Present(endpoint=Endpoint("10.0.0.1", number), founder=True)
        for number in range(count)
        if number != without
    }
    return compose(version, there, lanes, 3, "died-r5.0")


@given(rosters(V1), rosters(V2))
def test_the_roster_that_was_meant_comes_out_whole_also_over_the_wire(old: Roster, new: Roster) -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(change(old, new)), type=Change)
    assert apply(old, sent) == new


@given(rosters(V1))
def test_no_change_is_a_change_too(roster: Roster) -> None:
    same = change(roster, roster)
    assert (same.gone, same.come) == ((), ())
    assert apply(roster, same) == roster


@pytest.mark.parametrize("lanes_each", [1, 2])
def test_one_death_is_as_small_in_a_job_of_ten_thousand_as_in_a_job_of_ten(lanes_each: int) -> None:
    sizes = []
    for count in (10, 100, 1_000, 10_000):
        old, new = of(count, V1, count * lanes_each), of(count, V2, count * lanes_each, without=5)
        sent = change(old, new)
        assert (sent.gone, sent.come) == ((Member("r5", 0),), ())
        assert apply(old, sent) == new
        sizes.append(len(msgspec.msgpack.encode(Amend(change=sent))))
    assert max(sizes) < min(sizes) + 8, sizes


def test_a_change_of_a_roster_that_is_not_held_does_not_fit() -> None:
    sent = change(of(4, V1, 8), of(4, V2, 8, without=1))
    assert apply(None, sent) == Misfit(why="the change to roster 2.7 is one since 1.1, and none is held")
    assert apply(of(4, V2, 8), sent) == Misfit(why="the change to roster 2.7 is one since 1.1, and 2.7 is held")


def test_a_roster_of_the_same_version_that_is_another_does_not_fit() -> None:
    """A coordinator that lost its disk may use a version twice."""
    sent = change(of(4, V1, 8), of(4, V2, 8, without=1))
    assert apply(of(5, V1, 8), sent) == Misfit(why="the change since 1.1 does not lead to roster 2.7 here")
