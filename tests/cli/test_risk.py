"""`regrow status --what-if`, and the warning of a unique state, on a run directory written by hand."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import regrow

from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, RunDir
from regrow.coordinator.store import Store
from regrow.core.listener import Listener
from regrow.core.membership_effects import Saved
from regrow.core.records import (
    Committed,
    Fact,
    JobEnded,
    OriginFound,
    RosterAdopted,
    SaveDurable,
    SnapshotLoaded,
    StateFetched,
    StateKept,
    WorkerStarted,
)
from regrow.core.roster import Endpoint, Member, Present, Version, compose
from regrow.core.staff import found
from regrow.shell.journal import Journal

PLACE = "/disk/run1"
PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
VERSION = Version(1, 3)
A, B = Member("r0", 0), Member("r1", 1)


class Job:
    """This very process plays the launcher; those that sleep play r0 and r1, which is seated and not healed yet."""

    def __init__(self, folder: Path, keeps: bool, every_step: bool = False) -> None:
        self.folder = folder
        self.directory = RunDir(folder / "run")
        pid = os.getpid()
        shared = {"command": ("train.py",), "cwd": "/", "lanes": 4, "host": "h", "pid": pid, "born": born(pid)}
        kept = {"checkpoints": (PLACE,) * keeps, "keeps": keeps, "every_step": every_step}
        self.directory.create(JobFile(job="j", replicas=("r0", "r1"), **kept, **shared))  # type: ignore[arg-type]
        store = Store(self.directory.path)
        present = {m: Present(endpoint=Endpoint("h", 1), founder=m == A) for m in (A, B)}
        roster = compose(VERSION, present, 4, 0, "a test")
        store.save(Saved(term=1, roster=roster, lives={"r0": 0, "r1": 1}, staff=found(("r0", "r1"), 0), lanes=4))
        store.close()
        self.workers = [subprocess.Popen(["sleep", "600"]) for _ in (A, B)]
        for member, worker in zip((A, B), self.workers, strict=True):
            self.note("agent", WorkerStarted(member=member, pid=worker.pid, host="h", why="a test"))
        for step in range(10):
            self.note("r0.0", committed(step))
        self.note("r1.1", adopted(10))

    def note(self, who: str, *facts: Fact) -> None:
        journal = Journal(self.directory.journal, who)
        for fact in facts:
            journal.write(fact)

    def risk(self, *names: str) -> Any:
        questions = [part for name in names for part in ("--what-if", name)]
        return json.loads(regrow("status", "run", "--json", *questions, cwd=self.folder).stdout)["risk"]

    def text(self, *names: str) -> str:
        return regrow("status", "run", *[part for name in names for part in ("--what-if", name)], cwd=self.folder).stdout

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, keeps=True)
    yield made
    made.close()


@pytest.fixture
def unsaved(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, keeps=False)
    yield made
    made.close()


def committed(step: int, by: str = "boundary") -> Committed:
    return Committed(step=step, attempt=VERSION, digest=1, holdings=(), by=by, loss=None)


def adopted(step: int) -> RosterAdopted:
    return RosterAdopted(version=VERSION, step=step, keep=(), compute=(), drop=(), why="a test")


def kept(step: int) -> StateKept:
    return StateKept(step=step, root="ab", size_bytes=1000, seconds=0.3)


def durable(step: int) -> SaveDurable:
    return SaveDurable(step=step, url=PLACE, term=1, number=1, size_bytes=1000, seconds=2.0)


def test_one_that_alone_holds_the_state_is_warned_of(unsaved: Job) -> None:
    words = "only r0 holds the state, and nothing is saved: its loss ends the job"
    assert unsaved.risk()["unique"] == words and words in unsaved.text()


def test_where_it_was_saved_the_warning_says_what_the_loss_costs(job: Job) -> None:
    assert job.risk()["unique"] == "only r0 holds the state, and nothing is saved: its loss ends the job"
    job.note("vault", kept(7))
    words = job.risk()["unique"]
    assert re.fullmatch(
        r"only r0 holds the state: its loss takes the job back to step 7 \(this host's memory\): "
        r"3 steps are computed again, about .+ at the present rate",
        words,
    )


def test_in_an_every_step_job_no_step_is_computed_again(tmp_path: Path) -> None:
    job = Job(tmp_path, keeps=True, every_step=True)
    try:
        words = "takes the job back to step 0 (this host's memory) and 10 records after it: no step is computed again"
        assert words in job.risk()["unique"]
        job.note("vault", kept(7))
        (answer,) = job.risk("r0,r1")["what_if"]
        assert [answer["outcome"][field] for field in ("step", "records", "redone")] == [7, 3, 0]
        assert "the state is held by r0 (step 10); this host's memory (step 7 and 3 records after it)" in job.text("r0")
    finally:
        job.close()


def test_a_replica_holds_the_state_once_it_has_fetched_it(job: Job) -> None:
    job.note(
        "r1.1",
        SnapshotLoaded(listener=Listener(B, 1), step=9, donors=(A,), size_bytes=1, digest="ab"),
        committed(9, "record"),
    )
    assert [held["where"] for held in job.risk()["held"]] == ["r0"], "one that has only listened does not"
    job.note("r1.1", StateFetched(version=VERSION, step=10, donor=A, size_bytes=1, digest="ab"))
    assert [held["where"] for held in job.risk()["held"]] == ["r0", "r1"]
    assert job.risk()["unique"] == "" and "only r0" not in job.text()


def test_each_tier_is_told_with_its_newest_state(job: Job) -> None:
    job.note("vault", OriginFound(step=2, root="ab", where=PLACE, size_bytes=1000, seconds=1.0))
    assert [(held["where"], held["step"]) for held in job.risk()["held"]] == [("r0", 10), ("memory", 2), (PLACE, 2)]
    job.note("vault", kept(4), durable(4), kept(8))
    text = job.text("r0")
    assert f"the state is held by r0 (step 10); this host's memory (step 8); {PLACE} (step 4)" in text
    assert (
        "what if r0 is lost: the job is founded again from step 8 (this host's memory): 2 steps are computed again" in text
    )
    assert "   nobody else holds the state\n" in text


def test_all_is_a_table_of_single_losses(job: Job) -> None:
    job.note("vault", kept(4), durable(4))
    rows = [
        line for line in job.text("all").splitlines() if re.match(r"(lost|r\d|host|launcher|coordinator|vault|place) ", line)
    ]
    names = ("lost", "r0", "r1", "host", "launcher", "coordinator", "vault", f"place {PLACE}")
    table = rows[-len(names) :]
    assert [row.split("  ")[0] for row in table] == list(names)
    assert re.fullmatch(r"host +10  the job ends, and nothing is left of its state: 10 steps lost.*", table[3])
    assert re.fullmatch(r"launcher +6  the job ends; with --resume latest another goes on from step 4 .*", table[4])


def test_questions_are_answered_one_by_one(job: Job) -> None:
    answers = job.risk("r0,r1", "vault")["what_if"]
    assert [answer["lost"] for answer in answers] == [["r0", "r1"], ["vault"]]
    assert [answer["outcome"]["kind"] for answer in answers] == ["ended", "unharmed"]


def test_an_unknown_name_is_refused_with_those_there_are(job: Job) -> None:
    done = regrow("status", "run", "--what-if", "r7", cwd=job.folder)
    assert done.returncode == 2
    assert f"there is no r7 to lose; there is r0, r1, host, launcher, coordinator, vault, place {PLACE}" in done.stderr


def test_a_job_that_is_over_has_nothing_to_lose(job: Job) -> None:
    job.note("coordinator", JobEnded(outcome="finished", why="a test"))
    done = regrow("status", "run", "--what-if", "r0", cwd=job.folder)
    assert done.returncode == 2 and "it is finished" in done.stderr
    assert job.risk() is None


def test_the_document_knows_every_field(job: Job) -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    job.note("vault", kept(4), durable(4))
    found = job.risk("r0", "r1", "launcher", "vault")
    assert set(found) <= told and set(found["held"][0]) <= told
    for answer in found["what_if"]:
        assert {*answer, *answer["outcome"], answer["outcome"]["kind"]} <= told
