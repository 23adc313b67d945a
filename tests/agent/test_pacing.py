"""Tiers on auto: a real vault says when one is due, and what it has chosen by what saves cost."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vaults import Host, Worker, bytes_of, drafted, place, root_at, save, steps_in, stopped_writer, wait_for

from regrow.core.interval import CadenceConfig
from regrow.core.records import IntervalChosen, SaveCosted, SaveDurable, SaveFailed, StateKept
from regrow.core.save_story import MEMORY
from regrow.core.saves import Urgency
from regrow.shell.vaulting import Foreseen, Paid, Place

SOON = CadenceConfig(mtbf_s=5.0, overhead=0.5)
"""Due a tenth of a second after a save that cost nothing."""
PAIR = ("r0.0", "r1.0")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Hosts that end with their test."""
    hosts: list[Host] = []

    def begin(*places: Place, **settings: object) -> Host:
        folder = tmp_path / f"run{len(hosts)}"
        folder.mkdir()
        hosts.append(Host(folder, *places, **settings))  # type: ignore[arg-type]
        return hosts[-1]

    yield begin
    for host in hosts:
        host.release()


def trains(host: Host, member: str = "r0.0") -> Worker:
    """It has made its first step."""
    worker = Worker(host, member)
    worker.say(Foreseen(arena_bytes=drafted(1).arena_bytes))
    return worker


def chosen(host: Host, where: str = MEMORY) -> list[IntervalChosen]:
    return [fact for fact in host.facts(IntervalChosen) if fact.where == where]


def test_once_training_has_begun_a_tier_on_auto_is_due_until_a_state_is_kept(make: Callable[..., Host]) -> None:
    host = make(cadence=SOON)
    host.open()
    silent = Worker(host, "r1.0")
    assert silent.hears_nothing() and not host.facts(IntervalChosen)
    worker = trains(host)
    for each in (worker, silent, worker):  # again, since nobody has saved anything
        each.wait_due()
    save(1, worker)
    worker.wait_due()
    save(2, worker)
    assert [fact.step for fact in host.facts(StateKept)] == [1, 2]
    assert host.seek()["origin"]["step"] == 2


def test_a_save_costs_what_it_cost_the_member_that_all_others_waited_for(make: Callable[..., Host]) -> None:
    host = make(cadence=CadenceConfig(mtbf_s=5.0))
    host.open()
    pair = [trains(host, member) for member in PAIR]
    save(1, *pair)
    for worker, seconds in zip(pair, (0.25, 0.5), strict=True):
        worker.say(Paid(step=1, seconds=seconds))
    facts = wait_for(lambda: host.facts(SaveCosted), "the cost")
    assert [(fact.step, fact.seconds) for fact in facts] == [(1, 0.5)]
    interval = wait_for(lambda: [x for x in chosen(host) if x.interval and x.interval.toil.is_known], "it to count")[
        -1
    ].interval
    assert interval is not None and (interval.bound, interval.seconds, interval.toil.cost_s) == ("budget", 50.0, 0.5)


def test_what_a_dead_member_would_have_said_is_not_waited_for_beyond_the_next_save(make: Callable[..., Host]) -> None:
    host = make(cadence=SOON)
    host.open()
    pair = [trains(host, member) for member in PAIR]
    save(1, *pair)
    pair[0].say(Paid(step=1, seconds=0.25))
    pair[0].say(Paid(step=9, seconds=60.0))
    pair[1].close()
    save(2, pair[0])
    assert [(fact.step, fact.seconds) for fact in wait_for(lambda: host.facts(SaveCosted), "the cost")] == [(1, 0.25)]


def test_a_place_on_auto_takes_one_state_after_the_other_and_keeps_nobody_waiting(
    make: Callable[..., Host], tmp_path: Path
) -> None:
    host = make(place(tmp_path / "near", 0), cadence=SOON)
    host.open()
    worker = trains(host)
    worker.wait_due()
    save(1, worker, urgency=Urgency.ASKED)
    writer = stopped_writer(host)
    step, end_s, is_end = 1, math.inf, False
    while step < 8 or not is_end:  # the place takes the first that is made when it is due, and no other while it is at that
        is_end = time.monotonic() > end_s
        step += 1
        worker.wait_due()
        save(step, worker)
        if step == 2:  # the vault has drawn its conclusions from the first
            interval = chosen(host, str(tmp_path / "near"))[-1].interval
            assert interval is not None
            end_s = time.monotonic() + 3 * interval.seconds  # by then it would be due again
    os.kill(writer, signal.SIGCONT)
    wait_for(lambda: len(host.facts(SaveDurable)) == 2, "the place")
    save(step + 1, worker, urgency=Urgency.ASKED)
    assert host.finish() == []
    found = steps_in(tmp_path / "near")
    assert found[0] == step + 1 and found[-1] == 1 and len(found) == 3
    assert not host.facts(SaveFailed), "nothing was taken that had to be skipped"


def test_the_next_vault_goes_on_with_what_was_learnt(make: Callable[..., Host]) -> None:
    host = make(cadence=CadenceConfig(mtbf_s=5.0))
    host.open()
    worker = trains(host)
    save(1, worker)
    worker.say(Paid(step=1, seconds=0.5))
    wait_for(lambda: host.facts(SaveCosted), "the cost")
    host.kill()
    before = len(chosen(host))
    again = trains(host)
    again.say(Foreseen(arena_bytes=drafted(1).arena_bytes))
    wait_for(lambda: len(chosen(host)) > before, "the next vault's word")
    interval = chosen(host)[before].interval
    assert interval is not None and (interval.seconds, interval.toil.cost_s) == (50.0, 0.5)
    assert again.recall(1, root_at(1)) == bytes_of(1, drafted(1).arena_bytes)


def test_fixed_intervals_are_told_and_nobody_is_told_that_they_are_due(make: Callable[..., Host], tmp_path: Path) -> None:
    host = make(place(tmp_path / "near", 2))
    host.open()
    worker = trains(host)
    assert worker.hears_nothing()
    save(2, worker)
    assert host.finish() == [] and steps_in(tmp_path / "near") == [2]
    assert [(fact.where, fact.every, fact.interval) for fact in host.facts(IntervalChosen)] == [
        (str(tmp_path / "near"), 2, None)
    ]
