"""Every-step jobs: all workers are killed at every named point and at any moment, the vault with them, and no committed step
is computed again. The final digest is that of an undisturbed run."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import neighbours
import pytest
from coordinators import Coordinator
from runs import EVEN, LANES, Run, alone, each, is_stopped, kill_together, prove, sparse, wait_for

from regrow.core.lanes import lanes_in
from regrow.core.origin import BEGINNING, LOGS
from regrow.core.records import (
    BaseDue,
    Committed,
    LogOutgrown,
    OriginPassedOver,
    OriginTaken,
    RecordsReplayed,
    StateKept,
    VaultEnded,
    VaultStarted,
    WorkerExited,
)
from regrow.state.log import read

pytestmark = pytest.mark.process

STEPS = 24
Start = Callable[..., Run]
EVERY_STEP = ("--every-step",)
PACED = ("--pace", "0.05")


def committed(run: Run) -> int:
    """So many steps have been, by anybody."""
    return max((fact.step + 1 for _, fact in run.facts(Committed)), default=0)


def vault_pid(run: Run) -> int:
    return run.facts(VaultStarted)[-1][1].pid


def hurry(run: Run) -> None:
    (run.folder / "hurry").touch()


def redone(run: Run) -> list[int]:
    """Steps that were committed, and once more by another attempt: counted from the journals. To commit a step by its record
    is to replay it."""
    attempts: dict[int, set[tuple[str, int]]] = {}
    for _, fact in run.facts(Committed):
        if fact.by != "record":
            attempts.setdefault(fact.step, set()).add((str(fact.attempt), fact.digest))
    return [step for step, found in attempts.items() if len(found) > 1]


def prove_nothing_lost(run: Run, reference: str, deaths: Counter[str]) -> None:
    prove(run, reference, deaths=deaths)
    assert redone(run) == [], run.story()
    for _, taken in run.facts(OriginTaken):
        assert taken.through >= taken.reached, run.story()


def deaths_of(run: Run) -> Counter[str]:
    """Of whoever was killed from outside, at a moment that nobody chose."""
    return Counter(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)


def test_a_job_that_nobody_disturbs_logs_and_ends_as_ever(start: Start, reference: str) -> None:
    run = start("--replicas", "3", *EVERY_STEP)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter())


AT = [
    "forward",
    "lane",
    "reduce",
    "reduced",
    "logging",
    "logged",
    "boundary",
    "passed",
    "entered",
]


@pytest.mark.parametrize("case", sparse(each(AT, ["", "vault"]), 3), ids=" ".join)
def test_all_killed_at_a_named_point_lose_no_step(start: Start, reference: str, case: tuple[str, str]) -> None:
    """Before any state was saved: the logs hold all since the job's beginning."""
    point, vault = case
    step = "step=8:" if point != "forward" else "step=8:lane=3:"
    faults = ("--fault", f"*:{point}:{step}SIGSTOP")
    run = start("--replicas", "3", *EVERY_STEP, *faults)
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), f"somebody to stand still at {point}")
    before = committed(run)
    if vault:
        os.kill(vault_pid(run), signal.SIGKILL)
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1, "r2": 1}))
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.through >= before >= 8, run.story()
    assert (taken.where == BEGINNING) == (taken.step == 0), run.story()
    if point == "passed":
        assert taken.through == 9, "what all had logged is committed"
    assert len(run.facts(RecordsReplayed)) >= 3, run.story()
    assert len(run.facts(VaultEnded)) == 1 + bool(vault), run.story()


EARLY = ("--bucket-mb", "0.0004")
"""The result comes in six buckets, and each member's part of it goes into its log while it comes."""


