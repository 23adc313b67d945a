"""Replicas that stop, loop, wait for ever or are frozen: named, replaced, and the weights of an undisturbed run."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from runs import HERE, Run, phase, prove, wait_for

from regrow.core.progress import Phase, Place
from regrow.core.records import LaneComputed, RosterMade, WorkerExited, WorkerHung, WorkerSpared

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("r1:backward:step=3:lane=3:SIGKILL", Place(step=3, lane=3, phase="microbatch")),
        ("r1:start:SIGKILL", Place(step=None, lane=None, phase="start")),
        ("r1:reduced:step=2:SIGKILL", Place(step=2, lane=None, phase="turn")),
        ("r1:passed:step=4:SIGKILL", Place(step=4, lane=None, phase="between")),
    ],
)
def test_where_a_replica_died_is_known(fault: str, place: Place, start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "3", "--fault", fault, script_args=("--hold", "5:3"))
    run.wait()
    prove(run, reference, deaths=Counter(["r1"]))
    exits = {str(fact.member): fact.place for _, fact in run.facts(WorkerExited)}
    assert exits["r1.0"] == place
    assert {exits[member].phase for member in ("r0.0", "r1.1", "r2.0")} == {"leaving"}


HANGING = HERE / "hanging.py"


def prove_replaced(run: Run, reference: str, phase: str) -> WorkerHung:
    """One culprit, r1.0, was named and replaced; the others live on under their old pids; the weights are the same."""
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    (hung,) = {(str(fact.member), fact.place.phase): fact for _, fact in run.facts(WorkerHung)}.items()
    assert hung[0] == ("r1.0", phase), run.story()
    assert sorted(run.pids()) == ["r0.0", "r1.0", "r1.1", "r2.0"], run.story()
    exits = {str(fact.member): fact for _, fact in run.facts(WorkerExited)}
    failed = [member for member, fact in exits.items() if not fact.clean and "the job is ending" not in fact.how]
    assert failed == ["r1.0"], run.story()  # the next r1 may still be on its way
    assert exits["r1.0"].how.startswith("was ended: hangs "), exits
    assert f"regrow: r1.0 hangs {hung[1].place}" in run.output
    return hung[1]


def evidence(run: Run, hung: WorkerHung) -> str:
    return (run.folder / hung.evidence).read_text()


class Hanging(NamedTuple):
    mode: str
    phase: str
    shows: str
    """The function whose name the evidence shows."""
    arguments: tuple[str, ...] = ()
    script_args: tuple[str, ...] = ()


HANGS = [
    Hanging("python", "microbatch", "endless_python_loop"),
    Hanging("c", "microbatch", "endless_c_loop_with_the_gil"),
    Hanging("lock", "microbatch", "deadlocked_lock"),
    Hanging("loader", "data", "loader_that_never_answers"),
    Hanging("busy", "busy", "deadlocked_lock", script_args=("--seconds", "0.5")),
    Hanging("start", "start", "deadlocked_lock", arguments=("--startup-timeout", "8")),
]


@pytest.mark.parametrize("hanging", HANGS, ids=lambda hanging: hanging.mode)
def test_a_worker_that_hangs_in_its_own_code(hanging: Hanging, start: Callable[..., Run], reference: str) -> None:
    script_args = (hanging.mode, *hanging.script_args)
    run = start("--replicas", "3", *hanging.arguments, script=HANGING, script_args=script_args)
    hung = prove_replaced(run, reference, hanging.phase)
    assert hanging.shows in evidence(run, hung)
    assert "Current thread" in evidence(run, hung) and "The kernel's view" in evidence(run, hung)
    causes = [fact.cause for _, fact in run.facts(RosterMade)]
    assert ("hung-r1.0" in causes) == (hanging.mode != "start"), "before the first roster there is nothing to leave out of"


def test_a_worker_stopped_in_a_microbatch(start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "3", "--fault", "r1:backward:step=3:SIGSTOP", script_args=("--hold", "5:3"))
    hung = prove_replaced(run, reference, "microbatch")
    assert hung.place == Place(step=3, lane=2, phase="microbatch")
    assert "the kernel says that it is stopped" in hung.why
    told = evidence(run, hung)
    assert "State:\tT (stopped)" in told and "do_signal_stop" in told
    assert "backward" in told or "with py-spy installed" in told


def test_a_worker_stopped_in_a_collective(start: Callable[..., Run], reference: str) -> None:
    """r0 takes its time in step 4; r1 has done its lanes and waits in the reduce when it is stopped."""
    run = start("--replicas", "3", script=HANGING, script_args=("slow-peer", "--seconds", "1.5"))
    wait_for(
        lambda: len([1 for _, fact in run.facts(LaneComputed, "r1.0") if fact.step == 4]) == 2, "r1 to have done its lanes"
    )
    pid = run.pids()["r1.0"]
    wait_for(lambda: phase(pid) is Phase.REDUCE, "r1 to wait for the others")
    os.kill(pid, signal.SIGSTOP)
    hung = prove_replaced(run, reference, "reduce")
    assert "the kernel says that it is stopped" in hung.why


def test_a_worker_that_only_seems_to_wait(start: Callable[..., Run], reference: str) -> None:
    """Its training thread is stuck inside a collective, its pulse goes on: everybody waits, until all are woken but it."""
    run = start("--replicas", "3", "--fault", "r1:waiting:step=3:hang", script_args=("--hold", "5:3"))
    hung = prove_replaced(run, reference, "reduce")
    assert "it did not wake when its group was broken" in hung.why and "_hang" in evidence(run, hung)
    causes = [fact.cause for _, fact in run.facts(RosterMade)]
    assert causes[1:3] == ["stalled", "hung-r1.0"], causes


@pytest.fixture(params=["freezer", "unified"])
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new cgroup that can be frozen: of version 1, whose frozen processes cannot be killed, and of version 2."""
    marks = {"freezer": "freezer.state", "unified": "cgroup.freeze"}
    places = [Path("/sys/fs/cgroup", request.param), *([Path("/sys/fs/cgroup")] if request.param == "unified" else [])]
    for place in places:
        made = place / f"regrow-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        if (made / marks[request.param]).exists():
            yield made
            _thaw(made)
            wait_for(lambda made=made: not (made / "cgroup.procs").read_text(), "the cgroup to be empty")
            made.rmdir()
            return
        made.rmdir()
    pytest.skip(f"no cgroup with a {marks[request.param]} can be made here")


