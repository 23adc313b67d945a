"""The schedule of a soak: a pure function of its seed, in which everything comes."""

from itertools import islice

import pytest

from regrow.faults.schedule import MEANINGS, Volley, length, logs, saves, volleys


def first(count: int, seed: str, replicas: int = 4) -> list[Volley]:
    return list(islice(volleys(seed, replicas), count))


def test_the_same_seed_gives_the_same_blows() -> None:
    assert first(500, "7-0") == first(500, "7-0")


def test_another_seed_gives_others() -> None:
    assert len({tuple(first(5, f"{seed}-{job}")) for seed in range(20) for job in range(5)}) == 100


def test_two_schedules_do_not_disturb_each_other() -> None:
    one, other = volleys("1-0", 4), volleys("2-0", 4)
    mixed = [next(one if turn % 2 == 0 else other) for turn in range(100)]
    assert mixed[::2] == first(50, "1-0")


@pytest.mark.parametrize("seed", range(10))
def test_every_kind_comes_alone_and_in_bursts_within_a_few_minutes(seed: int) -> None:
    schedule = first(400, f"{seed}-0")
    assert sum(volley.after_s for volley in schedule) < 15 * 60
    assert {blow.kind for volley in schedule if len(volley.blows) == 1 for blow in volley.blows} == MEANINGS.keys()
    assert {blow.kind for volley in schedule if len(volley.blows) > 1 for blow in volley.blows} == MEANINGS.keys()
    assert {len(volley.blows) for volley in schedule} == {1, 2, 3, 5}


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_numbers_stay_within_their_bounds(replicas: int) -> None:
    for volley in first(300, "3-1", replicas):
        assert 0 <= volley.after_s <= 8
        assert 1 <= len(volley.blows) <= replicas + 1
        assert all(0 <= blow.draw < 1 and 0 <= blow.lasts_s <= 3 for blow in volley.blows)


def test_some_jobs_end_by_themselves_and_some_are_stopped() -> None:
    drawn = [length(f"1-{job}") for job in range(100)]
    assert drawn == [length(f"1-{job}") for job in range(100)]
    assert 20 < drawn.count(None) < 80
    assert all(100 <= steps < 800 for steps in drawn if steps is not None)


def test_some_jobs_save_and_some_of_those_log_each_step() -> None:
    drawn = [(saves(seed), logs(seed)) for seed in (f"1-{job}" for job in range(100))]
    assert drawn == [(saves(seed), logs(seed)) for seed in (f"1-{job}" for job in range(100))]
    assert min(drawn.count(kind) for kind in [(False, False), (True, False), (True, True)]) >= 15
    assert (False, True) not in drawn
