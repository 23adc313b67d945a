"""Resolve: what a table of statements comes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.errors import Invariant
from regrow.core.lanes import Node, cover, leaf, missing
from regrow.core.resolve import Divided, Resolution, Stateless, Statement, resolve
from regrow.core.roster import NO_VERSION, Endpoint, Member, Present, Roster, Version, compose

LANES = 4
V1, V2 = Version(1, 1), Version(1, 2)
A, B, C = (Member(f"r{i}", 0) for i in range(3))


def roster(*members: Member, floor: int = 0, lanes: int = LANES) -> Roster:
    return compose(V2, {m: Present(endpoint=Endpoint("h", 1), founder=True) for m in members}, lanes, floor, "test")


def says(member: Member, step: int = 5, complete: bool = False, attempt: Version = V1, digest: int = 9, **more) -> Statement:
    stated = {"holds_state": True, "last": 10} | more
    return Statement(
        member=member, step=step, complete=complete, attempt=attempt, digest=digest if complete else 0, **stated
    )


def test_a_step_that_some_survivor_passed_is_committed_by_all() -> None:
    outcome = resolve(roster(A, B), LANES, [says(A, 6), says(B, 5, complete=True)])
    assert isinstance(outcome, Resolution)
    assert outcome.step == 6


@pytest.mark.parametrize(
    ("table", "late"),
    [
        ([says(A, 6), says(B, 5, complete=True, reporter=A)], A),  # passed, and has reported
        ([says(A, 6), says(B, 5, complete=True, reporter=B)], B),  # has not got there yet
        ([says(A, 6), says(B, 5, complete=True, reporter=C)], B),  # is dead, whether it reported or not
        ([says(A, complete=True, reporter=C), says(B, complete=True, reporter=C)], A),
        ([says(A, complete=True, reporter=B), says(B, complete=True, reporter=B)], B),
        ([says(A), says(B)], None),  # nothing is committed here
    ],
)
def test_a_step_committed_by_resolve_is_reported_by_one(table: list[Statement], late: Member | None) -> None:
    outcome = resolve(roster(A, B), LANES, table)
    assert isinstance(outcome, Resolution)
    assert outcome.late == late


def test_a_step_whose_result_all_hold_is_committed_though_nobody_is_known_to_have_passed() -> None:
    outcome = resolve(roster(A, B), LANES, [says(A, complete=True), says(B, complete=True)])
    assert isinstance(outcome, Resolution)
    assert outcome.step == 6


@pytest.mark.parametrize(
    "other",
    [says(B), says(B, complete=True, attempt=V2), says(B, complete=True, digest=8)],
    ids=["not complete", "another attempt", "other bytes"],
)
def test_otherwise_the_step_is_redone(other: Statement) -> None:
    outcome = resolve(roster(A, B), LANES, [says(A, complete=True), other])
    assert isinstance(outcome, Resolution)
    assert outcome.step == 5


def test_a_passed_step_whose_result_is_not_there_is_a_bug() -> None:
    with pytest.raises(Invariant):
        resolve(roster(A, B), LANES, [says(A, 6), says(B, 5)])


def test_what_is_held_stays_and_only_the_rest_is_dealt() -> None:
    table = [says(A, held=(Node(0, 2),)), says(B, held=(Node(1, 2), Node(3, 4)))]
    outcome = resolve(roster(A, B), LANES, table)
    assert isinstance(outcome, Resolution)
    assert outcome.share(A).keep == (Node(0, 2),)
    assert outcome.share(B).keep == (Node(3, 4),)
    assert sorted(outcome.share(A).compute + outcome.share(B).compute) == [2]


def test_joiners_are_healed_from_those_at_the_step_and_get_no_lanes_of_it() -> None:
    table = [says(A, 6, held=(Node(0, 1),)), says(B, 5, complete=True), says(C, 0, attempt=NO_VERSION, holds_state=False)]
    outcome = resolve(roster(A, B, C), LANES, table)
    assert isinstance(outcome, Resolution)
    assert outcome.donors == {"r2.0": A}
    assert outcome.share(C).compute == ()


def test_nobody_with_state_is_stateless() -> None:
    assert isinstance(resolve(roster(A), LANES, [says(A, 0, holds_state=False)]), Stateless)


def test_below_the_floor_is_stateless() -> None:
    assert isinstance(resolve(roster(A, floor=6), LANES, [says(A, 5)]), Stateless)


def test_founders_that_built_different_states_are_divided() -> None:
    table = [says(m, 0, attempt=NO_VERSION, manifest=(("w", str(m)),)) for m in (A, B)]
    outcome = resolve(roster(A, B), LANES, table)
    assert isinstance(outcome, Divided)
    assert "w is" in outcome.why


def test_the_earliest_wish_to_end_wins() -> None:
    outcome = resolve(roster(A, B), LANES, [says(A, last=7), says(B, last=10)])
    assert isinstance(outcome, Resolution)
    assert outcome.last == 7


@st.composite
def tables(draw: st.DrawFn) -> tuple[Roster, int, list[Statement]]:
    """What members of one attempt may hold when it broke: some passed, or some hold the result, or only parts."""
    lanes = draw(st.integers(1, 10))
    count = draw(st.integers(1, 5))
    members = [Member(f"r{i}", 0) for i in range(count)]
    owners = [draw(st.integers(0, count - 1)) for _ in range(lanes)]
    someone_passed = draw(st.booleans())
    table = []
    for i, member in enumerate(members):
        complete = someone_passed or draw(st.booleans())
        passed = someone_passed and draw(st.booleans())
        mine = [lane for lane in range(lanes) if owners[lane] == i and draw(st.booleans())]
        held = () if passed else cover(lanes, mine)
        table.append(says(member, 6 if passed else 5, complete=complete and not passed, held=held))
    if draw(st.booleans()):
        joiner = Member("s", 1)
        table.append(says(joiner, 0, attempt=NO_VERSION, holds_state=False))
        members.append(joiner)
    return roster(*members, lanes=lanes), lanes, table


@given(tables())
def test_the_plan_lists_each_lane_once_and_nobody_keeps_what_it_does_not_hold(case) -> None:
    made, lanes, table = case
    outcome = resolve(made, lanes, table)
    assert isinstance(outcome, Resolution)
    nodes = [node for share in outcome.shares for node in (*share.keep, *map(leaf, share.compute))]
    assert missing(lanes, nodes) == frozenset()
    held = {s.member: s.held for s in table if s.step == outcome.step}
    for share in outcome.shares:
        assert set(share.keep) <= set(held.get(share.member, ()))


@given(tables(), st.data())
def test_whoever_survives_a_passed_boundary_commits_it(case, data: st.DataObject) -> None:
    """Safety: if anybody passed, every non-empty set of surviving holders resolves to the step after, never redoes."""
    _, lanes, table = case
    holders = [s for s in table if s.holds_state]
    passed = any(s.step == 6 for s in holders) or all(s.complete for s in holders)
    survivors = data.draw(st.lists(st.sampled_from(holders), min_size=1, unique_by=lambda s: s.member))
    survivors.sort(key=lambda s: s.member)
    outcome = resolve(roster(*(s.member for s in survivors), lanes=lanes), lanes, survivors)
    assert isinstance(outcome, Resolution)
    if passed:
        assert outcome.step == 6
    else:
        assert outcome.step == (6 if all(s.complete for s in survivors) else 5)
