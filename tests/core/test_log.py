"""Which committed records follow a base, by what lies in the logs of all members."""

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from test_attendance import A, B, J, stated

from regrow.core.listener import Record
from regrow.core.log import Chain, Part, follow, unlogged
from regrow.core.roster import NO_VERSION, Version

V1, V2, V3, AGAIN = Version(1, 1), Version(1, 2), Version(1, 3), Version(2, 1)
LAST = 9


def part(step: int, index: int, attempt: Version = V1, *, digest: int = 7, count: int = 2, stop: bool = False) -> Part:
    record = Record(step=step, attempt=attempt, digest=digest, holdings=(), last=LAST)
    return Part(record=record, stop=stop, index=index, count=count)


def both(step: int, attempt: Version = V1, **more: int) -> list[Part]:
    return [part(step, 0, attempt, **more), part(step, 1, attempt, **more)]


def found(step: int, parts: Iterable[Part], since: Version = NO_VERSION) -> list[tuple[int, Version]]:
    return [(record.step, record.attempt) for record in follow(step, since, parts).records]


def test_records_follow_one_another_up_to_the_first_that_is_not_whole() -> None:
    assert found(3, [*both(2), *both(3), *both(4), part(5, 0)]) == [(3, V1), (4, V1)]
    assert found(3, [*both(4)]) == []
    assert found(3, []) == []


def test_what_was_written_twice_is_there_once() -> None:
    assert found(0, [part(0, 0), part(0, 0), part(0, 1), *both(1), part(1, 0)]) == [(0, V1), (1, V1)]
    assert found(0, [part(0, 0), part(0, 0)]) == []


def test_nothing_is_put_together_from_two_attempts_or_two_results() -> None:
    assert found(0, [part(0, 0, V1), part(0, 1, V2)]) == []
    assert found(0, [part(0, 0), part(0, 1, digest=8)]) == []
    assert found(0, [part(0, 0), part(0, 1, count=3)]) == []


def test_of_several_attempts_the_newest_that_is_whole_counts() -> None:
    assert found(0, [*both(0, V1), *both(0, V2), part(0, 0, V3)]) == [(0, V2)]


def test_what_is_older_than_the_base_or_than_the_step_before_it_is_of_another_lineage() -> None:
    assert found(4, both(4), since=V2) == []
    assert found(4, both(4, V2), since=V2) == [(4, V2)]
    given_up = [*both(5), *both(6)]
    assert found(4, [*both(4, AGAIN), *given_up]) == [(4, AGAIN)]
    assert found(4, [*both(4, AGAIN), *both(5, AGAIN), *given_up]) == [(4, AGAIN), (5, AGAIN)]


def test_a_log_that_speaks_of_later_steps_shows_that_some_are_lost() -> None:
    assert follow(0, NO_VERSION, [*both(0), part(1, 0)]).beyond is None, "that one was never committed"
    assert follow(0, NO_VERSION, [*both(0), part(1, 0), *both(2), part(3, 1)]) == Chain(
        records=follow(0, NO_VERSION, both(0)).records, beyond=3
    )
    assert follow(0, NO_VERSION, []).beyond is None


def lasts(parts: Iterable[Part]) -> list[int]:
    return [record.last for record in follow(0, NO_VERSION, parts).records]


def test_the_newest_record_says_where_the_job_ends() -> None:
    assert lasts([*both(0), part(1, 0), part(1, 1, stop=True)]) == [2, 2]
    assert lasts([*both(0), part(1, 0), part(1, 1), part(1, 1, stop=True)]) == [2, 2], "whoever wrote it"


def test_a_wish_that_the_others_never_saw_does_not_end_the_job_in_what_it_has_committed() -> None:
    assert lasts([part(0, 0, stop=True), part(0, 1), *both(1)]) == [LAST, LAST]


def dumb(step: int, since: Version, parts: list[Part]) -> list[tuple[int, Version]]:
    """By trying every attempt that anybody speaks of."""
    records: list[tuple[int, Version]] = []
    while True:
        at = [each for each in parts if each.record.step == step]
        whole = [
            attempt
            for attempt in {each.record.attempt for each in at}
            for digest in (7, 8)
            if {e.index for e in at if (e.record.attempt, e.record.digest) == (attempt, digest)} >= {0, 1}
            and attempt >= (records[-1][1] if records else since)
        ]
        if not whole:
            return records
        records.append((step, max(whole)))
        step += 1


_PARTS = st.builds(
    part, st.integers(0, 3), st.integers(0, 1), st.sampled_from([V1, V2, AGAIN]), digest=st.sampled_from([7, 7, 8])
)


@given(st.lists(_PARTS, max_size=40), st.sampled_from([NO_VERSION, V2]), st.randoms())
def test_it_finds_what_a_dumb_search_finds_in_any_order(parts: list[Part], since: Version, random) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert found(0, shuffled, since) == dumb(0, since, parts)


# Who fills in for whom


def test_whoever_holds_the_result_has_logged_its_part() -> None:
    held = {"attempt": V1, "complete": True, "digest": 7}
    assert unlogged([stated(A, **held), stated(B, **held)], (A, B), 0, V1) == ()
    assert unlogged([stated(A, **held)], (A, B), 0, V1) == (1,)
    assert unlogged([stated(B, **held), stated(J, holds_state=False)], (A, B), 0, V1) == (0,)


def test_a_result_of_another_attempt_or_step_is_no_part_of_this_one() -> None:
    ours = stated(A, attempt=V1, complete=True)
    for other in (stated(B, attempt=V2, complete=True), stated(B, attempt=V1)):
        assert unlogged([ours, other], (A, B), 0, V1) == (1,)
    assert unlogged([ours, stated(B, attempt=V1, complete=True, holds_state=False)], (A, B), 0, V1) == (1,)


def test_one_that_is_past_the_step_shows_that_all_of_it_is_logged() -> None:
    ours = stated(A, attempt=V1, complete=True)
    assert unlogged([ours, stated(B, 1)], (A, B, J), 0, V1) == ()
    ahead = msgspec.structs.replace(stated(B, 1), holds_state=False)
    assert unlogged([ours, ahead], (A, B, J), 0, V1) == (1, 2), "a joiner's step shows nothing"
