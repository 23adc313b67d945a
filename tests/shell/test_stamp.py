"""Stamps: what the agent reads is what the worker wrote, or nothing; never half of it."""

import gc
import multiprocessing
import os
import signal
import time

import pytest

from regrow.core.progress import Phase, Place
from regrow.shell import stamp as stamps
from regrow.shell.stamp import Page, Stamp, dump_on_signal


@pytest.fixture
def page():
    page = Page("test")
    yield page
    page.close()


def test_before_its_first_stamp_a_worker_is_starting(page) -> None:
    before = page.read()
    assert before.place == Place(step=None, lane=None, phase="start")
    assert before.since_s <= time.monotonic()
    Stamp(page.fd)
    assert page.read().count > before.count


def test_the_agent_reads_where_the_worker_is(page) -> None:
    stamp = Stamp(page.fd)
    assert page.read().place == Place(step=None, lane=None, phase="start")
    before = time.monotonic()
    stamp.enter(Phase.MICROBATCH, 7, 2)
    stamped = page.read()
    assert stamped.place == Place(step=7, lane=2, phase="microbatch")
    assert before <= stamped.since_s <= time.monotonic()
    stamp.enter(Phase.TURN)
    assert page.read().place == Place(step=7, lane=None, phase="turn")
    assert page.read().pulse_s == 0.0
    stamp.pulse()
    assert page.read().pulse_s >= stamped.since_s


def test_a_call_holds_for_the_place_it_was_made_for(page) -> None:
    stamp = Stamp(page.fd)
    stamp.enter(Phase.WAIT)
    assert page.read().called_s == 0.0
    count, before = stamp.count, time.monotonic()
    stamp.call(count)
    assert before <= page.read().called_s <= time.monotonic()
    stamp.enter(Phase.TURN)
    assert page.read().called_s == 0.0
    stamp.enter(Phase.WAIT)
    stamp.call(count)  # of a wait that is over: somebody was late
    assert page.read().called_s == 0.0


def test_a_torn_stamp_is_passed_over(page) -> None:
    stamp = Stamp(page.fd)
    stamp.enter(Phase.MICROBATCH, 7, 2)
    page.read()
    for at, word in enumerate((99, 8, 8, 1, 0)):  # its writer died in the middle
        stamp._words[at] = word
    assert page.read().place == Place(step=7, lane=2, phase="microbatch")


def test_no_read_is_torn_while_another_process_writes(page) -> None:
    """Step and lane are always written alike, and nothing is ever zero: a mixture would show, and so would an empty page."""
    before = time.monotonic()
    writer = multiprocessing.get_context("fork").Process(target=_scribble, args=(page.fd,))
    writer.start()
    seen = set()
    while writer.is_alive():
        stamped = page.read()
        if stamped.place.step is not None:
            assert stamped.place == Place(step=stamped.place.lane, lane=stamped.place.lane, phase="microbatch")
            assert stamped.since_s > before and stamped.pulse_s > before
            seen.add(stamped.place.step)
    writer.join()
    assert len(seen) > 10, "the reader saw the writer at work"


def _scribble(fd: int) -> None:
    stamp = Stamp(fd)
    for number in range(1, 200_000):
        stamp.pulse()
        stamp.enter(Phase.MICROBATCH, number, number)


def test_the_first_of_a_kind_counts_but_teaches_nothing(page, monkeypatch) -> None:
    clock = _Clock(monkeypatch)
    stamp = Stamp(page.fd)
    stamp.enter(Phase.MICROBATCH, 0, 0)
    clock.pass_s(50.0)
    stamp.enter(Phase.TURN)
    assert (page.read().experience[Phase.MICROBATCH].completed, page.read().experience[Phase.MICROBATCH].longest_s) == (1, 0)
    stamp.enter(Phase.MICROBATCH, 1, 0)
    clock.pass_s(1.5)
    stamp.enter(Phase.TURN)
    assert page.read().experience[Phase.MICROBATCH].longest_s == 1.5


def test_what_was_long_ago_is_forgotten_and_what_was_cut_short_never_learned(page, monkeypatch) -> None:
    clock = _Clock(monkeypatch)
    stamp = Stamp(page.fd)

    def one(took_s: float, completed: bool = True) -> float:
        stamp.enter(Phase.REDUCE, 0)
        clock.pass_s(took_s)
        stamp.enter(Phase.TURN, completed=completed)
        return page.read().experience[Phase.REDUCE].longest_s

    one(1.0)
    assert one(9.0) == 9.0
    assert one(99.0, completed=False) == 9.0
    assert [one(1.0) for _ in range(31)][-1] == 9.0
    assert [one(1.0) for _ in range(64)][-1] == 1.0


