"""Jobs whose state outlives their replicas: everything that saves or restores is killed at every named point, and the final
digest is that of an undisturbed run."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import s3_service
import torch
import torch.nn as nn
from coordinators import Coordinator
from runs import EVEN, LANES, REGROW, Run, each, is_stopped, kill_together, prove, sparse, wait_for

from regrow.checkpoint import Checkpointer
from regrow.core.records import (
    Committed,
    OriginTaken,
    RosterMade,
    SaveDurable,
    SaveFailed,
    SaveVoided,
    SnapshotLoaded,
    StateFetched,
    StateKept,
    StateRecalled,
    VaultEnded,
    VaultStarted,
    WorkerExited,
)
from regrow.state.archive import Archive
from regrow.state.stores import open_store
from regrow.state.tracked import Tracked

pytestmark = pytest.mark.process

STEPS = 24
EVERY = 4
Start = Callable[..., Run]
ALL3 = Counter({"r0": 1, "r1": 1, "r2": 1})
PACED = ("--pace", "0.05")
IN_THE_VAULT = ("restore-read", "vault-open")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def kept(run: Run) -> list[int]:
    """The steps whose state is whole in the host's memory, as they became so."""
    return [fact.step for _, fact in run.facts(StateKept)]


def durable(place: Path) -> list[int]:
    """Newest first."""
    return [pointer.step for pointer in Archive(open_store(str(place))).pointers()[0]]


def vault_pid(run: Run) -> int:
    return run.facts(VaultStarted)[-1][1].pid


def hurry(run: Run) -> None:
    (run.folder / "hurry").touch()


def prove_saved(run: Run, place: Path, reference: str) -> None:
    """The last state is in memory and in the place, and it is that of the job."""
    assert kept(run)[-1] == STEPS, run.story()
    assert durable(place)[0] == STEPS, run.story()
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    with Checkpointer(place, writes=False) as checkpointer:
        assert checkpointer.restore(model=model, optimizer=optimizer, schedule=schedule) == STEPS
    tracked = Tracked()
    for name, thing in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        tracked.add(name, thing)
    assert tracked.digest() == reference


def test_a_job_saves_beside_training_and_its_last_state_is_the_jobs(start: Start, place: Path, reference: str) -> None:
    run = start("--replicas", "3", "--checkpoint", str(place), "--checkpoint-every", str(EVERY))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    prove_saved(run, place, reference)
    assert set(durable(place)) <= {*range(EVERY, STEPS + 1, EVERY)} and len(durable(place)) > 1, run.story()
    assert not run.facts(SaveFailed), run.story()


def test_with_all_replicas_killed_the_job_goes_on_from_memory(start: Start, reference: str) -> None:
    run = start("--replicas", "3", "--memory-every", "2", script_args=PACED)
    wait_for(lambda: max(kept(run), default=0) >= 6, "a state in memory")
    newest = max(kept(run))
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=ALL3)
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert newest <= taken.step <= taken.reached, run.story()


def test_all_replicas_killed_again_and_again(start: Start, reference: str) -> None:
    run = start("--replicas", "2", "--memory-every", "1", script_args=PACED)
    for count in (1, 2, 3):
        wait_for(lambda count=count: max(kept(run), default=0) >= 5 * count, f"step {5 * count} in memory")
        kill_together(run.live_pids())
        wait_for(lambda count=count: len(run.facts(OriginTaken)) == count, f"founding {count}")
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"r0": 3, "r1": 3}))


def at_once(case: tuple[str, str], step: str = "") -> list[str]:
    """One dies at its point; all are stopped at theirs, so that each gets there."""
    point, who = case
    if who != "all":
        return ["--fault", f"{who}:{point}:{step}SIGKILL"]
    return [part for name in ("r0", "r1", "r2") for part in ("--fault", f"{name}:{point}:{step}SIGSTOP")]


def kill_there(run: Run, who: str) -> tuple[str, ...]:
    """The replicas that die."""
    if who != "all":
        return (who,)
    kill_together([run.wait_stopped(f"{name}.0") for name in ("r0", "r1", "r2")])
    return ("r0", "r1", "r2")


