"""Every way to feed a job, with and without data workers, under kills and hangs: the weights are those of a job of one."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from runs import HERE, Run, alone, wait_for

from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.core.lanes import Cell
from regrow.core.records import Committed, DataWorkerReplaced, LanePoisoned, WorkerExited, WorkerHung

pytestmark = pytest.mark.process

SCRIPT = HERE / "feeding.py"
FAULTS = ("--fault", "r1:backward:step=2:SIGKILL", "--fault", "r2:reduced:step=5:SIGKILL")
WAYS = ["function 0", "samples 2", "shards 2", "dealt 0"]
MORE_WAYS = ["function 2", "samples 0", "dealt 2", "shards 0"]


@cache
def reference(way: str) -> str:
    return alone(way, script=SCRIPT)


def prove(run: Run, way: str, died: list[str]) -> None:
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {reference(way)}, run.story()
    found = sorted(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert found == died, run.story()
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize("feed", [*WAYS, *(pytest.param(feed, marks=pytest.mark.matrix) for feed in MORE_WAYS)])
def test_fed_in_any_way_a_job_survives_kills(feed: str, start: Callable[..., Run]) -> None:
    way, workers = feed.split()
    script_args = (way, "--workers", workers, "--hold", "3")
    run = start("--replicas", "3", *FAULTS, script=SCRIPT, script_args=script_args)
    prove(run, way, ["r1", "r2"])
    assert len({fact.attempt for _, fact in run.facts(Committed)}) > 2, "nobody joined again"
    run.wait_nothing_left({})


def marks(folder: Path, member: str) -> set[int]:
    """The data workers of this member that were ever at work."""
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{member}-*")}


@pytest.mark.parametrize("way", ["samples", "dealt", "shards"])
def test_a_data_worker_that_is_killed_is_replaced_and_nobody_else_notices(
    way: str, start: Callable[..., Run], tmp_path: Path
) -> None:
    folder, go = tmp_path / "marks", tmp_path / "go"
    folder.mkdir()
    script_args = (way, "--workers", "2", "--marks", str(folder), "--wait-for", str(go))
    run = start("--replicas", "2", script=SCRIPT, script_args=script_args)
    wait_for(lambda: run.committed("r0.0") >= 4 and run.committed("r1.0") >= 4, "everyone to wait in the fourth step")
    before = marks(folder, "r1.0")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    go.touch()
    prove(run, way, [])
    assert len(before) == 2 and len(marks(folder, "r1.0") - before) == 2, run.story()
    assert run.output.count("it is replaced") == 2 and "was killed by SIGKILL" in run.output
    replaced = run.facts(DataWorkerReplaced)
    assert {(who, fact.pid, fact.how) for who, fact in replaced} == {
        ("r1.0", pid, "was killed by SIGKILL") for pid in before
    }, run.story()
    told = gather(RunDir(run.folder)).tale.data_workers
    assert {(loss.member, loss.pid) for loss in told} == {("r1.0", pid) for pid in before}, told


def test_a_data_worker_that_hangs_beyond_its_time_is_replaced(start: Callable[..., Run], tmp_path: Path) -> None:
    options = ("--workers", "2", "--marks", str(tmp_path), "--hang", "--timeout", "3", "--hold", "2")
    run = start("--replicas", "2", script=SCRIPT, script_args=("samples", *options))
    prove(run, "samples", [])
    assert (tmp_path / "hung").exists() and "did not answer within timeout_s=3" in run.output
    assert not run.facts(WorkerHung), "the user has said how long it may take"
    ((_, replaced),) = run.facts(DataWorkerReplaced)
    assert replaced.pid == int((tmp_path / "hung").read_text()) and replaced.making is not None, run.story()


def test_without_a_time_of_its_own_the_replica_is_judged(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(
        "--replicas", "2", script=SCRIPT, script_args=("samples", "--workers", "2", "--marks", str(tmp_path), "--hang")
    )
    prove(run, "samples", ["r1"])
    (hung,) = {(str(fact.member), fact.place.phase) for _, fact in run.facts(WorkerHung)}
    assert hung == ("r1.0", "data"), run.story()
    assert not Path(f"/proc/{(tmp_path / 'hung').read_text()}").exists()


def test_a_microbatch_that_kills_every_data_worker_makes_its_lane_poison(start: Callable[..., Run]) -> None:
    run = start("--replicas", "3", "--on-poison", "skip", script=SCRIPT, script_args=("deadly", "--workers", "2"))
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {alone("function", "--skip", "[[3, 2]]", script=SCRIPT)}, run.story()
    assert {fact.cell for _, fact in run.facts(LanePoisoned)} == {Cell(3, 2)}, run.story()
    assert re.search(r"DataError: a data worker \(pid \d+\) was killed by SIGSEGV while it made microbatch", run.output)


def test_data_workers_die_with_the_training_process(tmp_path: Path) -> None:
    """Of a job of one: no agent kills what is left of its process group."""
    command = [sys.executable, str(SCRIPT), "samples", "--workers", "2", "--marks", str(tmp_path)]
    process = subprocess.Popen([*command, "--wait-for", str(tmp_path / "never")], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(marks(tmp_path, "alone.0")) == 2, "both data workers to be at work")
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in marks(tmp_path, "alone.0")), "them to be gone")
