"""`regrow status` and `regrow check` on journals written by hand: a sound one, and one per broken promise."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from command import regrow

from regrow.cli.run_dir import JobFile, RunDir
from regrow.core.lanes import leaf
from regrow.core.records import (
    Committed,
    Departed,
    Fact,
    Gap,
    JobEnded,
    JobOpened,
    LaneComputed,
    OriginTaken,
    RosterAdopted,
    RosterMade,
    RosterReceived,
    SeatTaken,
    WorkerExited,
    WorkerRaised,
    WorkerStarted,
)
from regrow.core.roster import Member, Version
from regrow.shell.journal import Journal

R0, R1 = Member("r0", 0), Member("r1", 0)
V1, V2 = Version(1, 1), Version(1, 2)
Journals = dict[str, list[Fact]]


def roster(version: Version, *members: Member, floor: int = 0) -> RosterMade:
    lanes = {1: ((0, 1),), 2: ((0,), (1,))}[len(members)]
    seats = tuple(SeatTaken(member=m, founder=True, lanes=own) for m, own in zip(members, lanes, strict=True))
    return RosterMade(version=version, cause="test", why="test", floor=floor, seats=seats)


def lane(step: int, number: int) -> LaneComputed:
    start = (step * 2 + number) * 4
    return LaneComputed(step=step, lane=number, start=start, stop=start + 4)


def commit(step: int, digest: int = 7) -> Committed:
    return Committed(step=step, attempt=V1, digest=digest, holdings=((leaf(0),), (leaf(1),)), by="boundary", loss=0.5)


def departed(digest: str = "d") -> Departed:
    return Departed(step=2, why="finished", fault=None, digest=digest)


def sound() -> Journals:
    def worker(number: int) -> list[Fact]:
        return [
            RosterReceived(version=V1, cause="test"),
            RosterAdopted(version=V1, step=0, keep=(), compute=(number,), drop=(), why="test"),
            lane(0, number),
            commit(0),
            lane(1, number),
            commit(1),
            departed(),
        ]

    return {
        "coordinator": [
            JobOpened(job="j", replicas=("r0", "r1"), lanes=2, command=("train.py",)),
            roster(V1, R0, R1),
            JobEnded(outcome="finished", why="every member has left"),
        ],
        "agent": [
            WorkerStarted(member=R0, pid=1 << 22, host="h", why="test"),
            WorkerStarted(member=R1, pid=1 << 22, host="h", why="test"),
            WorkerExited(member=R0, pid=1 << 22, how="exited with code 0", clean=True, cause="died-r0.0"),
            WorkerExited(member=R1, pid=1 << 22, how="killed by SIGKILL", clean=False, cause="died-r1.0"),
        ],
        "r0.0": worker(0),
        "r1.0": worker(1),
    }


def write(folder: Path, journals: Journals, born: int = 0) -> Path:
    run = folder / "runs" / "hand"
    job = JobFile(
        job="hand", command=("train.py",), cwd="/", replicas=("r0", "r1"), lanes=2, host="h", pid=os.getpid(), born=born
    )
    RunDir(run).create(job)
    for who, facts in journals.items():
        journal = Journal(run / "journal", who)
        for fact in facts:
            journal.write(fact)
        journal.close()
    return run


def test_sound_journals_are_clean(tmp_path: Path) -> None:
    write(tmp_path, sound())
    result = regrow("check", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "every invariant holds: 2 steps, 4 commits, 1 rosters, 1 deaths\n")
    report = json.loads(regrow("check", "--json", cwd=tmp_path).stdout)
    assert report == {"clean": True, "steps": 2, "commits": 4, "rosters": 1, "deaths": 1, "violations": []}


def other_digest(j: Journals) -> None:
    j["r1.0"][3] = commit(0, digest=8)


def lane_twice(j: Journals) -> None:
    for who in ("r0.0", "r1.0"):
        j[who][3] = msgspec.structs.replace(commit(0), holdings=((leaf(0),), (leaf(0),)))


def lane_of_nobody(j: Journals) -> None:
    del j["r1.0"][2]


def older_roster(j: Journals) -> None:
    j["r0.0"].append(RosterReceived(version=V1, cause="test"))


def step_left_out(j: Journals) -> None:
    del j["r0.0"][3]


def below_the_floor(j: Journals) -> None:
    j["coordinator"].insert(2, roster(V2, R0, R1, floor=2))
    j["r0.0"].append(RosterAdopted(version=V2, step=1, keep=(), compute=(), drop=(), why="test"))


def nobody_testifies(j: Journals) -> None:
    j["coordinator"].insert(2, roster(V2, Member("r0", 1)))


def ended_by_a_peer(j: Journals) -> None:
    j["coordinator"].insert(
        2, WorkerRaised(member=R1, kind="regrow.PeerError", place="", step=1, lane=0, scope="step", traceback="")
    )


def committed_in_vain(j: Journals) -> None:
    j["coordinator"][0] = msgspec.structs.replace(j["coordinator"][0], every_step=True)
    taken = OriginTaken(version=Version(2, 1), step=0, root="s", where="this host's memory", reached=2, records=1)
    j["coordinator"].insert(2, taken)


def two_ends(j: Journals) -> None:
    j["r1.0"][-1] = departed("other")


def wrong_samples(j: Journals) -> None:
    j["r1.0"][2] = LaneComputed(step=0, lane=1, start=0, stop=4)


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("one-gradient", other_digest),
        ("each-lane-once", lane_twice),
        ("each-lane-once", lane_of_nobody),
        ("versions-grow", older_roster),
        ("steps-go-on", step_left_out),
        ("steps-go-on", below_the_floor),
        ("testimony", nobody_testifies),
        ("no-step-lost", committed_in_vain),
        ("own-fault", ended_by_a_peer),
        ("one-end", two_ends),
        ("samples-once", wrong_samples),
    ],
)
def test_a_broken_promise_is_named_and_its_story_told(tmp_path: Path, rule: str, spoil: Callable[[Journals], None]) -> None:
    journals = sound()
    spoil(journals)
    write(tmp_path, journals)
    result = regrow("check", cwd=tmp_path)
    assert result.returncode == 1
    first, *story, _ = result.stdout.splitlines()
    assert first.startswith(f"broken: {rule}: "), result.stdout
    assert story and all('{"fact":' in line for line in story)
    report = json.loads(regrow("check", "--json", cwd=tmp_path).stdout)
    assert not report["clean"] and report["violations"][0]["rule"] == rule


def test_a_torn_last_line_is_legal_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    run = write(tmp_path, sound())
    path = run / "journal" / "r0.0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"at":1,"ns"')
    assert regrow("check", cwd=tmp_path).returncode == 0
    path.write_bytes(b"garbage\n" + whole)
    result = regrow("check", cwd=tmp_path)
    assert result.returncode == 1 and "r0.0.jsonl, line 1" in result.stderr


def gap_in_the_middle(j: Journals) -> None:
    for number, who in enumerate(("r0.0", "r1.0")):
        j[who][-1:-1] = [lane(2, number), commit(2)]
    j["r0.0"][4:6] = [Gap(lost=2)]  # the lane and the commit of step 1


def silent_from_the_middle(j: Journals) -> None:
    del j["r1.0"][4:]


@pytest.mark.parametrize("lose", [gap_in_the_middle, silent_from_the_middle])
def test_what_a_full_disk_swallowed_proves_nothing(tmp_path: Path, lose: Callable[[Journals], None]) -> None:
    journals = sound()
    lose(journals)
    run = write(tmp_path, journals)
    if lose is silent_from_the_middle:
        with (run / "journal" / "r1.0.jsonl").open("ab") as file:
            file.write(b'{"at":1,"ns"')  # the disk took half a line, and never another one
    result = regrow("check", cwd=tmp_path)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", ["check", "status"])
def test_no_run_is_exit_code_2(tmp_path: Path, command: str) -> None:
    result = regrow(command, cwd=tmp_path)
    assert result.returncode == 2 and "there is no run in or below" in result.stderr
    result = regrow(command, "elsewhere", cwd=tmp_path)
    assert result.returncode == 2 and "elsewhere is no run directory" in result.stderr


def test_the_newest_run_is_meant(tmp_path: Path) -> None:
    run = write(tmp_path, sound())
    old = tmp_path / "runs" / "zz-old"
    old.mkdir()
    (old / "job.json").write_bytes((run / "job.json").read_bytes().replace(b'"hand"', b'"old"'))
    os.utime(old / "job.json", (0, 0))
    assert json.loads(regrow("status", "--json", cwd=tmp_path).stdout)["job"] == "hand"


def test_status_reads_the_end_and_the_steps(tmp_path: Path) -> None:
    write(tmp_path, sound())
    budget = {"restarts": 0, "max_restarts": 20, "starts_in_s": None}
    assert json.loads(regrow("status", "--json", cwd=tmp_path).stdout) == {
        "job": "hand",
        "state": "finished",
        "step": 2,
        "roster": None,
        "coordinator": "inside",
        "replicas": [
            {"name": "r0", "pid": 1 << 22, "host": "h", "state": "finished", "lanes": [], "step": 2, **budget},
            {"name": "r1", "pid": 1 << 22, "host": "h", "state": "dead", "lanes": [], "step": 2, **budget},
        ],
        "restarts": 0,
        "max_all_restarts": 200,
        "restart_window_s": 600.0,
        "min_replicas": 1,
        "waits": "",
        "target": 2,
        "wishes": [],
        "saves": None,
        "risk": None,
    }


def test_another_process_with_the_launchers_pid_is_not_the_launcher(tmp_path: Path) -> None:
    journals = sound()
    del journals["coordinator"][-1]
    write(tmp_path, journals, born=12345)
    assert json.loads(regrow("status", "--json", cwd=tmp_path).stdout)["state"] == "dead"
