"""The boundary's verdict: a pure function of the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.boundary import ROW_BYTES, Corrupt, Parted, Pass, Row, first_parted, verdict
from regrow.core.errors import Invariant
from regrow.core.roster import Endpoint, Member, Present, Roster, Version, compose

VERSION = Version(1, 1)


def roster(members: int) -> Roster:
    return compose(
        VERSION, {Member(f"r{i}", 0): Present(endpoint=Endpoint("h", i), founder=True) for i in range(members)}, 8, 0, "test"
    )


def row(digest: int = 7, stop: bool = False, step: int = 3, state: int = 0) -> Row:
    return Row(version=VERSION, step=step, digest=digest, stop=stop, state=state)


U64 = st.integers(0, 2**64 - 1)


@given(U64, U64, U64, U64, st.booleans(), U64)
def test_a_row_survives_the_wire(term: int, n: int, step: int, digest: int, stop: bool, state: int) -> None:
    said = Row(version=Version(term, n), step=step, digest=digest, stop=stop, state=state)
    assert len(said.pack()) == ROW_BYTES
    assert Row.unpack(said.pack()) == said


def test_all_alike_pass() -> None:
    assert verdict(roster(3), [row(), row(), row()]) == Pass(stop=False)


def test_one_wish_stops_all() -> None:
    assert verdict(roster(3), [row(), row(stop=True), row()]) == Pass(stop=True)


def test_the_minority_is_named() -> None:
    assert verdict(roster(3), [row(7), row(8), row(7)]) == Corrupt(members=(Member("r1", 0),))


def test_without_a_majority_everyone_is_named() -> None:
    assert verdict(roster(2), [row(7), row(8)]) == Corrupt(members=roster(2).members)


def test_states_that_differ_are_no_pass_even_with_equal_results() -> None:
    assert verdict(roster(3), [row(state=1), row(state=1), row(state=2)]) == Parted(members=(Member("r2", 0),))
    assert verdict(roster(2), [row(state=1), row(state=2)]) == Parted(members=roster(2).members)
    assert verdict(roster(3), [row(1, state=1), row(1), row(2)]) == Corrupt(members=(Member("r2", 0),)), "the result first"


def test_the_first_tensor_that_differs_is_named_with_its_members() -> None:
    same, other = ("a", "1"), ("b", "2")
    manifests = [(same, other), (same, ("b", "3")), (same, other)]
    assert first_parted(roster(3).members, manifests) == "b on r1.0"
    assert first_parted(roster(2).members, [(same, other), (same,)]) == "b on r0.0, r1.0"
    assert "nothing" in first_parted(roster(2).members, [(same,), (same,)])


@pytest.mark.parametrize("rows", [[row()], [row(), row(step=4)], []])
def test_a_table_that_does_not_speak_of_one_attempt_is_a_bug(rows: list[Row]) -> None:
    with pytest.raises(Invariant):
        verdict(roster(2), rows)


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=7))
def test_nobody_who_agrees_with_a_majority_is_named(digests: list[int]) -> None:
    outcome = verdict(roster(len(digests)), [row(d) for d in digests])
    top = max(digests, key=digests.count)
    if len(set(digests)) == 1:
        assert outcome == Pass(stop=False)
    elif digests.count(top) * 2 > len(digests):
        assert isinstance(outcome, Corrupt)
        assert outcome.members == tuple(Member(f"r{i}", 0) for i, d in enumerate(digests) if d != top)
    else:
        assert isinstance(outcome, Corrupt)
        assert len(outcome.members) == len(digests)