@pytest.mark.parametrize("case", sparse(each(["deposit", "depositing", "deposited"], ["r0", "r1", "all"]), 2), ids=" ".join)
def test_killed_while_saving(start: Start, place: Path, reference: str, case: tuple[str, str]) -> None:
    point, who = case
    run = start(
        "--replicas", "3", *EVEN, "--checkpoint", str(place), "--checkpoint-every", str(EVERY), *at_once(case, "step=8:")
    )
    names = kill_there(run, who)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(names))
    prove_saved(run, place, reference)
    if who == "all" and point != "deposited":  # killed with their portions in place, they leave a save that is whole
        assert [fact.step for _, fact in run.facts(OriginTaken)] == [4], run.story()


@pytest.mark.parametrize("who", ["r0", "r1"])
def test_killed_in_the_last_save(start: Start, place: Path, reference: str, who: str) -> None:
    """The others give the portion of the one that died."""
    fault = f"{who}:depositing:step={STEPS}:SIGKILL"
    run = start("--replicas", "3", "--checkpoint", str(place), "--fault", fault)
    prove_late(run, who)
    prove_saved(run, place, reference)


def prove_late(run: Run, who: str) -> None:
    assert run.wait() == 1, run.story()
    assert f"{who}.0 killed by SIGKILL after its last step" in run.output, run.story()


def test_killed_in_the_last_save_while_nobody_hears_that_it_had_left(
    start: Start, place: Path, reference: str, tmp_path: Path
) -> None:
    """The coordinator is away from the farewell on; the dead one's last stamp tells it all the same."""
    coordinator = Coordinator(tmp_path)
    faults = ("--fault", "r0:farewell:SIGSTOP", "--fault", f"r0:depositing:step={STEPS}:SIGKILL", "--hang-factor", "0")
    try:
        coordinator.start()
        flags = ("--replicas", "3", "--checkpoint", str(place), *faults, *coordinator.arguments)
        run = start(*flags, run_dir=coordinator.run_dir)
        wait_for(lambda: "r0.0" in run.pids() and is_stopped(run.pids()["r0.0"]), "r0 to be stopped at the farewell")
        coordinator.kill()
        os.kill(run.pids()["r0.0"], signal.SIGCONT)
        wait_for(lambda: len(run.facts(WorkerExited)) == 3, "one to be killed, and the others to leave by themselves")
        coordinator.start()
        prove_late(run, "r0")
        prove_saved(run, place, reference)
    finally:
        coordinator.end()


def test_all_killed_in_the_last_save(start: Start, place: Path, reference: str) -> None:
    """After the last step, and before that is saved: the job goes back to the save before, and to its end again."""
    faults = [part for name in ALL3 for part in ("--fault", f"{name}:depositing:step={STEPS}:SIGKILL")]
    run = start("--replicas", "3", "--checkpoint", str(place), "--checkpoint-every", "10", *faults)
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {reference} and run.check().returncode == 0, run.story()
    assert [fact.step for _, fact in run.facts(OriginTaken)] == [20], run.story()
    prove_saved(run, place, reference)


WRITING = ["save-shard", "save-pointer"]
WRITING_ALL = [*WRITING, *(pytest.param(point, marks=pytest.mark.matrix) for point in ("save-manifest", "save-done"))]
BLOCK = pytest.param("save-block", marks=pytest.mark.matrix)


def at(point: str) -> str:
    """In the save of step 8, or in the middle of those before it where a point knows no steps."""
    return f"{point}:nth=9" if point == "save-block" else f"{point}:step=8"


@pytest.mark.parametrize("point", ["vault-lend", "vault-whole", "vault-kept", *WRITING_ALL, BLOCK])
def test_a_vault_or_its_writer_killed_in_a_save(start: Start, place: Path, reference: str, point: str) -> None:
    who = "vault" if point.startswith("vault") else "writer"
    faults = ("--fault", f"{who}:{at(point)}:SIGKILL")
    run = start("--replicas", "2", "--checkpoint", str(place), "--checkpoint-every", str(EVERY), *faults)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    prove_saved(run, place, reference)
    if who == "vault":
        assert len(run.facts(VaultEnded)) == 2, run.story()


