"""Every way a job can end: what it says, what its exit code is, and that nothing of it is left behind."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from runs import Run, alone, prove, wait_for

from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.core.records import (
    Committed,
    Departed,
    JobEnded,
    LaneComputed,
    RosterMade,
    SaveDurable,
    WorkerExited,
    WorkerStarted,
)

pytestmark = pytest.mark.process

ENDLESS = ("--steps", "100000", "--pace", "0.05")


def under_way(run: Run, steps: int = 2) -> None:
    """Every replica of the first roster has committed this many steps."""

    def is_there() -> bool:
        made = run.facts(RosterMade)
        return bool(made) and all(run.committed(str(seat.member)) >= steps for seat in made[0][1].seats)

    wait_for(lambda: is_there() or run.process.poll() is not None, f"{steps} steps")
    assert run.process.poll() is None, run.story()


def prove_stopped(run: Run, digests: list[str], members: set[str]) -> None:
    """These members, and nobody else, ended at one step, with the digest of a job of one after so many steps."""
    departed = {who: fact for who, fact in run.facts(Departed) if fact.fault is None}
    assert departed.keys() == members, run.story()
    (step,) = {fact.step for fact in departed.values()}
    expected = digests[step] if step < len(digests) else alone("--steps", str(step))
    assert run.digests() == [expected] * len(members), run.story()
    assert {fact.digest for fact in departed.values()} == {expected}
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr


class Loss(NamedTuple):
    name: str
    faults: tuple[str, ...]
    replicas: int
    restarts: int
    """At most: whoever dies first may be started again before the last one dies."""


@pytest.mark.parametrize(
    "loss",
    [
        Loss("all at once", tuple(f"r{i}:reduce:step=3:SIGKILL" for i in range(3)), 3, 2),
        Loss("the only one", ("r0:backward:step=2:SIGKILL",), 1, 0),
    ],
    ids=lambda loss: loss.name,
)
def test_with_every_replica_lost_the_job_ends_and_never_begins_again(loss: Loss, start: Callable[..., Run]) -> None:
    faults = [arg for fault in loss.faults for arg in ("--fault", fault)]
    run = start("--replicas", str(loss.replicas), *faults)
    assert run.wait() == 3, run.story()
    assert "the training state is lost: every member of roster" in run.output
    assert "never restarts from initial weights by itself" in run.output
    assert "killed by SIGKILL" in run.output
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert end.outcome == "state-lost"
    commits = Counter((who, fact.step) for who, fact in run.facts(Committed))
    assert max(commits.values()) == 1 and {who for who, _ in commits} <= {f"r{i}.0" for i in range(loss.replicas)}
    assert all(seat.member.incarnation == 0 for _, made in run.facts(RosterMade) for seat in made.seats)
    assert len(run.facts(WorkerStarted)) <= loss.replicas + loss.restarts, run.story()
    assert not run.digests()
    assert run.status()["state"] == "state-lost"
    run.wait_nothing_left({})


def test_kill_9_of_the_launcher_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start("--replicas", "2", script_args=(*ENDLESS, "--child"))
    under_way(run)
    children = [pid for pid, command in run.processes().items() if "signal.pause" in command]
    sockets = run.listening()
    assert len(children) == 2 and len(run.processes()) == 6, run.processes()  # with the launcher and its warm parent
    assert len(sockets) >= 3, sockets  # the coordinator's and each worker's
    run.kill()
    run.wait_nothing_left(sockets)
    status = run.status()
    assert (status["state"], [replica["state"] for replica in status["replicas"]]) == ("dead", ["dead", "dead"])
    assert run.check().returncode == 0


def test_kill_9_of_the_launcher_leaves_nothing_that_left_its_workers_session(start: Callable[..., Run]) -> None:
    run = start("--replicas", "2", script_args=(*ENDLESS, "--stray"))
    under_way(run)
    workers = set(run.pids().values())
    strays = [pid for pid in run.processes() if os.getsid(pid) not in {*workers, os.getsid(run.process.pid)}]
    assert len(strays) == 5, run.processes()  # two of each worker, and the warm parent
    run.kill()
    run.wait_nothing_left({})


def test_kill_9_of_the_launcher_while_a_joiner_starts_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start("--replicas", "2", script_args=ENDLESS)
    under_way(run)
    sockets = run.listening()
    (warm,) = run.warm_pids()
    os.kill(warm, signal.SIGSTOP)  # the order to start the joiner lies before it, unread, when the launcher dies
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    wait_for((run.folder / "output" / "r1.1.log").exists, "the order to be given")
    run.kill()
    os.kill(warm, signal.SIGCONT)
    run.wait_nothing_left(sockets)


def test_kill_9_of_the_launcher_while_the_warm_parent_imports_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start("--replicas", "2")
    wait_for(run.warm_pids, "the warm parent")
    run.kill()
    run.wait_nothing_left({})


def test_ctrl_c_stops_all_at_one_boundary_also_after_the_warm_parent_and_a_replica_died(
    start: Callable[..., Run], digests: list[str]
) -> None:
    run = start("--replicas", "3", script_args=ENDLESS)
    under_way(run)
    before = run.pids()
    (warm,) = run.warm_pids()
    os.kill(warm, signal.SIGKILL)
    wait_for(lambda: (new := run.warm_pids()) and warm not in new, "another warm parent")
    assert not run.facts(WorkerExited), "the warm parent's death hurt a worker"
    os.kill(before["r1.0"], signal.SIGKILL)
    wait_for(lambda: run.committed("r1.1") >= 2, "a replacement from the new warm parent to take part")
    sockets = run.listening()
    run.interrupt()
    assert run.wait() == 130, run.story()
    assert "Ctrl-C: stopping at the next boundary; once more stops at once" in run.output
    assert f"the warm parent (pid {warm}) died: no worker is hurt" in run.output
    prove_stopped(run, digests, {"r0.0", "r1.1", "r2.0"})
    deaths = [str(fact.member) for _, fact in run.facts(WorkerExited) if not fact.clean]
    assert deaths == ["r1.0"], run.story()
    run.wait_nothing_left(sockets)
    assert run.status()["state"] == "stopped"


def test_sigterm_stops_all_at_one_boundary(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "2", script_args=ENDLESS)
    under_way(run)
    run.process.terminate()
    assert run.wait() == 143, run.story()
    assert "SIGTERM: stopping at the next boundary" in run.output
    prove_stopped(run, digests, {"r0.0", "r1.0"})


@pytest.mark.parametrize("is_launcher_first", [True, False])
def test_sigterm_to_every_process_stops_the_job_at_a_boundary(
    is_launcher_first: bool, start: Callable[..., Run], digests: list[str], tmp_path: Path
) -> None:
    """As when a container is ended: data workers, warm parent and vault are told, too, and are needed until the end."""
    saves = ("--checkpoint", str(tmp_path / "place"), "--checkpoint-every", "1000")
    run = start("--replicas", "2", *saves, script_args=(*ENDLESS, "--workers", "1"))
    under_way(run)
    wait_for(lambda: len(run.processes()) == 9, "each worker with a nursery and a data worker; the vault with a writer")
    sockets = run.listening()
    below = sorted(run.processes().keys() - {run.process.pid}, reverse=True)  # data workers before those whom they feed
    if is_launcher_first:
        run.process.terminate()
        wait_for(lambda: "SIGTERM: stopping" in run.output, "the launcher to answer")
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if not is_launcher_first:
        run.process.terminate()
    assert run.wait() == 75, run.story()
    departed = {who: fact for who, fact in run.facts(Departed) if fact.fault is None}
    if is_launcher_first:
        prove_stopped(run, digests, {"r0.0", "r1.0"})
    else:  # whoever was told before the launcher was may have left as planned
        prove_stopped(run, digests, set(departed))
    assert run.output.count("died") == run.output.count("Error") == 0, run.output
    assert gather(RunDir(run.folder)).tale.summary.failures == 0, run.story()
    computed = Counter((fact.step, fact.lane) for _, fact in run.facts(LaneComputed))
    assert set(computed.values()) == {1}, run.story()
    (last,) = {fact.step for fact in departed.values()}
    assert [fact.step for _, fact in run.facts(SaveDurable)][-1] == last, run.story()
    run.wait_nothing_left(sockets)


def test_a_job_whose_only_worker_is_told_to_end_stops_at_a_boundary(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "1", script_args=ENDLESS)
    under_way(run)
    os.kill(run.pids()["r0.0"], signal.SIGTERM)
    assert run.wait() == 143, run.story()
    prove_stopped(run, digests, {"r0.0"})
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert end.outcome == "stopped"


def test_the_second_ctrl_c_ends_a_job_that_cannot_reach_its_boundary(start: Callable[..., Run]) -> None:
    hang = ("--fault", "r1:reduce:step=3:hang", "--hang-factor", "0")
    run = start("--replicas", "2", *hang, script_args=("--child",))
    under_way(run, steps=3)  # there is no boundary any more at which the first Ctrl-C could end it
    sockets = run.listening()
    run.interrupt()
    wait_for(lambda: "once more stops at once" in run.output, "the first Ctrl-C to be answered")
    assert run.process.poll() is None
    run.interrupt()
    assert run.wait() == 130, run.story()
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert (end.outcome, end.why) == ("stopped", "stopped at once by a second Ctrl-C")
    assert not run.digests()
    run.wait_nothing_left(sockets)


def test_sigterm_ends_a_job_that_cannot_reach_its_boundary_in_time(start: Callable[..., Run]) -> None:
    hang = ("--fault", "r1:reduce:step=3:hang", "--hang-factor", "0")
    run = start("--replicas", "2", *hang, "--grace", "2", script_args=ENDLESS)
    under_way(run, steps=3)
    run.process.terminate()
    assert run.wait() == 143, run.story()
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert "no boundary passed within the 2 s of --grace" in end.why
    run.wait_nothing_left({})


def test_one_replica_stops_the_job_everywhere_at_the_same_step(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", script_args=("--stop-at", "4", "--child"))
    assert run.wait() == 0, run.story()
    prove_stopped(run, digests, {"r0.0", "r1.0", "r2.0"})
    assert {fact.step for _, fact in run.facts(Departed)} == {5}
    prove(run, digests[5], deaths=Counter(), steps=5)
    run.wait_nothing_left({})


def test_a_silent_worker_is_evicted_killed_and_replaced(start: Callable[..., Run], reference: str) -> None:
    """With nobody looking at stamps, as on a host whose agent is cut off."""
    stop = ("--fault", "r1:backward:step=3:SIGSTOP", "--hang-factor", "0", "--lease", "3")
    run = start("--replicas", "3", *stop, script_args=("--hold", "5:3"))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    exits = [(str(fact.member), fact.how) for _, fact in run.facts(WorkerExited) if not fact.clean]
    assert len(exits) == 1 and exits[0][0] == "r1.0" and exits[0][1].startswith("was ended: silent for 3"), run.story()
    assert {str(who) for who, _ in run.facts(Departed)} == {"r0.0", "r1.1", "r2.0"}
