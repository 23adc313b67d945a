"""Jobs whose saves are on auto: they are made at the intervals that are said, and a slow place has a longer one."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from runs import Run, prove, wait_for

from regrow.core.records import IntervalChosen, Line, OriginTaken, SaveDurable, StateKept
from regrow.core.save_story import MEMORY
from regrow.shell.journal import read
from regrow.state.archive import Archive
from regrow.state.stores import open_store

pytestmark = pytest.mark.process

STEPS = 24
Start = Callable[..., Run]
SOON = ("--mtbf", "20s", "--overhead", "50%")
PACED = ("--pace", "0.3")


def lines(run: Run) -> list[Line]:
    """Of all vaults."""
    return [line for process in read(run.folder / "journal") if process.who == "vault" for line in process.lines]


def made(run: Run) -> dict[int, float]:
    """When the copy of each state that was kept was begun, by its step."""
    return {line.what.step: line.ns / 1e9 - line.what.seconds for line in lines(run) if isinstance(line.what, StateKept)}


def said(run: Run, where: str) -> list[tuple[float, IntervalChosen]]:
    return [
        (line.ns / 1e9, line.what)
        for line in lines(run)
        if isinstance(line.what, IntervalChosen) and line.what.where == where
    ]


def hurry(run: Run) -> None:
    (run.folder / "hurry").touch()


def writer_of(run: Run) -> int:
    """Its pid, as soon as there is one."""
    found = wait_for(
        lambda: [pid for pid, command in run.processes().items() if "regrow.agent.writer" in command], "a writer"
    )
    assert isinstance(found, list)
    return int(found[0])


def test_a_job_on_auto_saves_at_the_intervals_it_says_and_a_slow_place_has_a_longer_one(
    tmp_path: Path, start: Start, reference: str
) -> None:
    place = tmp_path / "checkpoints"
    run = start("--replicas", "2", "--checkpoint", str(place), *SOON, script_args=PACED)
    writer = writer_of(run)
    os.kill(writer, signal.SIGSTOP)
    count = len(made(run))
    wait_for(lambda: len(made(run)) >= count + 6, "six copies in memory while the place gets nothing done")
    os.kill(writer, signal.SIGCONT)
    wait_for(
        lambda: any(fact.interval.copies > 1 for _, fact in said(run, str(place)) if fact.interval), "a longer interval"
    )
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    slow = next(fact.interval for _, fact in said(run, str(place)) if fact.interval is not None and fact.interval.copies > 1)
    assert slow.bound == "tier" and slow.toil.durable_s in {fact.seconds for _, fact in run.facts(SaveDurable)}, run.story()
    *begun, _ = made(run).values()  # the last one is the job's end
    told = [(at, fact.interval.seconds) for at, fact in said(run, MEMORY) if fact.interval is not None]
    for one, next_one in pairwise(begun):
        before = [seconds for at, seconds in told if at <= one]
        since = [seconds for at, seconds in told if one <= at <= next_one]
        least_s = min([*before[-1:], *since])
        assert next_one - one >= 0.75 * least_s, "sooner than any interval that was said, within what need not be told"
    steps = sorted(pointer.step for pointer in Archive(open_store(str(place))).pointers()[0])
    assert steps[-1] == STEPS and len(steps) < len(made(run)), run.story()


def test_with_all_replicas_killed_a_job_on_auto_goes_on_and_counts_the_loss(start: Start, reference: str) -> None:
    run = start("--replicas", "2", "--memory-every", "auto", *SOON, script_args=PACED)
    wait_for(lambda: len(made(run)) >= 3, "a few states in memory")
    newest = max(made(run))
    pids = list(run.pids().values())
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another one die
        for pid in pids:
            os.kill(pid, number)
    wait_for(lambda: [fact for _, fact in said(run, MEMORY) if fact.interval and fact.interval.loss.count == 1], "the count")
    wait_for(lambda: run.facts(OriginTaken), "the job to be founded again")
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    wait_for(lambda: max(made(run)) > taken.step, "a state from there on")
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"r0": 1, "r1": 1}))
    assert newest <= taken.step <= taken.reached, run.story()
    assert min(step for step in made(run) if step > taken.step) < STEPS, "it is saved again from there on"
