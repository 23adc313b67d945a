"""What is made of step logs: pauses, work thrown away, full strength, steps done again."""

import pytest
from compare.experiments.after import ENDED, judged
from compare.experiments.churn import judged as churn_judged
from compare.experiments.coordinator import judged as coordinator_judged
from compare.experiments.join import judged as join_judged
from compare.experiments.lone import judged as lone_judged
from compare.experiments.steady import blocks
from compare.story import (
    Strike,
    full_strength,
    kept,
    left_in_health,
    longest_pause,
    microbatches_kept,
    steps_lost,
    thrown_away,
    usual_step,
)
from stories import Teller, healed, restarted


def test_the_usual_step_is_that_before_the_strike() -> None:
    story, _ = healed()
    assert usual_step(story) == pytest.approx(1.0)


def test_one_that_is_healed_costs_its_own_microbatches_and_a_longer_step() -> None:
    story, strike = healed()
    assert longest_pause(story, strike) == pytest.approx(1.0)  # commits at 4.8 and 6.8
    assert full_strength(story, strike, 2) == pytest.approx(8.8)
    assert thrown_away(story) == 2
    assert steps_lost(story) == 0
    assert left_in_health(story) == []
    assert microbatches_kept(story) == 9 * 6


def test_a_restart_from_a_checkpoint_costs_the_steps_since_and_a_healthy_process() -> None:
    story, strike = restarted()
    assert longest_pause(story, strike) == pytest.approx(10.8 - 4.8 - 1.0)
    assert full_strength(story, strike, 2) == pytest.approx(10.8)
    assert steps_lost(story) == 2  # steps 3 and 4
    assert thrown_away(story) == 2 * 6 + 1
    assert left_in_health(story) == [10]
    assert sorted(kept(story)) == list(range(8))
    assert {one.pid for one in kept(story)[3]} == {20, 21}


def test_steps_that_the_job_has_not_reached_again_are_lost_too() -> None:
    story, _ = restarted()
    early = Teller()
    early.lines = [line for line in story.lines if line.at < 11.0]  # step 3 alone was done again
    cut = early.story(until=11.0)
    assert sorted(kept(cut)) == [0, 1, 2, 3]
    assert steps_lost(cut) == 2


def test_a_checkpoint_at_every_step_is_a_step_done_again_once() -> None:
    teller = Teller()
    teller.step(0.0, 0, 10, 11)
    teller.step(1.0, 0, 20, 21)
    teller.step(2.0, 1, 20, 21)
    assert steps_lost(teller.story(until=3.0)) == 1


def test_a_replica_that_joins_the_newest_step_takes_nothing_back() -> None:
    teller = Teller()
    teller.step(0.0, 0, 10)
    teller.step(1.0, 1, 10, 12)
    assert steps_lost(teller.story(until=2.0)) == 0


def test_microbatches_of_a_step_under_way_are_not_thrown_away() -> None:
    teller = Teller()
    teller.step(0.0, 0, 10)
    teller.note(1.0, "begin", 10, 1)
    teller.note(1.1, "batch", 10, 1)
    assert thrown_away(teller.story(until=1.2)) == 0
    teller.gone[10] = 1.15
    assert thrown_away(teller.story(until=1.2)) == 1


def test_a_step_that_is_tried_again_by_the_same_process_throws_its_microbatches_away() -> None:
    teller = Teller()
    teller.note(0.0, "begin", 10, 0)
    teller.note(0.1, "batch", 10, 0)
    teller.step(0.5, 0, 10)
    assert thrown_away(teller.story(until=2.0)) == 1


def test_full_strength_needs_as_many_who_compute() -> None:
    teller = Teller()
    teller.step(0.0, 0, 10, 11)
    strike = teller.kill(0.9, 11)
    teller.step(1.0, 1, 10, batches=6)
    teller.step(2.0, 2, 10, batches=6)
    teller.step(2.0, 2, 21, batches=0)  # it only listens
    assert full_strength(teller.story(until=3.0), strike, 2) is None


def test_after_a_strike_a_job_that_stands_still_is_told_from_one_that_ended() -> None:
    teller = Teller()
    for step in range(4):
        teller.step(float(step), step, 10, 11)
    strike = teller.kill(4.0, 11)
    story = teller.story(until=95.0)
    assert judged(story, strike, 2, has_ended=False)["pause_s"] == "> 90 s"
    assert judged(story, strike, 2, has_ended=True)["pause_s"] == ENDED
    story, strike = healed()
    found = judged(story, strike, 2, has_ended=False)
    assert found["full_s"] == pytest.approx(3.55)
    assert found["strip"][0][0] == pytest.approx(0.8 - 5.25 + 1.0)  # the first commit within four seconds before