def test_a_lone_survivor_of_a_job_that_saves_waits_for_nobody(start: Start, reference: str) -> None:
    """What the kill of the other one could mean for its lane, the vault has insured."""
    fault = ("--fault", "r1:backward:step=10:SIGKILL")
    run = start("--replicas", "2", *EVEN, "--memory-every", "4", *fault, script_args=("--hold", "12:2"))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(["r1"]))
    (first, *_, last) = [fact for _, fact in run.facts(RosterMade)]
    assert len(first.seats) == len(last.seats) == 2, run.story()
    assert not any("wait" in fact.why for _, fact in run.facts(RosterMade)), run.story()
    assert run.facts(SnapshotLoaded, "r1.1") and not run.facts(StateFetched), run.story()


def test_vault_and_all_replicas_killed_together(start: Start, reference: str) -> None:
    """What is whole in memory is the agent's to hold, and outlives both."""
    run = start("--replicas", "2", "--memory-every", "3", script_args=PACED)
    wait_for(lambda: max(kept(run), default=0) >= 6, "a state in memory")
    newest, victim = max(kept(run)), vault_pid(run)
    os.kill(victim, signal.SIGKILL)
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"r0": 1, "r1": 1}))
    assert [fact.step >= newest for _, fact in run.facts(OriginTaken)] == [True], run.story()


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), pytest.param(2, 4, marks=pytest.mark.matrix)])
def test_a_job_killed_whole_goes_on_elsewhere_with_other_replicas(
    start: Start, place: Path, reference: str, before: int, after: int
) -> None:
    flags = ("--checkpoint", str(place), "--checkpoint-every", str(EVERY))
    first = start("--replicas", str(before), *flags, script_args=PACED)
    wait_for(lambda: len(first.facts(SaveDurable)) >= 2, "two durable saves")
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    newest = durable(place)[0]
    reached = max(fact.step for _, fact in first.facts(Committed))
    assert reached + 1 - newest <= 2 * EVERY + 2, "more steps are lost than a save's interval and the save under way"
    run = start("--replicas", str(after), "--resume", "latest", *flags)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=newest)
    prove_saved(run, place, reference)
    assert {fact.step for _, fact in run.facts(StateRecalled)} == {newest}, run.story()
    assert f"the state of step {newest} comes from {place}: " in run.output and "is lost" not in run.output, run.output


def test_a_place_that_is_taken_on_the_users_word_serves_a_job_as_well(start: Start, place: Path, reference: str) -> None:
    flags = ("--checkpoint", f"one-writer+file://{place}", "--checkpoint-every", str(EVERY))
    first = start("--replicas", "2", *flags, script_args=PACED)
    wait_for(lambda: len(first.facts(SaveDurable)) >= 2, "two durable saves")
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    newest = durable(place)[0]
    run = start("--replicas", "3", "--resume", "latest", *flags)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=newest)
    prove_saved(run, place, reference)


LAUNCHER_DIES_AT = [
    *(f"writer:{point}" for point in ("save-manifest", "save-shard", "save-pointer", "save-done", "save-block")),
    *(f"vault:{point}" for point in ("vault-lend", "vault-whole", "vault-kept")),
    *(f"r0:{point}" for point in ("deposit", "depositing", "deposited")),
]


@pytest.mark.parametrize("where", sparse(LAUNCHER_DIES_AT, 7))
def test_a_job_killed_whole_at_a_named_point_goes_on_with_other_replicas(
    start: Start, place: Path, reference: str, where: str
) -> None:
    who, point = where.split(":")
    flags = ("--checkpoint", str(place), "--checkpoint-every", str(EVERY))
    first = start("--replicas", "3", *flags, "--fault", f"{who}:{at(point)}:SIGSTOP", script_args=PACED)
    wait_for(lambda: any(map(is_stopped, first.processes())), f"{who} to stand still there")
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    newest = max(durable(place), default=0)
    if who == "writer" and point != "save-block":
        assert newest == (8 if point == "save-done" else 4), first.story()
    run = start("--replicas", "2", "--resume", "latest", *flags)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=newest)
    prove_saved(run, place, reference)


RESTORING = ["vault:vault-open", "vault:vault-seek", "vault:restore-read", "r0:recall", "r0:recalled"]


