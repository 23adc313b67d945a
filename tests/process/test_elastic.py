"""Replicas come and go at will, in real processes: the weights are those of an undisturbed run."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from coordinators import Coordinator
from runs import DEADLINE_S, EVEN, LANES, REGROW, Run, is_stopped, phase, wait_for

from regrow.cli.run_dir import RunDir
from regrow.cli.why import gather
from regrow.core.progress import Phase
from regrow.core.records import Departed, LaneComputed, RosterAdopted, RosterMade, WishNoted, WorkerDismissed, WorkerExited

pytestmark = pytest.mark.process

STEPS = 400
SLOW = ("--steps", str(STEPS), "--pace", "0.05")
"""Until the test has seen what it waits for."""
LATE = ("--fault", "r1.1:start:SIGSTOP")
"""The next life of r1 does not come before the spare, until it is let."""


def under_way(run: Run, who: str = "r0.0", steps: int = 3) -> None:
    wait_for(lambda: run.committed(who) >= steps or run.process.poll() is not None, f"{steps} steps of {who}")
    assert run.process.poll() is None, run.story()


def asks(run: Run, *wish: str) -> subprocess.CompletedProcess[str]:
    command = [*REGROW, *wish, str(run.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def holds(run: Run, *wish: str) -> None:
    done = asks(run, *wish)
    assert done.returncode == 0 and done.stdout.endswith(": done\n"), f"{done.stdout}{done.stderr}\n{run.story()}"


def working(run: Run) -> set[str]:
    """Who has lanes, by the newest roster."""
    return {str(seat.member) for seat in newest(run).seats if seat.lanes}


def seated(run: Run) -> set[str]:
    return {str(seat.member) for seat in newest(run).seats}


def lanes_each(run: Run) -> dict[str, int]:
    return {str(seat.member): len(seat.lanes) for seat in newest(run).seats}


def newest(run: Run) -> RosterMade:
    return max((fact for _, fact in run.facts(RosterMade)), key=lambda fact: fact.version)


def has_entered(run: Run) -> bool:
    """Is every member of the newest roster at work in it?"""
    made = newest(run)
    entered = {who for who, fact in run.facts(RosterAdopted) if fact.version == made.version}
    return entered >= {str(seat.member) for seat in made.seats}


def prove_elastic(run: Run, digests: list[str], *, at_the_end: int, failures: int = 0) -> None:
    wait_for(lambda: has_entered(run) or run.process.poll() is not None, "the newest roster to be entered")
    assert [digests[run.enough()]] * at_the_end == run.digests(), run.story()
    check = run.check()
    assert check.returncode == 0, f"{check.stdout}{check.stderr}\n{run.story()}"
    assert gather(RunDir(run.folder)).tale.summary.failures == failures, run.story()


def prove_nothing_computed_again(run: Run) -> None:
    computed = [(fact.step, fact.lane) for _, fact in run.facts(LaneComputed)]
    steps = len({step for step, _ in computed})
    assert sorted(computed) == [(step, lane) for step in range(steps) for lane in range(LANES)], run.story()


def test_a_replica_leaves_and_nothing_is_computed_again(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", script_args=SLOW)
    under_way(run)
    holds(run, "leave", "--replica", "r1")
    assert working(run) == {"r0.0", "r2.0"}
    refused = asks(run, "leave", "--replica", "r1")
    assert refused.returncode == 1 and "r1 has left already" in refused.stderr
    prove_elastic(run, digests, at_the_end=2)
    prove_nothing_computed_again(run)
    assert [fact.fault for who, fact in run.facts(Departed) if who == "r1.0"] == ["left"]
    assert [fact.state for _, fact in run.facts(WishNoted)] == ["granted", "fulfilled", "refused"]


def test_a_job_is_scaled_up_and_down(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", "--min-replicas", "2", "--max-replicas", "6", script_args=SLOW)
    under_way(run)
    for replicas, flag in ((7, "--max-replicas 6"), (1, "--min-replicas 2")):
        refused = asks(run, "scale", "--replicas", str(replicas))
        assert refused.returncode == 1 and flag in refused.stderr, refused.stderr
    holds(run, "scale", "--replicas", "6")
    assert working(run) == {f"r{number}.0" for number in range(6)}
    holds(run, "scale", "--replicas", "2")
    assert working(run) == {"r0.0", "r1.0"}
    holds(run, "scale", "--replicas", "4")
    assert working(run) == {"r0.0", "r1.0", "r6.0", "r7.0"}, "names are given once"
    prove_elastic(run, digests, at_the_end=4)
    prove_nothing_computed_again(run)


def test_a_job_is_scaled_while_a_replica_is_lost(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", script_args=SLOW)
    under_way(run)
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    holds(run, "scale", "--replicas", "4")
    wait_for(lambda: working(run) == {"r0.0", "r1.1", "r2.0", "r3.0"}, "everyone to have lanes")
    prove_elastic(run, digests, at_the_end=4, failures=1)


def test_a_replica_is_lost_while_another_leaves(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", *EVEN, "--fault", "r1:form:roster=2:SIGKILL", script_args=SLOW)
    under_way(run)
    asks(run, "leave", "--replica", "r2", "--no-wait")
    wait_for(lambda: working(run) == {"r0.0", "r1.1"}, "the other that was lost to be back, and r2 to have left")
    prove_elastic(run, digests, at_the_end=2, failures=1)


def test_a_replica_moves(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "2", script_args=SLOW)
    under_way(run)
    holds(run, "migrate", "--replica", "r0")
    assert working(run) == {"r1.0", "r2.0"}
    prove_elastic(run, digests, at_the_end=2)
    prove_nothing_computed_again(run)


@pytest.mark.parametrize(
    ("fault", "successor"),
    [
        pytest.param("r2:load:SIGKILL", "r2.1", marks=pytest.mark.matrix),
        ("r2:audit:SIGKILL", "r2.1"),
        ("r2:switched:SIGKILL", "r2.1"),
        pytest.param("r2:lane:SIGKILL", "r2.1", marks=pytest.mark.matrix),
        ("r0:snapped:SIGKILL", "r2.0"),
        ("r0:handover:SIGKILL", "r2.0"),
        ("r1:handover:SIGKILL", ""),
    ],
)
def test_a_move_is_attacked(fault: str, successor: str, start: Callable[..., Run], digests: list[str]) -> None:
    """The successor dies in every grade, and the one that leaves before it is copied and with its last row."""
    mover = fault.split(":")[0] if not successor else "r0"
    stays = ({"r0.0", "r1.0"} - {f"{mover}.0"}) | {successor or "r2.0"}
    run = start("--replicas", "2", *EVEN, "--fault", fault, script_args=SLOW)
    under_way(run)
    asks(run, "migrate", "--replica", mover, "--no-wait")
    wait_for(lambda: working(run) == stays or run.process.poll() is not None, f"{stays} to work")
    prove_elastic(run, digests, at_the_end=2, failures=1)


def test_a_shadow_is_killed_and_nobody_gives_up_a_lane(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "2", *EVEN, "--spares", "1", "--shadow", script_args=SLOW)
    under_way(run)
    wait_for(lambda: run.committed("r2.0") >= 2, "the shadow to be in step")
    os.kill(run.pids()["r2.0"], signal.SIGKILL)
    wait_for(lambda: seated(run) == {"r0.0", "r1.0", "r2.1"}, "another shadow to be in step")
    assert working(run) == {"r0.0", "r1.0"}
    prove_elastic(run, digests, at_the_end=3, failures=1)
    prove_nothing_computed_again(run)


def test_a_worker_that_is_told_to_end_hands_over_and_comes_back(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", script_args=SLOW)
    under_way(run)
    os.kill(run.pids()["r1.0"], signal.SIGTERM)
    wait_for(lambda: run.committed("r1.1") >= 2, "its next life to take part")
    prove_elastic(run, digests, at_the_end=3)
    prove_nothing_computed_again(run)
    assert [str(fact.member) for _, fact in run.facts(WorkerDismissed)] == ["r1.0"]


@pytest.mark.parametrize("told", ["the joiner", "a donor"])
def test_a_worker_is_told_to_end_in_the_middle_of_a_join(told: str, start: Callable[..., Run], digests: list[str]) -> None:
    """With the state before it that it has yet to replay, or half a piece given: whoever is told goes, and all are back."""
    fault = "r1.1:loaded:SIGSTOP" if told == "the joiner" else "*:serving:SIGSTOP"
    run = start("--replicas", "3", *EVEN, "--fault", fault, script_args=SLOW)
    under_way(run)
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    stopped = wait_for(lambda: [who for who, pid in run.pids().items() if is_stopped(pid)], f"{told} to be stopped")
    assert isinstance(stopped, list)
    (who,) = stopped
    assert (who == "r1.1") == (told == "the joiner"), run.story()
    for number in (signal.SIGTERM, signal.SIGCONT):
        os.kill(run.pids()[who], number)
    lives = {"r0": 0, "r1": 1, "r2": 0}
    lives[who.split(".")[0]] += 1
    everyone = {f"{name}.{life}" for name, life in lives.items()}
    wait_for(lambda: working(run) == everyone or run.process.poll() is not None, f"{everyone} to work")
    prove_elastic(run, digests, at_the_end=3, failures=1)
    assert [str(fact.member) for _, fact in run.facts(WorkerDismissed)] == [who], run.story()


@pytest.mark.parametrize("point", ["switched", "boundary:nth=2", pytest.param("reduced:nth=2", marks=pytest.mark.matrix)])
def test_a_shadow_is_killed_at_every_point(point: str, start: Callable[..., Run], digests: list[str]) -> None:
    """As it is seated, and in the collectives that it takes part in: the others go on with what they have."""
    run = start("--replicas", "2", *EVEN, "--spares", "1", "--shadow", "--fault", f"r2:{point}:SIGKILL", script_args=SLOW)
    wait_for(lambda: run.facts(WorkerExited), "the shadow to be struck")
    wait_for(lambda: seated(run) == {"r0.0", "r1.0", "r2.1"}, "another shadow to be in step")
    assert working(run) == {"r0.0", "r1.0"}
    prove_elastic(run, digests, at_the_end=3, failures=1)
    prove_nothing_computed_again(run)


@pytest.mark.parametrize(
    ("point", "flags"),
    [
        ("audit", ()),
        ("resolve", ("--shadow",)),
        pytest.param("load", (), marks=pytest.mark.matrix),
        pytest.param("switched", (), marks=pytest.mark.matrix),
        pytest.param("form:nth=2", ("--shadow",), marks=pytest.mark.matrix),
    ],
)
def test_a_spare_is_killed_as_it_takes_over(
    point: str, flags: tuple[str, ...], start: Callable[..., Run], digests: list[str]
) -> None:
    """Whoever of the two is back first works; the other is the spare."""
    faults = ("--fault", f"r3:{point}:SIGKILL", *(() if flags else LATE))
    run = start("--replicas", "3", *EVEN, "--spares", "1", *flags, *faults, script_args=SLOW)
    under_way(run)
    if flags:
        wait_for(lambda: run.committed("r3.0") >= 2, "the shadow to be in step")
    else:
        wait_for(lambda: phase(run.pids()["r3.0"]) is Phase.WAIT, "the spare to be parked")
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    wait_for(lambda: len(run.facts(WorkerExited)) == 2, "both to be dead")
    if not flags:
        os.kill(run.wait_stopped("r1.1"), signal.SIGCONT)
    wait_for(lambda: working(run) in ({"r0.0", "r2.0", "r1.1"}, {"r0.0", "r2.0", "r3.1"}), "one of them to have lanes")
    if flags:
        wait_for(lambda: len(seated(run)) == 4, "the other to be in step")
    prove_elastic(run, digests, at_the_end=4 if flags else 3, failures=2)


@pytest.mark.parametrize("flags", [(), ("--shadow",)], ids=["parked", "shadow"])
def test_a_spare_takes_over(flags: tuple[str, ...], start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "2", "--spares", "1", *flags, *LATE, script_args=SLOW)
    under_way(run)
    if flags:
        wait_for(lambda: run.committed("r2.0") >= 2, "the shadow to be in step")
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    wait_for(lambda: working(run) == {"r0.0", "r2.0"}, "the spare to have lanes")
    os.kill(run.wait_stopped("r1.1"), signal.SIGCONT)
    if flags:
        wait_for(lambda: len(seated(run)) == 3, "r1 to be the shadow")
    prove_elastic(run, digests, at_the_end=3 if flags else 2, failures=1)
    lost = next(i for i, (_, fact) in enumerate(run.facts(RosterMade)) if fact.cause == "died-r1.0")
    answer = run.facts(RosterMade)[lost][1]
    assert isinstance(answer, RosterMade)
    has_lanes = {str(seat.member) for seat in answer.seats if seat.lanes}
    assert has_lanes == ({"r0.0", "r2.0"} if flags else {"r0.0"}), "a shadow has them with the roster that answers the death"


def test_below_the_minimum_the_job_waits_says_so_and_goes_on(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", *EVEN, "--min-replicas", "3", script_args=SLOW)
    under_way(run)
    os.kill(run.pids()["r1.0"], signal.SIGKILL)
    wait_for(lambda: run.committed("r1.1") >= 2, "its next life to take part")
    assert "the job waits: 2 of the 3 replicas that the job needs are here" in run.output
    prove_elastic(run, digests, at_the_end=3, failures=1)
    alone = [fact for _, fact in run.facts(RosterMade) if fact.waits]
    assert [len(fact.seats) for fact in alone] == [2], run.story()


def test_a_slow_replica_has_fewer_lanes_by_the_operators_word(start: Callable[..., Run], digests: list[str]) -> None:
    run = start("--replicas", "3", *EVEN, "--speed", "r1=0.3", script_args=SLOW)
    under_way(run)
    prove_elastic(run, digests, at_the_end=3)
    ((_, made),) = run.facts(RosterMade)
    assert isinstance(made, RosterMade) and [len(seat.lanes) for seat in made.seats] == [3, 1, 2]


def test_a_slow_replica_is_found_out_and_gives_up_lanes(start: Callable[..., Run], digests: list[str]) -> None:
    """With the roster that follows once it has shown, by which nothing is computed again."""
    run = start("--replicas", "3", script_args=(*SLOW, "--slow", "r1"))
    wait_for(lambda: run.facts(RosterMade) and lanes_each(run)["r1.0"] == 1, "r1 to have one lane instead of two")
    assert seated(run) == {"r0.0", "r1.0", "r2.0"}
    prove_elastic(run, digests, at_the_end=3)
    prove_nothing_computed_again(run)


@pytest.mark.parametrize(
    ("wish", "moment", "stays"),
    [
        (("leave", "--replica", "r2"), "persisted:roster=2", {"r0.0", "r1.0"}),
        pytest.param(
            ("scale", "--replicas", "4"), "persisted:roster=2", {"r0.0", "r1.0", "r2.0", "r3.0"}, marks=pytest.mark.matrix
        ),
        (("scale", "--replicas", "4"), "order:nth=4", {"r0.0", "r1.0", "r2.0", "r3.0"}),
        (("migrate", "--replica", "r2"), "push:roster=2", {"r0.0", "r1.0", "r3.0"}),
        pytest.param(("migrate", "--replica", "r2"), "persist:roster=2", {"r0.0", "r1.0", "r3.0"}, marks=pytest.mark.matrix),
    ],
)
def test_a_wish_outlives_the_coordinator(
    wish: tuple[str, ...], moment: str, stays: set[str], start: Callable[..., Run], tmp_path: Path, digests: list[str]
) -> None:
    coordinator = Coordinator(tmp_path)
    try:
        coordinator.start(f"{moment}:SIGKILL")
        run = start("--replicas", "3", *EVEN, *coordinator.arguments, script_args=SLOW, run_dir=coordinator.run_dir)
        under_way(run)
        asks(run, *wish, "--no-wait")
        coordinator.wait_struck()
        coordinator.start()
        wait_for(lambda: working(run) == stays or run.process.poll() is not None, f"{stays} to work")
        prove_elastic(run, digests, at_the_end=len(stays))
        assert {who for who, _ in run.facts(Departed)} >= stays, run.story()
    finally:
        coordinator.end()
