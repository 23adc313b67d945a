"""What is decided of a neighbour: who may write there, how far its records count, and what a member makes of its answers."""

from hypothesis import given
from hypothesis import strategies as st
from test_log import _PARTS, V1, V2, both, part

from regrow.core.log import Part, follow
from regrow.core.neighbour import AGAIN_STEPS, Count, Guard, Guarded, Unguarded, fenced, is_neighbour, is_unguarded, lacking
from regrow.core.records import NeighbourBack, NeighbourLost
from regrow.core.roster import NO_VERSION, Version

GAP = "it holds no more than the first 3 steps without a gap, and waits for a newer state"


def test_a_claim_is_fenced_by_a_newer_one_alone() -> None:
    assert not fenced(7, 7) and not fenced(8, 7)
    assert "claim 6 is fenced" in fenced(6, 7)


def test_its_urls_are_known_by_their_scheme() -> None:
    assert is_neighbour("neighbour://10.0.0.2:29500/run") and not is_neighbour("s3://neighbour/run")


@given(st.lists(_PARTS, max_size=40), st.integers(0, 40), st.integers(0, 3), st.sampled_from([NO_VERSION, V2]))
def test_what_it_counts_is_what_a_founding_would_find(parts: list[Part], at: int, base: int, since: Version) -> None:
    """In whatever order parts come, and whenever a newer base does."""
    count = Count()
    for number, each in enumerate(parts):
        if number == at:
            count.rebase(base, since)
        count.hear(each)
    start, version = (base, since) if at < len(parts) else (0, NO_VERSION)
    assert count.through == start + len(follow(start, version, parts).records)


def test_it_counts_to_a_gap_and_on_from_a_base_behind_that() -> None:
    count = Count()
    for each in [*both(0), *both(1), part(2, 0), *both(3)]:
        count.hear(each)
    assert count.through == 2
    count.rebase(3, V1)
    assert count.through == 4


def test_a_newer_attempt_that_comes_late_takes_what_followed_the_older_one_along() -> None:
    count = Count()
    for each in [*both(0), *both(1), part(0, 0, V2), part(0, 1, V2)]:
        count.hear(each)
    assert count.through == 1


def test_a_founding_asks_it_where_a_step_is_missing_or_harmed_and_not_for_a_step_that_was_only_begun() -> None:
    assert "step 3 was begun" in lacking(follow(0, NO_VERSION, [*both(0), part(1, 0), *both(3)]), 0)
    assert "harmed in 2 places" in lacking(follow(0, NO_VERSION, both(0)), 2)
    assert not lacking(follow(0, NO_VERSION, [*both(0), part(1, 0)]), 0)
    assert not lacking(follow(0, NO_VERSION, []), 0)


def settled(guard: Guard, *answers: tuple[int, int | None]) -> list[tuple[Guarded | Unguarded | None, bool]]:
    return [guard.settle(step, through, "" if through is not None else "away") for step, through in answers]


def test_a_member_whose_records_all_count_there_says_nothing() -> None:
    assert settled(Guard(), (0, 0), (1, 1), (2, 3), (3, 3)) == [(None, False)] * 4


def test_a_loss_is_said_once_and_a_base_is_wished_when_it_is_back() -> None:
    """Back is not enough: what it holds must lead to the step."""
    assert settled(Guard(), (0, 0), (3, None), (4, None), (5, 3), (6, 3), (7, 7), (8, 8)) == [
        (None, False),
        (Unguarded("away"), False),
        (None, False),
        (None, True),
        (None, False),
        (Guarded(), False),
        (None, False),
    ]


def test_a_gap_that_another_member_left_is_seen_by_all() -> None:
    assert settled(Guard(), (4, 3)) == [(Unguarded(GAP), True)]


def test_a_base_that_does_not_come_is_wished_again_and_its_lack_said_again() -> None:
    guard = Guard()
    assert settled(guard, (4, 3)) == [(Unguarded(GAP), True)]
    quiet = settled(guard, *((step, 3) for step in range(5, 4 + AGAIN_STEPS)))
    assert set(quiet) == {(None, False)}
    assert settled(guard, (4 + AGAIN_STEPS, 3)) == [(Unguarded(GAP, is_news=False), True)]


def test_whoever_reads_its_facts_goes_by_the_newest() -> None:
    lost, back = NeighbourLost(step=3, why="away"), NeighbourBack(step=9)
    assert is_unguarded([lost]) and is_unguarded([back, lost])
    assert not is_unguarded([]) and not is_unguarded([lost, back])
