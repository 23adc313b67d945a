"""Kill the coordinator: healthy steps go on, a death waits for it, and it comes back knowing what it must."""

import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from coordinators import Coordinator
from runs import REGROW, TINY, Run, phase, prove, sparse, wait_for
from test_ends import ENDLESS, prove_stopped, under_way

from regrow.core.progress import Phase
from regrow.core.records import (
    Committed,
    GroupsBroke,
    JobEnded,
    Refused,
    RosterMade,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)

pytestmark = pytest.mark.process

STEPS = 60
LONG = ("--steps", str(STEPS), "--pace", "0.05")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    made = Coordinator(folder)
    yield made
    made.end()


@pytest.fixture
def begin(coordinator: Coordinator, start: Callable[..., Run]) -> Callable[..., Run]:
    """`regrow run` with that coordinator, in its run directory."""

    def begun(*arguments: str, script_args: tuple[str, ...] = LONG) -> Run:
        return start(*coordinator.arguments, *arguments, script_args=script_args, run_dir=coordinator.run_dir)

    return begun


def wait_commits(run: Run, members: list[str], more: int) -> None:
    """Each of these members commits this many more steps."""
    before = {member: run.committed(member) for member in members}
    wait_for(
        lambda: all(run.committed(member) >= before[member] + more for member in members) or run.process.poll() is not None,
        f"{more} more steps of {members}",
    )
    assert run.process.poll() is None, run.story()


def finish(run: Run, coordinator: Coordinator, reference: str, *, deaths: Counter[str], steps: int) -> None:
    """The last lines of every attack on a coordinator."""
    run.wait()
    prove(run, reference, deaths=deaths, steps=steps)
    assert coordinator.wait() == 0, coordinator.output
    assert [fact.outcome for _, fact in run.facts(JobEnded)] == ["finished"], run.story()
    terms = [fact.version.term for _, fact in run.facts(RosterMade)]
    assert terms == sorted(terms) and terms[-1] <= coordinator.lives
    assert run.status()["state"] == "finished"


def test_a_coordinator_of_its_own_and_nothing_goes_wrong(
    coordinator: Coordinator, begin: Callable[..., Run], reference: str
) -> None:
    coordinator.start()
    run = begin("--replicas", "3", script_args=())
    finish(run, coordinator, reference, deaths=Counter(), steps=24)
    assert "roster 1.1 (every replica is ready): r0.0, r1.0, r2.0" in run.output
    run.wait_nothing_left({})


def test_healthy_steps_go_on_without_a_coordinator(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "3")
    under_way(run)
    assert run.status()["coordinator"] == "up"
    pids = run.pids()
    coordinator.kill()
    wait_commits(run, list(pids), 5)
    status = run.status()
    assert (status["coordinator"], status["state"]) == ("away", "running")
    coordinator.start()
    wait_for(lambda: f"the coordinator at {coordinator.endpoint} is here" in run.output, "the agent to find it again")
    finish(run, coordinator, digests[STEPS], deaths=Counter(), steps=STEPS)
    assert run.pids() == pids
    assert run.output.count("is away: training goes on, nobody can be replaced until it is back") == 1
    assert [fact.version.term for _, fact in run.facts(RosterMade)] == [1], "nobody died: no roster was needed"


def test_a_death_meanwhile_waits_for_the_coordinator(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "3", script_args=(*LONG, "--hold", "50:3"))
    under_way(run)
    pids = run.pids()
    coordinator.kill()
    os.kill(pids["r1.0"], signal.SIGKILL)
    wait_for(lambda: {who for who, _ in run.facts(GroupsBroke)} >= {"r0.0", "r2.0"}, "both survivors to notice")
    commits = len(run.facts(Committed))
    assert run.process.poll() is None and len(run.facts(RosterMade)) == 1
    assert run.status()["coordinator"] == "away"
    assert len(run.facts(Committed)) == commits, "a step was committed without all of its members"
    coordinator.start()
    finish(run, coordinator, digests[STEPS], deaths=Counter(["r1"]), steps=STEPS)
    assert run.facts(RosterMade)[1][1].version.term == 2
    assert run.pids() == {**pids, "r1.1": run.pids()["r1.1"]}


