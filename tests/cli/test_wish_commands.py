"""`regrow scale`, `leave` and `migrate`: whom they ask, how they wait, and what they say when they cannot."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clerk import Clerk
from command import regrow

from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, ListeningFile, RunDir
from regrow.coordinator.store import Store
from regrow.core.membership_effects import Saved
from regrow.core.messages import Reply
from regrow.core.records import JobEnded
from regrow.core.roster import Endpoint
from regrow.core.staff import found
from regrow.core.wishes import Wish
from regrow.shell.journal import Journal

SCALE = ("scale", "--replicas", 4, "run")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """This very process plays the launcher."""
    run = RunDir(tmp_path / "run")
    pid = os.getpid()
    shared = {"command": ("train.py",), "cwd": "/", "lanes": 2, "host": "h", "pid": pid, "born": born(pid)}
    run.create(JobFile(job="j", replicas=("r0", "r1"), **shared))  # type: ignore[arg-type]
    return run


def save(run: RunDir, **saved: object) -> None:
    store = Store(run.path)
    store.save(Saved(term=1, **saved))  # type: ignore[arg-type]
    store.close()


@pytest.fixture
def clerks(run: RunDir) -> Iterator[list[Clerk]]:
    opened: list[Clerk] = []
    yield opened
    for clerk in opened:
        clerk.close()


def opens(clerks: list[Clerk], run: RunDir, **reply: object) -> Clerk:
    clerk = Clerk(run, Reply(**{"is_granted": True, "why": "", "number": 1, **reply}))  # type: ignore[arg-type]
    clerks.append(clerk)
    clerk.start()
    clerk.listens.wait()
    return clerk


def test_a_refusal_is_shown_and_is_exit_code_1(run: RunDir, clerks: list[Clerk], tmp_path: Path) -> None:
    clerk = opens(clerks, run, is_granted=False, why="there is no replica r9: the job has r0, r1")
    done = regrow("leave", "--replica", "r9", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "regrow: there is no replica r9: the job has r0, r1\n")
    assert clerk.heard == [Wish(kind="leave", replica="r9")]


def test_without_waiting_a_grant_is_enough(run: RunDir, clerks: list[Clerk], tmp_path: Path) -> None:
    opens(clerks, run)
    done = regrow("migrate", "--replica", "r1", "--no-wait", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "r1 is replaced by another replica, and leaves: granted\n")


def test_it_waits_until_the_wish_is_no_longer_pending(run: RunDir, clerks: list[Clerk], tmp_path: Path) -> None:
    staff = found(("r0", "r1"), 0).scaled(4, set()).hired(2)
    save(run, staff=staff)
    opens(clerks, run)
    done = regrow(*SCALE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "scale to 4 replicas: done\n")


def test_a_wish_that_was_overtaken_says_by_what(run: RunDir, clerks: list[Clerk], tmp_path: Path) -> None:
    save(run, staff=found(("r0", "r1"), 0).scaled(2, set()))
    opens(clerks, run)
    done = regrow(*SCALE, cwd=tmp_path)
    assert done.returncode == 1 and "not any more: 2 replicas are to work by now" in done.stderr


def test_without_a_coordinator_it_says_where_it_looked(run: RunDir, tmp_path: Path) -> None:
    run.note_listening(ListeningFile(endpoint=Endpoint("127.0.0.1", 1), host="h", pid=1, born=0))
    done = regrow(*SCALE, cwd=tmp_path)
    assert done.returncode == 4 and "127.0.0.1:1 cannot be reached" in done.stderr


def test_a_job_that_is_over_has_nobody_to_ask(run: RunDir, tmp_path: Path) -> None:
    Journal(run.journal, "coordinator").write(JobEnded(outcome="finished", why="every member has left"))
    done = regrow(*SCALE, cwd=tmp_path)
    assert done.returncode == 2 and "does not run (it is finished)" in done.stderr


def test_there_must_be_a_run(tmp_path: Path) -> None:
    assert regrow("scale", "--replicas", 3, cwd=tmp_path).returncode == 2