def _freeze(cgroup: Path, pid: int) -> None:
    (cgroup / "cgroup.procs").write_text(str(pid))
    one = cgroup / "freezer.state"
    (one if one.exists() else cgroup / "cgroup.freeze").write_text("FROZEN" if one.exists() else "1")


def _thaw(cgroup: Path) -> None:
    one = cgroup / "freezer.state"
    (one if one.exists() else cgroup / "cgroup.freeze").write_text("THAWED" if one.exists() else "0")


def test_a_worker_frozen_by_its_cgroup(start: Callable[..., Run], cgroup: Path, digests: list[str]) -> None:
    run = start("--replicas", "3", script_args=("--steps", "12", "--pace", "0.2", "--hold", "9:3"))
    wait_for(lambda: run.committed("r1.0") >= 3, "three steps")
    pid = run.pids()["r1.0"]
    _freeze(cgroup, pid)
    assert run.wait() == 0, run.story()
    prove(run, digests[12], deaths=Counter(), steps=12)
    (hung,) = {str(fact.member): fact for _, fact in run.facts(WorkerHung)}.items()
    assert hung[0] == "r1.0" and "the kernel says that it is frozen" in hung[1].why
    assert sorted(run.pids()) == ["r0.0", "r1.0", "r1.1", "r2.0"]
    assert "syscall: " in evidence(run, hung[1])
    if cgroup.parent.name == "freezer":
        assert run.processes().keys() == {pid}, "it was killed, and cannot die"
        assert f"r1.0 (pid {pid}) has not died" in run.output
        assert f"processes {pid} do not die" in run.output
        _thaw(cgroup)
    run.wait_nothing_left({})


def test_the_only_holder_of_the_state_is_left_alone(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "1", script_args=("--steps", "12", "--pace", "0.1"))
    wait_for(lambda: run.committed("r0.0") >= 3, "three steps")
    pid = run.pids()["r0.0"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: run.facts(WorkerSpared), "it to be spared")
    wait_for(lambda: "r0.0 is left alone: hangs" in run.output, "it to be said")
    os.kill(pid, signal.SIGCONT)
    assert run.wait() == 0, run.story()
    prove(run, digests[12], deaths=Counter(), steps=12)
    assert list(run.pids()) == ["r0.0"] and len(run.facts(WorkerSpared)) == 1


# No false alarm, with the default settings


def prove_undisturbed(run: Run, reference: str) -> None:
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    assert not run.facts(WorkerHung), run.story()
    assert sorted(run.pids()) == ["r0.0", "r1.0", "r2.0"] and len(run.digests()) == 3


@pytest.mark.parametrize("mode", ["slow-first", "evaluation", "compile", "collect"])
def test_what_takes_long_for_a_reason_is_no_hang(mode: str, start: Callable[..., Run], reference: str) -> None:
    """Each lasts longer than the floor, in a job whose microbatches take milliseconds."""
    run = start("--replicas", "3", script=HANGING, script_args=(mode, "--seconds", "3"))
    prove_undisturbed(run, reference)


def test_a_machine_under_twice_its_load_is_no_hang(start: Callable[..., Run], reference: str) -> None:
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        run = start("--replicas", "3", script_args=("--pace", "0.3"))
        prove_undisturbed(run, reference)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