def test_whoever_does_not_take_the_roster_it_waited_for_is_replaced(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    """Its main thread is in an endless loop, inside a wait; its session goes on and forms the roster's group."""
    coordinator.start()
    run = begin("--replicas", "3", "--lease", "300", script_args=(*LONG, "--hold", "50:3"))
    under_way(run)
    pids = run.pids()
    coordinator.kill()
    os.kill(pids["r2.0"], signal.SIGKILL)
    wait_for(lambda: phase(pids["r1.0"]) is Phase.WAIT, "r1 to wait for a roster")
    os.kill(pids["r1.0"], signal.SIGUSR1)
    coordinator.start()
    finish(run, coordinator, digests[STEPS], deaths=Counter(["r2"]), steps=STEPS)
    (hung,) = [fact for _, fact in run.facts(WorkerHung)]
    assert (str(hung.member), hung.place.phase) == ("r1.0", "wait"), run.story()
    assert "what it waited for is there" in hung.why


class Attack(NamedTuple):
    name: str
    lives: tuple[str, ...]
    """Where each life of the coordinator ends but the last, which sees the job to its end."""
    faults: tuple[str, ...] = ()
    deaths: str = ""


DEATH = ("r1:backward:step=3:SIGKILL",)
TWO = ("r1:backward:step=3:SIGKILL", "r2:reduce:step=6:SIGKILL")
ATTACKS = [
    Attack("before its first term is durable", ("persist:SIGKILL",)),
    Attack("before it orders anything", ("persisted:SIGKILL",)),
    Attack("between the first orders", ("order:nth=2:SIGKILL",)),
    Attack("before the first roster is durable", ("persist:roster=1:SIGKILL",)),
    Attack("the first roster is durable and not noted", ("made:roster=1:SIGKILL",)),
    Attack("between the first pushes", ("push:roster=1:nth=2:SIGKILL",)),
    Attack("before a death is durable", ("persist:roster=2:SIGKILL",), DEATH, "r1"),
    Attack("a death is durable and not pushed", ("persisted:roster=2:SIGKILL",), DEATH, "r1"),
    Attack("a death is pushed to one of two", ("push:roster=2:nth=2:SIGKILL",), DEATH, "r1"),
    Attack("before a replacement is ordered", ("order:nth=4:SIGKILL",), DEATH, "r1"),
    Attack("before a join is durable", ("persist:roster=3:SIGKILL",), DEATH, "r1"),
    Attack("a join is durable and not noted", ("made:roster=3:SIGKILL",), DEATH, "r1"),
    Attack("between the pushes of a join", ("push:roster=3:nth=2:SIGKILL",), DEATH, "r1"),
    Attack("before it tells of the end", ("end:SIGKILL",), DEATH, "r1"),
    Attack("twice at its start", ("persisted:roster=2:SIGKILL", "persist:SIGKILL", "order:nth=2:SIGKILL"), DEATH, "r1"),
    Attack(
        "again and again while members die and join",
        ("made:roster=2:SIGKILL", "persist:roster=1:SIGKILL", "push:roster=1:SIGKILL", "order:nth=3:SIGKILL"),
        TWO,
        "r1 r2",
    ),
]


@pytest.mark.parametrize("attack", sparse(ATTACKS, 4), ids=lambda attack: attack.name)
def test_killed_there_it_comes_back_and_the_weights_are_the_same(
    attack: Attack, coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start(attack.lives[0])
    faults = [arg for fault in attack.faults for arg in ("--fault", fault)]
    run = begin("--replicas", "3", *faults, script_args=("--steps", "12", "--hold", "8:3"))
    for fault in (*attack.lives[1:], None):
        coordinator.wait_struck()
        coordinator.start(*[fault] if fault else [])
    finish(run, coordinator, digests[12], deaths=Counter(attack.deaths.split()), steps=12)


def test_killed_at_random_while_members_die_and_join(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    coordinator.start()
    run = begin("--replicas", "4", "--restart-backoff", "0", script_args=ENDLESS)
    under_way(run)
    killed: list[str] = []
    for _ in range(5):
        living = [row for row in run.status()["replicas"] if row["state"] == "running"]
        if chance.random() < 0.5:
            coordinator.kill()
        victim = chance.choice(living)
        os.kill(victim["pid"], signal.SIGKILL)
        killed.append(victim["name"])
        if chance.random() < 0.5:
            # Somewhere between its death and its successor's first step.
            started = len(run.facts(WorkerStarted))
            wait_for(
                lambda started=started: coordinator.process.poll() is not None or len(run.facts(WorkerStarted)) > started,
                "the successor's start",
            )
            coordinator.end()
        if coordinator.process.poll() is not None:
            coordinator.start()
        wait_for(
            lambda: (
                len(run.facts(RosterMade)[-1][1].seats) == 4
                and all(row["state"] == "running" for row in run.status()["replicas"])
            ),
            f"everyone to be back (seed {seed})\n{run.story()}",
        )
    wait_commits(run, [str(seat.member) for seat in run.facts(RosterMade)[-1][1].seats], 2)
    run.interrupt()
    assert run.wait() == 130, f"seed {seed}\n{run.story()}"
    prove_stopped(run, digests, {str(seat.member) for seat in run.facts(RosterMade)[-1][1].seats})
    died = Counter(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert died == Counter(killed), f"seed {seed}\n{run.story()}"
    assert coordinator.wait() == 130, coordinator.output


@pytest.mark.matrix
def test_killed_while_workers_start(coordinator: Coordinator, begin: Callable[..., Run], reference: str) -> None:
    coordinator.start()
    run = begin("--replicas", "3", script_args=())
    wait_for(lambda: len(run.facts(WorkerStarted)) == 3, "every worker's process")
    coordinator.kill()
    pids = run.pids()
    assert not run.facts(WorkerExited), run.story()
    coordinator.start()
    finish(run, coordinator, reference, deaths=Counter(), steps=24)
    assert run.pids() == pids


def test_the_job_reaches_its_end_while_the_coordinator_is_away(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "3")
    under_way(run)
    coordinator.kill()
    wait_for(lambda: len(run.facts(WorkerExited)) == 3, "every worker to leave by itself")
    assert run.process.poll() is None, "the job is over only by the coordinator's word"
    coordinator.start()
    finish(run, coordinator, digests[STEPS], deaths=Counter(), steps=STEPS)


@pytest.mark.matrix
def test_an_order_to_kill_outlives_the_coordinator(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start("doom:SIGKILL")
    stop = ("--lease", "3", "--fault", "r1:backward:step=3:SIGSTOP")
    run = begin("--replicas", "3", *stop, script_args=("--steps", "12", "--hold", "8:3"))
    coordinator.wait_struck()
    assert not run.facts(WorkerExited), "the order was never given"
    coordinator.start()
    finish(run, coordinator, digests[12], deaths=Counter(), steps=12)
    ended = [(str(fact.member), fact.how) for _, fact in run.facts(WorkerExited) if not fact.clean]
    assert ended == [("r1.0", "was ended: an earlier coordinator gave it up")], run.story()


@pytest.mark.matrix
def test_ctrl_c_while_it_is_away_is_heard_when_it_is_back(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "2", script_args=ENDLESS)
    under_way(run)
    coordinator.kill()
    wait_for(lambda: "is away: training goes on" in run.output, "the agent to notice")
    run.interrupt()
    wait_for(lambda: "it hears of the stop once it is back" in run.output, "the first Ctrl-C to be answered")
    wait_commits(run, ["r0.0", "r1.0"], 2)
    coordinator.start()
    assert run.wait() == 130, run.story()
    assert coordinator.wait() == 130, coordinator.output
    prove_stopped(run, digests, {"r0.0", "r1.0"})
    assert run.status()["state"] == "stopped"


def test_a_second_ctrl_c_ends_everything_though_the_coordinator_is_away(
    coordinator: Coordinator, begin: Callable[..., Run]
) -> None:
    coordinator.start()
    run = begin("--replicas", "2", "--lease", "3", script_args=(*ENDLESS, "--child"))
    under_way(run)
    sockets = run.listening()
    coordinator.kill()
    run.interrupt()
    wait_for(lambda: "once more stops at once" in run.output, "the first Ctrl-C to be answered")
    run.interrupt()
    assert run.wait() == 130, run.story()
    run.wait_nothing_left(sockets)
    assert run.status()["state"] == "stopped"
    assert run.check().returncode == 0
    coordinator.start()
    assert coordinator.wait() == 3, coordinator.output
    assert "`regrow run` is gone, and no replica was heard for 3 s" in coordinator.output


@pytest.mark.matrix
def test_a_second_ctrl_c_is_the_end_for_the_coordinator_too(coordinator: Coordinator, begin: Callable[..., Run]) -> None:
    coordinator.start()
    run = begin("--replicas", "2", "--fault", "r1:reduce:step=3:hang", script_args=())
    under_way(run, steps=3)
    run.interrupt()
    wait_for(lambda: "once more stops at once" in run.output, "the first Ctrl-C to be answered")
    run.interrupt()
    assert run.wait() == 130, run.story()
    assert coordinator.wait() == 130, coordinator.output
    assert "the job was stopped: stopped at once by a second Ctrl-C" in coordinator.output


@pytest.mark.parametrize("is_away", [False, True], ids=["it is there", "it is away"])
def test_kill_9_of_regrow_run_is_the_end(is_away: bool, coordinator: Coordinator, begin: Callable[..., Run]) -> None:
    coordinator.start()
    run = begin("--replicas", "2", "--lease", "3", script_args=ENDLESS)
    under_way(run)
    sockets = run.listening()
    if is_away:
        coordinator.kill()
    run.kill()
    run.wait_nothing_left(sockets)
    if is_away:
        coordinator.start()
    assert coordinator.wait() == 3, coordinator.output
    assert "the training state is lost: `regrow run` is gone, and no replica was heard for 3 s" in coordinator.output
    assert run.check().returncode == 0
    assert run.status()["state"] == "state-lost"


@pytest.mark.matrix
def test_a_coordinator_that_was_stopped_for_longer_than_a_lease_evicts_nobody(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "3", "--lease", "3", script_args=("--steps", "150", "--pace", "0.05"))
    under_way(run)
    coordinator.process.send_signal(signal.SIGSTOP)
    wait_commits(run, ["r0.0", "r1.0", "r2.0"], 80)  # 4 s at least
    coordinator.process.send_signal(signal.SIGCONT)
    finish(run, coordinator, digests[150], deaths=Counter(), steps=150)
    assert len(run.facts(RosterMade)) == 1, run.story()


def test_sigterm_sends_the_coordinator_away_and_the_job_stays(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "2")
    under_way(run)
    coordinator.terminate()
    assert coordinator.wait() == 143, coordinator.output
    assert "SIGTERM: the coordinator goes, the job stays" in coordinator.output
    wait_commits(run, ["r0.0", "r1.0"], 2)
    coordinator.start()
    finish(run, coordinator, digests[STEPS], deaths=Counter(), steps=STEPS)


@pytest.mark.matrix
def test_a_coordinator_without_a_job_is_sent_away_and_comes_back(
    coordinator: Coordinator, begin: Callable[..., Run], reference: str
) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        coordinator.start()
        coordinator.process.send_signal(number)
        assert coordinator.wait() == code, coordinator.output
    assert "Traceback" not in coordinator.output, coordinator.output
    coordinator.start()
    run = begin("--replicas", "2", script_args=())
    finish(run, coordinator, reference, deaths=Counter(), steps=24)


@pytest.mark.matrix
def test_another_jobs_coordinator_at_its_address_disturbs_nobody(
    coordinator: Coordinator, begin: Callable[..., Run], digests: list[str], tmp_path: Path
) -> None:
    coordinator.start()
    run = begin("--replicas", "2")
    under_way(run)
    coordinator.kill()
    (tmp_path / "other").mkdir()
    other = Coordinator(tmp_path / "other", coordinator.endpoint.port)
    try:
        other.start()
        wait_for(
            lambda: {who for who, fact in run.facts(Refused) if "cannot work together" in fact.why} >= {"r0.0", "r1.0"},
            "both members to be turned away",
        )
        wait_commits(run, ["r0.0", "r1.0"], 2)
    finally:
        other.end()
    coordinator.start()
    finish(run, coordinator, digests[STEPS], deaths=Counter(), steps=STEPS)


def test_a_job_elsewhere_brings_the_token(
    coordinator: Coordinator, start: Callable[..., Run], reference: str, tmp_path: Path
) -> None:
    coordinator.start()
    wrong = tmp_path / "wrong"
    wrong.write_text("ab" * 32)
    stranger = start(*coordinator.arguments, "--token-file", str(wrong), "--replicas", "2")
    assert stranger.wait() == 2, stranger.output
    assert "does not know this job's token" in stranger.output
    assert not stranger.folder.exists()
    run = start(*coordinator.arguments, "--token-file", str(coordinator.run_dir / "token"), "--replicas", "2")
    assert run.wait() == 0, run.output
    assert run.digests() == [reference] * 2
    assert coordinator.wait() == 0, coordinator.output
    assert run.check().returncode == 0
    assert run.status()["coordinator"] == "elsewhere"


def test_one_coordinator_has_one_folder_and_one_job(
    coordinator: Coordinator, begin: Callable[..., Run], start: Callable[..., Run], digests: list[str]
) -> None:
    coordinator.start()
    run = begin("--replicas", "2", script_args=ENDLESS)
    under_way(run)
    command = [*REGROW, "coordinator", "--listen", "127.0.0.1:0", "--run-dir", str(coordinator.run_dir)]
    twin = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert twin.returncode == 2 and "is in use by another coordinator" in twin.stderr, twin.stderr
    again = begin("--replicas", "2")
    assert again.wait() == 2 and "has its job already" in again.output, again.output
    token = coordinator.run_dir / "token"
    second = start(*coordinator.arguments, "--token-file", str(token), "--replicas", "2")
    assert second.wait() == 2 and "start one coordinator per job" in second.output, second.output
    assert second.facts(WorkerStarted) == []
    run.interrupt()
    assert run.wait() == 130, run.story()
    prove_stopped(run, digests, {"r0.0", "r1.0"})


def test_folders_that_are_not_its_own_are_refused(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start("--replicas", "1")
    assert run.wait() == 0, run.output
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for folder, words in ((run.folder, "belongs to a `regrow run`"), (tmp_path / "mine", "is no coordinator's")):
        command = [*REGROW, "coordinator", "--listen", "127.0.0.1:0", "--run-dir", str(folder)]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    command = [*REGROW, "run", "--coordinator", "127.0.0.1:9", "--run-dir", "nowhere", "--replicas", "1", str(TINY)]
    early = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert early.returncode == 2 and "start `regrow coordinator --listen 127.0.0.1:9" in early.stderr, early.stderr