@pytest.mark.parametrize("where", sparse(RESTORING, 2))
def test_a_job_killed_whole_while_it_resumes_resumes_with_other_replicas(
    start: Start, place: Path, reference: str, where: str
) -> None:
    stop_at(start, place, 9)
    flags = ("--checkpoint", str(place), "--checkpoint-every", str(EVERY), "--resume", "latest")
    killed = start("--replicas", "2", *flags, "--fault", f"{where}:SIGSTOP")
    wait_for(lambda: any(map(is_stopped, killed.processes())), f"{where} to stand still")
    killed.kill()
    wait_for(lambda: not killed.processes(), "every process of the job to be gone")
    run = start("--replicas", "3", *flags)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=10)
    prove_saved(run, place, reference)


@pytest.mark.parametrize("who", ["writer", "everybody"])
def test_killed_while_an_old_checkpoint_is_removed(start: Start, place: Path, reference: str, who: str) -> None:
    flags = ("--checkpoint", str(place), "--checkpoint-every", str(EVERY), "--keep-last", "1")
    action, newest = ("SIGKILL", 0) if who == "writer" else ("SIGSTOP", 8)
    run = start("--replicas", "2", *flags, "--fault", f"writer:save-prune:step=4:{action}")
    if who == "everybody":
        wait_for(lambda: any(map(is_stopped, run.processes())), "the writer to stand still there")
        run.kill()
        wait_for(lambda: not run.processes(), "every process of the job to be gone")
        assert durable(place) == [8, 4], "what is newer is complete before the older one goes"
        run = start("--replicas", "3", *flags, "--resume", "latest")
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=newest)
    prove_saved(run, place, reference)
    assert durable(place) == [STEPS], run.story()


def test_with_a_copy_of_every_step_in_memory_no_more_than_one_is_lost(start: Start, reference: str) -> None:
    run = start("--replicas", "3", "--memory-every", "1", script_args=PACED)
    wait_for(lambda: max(kept(run), default=0) >= 6, "a state in memory")
    kill_together(run.live_pids())
    hurry(run)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=ALL3)
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    committed = {fact.step for who, fact in run.facts(Committed) if who.endswith(".0")}
    assert taken.step >= 6 and len([step for step in committed if step >= taken.step]) <= 1, run.story()


@pytest.mark.parametrize("case", sparse(each(["recall", "recalled"], ["r0", "r1", "all"]), 2), ids=" ".join)
def test_killed_while_resuming(start: Start, place: Path, reference: str, case: tuple[str, str]) -> None:
    _, who = case
    stop_at(start, place, 9)
    run = start("--replicas", "3", "--checkpoint", str(place), "--resume", "latest", *at_once(case))
    names = kill_there(run, who)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(names), first=durable(place)[-1])
    prove_saved(run, place, reference)


@pytest.mark.parametrize("point", ["vault-seek", *(pytest.param(one, marks=pytest.mark.matrix) for one in IN_THE_VAULT)])
def test_the_vault_killed_while_it_brings_a_state(start: Start, place: Path, reference: str, point: str) -> None:
    stop_at(start, place, 9)
    flags = ("--checkpoint", str(place), "--resume", "latest", "--fault", f"vault:{point}:SIGKILL")
    run = start("--replicas", "2", *flags)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=durable(place)[-1])
    assert len(run.facts(VaultEnded)) == 2, run.story()


def test_a_stopped_job_goes_on_where_it_stopped(start: Start, place: Path, reference: str) -> None:
    stopped = stop_at(start, place, 9)
    assert kept(stopped)[-1] == durable(place)[0] == 10, stopped.story()
    run = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=10)


def test_a_damaged_state_is_passed_over_loudly(start: Start, place: Path, reference: str) -> None:
    stop_at(start, place, 9, every=5)
    newest = Archive(open_store(str(place))).pointers()[0][0]
    shard = place / newest.folder / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=5)
    assert "shard-00000.safetensors" in run.output, run.story()