@pytest.mark.parametrize(
    "case",
    [
        ("r0:prelogging:step=8", 8),
        ("r1:prelogging:step=8", 8),
        ("r2:prelogging:step=8:nth=2", 8),
        ("r2:bucket:step=8:bucket=3", 8),
        ("*:logging:step=8", 8),
        ("*:logged:step=8", 8),
        ("*:passed:step=8", 9),
    ],
    ids=lambda case: case[0],
)
def test_all_killed_while_parts_are_logged_early_lose_no_step(start: Start, reference: str, case: tuple[str, int]) -> None:
    point, through = case
    run = start("--replicas", "3", *EVEN, *EVERY_STEP, *EARLY, "--fault", f"{point}:SIGSTOP")
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), f"somebody to stand still at {point}")
    before = committed(run)
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1, "r2": 1}))
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.through >= max(before, through), run.story()


@pytest.mark.parametrize(
    "case",
    [("r0:prelogging:step=8", "r0"), ("r2:prelogging:step=8", "r2"), ("r1:bucket:step=8:bucket=4", "r1")],
    ids=lambda case: case[0],
)
def test_one_killed_while_parts_are_logged_early_costs_the_attempt_alone(
    start: Start, reference: str, case: tuple[str, str]
) -> None:
    """The survivors' parts of the attempt that broke come to nothing, and those of the next one are all there: everybody is
    killed right after it."""
    point, who = case
    faults = ("--fault", f"{point}:SIGKILL", "--fault", "*:logged:step=8:SIGSTOP")
    run = start("--replicas", "3", *EVEN, *EVERY_STEP, *EARLY, *faults)
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), "somebody to stand still in the next attempt")
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, deaths_of(run))
    assert deaths_of(run)[who] >= 1, run.story()
    assert all(taken.through >= 8 for _, taken in run.facts(OriginTaken)), run.story()


@pytest.mark.parametrize("point", ["deposit", "depositing", "deposited"])
def test_all_killed_while_they_save_lose_no_step(start: Start, reference: str, point: str) -> None:
    fault = ("--fault", f"r0:{point}:step=8:SIGSTOP")
    run = start("--replicas", "3", *EVEN, *EVERY_STEP, "--memory-every", "4", *fault)
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), "r0 in the middle of a save")
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1, "r2": 1}))
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.step in (4, 8) and taken.through >= 8, run.story()


@pytest.mark.parametrize(
    "case", sparse(each(["r0", "all"], ["recall", "recalled", "replaying", "replayed"]), 3), ids=" ".join
)
def test_killed_again_while_they_replay_lose_no_step(start: Start, reference: str, case: tuple[str, str]) -> None:
    who, point = case
    names = ("r0", "r1", "r2") if who == "all" else (who,)
    again = [part for name in names for part in ("--fault", f"{name}.1:{point}:SIGKILL")]
    run = start("--replicas", "3", *EVERY_STEP, "--memory-every", "5", *again, script_args=PACED)
    wait_for(lambda: committed(run) >= 8, "eight steps")
    before = committed(run)
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1, "r2": 1}) + Counter(names))
    assert min(fact.through for _, fact in run.facts(OriginTaken)) >= before, run.story()


def test_the_vault_killed_between_the_search_and_the_replay(start: Start, reference: str) -> None:
    """The next one finds the same records."""
    run = start("--replicas", "2", *EVERY_STEP, "--fault", "r0.1:recall:SIGSTOP", script_args=PACED)
    wait_for(lambda: committed(run) >= 8, "eight steps")
    kill_together(run.live_pids())
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), "a founder about to recall")
    os.kill(vault_pid(run), signal.SIGKILL)
    wait_for(lambda: len(run.facts(VaultStarted)) == 2, "another vault")
    for pid in run.live_pids():
        os.kill(pid, signal.SIGCONT)
    hurry(run)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1}))


@pytest.mark.parametrize("seed", sparse(range(10), 5))
def test_all_killed_at_any_moment_again_and_again(start: Start, reference: str, seed: int) -> None:
    chance = random.Random(seed)
    flags = ("--memory-every", "7") if chance.random() < 0.5 else ()
    run = start("--replicas", "3", *EVERY_STEP, *flags, script_args=("--pace", "0.02"))
    for count in range(1, 4):
        goal = min(STEPS - 2, 6 * count + chance.randint(-2, 2))
        wait_for(lambda goal=goal: committed(run) >= goal or run.process.poll() is not None, f"step {goal}")
        if chance.random() < 0.3:
            os.kill(vault_pid(run), signal.SIGKILL)
        kill_together(run.live_pids())
        wait_for(lambda count=count: len(run.facts(OriginTaken)) >= count, f"founding {count}")
    hurry(run)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, deaths_of(run))


