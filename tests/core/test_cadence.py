"""The intervals of a job's tiers, by the facts that its vault noted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.cadence import Cadence
from regrow.core.interval import CadenceConfig
from regrow.core.origin import BEGINNING
from regrow.core.origin import MEMORY as THIS_MEMORY
from regrow.core.records import IntervalChosen, OriginFound, SaveCosted, SaveDurable, SaveFailed, StateKept
from regrow.core.save_story import MEMORY

NEAR, FAR = "/disk", "s3://bucket"
H, DAY = 3600.0, 86_400.0
CONFIG = CadenceConfig(mtbf_s=H)


def kept(step: int, seconds: float = 0.0) -> StateKept:
    return StateKept(step=step, root="ab", size_bytes=1, seconds=seconds)


def costed(step: int, seconds: float) -> SaveCosted:
    return SaveCosted(step=step, seconds=seconds)


def durable(step: int, url: str, seconds: float) -> SaveDurable:
    return SaveDurable(step=step, url=url, term=1, number=1, size_bytes=1, seconds=seconds)


def found(where: str) -> OriginFound:
    return OriginFound(step=1, root="ab", where=where, size_bytes=1, seconds=1.0)


def after_a_save(*tiers: str, cost_s: float, at_s: float = 100.0, config: CadenceConfig = CONFIG) -> Cadence:
    cadence = Cadence(tiers, config)
    cadence.begin(0.0)
    cadence.hear(kept(1), at_s)
    cadence.hear(costed(1, cost_s), at_s)
    return cadence


def test_nothing_is_due_before_training_begins_or_without_a_tier_on_auto() -> None:
    cadence = Cadence([MEMORY], CONFIG)
    assert cadence.next_s(1e9) is None and cadence.news(1e9) == {}
    none = Cadence([], CONFIG)
    none.begin(0.0)
    none.hear(kept(1), 1.0)
    assert none.next_s(2.0) is None and none.news(2.0) == {}


def test_the_first_save_comes_early_and_decides_when_the_second_comes() -> None:
    cadence = Cadence([MEMORY], CONFIG)
    cadence.begin(10.0)
    assert cadence.next_s(10.0) == pytest.approx(10 + math.sqrt(2 * 0.001 * H), rel=0.01)
    assert not cadence.intervals(10.0)[MEMORY].toil.is_known
    cadence.hear(kept(1, seconds=2.0), 15.0)
    cadence.hear(costed(1, 0.5), 15.0)
    assert cadence.next_s(15.0) == pytest.approx(13 + math.sqrt(2 * 0.5 * H), rel=0.01), "from the moment it was begun"
    assert cadence.intervals(10.0)[MEMORY].toil.is_known


def test_training_that_began_begins_once() -> None:
    cadence = Cadence([MEMORY], CONFIG)
    cadence.begin(10.0)
    first = cadence.next_s(10.0)
    cadence.begin(11.0)
    assert cadence.next_s(11.0) == first


def test_it_follows_what_saves_cost_and_one_that_is_out_of_line_counts_for_nothing() -> None:
    cadence = after_a_save(MEMORY, cost_s=0.5)
    before = cadence.intervals(100.0)[MEMORY].seconds
    for step in (2, 3):
        cadence.hear(costed(step, 0.5), 100.0)
    cadence.hear(costed(4, 60.0), 100.0)
    assert cadence.intervals(100.0)[MEMORY].seconds == before
    for step in range(5, 11):
        cadence.hear(costed(step, 0.125), 100.0)
    assert cadence.intervals(100.0)[MEMORY].seconds == pytest.approx(before / 2, rel=0.02)


def test_a_slow_place_has_a_longer_interval_of_whole_copies_and_wishes_none_of_its_own() -> None:
    cadence = after_a_save(MEMORY, NEAR, FAR, cost_s=0.5)
    cadence.hear(durable(1, NEAR, 1.0), 101.0)
    cadence.hear(durable(1, FAR, 100.0), 200.0)
    intervals = cadence.intervals(200.0)
    copy_s = intervals[MEMORY].seconds
    assert (intervals[NEAR].copies, intervals[NEAR].seconds, intervals[NEAR].bound) == (1, copy_s, "optimum")
    assert (intervals[FAR].copies, intervals[FAR].bound) == (4, "tier") and intervals[FAR].seconds >= 200
    assert cadence.next_s(200.0) == 100 + copy_s
    taken = [n for n in range(1, 9) if takes(cadence, FAR, 100 + n * copy_s * 0.99)]
    assert taken == [4, 8]


def takes(cadence: Cadence, where: str, made_s: float) -> bool:
    if not cadence.takes(where, made_s):
        return False
    cadence.took(where, made_s)
    return True


def test_without_memory_on_auto_the_soonest_place_paces_the_others() -> None:
    cadence = after_a_save(NEAR, FAR, cost_s=0.5)
    cadence.hear(durable(1, FAR, 1.0), 101.0)
    cadence.hear(durable(1, NEAR, 400.0), 500.0)
    intervals = cadence.intervals(500.0)
    assert intervals[FAR].copies == 1 and intervals[NEAR].copies == 14
    assert cadence.next_s(500.0) == 100 + intervals[FAR].seconds


def test_a_save_that_a_place_gave_up_is_not_due_again_at_once() -> None:
    cadence = after_a_save(FAR, cost_s=0.5)
    assert cadence.takes(FAR, 1000.0)
    cadence.took(FAR, 1000.0)
    cadence.hear(SaveFailed(step=1, url=FAR, attempt=0, why="full", is_final=True), 1100.0)
    assert not cadence.takes(FAR, 1101.0)
    next_s = cadence.next_s(1101.0)
    assert next_s is not None and next_s > 1150


def test_no_tier_is_asked_for_more_often_than_memory_can_take_a_state() -> None:
    cadence = Cadence([NEAR], CONFIG)
    cadence.hear(kept(1, seconds=500.0), 1000.0)
    assert cadence.intervals(1000.0)[NEAR].seconds == 1000.0


def test_a_loss_counts_for_the_tiers_that_were_needed() -> None:
    cadence = after_a_save(MEMORY, FAR, cost_s=0.5, config=CadenceConfig())
    for count, where in enumerate((THIS_MEMORY, BEGINNING), 1):
        cadence.hear(found(where), 200.0)
        intervals = cadence.intervals(200.0)
        assert (intervals[MEMORY].loss.count, intervals[FAR].loss.count) == (count, 0), "the host stayed"
    cadence.hear(found(FAR), 300.0)
    intervals = cadence.intervals(300.0)
    assert (intervals[MEMORY].loss.count, intervals[FAR].loss.count) == (3, 1)
    assert intervals[MEMORY].loss.mtbf_s == pytest.approx((DAY + 300) / 4)
    assert (intervals[MEMORY].loss.basis, intervals[FAR].loss.basis) == ("measured", "measured")


def test_what_a_job_begins_with_is_no_loss_and_what_comes_before_the_first_save_is() -> None:
    """It is found twice: before there is a coordinator, and in memory once there is one."""
    cadence, heard = Cadence([MEMORY], CadenceConfig()), Cadence([MEMORY], CadenceConfig())
    for where in (FAR, THIS_MEMORY):
        cadence.hear(found(where), 1.0)
    cadence.begin(2.0)
    news = cadence.news(2.0)
    assert cadence.intervals(3.0)[MEMORY].loss.count == 0
    cadence.hear(found(FAR), 3.0)
    assert cadence.intervals(3.0)[MEMORY].loss.count == 1
    for fact in (found(FAR), found(THIS_MEMORY), IntervalChosen(where=MEMORY, every=0, interval=news[MEMORY])):
        heard.hear(fact, 2.0)
    heard.hear(found(FAR), 3.0)
    assert heard.intervals(3.0) == cadence.intervals(3.0), "the next vault, by the journal"


def test_after_a_loss_the_state_that_the_job_goes_on_from_need_not_be_saved_at_once() -> None:
    cadence = after_a_save(MEMORY, cost_s=0.5)
    cadence.hear(found(THIS_MEMORY), 5000.0)
    assert cadence.next_s(5000.0) == 5000 + cadence.intervals(5000.0)[MEMORY].seconds


def test_only_what_has_changed_is_told_and_after_many_saves_everything() -> None:
    cadence = after_a_save(MEMORY, cost_s=0.5)
    assert list(cadence.news(100.0)) == [MEMORY] and cadence.news(100.0) == {}
    for step in range(2, 50):
        cadence.hear(kept(step), 100.0)
        assert cadence.news(100.0) == {}
    cadence.hear(kept(50), 100.0)
    assert list(cadence.news(100.0)) == [MEMORY] and cadence.news(100.0) == {}
    for step in range(51, 58):
        cadence.hear(costed(step, 1.0), 100.0)
    assert list(cadence.news(100.0)) == [MEMORY]


@given(st.lists(st.tuples(st.floats(0.001, 20), st.floats(0, 5), st.floats(0, 300)), min_size=1, max_size=40))
def test_whatever_comes_the_next_vault_hears_the_same_from_the_journal(story: list[tuple[float, float, float]]) -> None:
    """One that was told of each save as it came, and one that hears the facts alone."""
    lived, heard, now_s = Cadence([MEMORY, FAR], CONFIG), Cadence([MEMORY, FAR], CONFIG), 0.0
    for step, (kept_s, cost_s, durable_s) in enumerate(story, 1):
        made_s, now_s = now_s, now_s + kept_s
        facts = [(kept(step, kept_s), now_s), (costed(step, cost_s), now_s + 1)]
        for cadence in (lived, heard):
            cadence.hear(*facts[0])
        if lived.takes(FAR, made_s):
            lived.took(FAR, made_s)
            facts.append((durable(step, FAR, durable_s), now_s + durable_s))
        for fact, at_s in facts[1:]:
            lived.hear(fact, at_s)
            heard.hear(fact, at_s)
        now_s += durable_s + 1
        assert lived.intervals(now_s) == heard.intervals(now_s)
        assert lived.next_s(now_s) == heard.next_s(now_s)
        assert lived.takes(FAR, now_s) == heard.takes(FAR, now_s)
