"""The last state of a job whose time is short: which place takes it first, and what is safe in the end."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.emergency import Candidate, chosen, in_order, is_begun, is_insured, last_call_s, turn_s
from regrow.core.notices import is_notice
from regrow.core.safety import Safety, Spot


def place(number: int, seconds: float | None, outlives: bool = True, is_failing: bool = False) -> Candidate:
    return Candidate(number=number, outlives=outlives, seconds=seconds, is_failing=is_failing)


def test_the_fastest_that_outlives_the_machine_comes_first() -> None:
    places = [place(0, 0.1, outlives=False), place(1, 9.0), place(2, None), place(3, 2.0), place(4, None)]
    assert [one.number for one in in_order(places)] == [3, 1, 2, 4, 0]


def test_one_that_fails_comes_after_those_that_do_not_however_fast_it_was() -> None:
    places = [place(0, 0.1, is_failing=True), place(1, 9.0), place(2, None), place(3, 0.1, outlives=False)]
    assert [one.number for one in in_order(places)] == [1, 2, 0, 3]


def test_what_is_hopeless_is_tried_only_where_nothing_is_to_be_spared() -> None:
    assert is_begun(place(0, 60.0), left_s=1.0, is_spared=False)
    assert not is_begun(place(0, 60.0), left_s=1.0, is_spared=True)
    assert is_begun(place(0, 1.0), left_s=1.0, is_spared=True) and is_begun(place(0, None), left_s=1.0, is_spared=True)


def test_of_those_that_wait_the_first_one_that_is_worth_it_is_begun() -> None:
    hopeless, unknown = place(0, 60.0), place(1, None)
    assert chosen([unknown, hopeless], left_s=30.0, is_spared=False) == hopeless
    assert chosen([unknown, hopeless], left_s=30.0, is_spared=True) == unknown
    assert chosen([hopeless], left_s=30.0, is_spared=True) is None
    assert chosen([unknown], left_s=0.0, is_spared=False) is None


def test_a_place_has_twice_its_time_for_itself_and_half_of_all_at_most() -> None:
    assert turn_s(place(0, 1.0), [], left_s=30.0) == 2.0
    assert turn_s(place(0, 14.0), [], left_s=30.0) == turn_s(place(0, None), [], left_s=30.0) == 15.0
    assert turn_s(place(0, 1.0, is_failing=True), [], left_s=30.0) == 0.0


def test_its_turn_ends_when_it_is_now_or_never_for_another_one_if_there_is_time_for_both() -> None:
    assert turn_s(place(0, 10.0), [place(1, 20.0)], left_s=30.0) == 30.0 - last_call_s(20.0)
    assert turn_s(place(0, 10.0), [place(1, 30.0)], left_s=30.0) == 0.0
    assert turn_s(place(0, 18.0), [place(1, 20.0)], left_s=25.0) == 12.5, "side by side neither would be done"
    no_reason = [place(1, 31.0), place(2, None), place(3, 20.0, is_failing=True)]
    assert turn_s(place(0, 10.0), no_reason, left_s=30.0) == 15.0


TIMES_S = st.floats(0.01, 200.0)


@given(TIMES_S | st.none(), st.lists(TIMES_S, max_size=3), TIMES_S)
def test_one_that_stands_still_starves_no_other(seconds: float | None, others_s: list[float], left_s: float) -> None:
    """Whatever was measured, the others have half of the time. Where the first should be done in half of it, each of them
    has what it needs and something over, or all there is."""
    others = [place(number, each_s) for number, each_s in enumerate(others_s, 1)]
    after_s = left_s - turn_s(place(0, seconds), others, left_s)
    assert left_s / 2 <= after_s <= left_s
    if seconds is not None and seconds <= left_s / 2:
        for each_s in others_s:
            assert each_s > left_s or after_s >= min(left_s, last_call_s(each_s)) - 1e-9


def test_an_older_state_is_sent_ahead_where_there_is_time_for_the_last_one_too() -> None:
    assert is_insured(place(0, 2.0), left_s=4.0, is_safe=True)
    assert not is_insured(place(0, 2.1), left_s=4.0, is_safe=False), "the last one may still come, and wants that time"
    assert not is_insured(place(0, None), left_s=1e9, is_safe=True)


def test_an_older_state_is_sent_ahead_when_it_is_now_or_never() -> None:
    left_s = last_call_s(20.0)
    assert is_insured(place(0, 20.0), left_s, is_safe=True) and not is_insured(place(0, 20.0), left_s + 0.1, is_safe=True)
    assert is_insured(place(0, 20.0), left_s=20.0, is_safe=True)
    assert not is_insured(place(0, 20.0), left_s=19.9, is_safe=True), "too late"


def test_an_older_state_is_sent_ahead_while_nothing_is_safe() -> None:
    assert is_insured(place(0, None), left_s=1.0, is_safe=False) and is_insured(place(0, 20.0), left_s=1.0, is_safe=False)


def test_what_clouds_say_while_nothing_is_to_come_is_no_notice() -> None:
    quiet = [(404, b"Not Found"), (200, b""), (200, b"FALSE"), (200, b"NONE\n"), (200, b"{}"), (200, b"[]"), (200, b"0")]
    quiet += [(200, b'{"DocumentIncarnation": 3, "Events": []}'), (204, b""), (500, b"terminate"), (302, b"x"), (0, b"")]
    assert [answer for answer in quiet if is_notice(*answer)] == []


def test_what_they_say_then_is_one() -> None:
    told = [(200, b"TRUE"), (200, b"TERMINATE_ON_HOST_MAINTENANCE"), (200, b'{"action": "terminate"}'), (200, b"\xff")]
    told += [(200, b'{"Events": [{"EventType": "Preempt"}]}'), (200, b"[" * 100_000)]
    assert all(is_notice(*answer) for answer in told)


def test_what_is_safe_is_said_with_what_is_lost() -> None:
    spots = (Spot(url="/a", outlives=True, step=40), Spot(url="s3://b", outlives=True, step=40))
    assert Safety(spots=spots, reached=40).words == "safe is the state of step 40, at /a and s3://b: nothing is lost"
    assert Safety(spots=spots[:1], reached=41).words.endswith(": 1 step committed since is lost")
    assert Safety(spots=spots, reached=43).words.endswith(": 3 steps committed since are lost")


def test_what_goes_with_the_machine_is_not_safe() -> None:
    local = Spot(url="/nvme", outlives=False, step=50)
    safety = Safety(spots=(local, Spot(url="s3://b", outlives=True, step=40)), reached=50)
    assert safety.best == 40
    assert safety.words.endswith(
        "10 steps committed since are lost; as long as this machine is there, that of step 50 at /nvme"
    )
    assert Safety(spots=(local,), reached=50).best is None
