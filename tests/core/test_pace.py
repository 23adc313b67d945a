"""How long a writer waits before each block."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.pace import Pace

ROUNDING_S = 1e-6


def test_each_block_waits_until_those_before_it_are_through() -> None:
    pace = Pace(100)
    assert [pace.wait_s(size, 5.0) for size in (50, 200, 100, 0)] == [0.0, 0.5, 2.5, 3.5]
    assert pace.wait_s(100, 9.0) == 0.0, "all are through"
    assert pace.wait_s(100, 9.25) == 0.75


def test_time_in_which_nobody_wrote_is_not_made_up_for() -> None:
    pace = Pace(100)
    pace.wait_s(100, 0.0)
    assert [pace.wait_s(100, 1000.0) for _ in range(3)] == [0.0, 1.0, 2.0]


def test_without_a_bound_nobody_waits() -> None:
    pace = Pace(0)
    assert [pace.wait_s(1 << 40, 0.0) for _ in range(3)] == [0.0] * 3


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 10)), min_size=1))
def test_in_no_span_of_time_more_begins_than_the_pace_allows(rate: int, asked: list[tuple[int, float]]) -> None:
    pace, now_s = Pace(rate), 0.0
    begun = []
    for size, pause_s in asked:
        now_s += pause_s
        begun.append((now_s + pace.wait_s(size, now_s), size))
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            size = sum(size for _, size in begun[first:last])
            assert size / rate <= begun[last][0] - begun[first][0] + ROUNDING_S
