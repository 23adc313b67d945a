"""Power-offs: every process of a job is killed at one moment, again and again, at moments that nobody chose. Started again,
it goes on from a disk or from S3. The steps lost are counted from the journals: those since the newest state there.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Run, sparse, wait_for

from regrow.agent.custodian import GENERATIONS
from regrow.core.records import Committed, SaveDurable, SaveFailed, StateKept
from regrow.state.archive import Archive
from regrow.state.stores import open_store

pytestmark = pytest.mark.process

Start = Callable[..., Run]
STEPS, EVERY, OFF = 200, 4, 3
LIFE = 30, 60
"""Steps between two power-offs: many more than may be lost."""
MOST = (GENERATIONS + 1) * EVERY + 1
"""Steps lost at worst, where the place does what it can: memory is full of states that it has not got yet, the next one
waits for room, and the step that waits with it is committed."""
CASES = [(place, seed) for seed in range(10) for place in ("disk", "s3")]


def power_off(run: Run) -> None:
    """They are stopped first, so that none sees another one die; whoever was being started meanwhile, too."""
    stopped: set[int] = set()
    while found := run.processes().keys() - stopped:
        send(found, signal.SIGSTOP)
        stopped |= found
    send(stopped, signal.SIGKILL)
    run.process.wait()
    wait_for(lambda: not run.processes(), "every process of the job to be gone")


def send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def committed(run: Run) -> set[int]:
    """By a step of their own; what is replayed out of a log is not."""
    return {fact.step for _, fact in run.facts(Committed) if fact.by != "record"}


def kill_workers(run: Run) -> None:
    """All of them; the rest of the job stays."""
    pids = {pid for pid in run.pids().values() if Path(f"/proc/{pid}").exists()}
    send(pids, signal.SIGSTOP)
    send(pids, signal.SIGKILL)


def prove_nothing_redone(run: Run) -> None:
    """Within one life of an every-step job nothing is computed again, though all of its workers were lost."""
    attempts: dict[int, set[str]] = {}
    for _, fact in run.facts(Committed):
        if fact.by != "record":
            attempts.setdefault(fact.step, set()).add(f"{fact.attempt} {fact.digest}")
    assert all(len(found) == 1 for found in attempts.values()), run.story()


@pytest.mark.parametrize("case", sparse(CASES, len(CASES)), ids=lambda case: f"{case[0]} {case[1]}")
def test_a_job_that_loses_power_again_and_again_loses_what_was_promised(
    tmp_path: Path, start: Start, request: pytest.FixtureRequest, digests: list[str], case: tuple[str, int]
) -> None:
    kind, seed = case
    chance = random.Random(seed)
    url = str(tmp_path / "checkpoints") if kind == "disk" else request.getfixturevalue("s3_url")
    flags = ("--checkpoint", url, "--checkpoint-every", str(EVERY), "--resume", "latest")
    logs = ("--every-step",) if chance.random() < 0.5 else ()
    archive = Archive(open_store(url))
    origin = 0
    for _ in range(OFF):
        replicas = str(chance.randint(1, 3))
        run = start("--replicas", replicas, *flags, *logs, script_args=("--steps", str(STEPS), "--pace", "0.03"))
        goal = min(STEPS - 5, origin + chance.randint(*LIFE))
        wait_for(lambda run=run, goal=goal: goal in committed(run) or run.process.poll() is not None, f"step {goal}")
        assert run.process.poll() is None, run.story()
        if logs and chance.random() < 0.5:
            kill_workers(run)
            wait_for(lambda run=run, goal=goal: max(committed(run)) > goal + 2, "steps after that")
            prove_nothing_redone(run)
        power_off(run)
        assert min(committed(run)) == origin, run.story()
        reached = max(committed(run)) + 1
        told = max((fact.step for _, fact in run.facts(SaveDurable)), default=origin)
        origin = max((pointer.step for pointer in archive.pointers()[0]), default=0)
        assert origin >= told, "what was said to be durable is there"
        if not run.facts(SaveFailed):
            assert reached - origin <= MOST, f"{reached - origin} steps lost\n{run.story()}"
            behind = [fact.step for _, fact in run.facts(StateKept) if fact.step > origin]
            assert len(behind) <= GENERATIONS, f"{behind} were whole in memory, and {origin} is durable\n{run.story()}"
    run = start("--replicas", "2", *flags, *logs, script_args=("--steps", str(STEPS)))
    assert run.wait() == 0, run.story()
    assert min(committed(run)) == origin, run.story()
    assert max(pointer.step for pointer in archive.pointers()[0]) == STEPS
    assert set(run.digests()) == {digests[STEPS]}, run.story()
    assert run.check().returncode == 0, run.story()