def test_one_is_killed_and_then_all(start: Start, reference: str) -> None:
    """The log of the first one outlives it, and so do those of whoever took its place."""
    run = start("--replicas", "3", *EVERY_STEP, "--fault", "r1:boundary:step=4:SIGKILL", script_args=PACED)
    wait_for(lambda: run.committed("r1.1") >= 2, "two steps of whoever came for it")
    before = committed(run)
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 2, "r2": 1}))
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert taken.through >= before, run.story()


def test_one_survivor_goes_on_alone_and_dies(start: Start, reference: str) -> None:
    """What it commits by a resolve it logs for those who are gone."""
    faults = ("r0:boundary:step=6:SIGKILL", "r1:boundary:step=6:SIGKILL", "r2:lane:step=7:SIGKILL")
    flags = [part for fault in faults for part in ("--fault", fault)]
    run = start("--replicas", "3", *EVERY_STEP, "--max-restarts", "2", "--restart-backoff", "1", *flags)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1, "r2": 1}))


def test_a_job_grows_and_shrinks_and_loses_nothing(start: Start, reference: str) -> None:
    """Parts are as many as there are members: three, one, and two."""
    run = start("--replicas", "3", *EVERY_STEP, "--max-restarts", "1", "--restart-backoff", "0.01", script_args=PACED)
    wait_for(lambda: committed(run) >= 4, "four steps")
    for life in ("r1.0", "r2.0"):
        os.kill(run.pids()[life], signal.SIGKILL)
    wait_for(lambda: run.committed("r1.1") >= 2, "r1's second life to take part")
    before = committed(run)
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, deaths_of(run))
    assert run.facts(OriginTaken)[-1][1].through >= before, run.story()


def test_a_stop_that_was_decided_is_not_lost(start: Start, digests: list[str]) -> None:
    """All are killed when they have committed the step after which the job ends: it ends there, and does no other."""
    faults = [part for name in ("r0", "r1", "r2") for part in ("--fault", f"{name}:passed:step=9:SIGKILL")]
    run = start("--replicas", "3", *EVERY_STEP, *faults, script_args=("--stop-at", "9"))
    assert run.wait() == 0, run.story()
    prove(run, digests[10], deaths=Counter({"r0": 1, "r1": 1, "r2": 1}), steps=10)
    assert redone(run) == [], run.story()


def test_lanes_that_were_left_out_are_replayed_as_they_were(start: Start) -> None:
    """Under shrink only the logs know which lanes a step was made of: computed again it would be another step."""
    fault = ("--fault", "r1:forward:step=5:SIGKILL")
    run = start("--replicas", "3", *EVERY_STEP, "--on-loss", "shrink", *fault, script_args=PACED)
    wait_for(lambda: committed(run) >= 8, "eight steps")
    before = committed(run)
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    commits: dict[int, set[int]] = {}
    for _, fact in run.facts(Committed):
        commits.setdefault(fact.step, set()).add(fact.digest)
    assert all(len(found) == 1 for found in commits.values()) and sorted(commits) == list(range(STEPS)), run.story()
    assert redone(run) == [] and run.check().returncode == 0, run.story()
    assert run.facts(OriginTaken)[-1][1].through >= before and len(set(run.digests())) == 1, run.story()
    left_out = {lane for _, fact in run.facts(Committed) for lane in range(LANES) if lane not in lanes_of(fact)}
    assert left_out, "some lanes were left out"


def lanes_of(fact: Committed) -> set[int]:
    return set(lanes_in(node for nodes in fact.holdings for node in nodes))