def test_blocks_leave_out_their_first_step() -> None:
    teller = Teller()
    for step, at in enumerate((0.0, 1.0, 2.0, 50.0, 51.5, 53.0)):
        teller.step(at, step, 10, 11, took=0.5)
    assert blocks(teller.story(until=60.0), 3, 1) == [pytest.approx(1.5)]


def test_churn_counts_what_is_kept() -> None:
    calm = Teller()
    for step in range(8):
        calm.step(float(step), step, 10, 11)
    churned, _ = restarted()
    found = churn_judged(calm.story(until=7.8), churned)
    assert found["goodput"] == pytest.approx((8 / 14.2) / (8 / 7.0))
    assert found["equal"] == "did not finish"
    assert found["steps_lost"] == 2


def test_a_join_is_judged_by_the_slowest_step_and_the_way_back() -> None:
    teller = Teller()
    story, strike = healed()
    teller.lines = list(story.lines)
    teller.strikes = [strike]
    teller.note(7.8, "up", 21, 0)
    found = join_judged(teller.story(until=10.0), has_ended=False)
    assert found["slowest"] == pytest.approx(2.0)
    assert found["mb_per_s"] == pytest.approx(1207.96, rel=1e-3)  # 1.2 GB in the second from 7.8 to 8.8


@pytest.mark.parametrize(
    ("first", "what"), [(0, "it begins again at step 0"), (3, "it goes on from a saved state"), (5, "it goes on")]
)
def test_a_lone_replica_lost(first: int, what: str) -> None:
    teller = Teller()
    for step in range(5):
        teller.step(float(step), step, 10, 11)
    teller.kill(5.0, 11)
    teller.kill(6.0, 10)
    for number, step in enumerate(range(first, first + 3)):
        teller.step(8.0 + number, step, 20, 21)
    found = lone_judged(teller.story(until=12.0), has_ended=False, has_saved=True)
    assert (found["what"], found["lost"], found["of"]) == (what, 5 - first, 5)


def test_a_lone_replica_lost_with_nothing_saved_loses_all() -> None:
    teller = Teller()
    for step in range(5):
        teller.step(float(step), step, 10, 11)
    teller.kill(5.0, 11)
    teller.kill(6.0, 10)
    found = lone_judged(teller.story(until=12.0), has_ended=True, has_saved=False)
    assert (found["lost"], found["pause_s"]) == (5, ENDED)


def test_a_coordinator_lost_and_nobody_notices() -> None:
    teller = Teller()
    for step in range(12):
        teller.step(float(step), step, 10, 11)
    teller.strikes = [Strike(at=5.0, what="SIGKILL", pid=99)]
    teller.gone = {99: 5.0}
    found = coordinator_judged(teller.story(until=12.0), 4.0, 4, who="coordinator", has_ended=False)
    assert (found["steps_away"], found["exited"], found["steps_lost"]) == (pytest.approx(1.0), 0, 0)
    assert (found["pause_s"], found["what"]) == (pytest.approx(0.0), "training goes on")


def test_a_command_that_starts_everything_a_second_time() -> None:
    teller = Teller()
    for step in range(12):
        teller.step(float(step), step, 10, 11)
    for step in range(4):
        teller.step(7.0 + step, step, 20, 21)
    teller.strikes = [Strike(at=5.0, what="SIGKILL", pid=99)]
    teller.gone = {99: 5.0}
    found = coordinator_judged(teller.story(until=12.0), 1.0, 1, who="launcher", has_ended=False)
    assert (found["what"], found["steps_lost"]) == ("a second set of processes trains beside the first", None)


def test_a_coordinator_lost_and_all_begin_again() -> None:
    story, _ = restarted()
    teller = Teller()
    teller.lines = list(story.lines)
    teller.strikes = [Strike(at=5.25, what="SIGKILL", pid=99)]
    teller.gone = {99: 5.25, 10: 5.3, 11: 5.3}
    found = coordinator_judged(teller.story(until=15.0), 1.0, 0, who="coordinator", has_ended=False)
    assert (found["what"], found["exited"], found["steps_lost"]) == ("all end, and begin again at step 3", 2, 2)
