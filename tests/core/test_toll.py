"""What a save costs a worker's training."""

import pytest

from regrow.core.toll import Toll


def plain(toll: Toll, count: int, seconds: float, begun_s: float = 0.0) -> float:
    """So many steps without a save; when the last one ends."""
    for step in range(count):
        toll.entered(begun_s + step)
        assert toll.updates(begun_s + step + seconds, 0.0) is None
    return begun_s + count


def test_a_save_costs_what_its_step_takes_longer() -> None:
    toll = Toll()
    now_s = plain(toll, 4, 0.25)
    toll.entered(now_s)
    toll.saves(4)
    assert toll.updates(now_s + 0.4, 0.05) == (4, pytest.approx(0.15))


def test_it_never_costs_less_than_the_wait_for_it() -> None:
    toll = Toll()
    now_s = plain(toll, 4, 0.25)
    toll.entered(now_s)
    toll.saves(4)
    assert toll.updates(now_s + 0.2, 0.05) == (4, 0.05)


def test_before_there_is_anything_to_compare_with_the_wait_counts() -> None:
    toll = Toll()
    plain(toll, 2, 0.25)
    toll.entered(2.0)
    toll.saves(2)
    assert toll.updates(9.0, 0.5) == (2, 0.5)


def test_a_step_beside_a_save_is_no_step_to_compare_with() -> None:
    toll = Toll()
    now_s = plain(toll, 3, 0.25)
    for step in range(3, 13):
        toll.entered(now_s)
        toll.saves(step)
        assert toll.updates(now_s + 1.25, 0.0) == (step, 1.0)


def test_what_comes_between_two_steps_and_further_optimizers_cost_nothing() -> None:
    toll = Toll()
    plain(toll, 3, 0.25)
    toll.entered(1000.0)
    toll.saves(3)
    assert toll.updates(1000.75, 0.0) == (3, 0.5)
    assert toll.updates(1001.0, 0.0) is None


def test_a_step_that_is_only_replayed_says_nothing() -> None:
    toll = Toll()
    plain(toll, 3, 0.25)
    for _ in range(15):
        toll.entered(50.0)
        toll.skipped()
        assert toll.updates(50.001, 0.0) is None
    toll.entered(60.0)
    toll.saves(3)
    assert toll.updates(60.5, 0.0) == (3, 0.25)
