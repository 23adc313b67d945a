"""`regrow status` of a job that saves, on a run directory written by hand."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import regrow

from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, RunDir
from regrow.cli.save_status import LogStatus
from regrow.core.interval import Interval, Loss, Toil
from regrow.core.records import (
    Committed,
    Fact,
    IntervalChosen,
    JobEnded,
    LogMeasured,
    LogUnheld,
    NeighbourBack,
    NeighbourLost,
    OriginFound,
    OriginTaken,
    RecordsReplayed,
    SaveDurable,
    SaveFailed,
    StateKept,
    StateRecalled,
    VaultStarted,
    WorkerStarted,
)
from regrow.core.roster import Member, Version
from regrow.shell.journal import Journal

NEAR, FAR = "/disk/run1", "s3://bucket/run1"
PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


class Job:
    """This very process plays the launcher; one that sleeps plays the vault."""

    def __init__(
        self, folder: Path, keeps: bool = True, every_step: bool = False, urls: tuple[str, ...] = (NEAR, FAR)
    ) -> None:
        self.folder = folder
        self.directory = RunDir(folder / "run")
        pid = os.getpid()
        shared = {"command": ("train.py",), "cwd": "/", "lanes": 2, "host": "h", "pid": pid, "born": born(pid)}
        urls = urls if keeps else ()
        self.directory.create(
            JobFile(job="j", replicas=("r0",), checkpoints=urls, keeps=keeps, every_step=every_step, **shared)
        )  # type: ignore[arg-type]
        self.vault = subprocess.Popen(["sleep", "600"])

    def note(self, who: str, *facts: Fact) -> None:
        journal = Journal(self.directory.journal, who)
        for fact in facts:
            journal.write(fact)

    def saves(self) -> Any:
        return json.loads(regrow("status", "run", "--json", cwd=self.folder).stdout)["saves"]

    def text(self) -> str:
        return regrow("status", "run", cwd=self.folder).stdout

    def close(self) -> None:
        if self.vault.poll() is None:
            self.vault.kill()
            self.vault.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.note("agent", VaultStarted(pid=made.vault.pid, incarnation=0))
    yield made
    made.close()


def kept(step: int) -> StateKept:
    return StateKept(step=step, root="ab", size_bytes=1_200_000_000, seconds=0.3)


def durable(step: int, url: str) -> SaveDurable:
    return SaveDurable(step=step, url=url, term=1, number=1, size_bytes=1_200_000_000, seconds=2.0)


def test_a_job_that_saves_nothing_has_nothing_to_tell(tmp_path: Path) -> None:
    job = Job(tmp_path, keeps=False)
    try:
        assert job.saves() is None and "saved" not in job.text()
    finally:
        job.close()


def test_before_the_first_save_every_tier_is_empty(job: Job) -> None:
    found = job.saves()
    assert [(tier["where"], tier["step"]) for tier in found["tiers"]] == [("memory", None), (NEAR, None), (FAR, None)]
    assert (found["vault"], found["founding"]) == ("up", None)
    assert job.text().count("nothing yet") == 3


def test_the_newest_state_of_each_tier_is_told_with_its_age(job: Job) -> None:
    job.note("vault", kept(10), durable(10, NEAR), kept(20), durable(10, FAR))
    assert [tier["step"] for tier in job.saves()["tiers"]] == [20, 10, 10]
    lines = [line for line in job.text().splitlines() if line.startswith("saved")]
    assert re.fullmatch(r"saved  memory            step 20, .+ ago: 1\.2 GB in 300 ms", lines[0])
    assert re.fullmatch(r"saved  s3://bucket/run1  step 10, .+ ago: 1\.2 GB in 2\.0 s", lines[2])


def test_a_tier_that_fails_says_why_until_it_has_a_newer_state(job: Job) -> None:
    job.note("vault", SaveFailed(step=10, url=FAR, attempt=2, why="timed out", is_final=False))
    words = "the save of step 10 failed (attempt 2, tried again): timed out"
    assert [tier["trouble"] for tier in job.saves()["tiers"]] == ["", "", words]
    assert words in job.text()
    job.note("vault", durable(10, FAR))
    assert words not in job.text()
    job.note("vault", SaveFailed(step=20, url=FAR, attempt=9, why="timed out", is_final=True))
    assert "the save of step 20 failed (given up): timed out" in job.text()


def interval(where: str, **more: Any) -> IntervalChosen:
    toil = Toil(cost_s=0.08, durable_s=4.0, is_known=True)
    loss = Loss(mtbf_s=86_400.0, basis="assumed", seen_s=600.0)
    chosen = Interval(seconds=118.0, bound="optimum", toil=toil, loss=loss, overhead=0.01)
    return IntervalChosen(where=where, every=0, interval=msgspec.structs.replace(chosen, **more))


def test_the_interval_of_each_tier_is_told_with_its_reasons(job: Job) -> None:
    losses = Loss(mtbf_s=7200.0, basis="measured", count=2, seen_s=21_600.0)
    job.note("vault", IntervalChosen(where=NEAR, every=50), interval("memory"), interval(FAR, copies=3, bound="tier"))
    assert [tier["interval"]["every"] for tier in job.saves()["tiers"]] == [0, 50, 0]
    assert job.saves()["tiers"][0]["interval"]["interval"]["seconds"] == 118.0
    text = job.text()
    assert (
        "every 1 min 58 s: a save costs training 80 ms, and the least time is lost so where everything is lost once in 24 "
        "h, an assumption: nothing was lost in 10 min; 0.068 % of training"
    ) in text
    assert "every 50 steps, as it was said" in text
    assert (
        "every 1 min 58 s (one of 3 copies in memory): a state takes 4.0 s until it is safe there, and as long is left free "
        "after each; "
    ) in text
    job.note("vault", interval("memory", loss=losses), interval(FAR, bound="budget"), interval(NEAR, bound="limit"))
    text = job.text()
    assert "everything is lost once in 2 h, by 2 losses in 6 h" in text
    assert "a save costs training 80 ms, which may be 1 % of the time and no more" in text
    assert "no interval is longer, though a save costs training 80 ms" in text


def test_without_a_vault_nothing_is_saved_and_that_is_told(job: Job) -> None:
    assert "vault" not in job.text()
    job.vault.kill()
    job.vault.wait()
    assert job.saves()["vault"] == "away"
    assert "the vault is away: training goes on, and nothing is saved until it is back" in job.text()


def test_memory_goes_with_the_job(job: Job) -> None:
    path = job.directory.path / "job.json"
    path.write_text(re.sub(r'"born": \d+', '"born": 1', path.read_text()))
    job.note("vault", kept(10), durable(10, NEAR))
    job.note("coordinator", JobEnded(outcome="finished", why="every member has left"))
    found = job.saves()
    assert [tier["where"] for tier in found["tiers"]] == [NEAR, FAR] and found["vault"] == "gone"


def test_which_tier_served_the_job_and_how_fast_is_told_of_the_last_time(job: Job) -> None:
    job.note("agent", *(WorkerStarted(member=Member("r0", life), pid=1, host="h", why="a test") for life in (0, 1)))
    for term, step, where in ((1, 40, FAR), (2, 50, "memory")):
        job.note("vault", OriginFound(step=step, root="ab", where=where, size_bytes=1_200_000_000, seconds=3.5))
        version = Version(term, 1)
        job.note("coordinator", OriginTaken(version=version, step=step, root="ab", where=where, reached=60))
        fact = StateRecalled(version=version, step=step, digest="ab", size_bytes=1_200_000_000, seconds=0.25 * term)
        job.note(f"r0.{term - 1}", fact)
    founding = job.saves()["founding"]
    assert (founding["step"], founding["where"], founding["found_s"], founding["loaded_s"]) == (50, "memory", 3.5, 0.5)
    words = "the job last began from step 50, from memory: 1.2 GB found in 3.5 s, loaded in 500 ms"
    assert words in job.text()


def test_what_was_replayed_is_told_of_a_founding(job: Job) -> None:
    job.note("agent", WorkerStarted(member=Member("r0", 1), pid=1, host="h", why="a test"))
    job.note("vault", OriginFound(step=50, root="ab", where="this host's memory", size_bytes=1_200_000_000, seconds=0.5))
    version = Version(2, 1)
    taken = OriginTaken(version=version, step=50, root="ab", where="this host's memory", reached=57, records=7)
    job.note("coordinator", taken)
    job.note(
        "r0.1",
        StateRecalled(version=version, step=50, digest="ab", size_bytes=1_200_000_000, seconds=0.25),
        RecordsReplayed(version=version, step=50, through=57, size_bytes=7, seconds=1.5),
    )
    founding = job.saves()["founding"]
    assert (founding["step"], founding["records"], founding["replayed_s"]) == (50, 7, 1.5)
    words = (
        "the job last began from step 57, from this host's memory and 7 records after step 50: 1.2 GB found in "
        "500 ms, loaded in 250 ms, 7 steps replayed in 1.5 s"
    )
    assert words in job.text()


def test_what_the_logs_keep_safe_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path, every_step=True)
    try:
        job.note("agent", *(WorkerStarted(member=Member(name, 0), pid=1, host="h", why="a test") for name in ("r0", "r1")))
        assert job.saves()["logs"]["step"] is None and "logs   nothing yet" in job.text()
        for name in ("r0.0", "r1.0"):
            job.note(name, *(committed(step) for step in range(12)))
            job.note(name, LogMeasured(step=11, base=-1, used_bytes=4_000_000, made_bytes=5_000_000, limit_bytes=50_000_000))
        assert job.saves()["logs"] == {
            "step": 12,
            "base": None,
            "used_bytes": 8_000_000,
            "made_bytes": 10_000_000,
            "limit_bytes": 100_000_000,
            "unheld": [],
            "neighbour": None,
            "unguarded": [],
        }
        assert "logs   the first 12 steps are safe: the job's beginning and what was committed since; 10 MB of" in job.text()
        job.note("vault", kept(10))
        assert "the state of step 10 and what was committed since" in job.text()
        job.note("r1.0", LogUnheld(step=12), *(committed(step) for step in range(12, 31)))
        assert job.saves()["logs"]["unheld"] == ["r1.0"]
        assert "logs   not safe: no vault has come, and nobody else holds the log of r1.0" in job.text()
        job.note("r1.0", committed(31), committed(32))
        assert job.saves()["logs"]["unheld"] == [] and "the first 33 steps are safe" in job.text()
    finally:
        job.close()


def test_whether_a_neighbour_has_it_as_well_is_told(tmp_path: Path) -> None:
    url = "neighbour://10.0.0.2:29500/job"
    job = Job(tmp_path, every_step=True, urls=(url,))
    try:
        job.note("agent", *(WorkerStarted(member=Member(name, 0), pid=1, host="h", why="a test") for name in ("r0", "r1")))
        for name in ("r0.0", "r1.0"):
            job.note(name, *(committed(step) for step in range(12)))
        assert job.text().count(f"; here and at {url}") == 1 and job.saves()["logs"]["neighbour"] == url
        job.note("r1.0", NeighbourLost(step=12, why="it is full"))
        assert job.saves()["logs"]["unguarded"] == ["r1.0"]
        assert f"; on this host alone, for {url} is away or behind, by r1.0" in job.text()
        job.note("r1.0", NeighbourBack(step=14))
        assert f"; here and at {url}" in job.text()
    finally:
        job.close()


def committed(step: int) -> Committed:
    return Committed(step=step, attempt=Version(1, 1), digest=step, holdings=(), by="boundary", loss=1.0)


def test_the_document_knows_every_field(job: Job) -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    found = job.saves()
    assert set(found) <= told and set(found["tiers"][0]) <= told
    assert {field.name for field in msgspec.structs.fields(LogStatus)} <= told
