"""`regrow checkpoint now`: what it waits for, when it asks again, and how it ends. The test plays the vault."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from clerk import Clerk
from command import DEADLINE_S, REGROW, regrow, wait_for

from regrow.cli.asked_save import SaveWatch
from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, ListeningFile, RunDir
from regrow.core.messages import Reply
from regrow.core.records import (
    Committed,
    Fact,
    JobEnded,
    Line,
    OriginTaken,
    RosterMade,
    SaveDurable,
    SaveFailed,
    SaveVoided,
    StateKept,
    VaultStarted,
    WorkerStarted,
)
from regrow.core.roster import Endpoint, Member, Version
from regrow.core.wishes import Wish
from regrow.shell.journal import Journal

NEAR, FAR = "/disk/run1", "s3://bucket/run1"
SAVE = Wish(kind="save")


def kept(step: int) -> StateKept:
    return StateKept(step=step, root="ab" * 32, size_bytes=1_500_000, seconds=0.25)


def durable(step: int, url: str = NEAR) -> SaveDurable:
    return SaveDurable(step=step, url=url, term=1, number=1, size_bytes=1_500_000, seconds=2.0)


def failed(step: int, url: str = NEAR, final: bool = True) -> SaveFailed:
    return SaveFailed(step=step, url=url, attempt=1, why=f"step {step} is not saved: no room", is_final=final)


def committed(step: int) -> Committed:
    return Committed(step=step, attempt=Version(1, 1), digest=0, holdings=(), by="r0.0", loss=None)


ROSTER = RosterMade(version=Version(1, 2), cause="died-r1.0", why="r1.0 died", floor=0, seats=())
ORIGIN = OriginTaken(version=Version(2, 1), step=90, root="ab" * 32, where="memory", reached=100)


class Job:
    """One that runs, by its run directory; a process that sleeps plays the launcher."""

    def __init__(self, folder: Path, urls: tuple[str, ...]) -> None:
        self.path = folder / "run"
        self.launcher = subprocess.Popen(["sleep", "600"])
        self.directory = RunDir(self.path)
        pid = self.launcher.pid
        self.directory.create(
            JobFile(
                job="j",
                command=("train.py",),
                cwd="/",
                replicas=("r0",),
                lanes=2,
                host="h",
                pid=pid,
                born=born(pid),
                checkpoints=urls,
                keeps=True,
            )
        )
        self.journals = {who: Journal(self.directory.journal, who) for who in ("agent", "coordinator", "vault", "r0.0")}
        self.note("agent", WorkerStarted(member=Member("r0", 0), pid=1, host="h", why="a test"))
        self.note("r0.0", committed(99))
        self.clerk: Clerk | None = None
        self.asking: subprocess.Popen[str] | None = None

    def note(self, who: str, *facts: Fact) -> None:
        for fact in facts:
            self.journals[who].write(fact)

    def vault(self, *facts: Fact) -> None:
        self.note("vault", *facts)

    def opens(self, **reply: object) -> Clerk:
        self.clerk = Clerk(self.directory, Reply(**{"is_granted": True, "why": "", "number": 0, **reply}))  # type: ignore[arg-type]
        self.clerk.start()
        self.clerk.listens.wait(DEADLINE_S)
        return self.clerk

    def ask(self, *flags: str) -> None:
        self.asking = subprocess.Popen(
            [REGROW, "checkpoint", "now", *flags, str(self.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_asked(self, times: int = 1) -> None:
        clerk = self.clerk
        assert clerk is not None
        wait_for(lambda: len(clerk.heard) >= times or (self.asking and self.asking.poll() is not None), "the wish")
        assert clerk.heard == [SAVE] * times

    def wait_line(self, words: str) -> None:
        assert self.asking is not None and self.asking.stdout is not None
        alarm = threading.Timer(DEADLINE_S, self.asking.kill)
        alarm.start()
        assert any(words in line for line in iter(self.asking.stdout.readline, "")), f"it ended without {words!r}"
        alarm.cancel()

    def told(self) -> tuple[int, str, str]:
        assert self.asking is not None
        out, err = self.asking.communicate(timeout=DEADLINE_S)
        return self.asking.returncode, out, err

    def end(self, outcome: str = "finished") -> None:
        self.note("coordinator", JobEnded(outcome=outcome, why="every member has left"))

    def close(self) -> None:
        for process in (self.launcher, self.asking):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if self.clerk is not None:
            self.clerk.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, (NEAR, FAR))
    yield made
    made.close()


# Which facts mean what


def line(fact: Fact) -> Line:
    return Line(at=0.0, ns=0, who="x", what=fact)


def watched(*facts: Fact, urls: tuple[str, ...] = (NEAR, FAR)) -> SaveWatch:
    watch = SaveWatch(urls, 100)
    watch.asked(100)
    for fact in facts:
        watch.hear(line(fact))
    return watch


def test_a_state_of_that_moment_or_later_must_be_at_every_place() -> None:
    assert not watched(kept(100), durable(100)).is_durable
    assert not watched(kept(99), durable(99), durable(99, FAR)).is_durable
    assert watched(kept(101), durable(101), durable(102, FAR)).is_durable
    assert not watched(kept(101), durable(101), durable(101, "/another")).is_durable


def test_without_places_memory_is_enough() -> None:
    assert watched(kept(100), urls=()).is_durable and not watched(kept(99), urls=()).is_settled


def test_what_is_there_already_counts_and_old_failures_do_not() -> None:
    watch = SaveWatch((NEAR,), 100)
    for fact in (failed(100), SaveVoided(step=100, why="x")):
        watch.remember(line(fact))
    assert not watch.is_settled and not watch.is_lost
    watch.remember(line(durable(100)))
    assert watch.is_durable


def test_places_that_give_it_up_are_waited_for_no_longer() -> None:
    assert not watched(failed(101, final=False), durable(101, FAR)).is_settled
    given_up = watched(failed(101), durable(101, FAR))
    assert given_up.is_settled and not given_up.is_durable
    assert not watched(failed(101)).is_settled, "the other place is at it"
    assert not watched(failed(100), durable(100, FAR)).is_settled, "it was on its way before, and the one asked for comes"
    skipped = msgspec.structs.replace(failed(101), newer=102)
    assert not watched(skipped, durable(101, FAR)).is_settled, "a newer one is on its way there, and will do"
    later = watched(failed(101), durable(101, FAR), durable(102))
    assert later.is_durable and not later.given_up, "a later one did"


@pytest.mark.parametrize("fact", [SaveVoided(step=101, why="x"), ROSTER, ORIGIN, VaultStarted(pid=1, incarnation=1)])
def test_what_may_have_swallowed_the_wish_has_it_asked_again(fact: Fact) -> None:
    assert watched(fact).is_lost
    assert not watched(kept(101), durable(101), durable(101, FAR), fact).is_lost


def test_a_roster_after_the_state_is_in_memory_takes_nothing_away() -> None:
    assert not watched(kept(101), ROSTER).is_lost
    assert watched(kept(101), VaultStarted(pid=1, incarnation=1)).is_lost


def test_a_job_that_goes_on_without_a_save_is_asked_again_but_not_at_every_step() -> None:
    watch = watched()
    asked = 0
    for step in range(100, 200):
        watch.reached(step)
        if watch.is_lost:
            asked += 1
            watch.asked(step)
    assert asked == 3
    watch = watched(kept(101))
    watch.reached(1000)
    assert not watch.is_lost


def test_a_job_that_went_back_is_taken_where_it_is() -> None:
    assert watched(ORIGIN, kept(95), durable(95), durable(95, FAR)).is_durable
    assert not watched(kept(95), durable(95), durable(95, FAR)).is_durable


# The command


def test_it_waits_until_every_place_has_it(job: Job) -> None:
    job.opens()
    job.ask()
    job.wait_asked()
    job.vault(kept(101), durable(101), failed(101, FAR, final=False), durable(101, FAR))
    code, out, err = job.told()
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "asked at step 100",
        "step 101 is whole in memory: 1.5 MB in 250 ms",
        f"step 101 is durable at {NEAR}, 2.0 s later",
        f"step 101 is not durable at {FAR}: no room; tried again",
        f"step 101 is durable at {FAR}, 2.0 s later",
        f"the state is saved: step 101 at {NEAR}, step 101 at {FAR}",
    ]


def test_a_void_save_is_asked_for_again(job: Job) -> None:
    job.opens()
    job.ask("--json")
    job.wait_asked()
    job.vault(SaveVoided(step=101, why="r1.0 died"))
    job.wait_asked(2)
    job.vault(kept(103), durable(103), durable(103, FAR))
    code, out, err = job.told()
    found = json.loads(out)
    assert code == 0 and found["is_durable"] and (found["asked_at_step"], found["memory_step"]) == (100, 103)
    assert [place["step"] for place in found["places"]] == [103, 103]
    assert "the save of step 101 is void: r1.0 died\nasked again\n" in err


def test_of_a_job_that_ends_the_last_save_counts(job: Job) -> None:
    job.opens()
    job.ask()
    job.wait_asked()
    job.end()
    for fact, words in ((kept(101), "whole in memory"), (failed(101, FAR, final=False), "tried again")):
        job.vault(fact)
        job.wait_line(words)  # by the second one it has looked at a job that has ended, and whose launcher lives
    job.vault(durable(101), durable(101, FAR))
    assert job.told()[0] == 0


def test_a_job_that_ends_without_it_is_exit_code_1(job: Job) -> None:
    job.opens()
    job.ask("--json")
    job.wait_asked()
    job.vault(kept(101), durable(101))
    job.end("failed")
    job.launcher.kill()
    job.launcher.wait()
    code, out, err = job.told()
    found = json.loads(out)
    assert code == 1 and not found["is_durable"] and [place["step"] for place in found["places"]] == [101, None]
    assert "the job is failed, and its last save is not durable everywhere" in err and found["why"] in err


def test_a_place_that_gives_it_up_is_exit_code_4(job: Job) -> None:
    job.opens()
    job.ask("--json")
    job.wait_asked()
    job.vault(kept(101), durable(101), failed(101, FAR))
    code, out, err = job.told()
    found = json.loads(out)
    assert code == 4 and f"{FAR} gave it up: no room" in err
    assert [place["problem"] for place in found["places"]] == ["", "no room"]


def test_a_refusal_and_a_grant_that_nobody_waits_for(job: Job, tmp_path: Path) -> None:
    clerk = job.opens(is_granted=False, why="the job keeps no state")
    done = regrow("checkpoint", "now", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "regrow: the job keeps no state\n")
    clerk.close()
    job.opens()
    done = regrow("checkpoint", "now", "--no-wait", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the state is saved: granted\n")


def test_there_must_be_a_run_and_somebody_to_ask(job: Job, tmp_path: Path) -> None:
    job.directory.note_listening(ListeningFile(endpoint=Endpoint("127.0.0.1", 1), host="h", pid=1, born=0))
    done = regrow("checkpoint", "now", "run", cwd=tmp_path)
    assert done.returncode == 4 and "127.0.0.1:1 cannot be reached" in done.stderr
    job.end()
    done = regrow("checkpoint", "now", "run", cwd=tmp_path)
    assert done.returncode == 2 and "does not run (it is finished)" in done.stderr
    assert regrow("checkpoint", "now", "nowhere", cwd=tmp_path).returncode == 2


def test_a_coordinator_elsewhere_is_asked_at_its_address(tmp_path: Path) -> None:
    """Its own run directory is not at hand, and so nothing says where it listens but the job itself."""
    first = Job(tmp_path, ())
    try:
        first.opens()
        listening = first.directory.listening()
        assert listening is not None
        (first.path / "listening.json").unlink()
        job_json = first.path / "job.json"
        job_json.write_text(job_json.read_text().replace('"coordinator": null', f'"coordinator": "{listening.endpoint}"'))
        first.ask()
        first.wait_asked()
        first.vault(kept(100))
        code, out, _ = first.told()
        assert code == 0 and out.endswith("the state is saved: step 100 in memory\n")
    finally:
        first.close()