def test_past_the_end_is_past_the_end_whatever_is_done_aside(page) -> None:
    stamp = Stamp(page.fd)
    stamp.enter(Phase.LEAVING, 9)
    assert page.read().place.is_past_the_end
    with stamp.aside(Phase.BUSY, "an evaluation", at_most_s=60.0):
        assert page.read().place.is_past_the_end
    stamp.enter(Phase.BOUND, 9)
    assert not page.read().place.is_past_the_end


def test_what_is_done_aside_does_not_count_as_part_of_the_phase(page, monkeypatch) -> None:
    clock = _Clock(monkeypatch)
    stamp = Stamp(page.fd)
    stamp.enter(Phase.MICROBATCH, 3, 1)
    clock.pass_s(1.0)
    with stamp.aside(Phase.BUSY, "évaluation" * 20, at_most_s=60.0):
        inside = page.read()
        assert inside.place == Place(step=3, lane=1, phase="busy")
        assert (inside.phase, inside.aside, inside.at_most_s) == (Phase.MICROBATCH, Phase.BUSY, 60.0)
        assert inside.name.startswith("évaluationévaluation")
        clock.pass_s(100.0)
        with stamp.aside(Phase.COMPILE):
            clock.pass_s(10.0)
        again = page.read()
        assert (again.aside, again.name, clock.now_s() - again.aside_since_s) == (Phase.BUSY, inside.name, 100.0)
    after = page.read()
    assert (after.aside, after.place.phase) == (None, "microbatch")
    assert clock.now_s() - after.since_s == pytest.approx(1.0)


def test_a_full_collection_does_not_count_either(page, monkeypatch) -> None:
    clock = _Clock(monkeypatch)
    stamp = Stamp(page.fd)
    stamp.watch_collections()
    try:
        stamp.enter(Phase.MICROBATCH, 3, 1)
        clock.pass_s(1.0)
        stamp._collection("start", {"generation": 2})
        assert page.read().collecting_since_s == clock.now_s()
        clock.pass_s(20.0)
        stamp._collection("stop", {"generation": 2})
        assert page.read().collecting_since_s == 0.0
        assert clock.now_s() - page.read().since_s == pytest.approx(1.0)
        collected = stamp._collected
        gc.collect(0)
        assert stamp._collected == collected, "small collections are not worth a word"
    finally:
        gc.callbacks.remove(stamp._collection)


def test_a_child_of_the_script_does_not_write_in_its_name(page) -> None:
    stamp = Stamp(page.fd)
    stamp.enter(Phase.MICROBATCH, 3, 1)
    child = multiprocessing.get_context("fork").Process(target=stamp._collection, args=("start", {"generation": 2}))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert page.read().collecting_since_s == 0.0


def test_the_stacks_of_all_threads_lie_behind_the_page() -> None:
    page = Page("test")
    child = multiprocessing.get_context("fork").Process(target=_wait_here, args=(page.fd,))
    child.start()
    try:
        while page.read().count < 2:
            time.sleep(0.001)
        os.kill(child.pid, stamps.DUMP_SIGNAL)
        while b"_wait_here" not in page.stacks():
            assert child.is_alive()
            time.sleep(0.001)
    finally:
        child.kill()
        child.join()
        page.close()


def _wait_here(fd: int) -> None:
    dump_on_signal(fd)
    Stamp(fd)
    while True:
        signal.pause()


class _Clock:
    def __init__(self, monkeypatch) -> None:
        self._ns = 1_000_000_000_000
        monkeypatch.setattr(stamps.time, "monotonic_ns", lambda: self._ns)

    def pass_s(self, seconds: float) -> None:
        self._ns += int(seconds * 1e9)

    def now_s(self) -> float:
        return self._ns / 1e9


def test_what_was_done_elsewhere_counts_as_experience(page) -> None:
    stamp = Stamp(page.fd)
    for took_s in (9.0, 1.5, 0.5):
        stamp.learn(Phase.DATA, took_s)
    experience = page.read().experience[Phase.DATA]
    assert (experience.completed, experience.longest_s) == (3, 1.5), "the first is not counted"