def test_other_mathematics_are_refused_by_name(start: Start, place: Path) -> None:
    stop_at(start, place, 9)
    flags = ("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    run = start(*flags, script_args=("--seed", "6", "--batch", "2"))
    assert run.wait() == 1, run.story()
    assert "seed is 6, it was saved with 5" in run.output and "batch_size is 2, it was saved with 3" in run.output
    assert "--new-mathematics" in run.output
    assert not run.facts(Committed), run.story()


def handed(run: Run) -> Counter[int]:
    """How often the script was handed each sample."""
    rows = [row.split() for file in run.folder.glob("used-*.txt") for row in file.read_text().splitlines()]
    return Counter(int(index) for row in rows for index in row[1:])


def test_new_mathematics_go_on_at_the_next_unused_sample(start: Start, place: Path) -> None:
    first = stop_at(start, place, 9)
    flags = ("--replicas", "2", "--checkpoint", str(place), "--resume", "latest", "--new-mathematics")
    run = start(*flags, script_args=("--seed", "6", "--batch", "2"))
    assert run.wait() == 0, run.story()
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    assert {"batch_size is 2, it was saved with 3", "seed is 6, it was saved with 5"} <= set(taken.differences), run.story()
    assert taken.data_from == (10, 10 * LANES * 3), run.story()
    used = handed(first) + handed(run)
    assert used.total() == 10 * LANES * 3 + 14 * LANES * 2 == 3 * 97 + 57, run.story()
    assert set(used.values()) == {3, 4}, "of three epochs each sample was used once, and of the fourth some"
    assert run.check().returncode == 0, run.story()


def test_a_used_place_is_not_begun_anew(start: Start, place: Path) -> None:
    stop_at(start, place, 9)
    run = start("--replicas", "2", "--checkpoint", str(place))
    assert run.wait() == 2 and "--resume latest" in run.output, run.story()
    assert not run.folder.exists(), "nothing ran: the same command must work with another place"


def test_a_file_in_the_way_of_a_place_ends_the_job_before_it_begins(start: Start, place: Path) -> None:
    place.write_text("")
    refused(start("--replicas", "2", "--checkpoint", str(place / "below")), "a part of its path is a file")


def test_a_place_that_may_not_be_written_ends_the_job_before_it_begins(start: Start, place: Path) -> None:
    place.mkdir(mode=0o500)
    # Root may do anything, unless it is told that it may not.
    before = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    run = start("--replicas", "2", "--checkpoint", str(place), before=before)
    refused(run, f"give it the right to {place}")


def test_a_bucket_that_is_not_there_ends_the_job_before_it_begins(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="pip install 'regrow[s3]'")
    with s3_service.bucketless() as port:
        for name, value in s3_service.environment(port).items():
            monkeypatch.setenv(name, value)
        run = start("--replicas", "2", "--checkpoint", "s3://nobody-made-this/run")
        refused(run, "bucket nobody-made-this does not exist: create it, or correct the URL")


def refused(run: Run, words: str) -> None:
    """The job never began; why is told, and the same command works once that is mended."""
    assert run.wait() in (2, 4), run.output
    assert "checkpoints cannot be saved to" in run.output and words in run.output
    assert not run.folder.exists()
    run.wait_nothing_left({})


def test_a_job_that_is_stopped_before_its_places_have_answered_ends_at_once(start: Start, place: Path) -> None:
    run = start("--replicas", "2", "--checkpoint", str(place), "--fault", "vault:vault-open:SIGSTOP")
    wait_for(lambda: is_stopped(vault_pid(run)) if run.facts(VaultStarted) else False, "a vault that stands still")
    run.interrupt()
    assert run.wait() == 130, run.output
    assert not run.folder.exists()
    run.wait_nothing_left({})


def test_a_full_place_costs_no_training_and_is_told(tmp_path: Path, start: Start, place: Path, reference: str) -> None:
    other = tmp_path / "small"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(other)], check=True)
    try:
        flags = ("--checkpoint", str(other), "--checkpoint", str(place), "--checkpoint-patience", "2")
        run = start("--replicas", "2", *flags, "--checkpoint-every", str(EVERY))
        assert run.wait() == 4, run.story()
        prove(run, reference, deaths=Counter(), code=4)
        assert durable(place)[0] == STEPS, "the other place has them all"
        assert {Path(fact.url).name for _, fact in run.facts(SaveFailed)} == {"small"}, run.story()
        assert str(other) in run.output, run.story()
    finally:
        subprocess.run(["umount", str(other)], check=True)