def test_killed_while_the_coordinator_is_away_no_step_is_lost(start: Start, tmp_path: Path, reference: str) -> None:
    """It finds the loss when it is back."""
    coordinator = Coordinator(tmp_path)
    coordinator.start()
    try:
        run = start("--replicas", "2", *coordinator.arguments, *EVERY_STEP, run_dir=coordinator.run_dir, script_args=PACED)
        wait_for(lambda: committed(run) >= 8, "eight steps")
        coordinator.kill()
        kill_together(run.live_pids())
        before = committed(run)
        coordinator.start()
        hurry(run)
        assert run.wait() == 0, run.story()
        prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1}))
        assert run.facts(OriginTaken)[-1][1].through >= before, run.story()
    finally:
        coordinator.end()


def test_a_log_that_is_full_makes_room_by_a_save(start: Start, reference: str) -> None:
    run = start("--replicas", "2", *EVERY_STEP, "--log-mb", "1", script_args=("--steps", "150", "--pace", "0.01"))
    wait_for(lambda: len(run.facts(StateKept)) >= 2, "two bases")
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    assert any("the log is half full" in fact.why for _, fact in run.facts(BaseDue)), run.story()
    assert not run.facts(LogOutgrown), run.story()
    assert redone(run) == [] and run.check().returncode == 0, run.story()
    assert set(run.digests()) == {alone("--steps", "150")}, run.story()


def logs_of(run: Run) -> list[Path]:
    """As the agent holds them."""
    folder = Path(f"/proc/{run.process.pid}/fd")
    return [fd for fd in folder.iterdir() if "regrow-log" in os.readlink(fd)]


def test_a_flipped_bit_in_a_log_is_found_and_told(start: Start, reference: str) -> None:
    """What came after it is lost, and computed again: nothing that is not what was committed is ever replayed."""
    run = start("--replicas", "2", *EVEN, *EVERY_STEP, "--memory-every", "5", "--fault", "*:forward:step=9:SIGSTOP")
    wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), "somebody to stand still in step 9")
    wait_for(lambda: run.facts(StateKept), "a base")
    flip_in_a_log(run, 7)
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    assert [(fact.step, fact.where) for _, fact in run.facts(OriginPassedOver)] == [(7, LOGS)] * 2, run.story()
    assert [(fact.step, fact.through) for _, fact in run.facts(OriginTaken)] == [(5, 7)], run.story()
    assert "is harmed" in run.output and redone(run) == [7, 8], run.story()
    assert run.check().returncode == 0, "what was told is no broken promise"
    assert set(run.digests()) == {reference}, run.story()


def flip_in_a_log(run: Run, step: int) -> None:
    """One bit of a member's part of this step, in the memory that the agent holds."""
    with logs_of(run)[0].open("r+b", buffering=0) as file:
        (held,) = [held for held in read(file.fileno()).held if held.entry.said.record.step == step]
        at = held.part_at + held.entry.part_bytes // 2
        (byte,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)


@pytest.mark.parametrize("step", [7, 8], ids=["a step", "the newest step"])
def test_a_flipped_bit_in_a_log_costs_nothing_where_a_neighbour_has_the_same(
    start: Start, reference: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setenv("REGROW_NEIGHBOUR_TOKEN", neighbours.TOKEN_GIVEN)
    with neighbours.serving(500) as neighbour:
        near = ("--neighbour", f"{neighbour.endpoint}/tiny")
        fault = ("--memory-every", "5", "--fault", "*:forward:step=9:SIGSTOP")
        run = start("--replicas", "2", *EVEN, *EVERY_STEP, *near, *fault)
        wait_for(lambda: any(is_stopped(pid) for pid in run.live_pids()), "somebody to stand still in step 9")
        wait_for(lambda: run.facts(StateKept), "a base")
        flip_in_a_log(run, step)
        kill_together(run.live_pids())
        assert run.wait() == 0, run.story()
    prove_nothing_lost(run, reference, Counter({"r0": 1, "r1": 1}))
    assert [(fact.step, fact.where) for _, fact in run.facts(OriginPassedOver)] == [(step, LOGS)], run.story()
    assert [(fact.step, fact.through) for _, fact in run.facts(OriginTaken)] == [(5, 9)], run.story()
