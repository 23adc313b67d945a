"""A replica that dies in every life: its restarts are counted, it is given up, and the job goes on without it or ends."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest
from runs import HERE, REGROW, Run, prove

from regrow.core.records import Departed, JobEnded, ReplicaLost, RestartPlanned, WorkerStarted

pytestmark = pytest.mark.process

DOOMED = HERE / "doomed.py"
LIMITS = ("--replicas", "3", "--max-restarts", "2", "--restart-backoff", "0.2")


def test_the_job_goes_on_without_it_and_says_so(start: Callable[..., Run], reference: str) -> None:
    run = start(*LIMITS, script=DOOMED)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter({"r1": 3}))
    planned = [fact for _, fact in run.facts(RestartPlanned)]
    assert [(str(fact.member), fact.delay_s, fact.used, fact.limit) for fact in planned] == [
        ("r1.1", 0.0, 1, 2),
        ("r1.2", 0.2, 2, 2),
    ]
    assert [(fact.job_used, fact.job_limit, fact.window_s) for fact in planned] == [(1, 200, 600.0), (2, 200, 600.0)]
    (lost,) = (fact for _, fact in run.facts(ReplicaLost))
    why = "r1 was restarted 2 times within 600 s (--max-restarts)"
    assert lost == ReplicaLost(replica="r1", why=why, left=2, needed=1)
    assert "r1.2 starts in 0.2 s: restart 2 of 2 within 600 s" in run.output
    assert f"the job goes on without r1: {why}; 2 replicas are left" in run.output
    assert {who for who, _ in run.facts(Departed)} == {"r0.0", "r2.0"}
    rows = {row["name"]: row for row in run.status()["replicas"]}  # type: ignore[attr-defined]
    assert (rows["r1"]["state"], rows["r1"]["restarts"], rows["r1"]["max_restarts"]) == ("lost", 2, 2)
    assert run.status()["restarts"] == 2
    tale = why_of(run)["tale"]
    assert tale["summary"]["by_replica"] == {"r1": 3} and tale["summary"]["lost"] == {"r1": why}
    assert tale["episodes"][-1]["returns"][0]["left"] == 2


def test_with_too_few_left_the_job_ends_and_says_what_to_change(start: Callable[..., Run]) -> None:
    run = start(*LIMITS, "--min-replicas", "3", script=DOOMED)
    assert run.wait() == 1, run.story()
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert end.outcome == "failed" and "only 2 of 3 replicas may still run (r1 will not be restarted)" in end.why
    assert "the job needs 3: mend the cause, or lower --min-replicas" in run.output
    assert "goes on without" not in run.output
    assert len(run.facts(WorkerStarted)) == 5
    assert run.status()["state"] == "failed"
    assert run.check().returncode == 0
    told = subprocess.run([*REGROW, "why", str(run.folder)], capture_output=True, text=True, check=True).stdout
    assert "cause: only 2 of 3 replicas may still run" in told.splitlines()[1]
    run.wait_nothing_left({})


def why_of(run: Run) -> dict[str, dict[str, object]]:
    done = subprocess.run([*REGROW, "why", str(run.folder), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
