"""`regrow status` and the restart budget, on a run directory written by hand."""

import json
import os
import time
from pathlib import Path

import pytest
from command import regrow

from regrow.cli.liveness import born
from regrow.cli.run_dir import JobFile, RunDir
from regrow.coordinator.store import Store
from regrow.core.budget import BudgetConfig
from regrow.core.membership_effects import Saved
from regrow.core.records import JobEnded, ReplicaLost, RestartPlanned, WorkerExited, WorkerStarted
from regrow.core.roster import Member
from regrow.core.staff import found
from regrow.shell.journal import Journal

NEXT = Member("r1", 3)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """This very process plays the launcher: r1 has used 3 of 4 restarts and waits for its fourth life; r2 is lost."""
    run = RunDir(tmp_path / "run")
    pid = os.getpid()
    budget = BudgetConfig(max_restarts=4, max_all_restarts=9, window_s=60.0)
    shared = {"command": ("train.py",), "cwd": "/", "lanes": 2, "host": "h", "pid": pid, "born": born(pid)}
    run.create(JobFile(job="j", replicas=("r0", "r1", "r2"), budget=budget, min_replicas=2, **shared))  # type: ignore[arg-type]
    now = time.monotonic()
    store = Store(run.path)
    spent = {"r1": (now - 70, now - 3, now - 2, now - 1), "r2": (now - 5,)}
    staff = found(("r0", "r1", "r2"), 0).losing("r2")
    store.save(Saved(term=1, lives={"r0": 0, "r1": 3, "r2": 1}, staff=staff, spent=spent))
    store.close()
    agent = Journal(run.journal, "agent")
    for member in (Member("r0", 0), Member("r1", 2), Member("r2", 1)):
        agent.write(WorkerStarted(member=member, pid=1 << 22, host="h", why="a test"))
    for member in (Member("r1", 2), Member("r2", 1)):
        agent.write(WorkerExited(member=member, pid=1 << 22, how="killed by SIGKILL", clean=False, cause=f"died-{member}"))
    coordinator = Journal(run.journal, "coordinator")
    coordinator.write(ReplicaLost(replica="r2", why="a test", left=2, needed=2))
    coordinator.write(
        RestartPlanned(
            member=NEXT,
            delay_s=1000.0,
            used=3,
            limit=4,
            job_used=4,
            job_limit=9,
            window_s=60.0,
            why="r1.2 killed by SIGKILL",
        )
    )
    return run


def test_the_budget_is_shown_as_far_as_it_is_spent(run: RunDir, tmp_path: Path) -> None:
    status = json.loads(regrow("status", "run", "--json", cwd=tmp_path).stdout)
    rows = {row["name"]: row for row in status["replicas"]}
    assert [rows[name]["restarts"] for name in ("r0", "r1", "r2")] == [0, 3, 1], "the one of 70 s ago no longer counts"
    assert {row["max_restarts"] for row in rows.values()} == {4}
    assert (rows["r1"]["state"], rows["r2"]["state"]) == ("restarting", "lost")
    assert 0 < rows["r1"]["starts_in_s"] <= 1000 and rows["r2"]["starts_in_s"] is None
    assert (status["restarts"], status["max_all_restarts"], status["restart_window_s"], status["min_replicas"]) == (
        4,
        9,
        60,
        2,
    )
    text = regrow("status", "run", cwd=tmp_path).stdout
    assert "restarting in 9" in text and "3/4" in text
    assert "4 of 9 restarts of the job were used within the last 60 s" in text
    assert "r2 will not be restarted: 2 left, the job needs 2" in text


def test_after_the_end_it_is_what_was_spent_then(run: RunDir, tmp_path: Path) -> None:
    Journal(run.journal, "coordinator").write(JobEnded(outcome="finished", why="a test"))
    status = json.loads(regrow("status", "run", "--json", cwd=tmp_path).stdout)
    assert (status["state"], status["restarts"]) == ("finished", 4)
    assert status["replicas"][1]["starts_in_s"] is None
