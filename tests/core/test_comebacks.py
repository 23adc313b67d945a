"""A fully lost job is brought back while that gets it further, and so many times more."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.comebacks import Comebacks, NoProgress


def lost(limit: int, *reached: int) -> Comebacks | NoProgress:
    """At these steps, one after the other."""
    found: Comebacks | NoProgress = Comebacks()
    for step in reached:
        assert isinstance(found, Comebacks), f"it was given up before step {step}"
        found = found.after_loss(step, limit)
    return found


def test_a_job_that_gets_further_is_always_brought_back() -> None:
    assert lost(1, *range(1, 100)) == Comebacks(furthest=99, in_vain=1)


def test_without_progress_it_is_given_up_after_so_many() -> None:
    assert lost(3, 10, 10, 7) == Comebacks(furthest=10, in_vain=3), "steps computed again are no progress"
    found = lost(3, 10, 10, 7, 10)
    assert found == NoProgress(furthest=10, in_vain=3, limit=3)
    assert "3 times in a row (--max-job-restarts 3) without committing a step beyond the first 10" in found.why


def test_progress_begins_the_count_anew() -> None:
    assert lost(3, 10, 10, 10, 11) == Comebacks(furthest=11, in_vain=1)


def test_with_none_allowed_it_is_never_brought_back() -> None:
    found = lost(0, 10)
    assert isinstance(found, NoProgress) and "--max-job-restarts 0" in found.why


@given(st.integers(0, 4), st.lists(st.integers(0, 6), max_size=20))
def test_never_more_in_a_row_than_the_limit(limit: int, steps: list[int]) -> None:
    """The dumb count: look back over all losses."""
    found: Comebacks | NoProgress = Comebacks()
    for at, step in enumerate(steps):
        found = found.after_loss(step, limit)
        before = 0
        while before < at and max([*steps[: at - before], 0]) >= steps[at - before]:
            before += 1
        if isinstance(found, NoProgress):
            assert before >= limit
            return
        assert before < limit or found.in_vain == 1 <= limit
