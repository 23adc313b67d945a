"""When the base of an every-step job is renewed."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.renewal import Renewal


def test_a_base_is_renewed_once_to_replay_takes_longer_than_all_else() -> None:
    renewal = Renewal(startup_s=2.0, state_bytes=6_000_000_000)  # loaded in 3 s, and 1 s for the rest
    for _ in range(5):
        renewal.stepped(0.05)
    assert renewal.due(60, 1) == "" and renewal.due(119, 1) == ""
    assert renewal.due(121, 1) == "121 steps would be replayed in 6.1 s, all else of a founding takes 6 s"
    assert renewal.due(61, 100_000_000), "to read a record of 100 MB takes as long again"


def test_what_was_measured_counts_more_than_an_estimate() -> None:
    renewal = Renewal(startup_s=0.0, state_bytes=10_000_000_000)
    renewal.stepped(0.01)
    assert not renewal.due(500, 0)
    renewal.loaded(0.5)
    assert renewal.due(500, 0)
    renewal.replayed(100, 0.1)
    assert not renewal.due(1400, 0) and renewal.due(1600, 0)
    renewal.replayed(0, 3.0)
    assert not renewal.due(1400, 0), "nothing was replayed: nothing was measured"


def test_one_long_step_does_not_speak_for_the_others() -> None:
    renewal = Renewal(startup_s=1.0, state_bytes=0)
    for seconds in (0.001, 900.0, 0.001):
        renewal.stepped(seconds)
    assert not renewal.due(100, 0)


def test_before_anything_was_measured_nothing_is_due() -> None:
    assert not Renewal(startup_s=0.0, state_bytes=0).due(1_000_000, 1_000_000)


@given(
    st.floats(0, 100),
    st.integers(0, 10**12),
    st.lists(st.floats(1e-4, 10), min_size=1),
    st.integers(1, 10**6),
    st.integers(0, 10**9),
)
def test_once_due_a_base_stays_due(startup_s: float, state_bytes: int, steps: list[float], records: int, size: int) -> None:
    renewal = Renewal(startup_s, state_bytes)
    for seconds in steps:
        renewal.stepped(seconds)
    assert not renewal.due(records, size) or renewal.due(records + 1, size)
