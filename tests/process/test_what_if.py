"""`regrow status --what-if` is right: what it foretells is done to the job, and that is what comes of it."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coordinators import Coordinator
from runs import EVEN, REGROW, Run, prove, wait_for

from regrow.core.records import (
    Committed,
    OriginTaken,
    RosterMade,
    SaveDurable,
    StateKept,
    StateUnique,
    VaultEnded,
    VaultStarted,
)

pytestmark = pytest.mark.process

Start = Callable[..., Run]
SLOW = ("--pace", "0.2")
CALM = ("--hang-factor", "0", *EVEN)
"""Workers are stopped while the question is asked: nobody is to be judged for it."""


def risk(run: Run, *names: str) -> Any:
    questions = [part for name in names for part in ("--what-if", name)]
    command = [*REGROW, "status", str(run.folder), "--json", *questions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["risk"]


def foretold(run: Run, names: str) -> Any:
    (answer,) = risk(run, names)["what_if"]
    return answer["outcome"]


def living(run: Run) -> list[int]:
    return [pid for pid in run.pids().values() if Path(f"/proc/{pid}").exists()]


def stop_all(run: Run) -> None:
    """Before anything is asked: on a busy machine the answer may take longer than the rest of the job."""
    for pid in living(run):
        os.kill(pid, signal.SIGSTOP)


def let_go(run: Run) -> None:
    for pid in living(run):
        os.kill(pid, signal.SIGCONT)


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def reached(run: Run) -> int:
    return max((fact.step for _, fact in run.facts(Committed)), default=-1) + 1


def redone(run: Run) -> int:
    """Steps that were committed by one life of a replica and again by a later one."""
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    return len({fact.step for who, fact in run.facts(Committed) if who.endswith(".0") and fact.step >= taken.step})


def hurry(run: Run) -> None:
    (run.folder / "hurry").touch()


@pytest.mark.parametrize("lost", [("r1",), ("r0", "r2")])
def test_lanes_go_to_whom_it_says_and_no_step_is_computed_again(start: Start, reference: str, lost: tuple[str, ...]) -> None:
    run = start("--replicas", "3", "--memory-every", "6", *CALM, script_args=SLOW)
    wait_for(lambda: reached(run) >= 4, "some steps")
    stop_all(run)
    outcome = foretold(run, ",".join(lost))
    assert outcome["kind"] == "redealt", outcome
    kill([run.pids()[f"{name}.0"] for name in lost])
    wait_for(lambda: len(living(run)) == 3 - len(lost), "their end")
    let_go(run)
    stays = {"r0", "r1", "r2"} - set(lost)

    def survivors() -> RosterMade | None:
        made = [fact for _, fact in run.facts(RosterMade)]
        return next((fact for fact in made if {seat.member.replica for seat in fact.seats} == stays), None)

    roster = wait_for(survivors, "the roster of those who are left")
    assert isinstance(roster, RosterMade)
    assert {seat.member.replica: list(seat.lanes) for seat in roster.seats} == outcome["lanes"], run.story()
    assert set(outcome["holders"]) == stays
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(lost))
    assert not run.facts(OriginTaken), run.story()
    survivor = f"{min(stays)}.0"
    assert Counter(fact.step for _, fact in run.facts(Committed, survivor)) == Counter(range(24)), run.story()


def test_the_steps_that_it_says_are_computed_again(start: Start, reference: str) -> None:
    run = start("--replicas", "3", "--memory-every", "6", *CALM, script_args=SLOW)
    wait_for(lambda: run.facts(StateKept) and reached(run) >= 9, "some steps after a save")
    stop_all(run)
    outcome = foretold(run, "r0,r1,r2")
    assert (outcome["kind"], outcome["where"]) == ("founded", "memory"), outcome
    assert outcome["redone"] == reached(run) - outcome["step"] > 0 and outcome["redone_s"] > 0, outcome
    kill(living(run))
    wait_for(lambda: run.facts(OriginTaken), "the founding")
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(("r0", "r1", "r2")))
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert (taken.step, redone(run)) == (outcome["step"], outcome["redone"]), run.story()


def test_without_a_vault_it_is_the_job(start: Start) -> None:
    run = start("--replicas", "2", *CALM, script_args=SLOW)
    wait_for(lambda: reached(run) >= 4, "some steps")
    stop_all(run)
    outcome = foretold(run, "r0,r1")
    assert (outcome["kind"], outcome["exit"], outcome["where"]) == ("ended", 3, None), outcome
    kill(living(run))
    assert run.wait() == 3, run.story()


def test_a_new_run_goes_on_from_the_place_that_it_says(tmp_path: Path, start: Start, reference: str) -> None:
    place = ("--checkpoint", str(tmp_path / "checkpoints"), "--checkpoint-every", "6")
    first = start("--replicas", "2", *place, *CALM, script_args=SLOW)
    wait_for(lambda: first.facts(SaveDurable) and reached(first) >= 9, "some steps after a save")
    stop_all(first)
    answers = risk(first, "launcher", "host")["what_if"]
    launcher, host = (answer["outcome"] for answer in answers)
    assert (launcher["kind"], launcher["exit"], host["where"]) == ("ended", None, None), answers
    assert launcher["redone"] == reached(first) - launcher["step"] > 0, answers
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    run = start("--replicas", "2", *place, "--resume", "latest")
    assert run.wait() == 0, run.story()
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.step == launcher["step"], run.story()
    prove(run, reference, deaths=Counter(), first=taken.step)
    again = {fact.step for _, fact in first.facts(Committed)} & {fact.step for _, fact in run.facts(Committed)}
    assert len(again) == launcher["redone"], run.story()


@pytest.mark.parametrize("names", ["r0,r1", "r1"])
def test_what_is_saved_before_a_job_ends_for_good_is_foretold(
    tmp_path: Path, start: Start, reference: str, names: str
) -> None:
    """All are lost, and what memory holds becomes durable; or one is, and the other saves what it has."""
    place = ("--checkpoint", str(tmp_path / "checkpoints"), "--checkpoint-every", "1000")
    flags = (*place, "--memory-every", "6", "--max-restarts", "0", "--min-replicas", "2")
    first = start("--replicas", "2", *flags, *CALM, script_args=SLOW)
    wait_for(lambda: first.facts(StateKept) and reached(first) >= 9, "some steps after a save")
    stop_all(first)
    outcome = foretold(first, names)
    assert (outcome["kind"], outcome["exit"], outcome["where"]) == ("ended", 1, place[1]), outcome
    assert (outcome["redone"] == 0) == (names == "r1"), outcome
    kill([first.pids()[f"{name}.0"] for name in names.split(",")])
    let_go(first)
    assert first.wait() == 1, first.story()
    run = start("--replicas", "2", *place, "--resume", "latest")
    assert run.wait() == 0, run.story()
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    prove(run, reference, deaths=Counter(), first=taken.step)
    again = {fact.step for _, fact in first.facts(Committed)} & {fact.step for _, fact in run.facts(Committed)}
    assert len(again) == outcome["redone"], run.story()
    if names == "r1":
        assert outcome["step"] <= taken.step <= outcome["step"] + 1, "and the step under way, where it was done"
    else:
        assert taken.step == outcome["step"], run.story()


def test_neither_a_vault_nor_a_coordinator_costs_a_step(tmp_path: Path, start: Start, reference: str) -> None:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    coordinator = Coordinator(folder)
    try:
        coordinator.start()
        flags = ("--replicas", "2", "--memory-every", "6", *CALM, *coordinator.arguments)
        run = start(*flags, script_args=SLOW, run_dir=coordinator.run_dir)
        wait_for(lambda: reached(run) >= 4, "some steps")
        stop_all(run)
        assert [foretold(run, name)["kind"] for name in ("vault", "coordinator")] == ["unharmed"] * 2
        before = reached(run)
        coordinator.kill()
        os.kill(run.facts(VaultStarted)[-1][1].pid, signal.SIGKILL)
        let_go(run)
        wait_for(lambda: reached(run) >= before + 3 and len(run.facts(VaultStarted)) == 2, "steps without both")
        coordinator.start()
        hurry(run)
        assert run.wait() == 0, run.story()
        prove(run, reference, deaths=Counter())
        assert not run.facts(OriginTaken) and len(run.facts(VaultEnded)) == 2, run.story()
    finally:
        coordinator.end()


def test_whoever_is_left_alone_has_the_state_saved_at_once(start: Start, reference: str) -> None:
    run = start("--replicas", "2", "--memory-every", "1000", *CALM, script_args=SLOW)
    wait_for(lambda: reached(run) >= 4, "some steps")
    assert not run.facts(StateUnique) and not run.facts(StateKept), run.story()
    kill([run.pids()["r1.0"]])
    wait_for(lambda: run.facts(StateKept), "the copy of what r0 holds alone")
    ((who, unique),) = run.facts(StateUnique)
    ((_, kept),) = run.facts(StateKept)
    assert who == "r0.0" and unique.step < kept.step <= unique.step + 2, run.story()
    stop_all(run)
    kill(living(run))
    hurry(run)
    assert run.wait() == 0, run.story()
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.step == kept.step, run.story()
    deaths = Counter(
        fact.member.replica for _, fact in run.facts() if type(fact).__name__ == "WorkerExited" and not fact.clean
    )
    prove(run, reference, deaths=deaths)


def test_a_job_of_one_is_unique_from_its_start_and_status_says_so(start: Start, reference: str) -> None:
    run = start("--replicas", "1", "--memory-every", "1000", *CALM, script_args=SLOW)
    wait_for(lambda: run.facts(StateKept) and reached(run) >= 3, "a copy, and some steps")
    stop_all(run)
    told = risk(run, "r0")
    (answer,) = told["what_if"]
    assert answer["outcome"]["redone"] == reached(run) - 1, told
    assert told["unique"].startswith("only r0 holds the state: its loss takes the job back to step 1 (this host's memory): ")
    text = subprocess.run([*REGROW, "status", str(run.folder)], capture_output=True, text=True, check=True).stdout
    assert told["unique"] in text
    kill(living(run))
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(("r0",)))
    assert redone(run) == answer["outcome"]["redone"], run.story()
    assert [fact.step for _, fact in run.facts(StateKept)] == [1, 24], "not again before the end"