def test_a_job_killed_whole_goes_on_from_s3(
    start: Start, s3_port: int, s3_url: str, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    """Of a service that breaks every third connection before the request has arrived."""
    with s3_service.Flaky(s3_port) as flaky:
        for name, value in s3_service.environment(flaky.port).items():
            monkeypatch.setenv(name, value)
        flaky.spoil("refuse", every=3)
        first = start("--replicas", "2", "--checkpoint", s3_url, "--checkpoint-every", "4", script_args=PACED)
        wait_for(lambda: len(first.facts(SaveDurable)) >= 1, "a durable save")
        first.kill()
        wait_for(lambda: not first.processes(), "every process of the job to be gone")
        flags = ("--checkpoint", s3_url, "--checkpoint-every", "4", "--resume", "latest")
        run = start("--replicas", "3", *flags)
        assert run.wait() == 0, run.story()
        assert flaky.spoilt > 0
    (taken,) = [fact for _, fact in run.facts(OriginTaken)]
    prove(run, reference, deaths=Counter(), first=taken.step)
    assert run.facts(SaveDurable)[-1][1].step == STEPS, run.story()


def test_a_store_that_stalls_holds_nobody_up_for_ever(
    start: Start, s3_port: int, s3_url: str, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    """Saves wait for one another, then for nobody: the place is given up, which is told."""
    with s3_service.Flaky(s3_port) as flaky:
        for name, value in s3_service.environment(flaky.port).items():
            monkeypatch.setenv(name, value)
        flags = ("--checkpoint", s3_url, "--checkpoint-every", "2", "--checkpoint-patience", "3")
        run = start("--replicas", "2", *flags, script_args=("--pace", "0.2"))
        wait_for(lambda: run.facts(SaveDurable), "a durable save")
        flaky.spoil("stall", every=1)
        hurry(run)
        assert run.wait() == 4, run.story()
    prove(run, reference, deaths=Counter(), code=4)
    assert any(fact.is_final for _, fact in run.facts(SaveFailed)), run.story()


def test_a_coordinator_that_is_away_founds_the_job_again(tmp_path: Path, start: Start, reference: str) -> None:
    coordinator = Coordinator(_folder(tmp_path, "coordinator"))
    try:
        coordinator.start()
        flags = ("--replicas", "2", "--memory-every", "2", *coordinator.arguments)
        run = start(*flags, script_args=PACED, run_dir=coordinator.run_dir)
        wait_for(lambda: max(kept(run), default=0) >= 6, "a state in memory")
        coordinator.kill()
        kill_together(run.live_pids())
        coordinator.start()
        hurry(run)
        assert run.wait() == 0, run.story()
        prove(run, reference, deaths=Counter({"r0": 1, "r1": 1}))
        assert len(run.facts(OriginTaken)) == 1, run.story()
    finally:
        coordinator.end()


@pytest.mark.parametrize("point", sparse(["made", "persist", "persisted", "push"], 4))
def test_a_coordinator_killed_while_it_founds_a_job_from_a_saved_state(
    tmp_path: Path, start: Start, place: Path, reference: str, point: str
) -> None:
    stop_at(start, place, 9)
    coordinator = Coordinator(_folder(tmp_path, "coordinator"))
    try:
        coordinator.start(f"{point}:roster=1:SIGKILL")
        flags = ("--replicas", "2", "--checkpoint", str(place), "--resume", "latest", *coordinator.arguments)
        run = start(*flags, run_dir=coordinator.run_dir)
        coordinator.wait_struck()
        coordinator.start()
        assert run.wait() == 0, run.story()
        prove(run, reference, deaths=Counter(), first=10)
        prove_saved(run, place, reference)
        assert {fact.step for _, fact in run.facts(StateRecalled)} == {10}, run.story()
    finally:
        coordinator.end()


def test_every_process_can_be_told_by_check(start: Start, place: Path) -> None:
    run = start("--replicas", "2", "--checkpoint", str(place))
    assert run.wait() == 0, run.story()
    shown = subprocess.run([*REGROW, "checkpoint", "verify", str(place)], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert not run.facts(SaveVoided), run.story()


def stop_at(start: Start, place: Path, step: int, every: int = 100) -> Run:
    """A job that was stopped in this step, and saved."""
    flags = ("--replicas", "2", "--checkpoint", str(place), "--checkpoint-every", str(every))
    run = start(*flags, script_args=("--stop-at", str(step)))
    assert run.wait() == 0, run.story()
    return run


def _folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
