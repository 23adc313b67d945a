"""Journals of real jobs: readable at any moment, whole after any death, and false ones are found out."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import LANES, REGROW, Run, prove, wait_for
from test_ends import ENDLESS, prove_stopped, under_way

from regrow.core.records import Committed, RosterMade, WorkerExited

pytestmark = pytest.mark.process


def regrow(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*REGROW, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def spoiled(run: Run, who: str, spoil: Callable[[list[dict[str, Any]]], None]) -> subprocess.CompletedProcess[str]:
    """`regrow check` on a copy in which one process's facts were changed."""
    copy = run.folder.with_name("spoiled")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run.folder, copy)
    path = copy / "journal" / f"{who}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    spoil(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return regrow("check", str(copy), cwd=copy.parent)


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["what"]["fact"] == kind]


def flip_a_digest(lines: list[dict[str, Any]]) -> None:
    of_kind(lines, "Committed")[1]["what"]["digest"] ^= 1


def drop_a_commit(lines: list[dict[str, Any]]) -> None:
    lines.remove(of_kind(lines, "Committed")[1])


def count_a_lane_twice(lines: list[dict[str, Any]]) -> None:
    holdings = of_kind(lines, "Committed")[1]["what"]["holdings"]
    holdings[0] = [*holdings[0], holdings[0][0]]


def forget_a_lane(lines: list[dict[str, Any]]) -> None:
    lines.remove(of_kind(lines, "LaneComputed")[0])


def another_end(lines: list[dict[str, Any]]) -> None:
    of_kind(lines, "Departed")[0]["what"]["digest"] = "0" * 64


def test_a_false_journal_is_found_out_and_its_story_told(start: Callable[..., Run], reference: str) -> None:
    run = start("--replicas", "2", "--fault", "r1:reduce:step=2:SIGKILL", script_args=("--hold", "5:2"))
    run.wait()
    prove(run, reference, deaths=Counter({"r1": 1}))
    told = [
        (flip_a_digest, "one-gradient: step 1 was committed with different results by r0.0 and r1.0", 2),
        (drop_a_commit, "steps-go-on: r0.0 committed step 2, its next was 1", 1),
        (count_a_lane_twice, "each-lane-once: step 1 counts ", 1),
        (forget_a_lane, "each-lane-once: step 0 counts lanes [0] as held by r0.0, which never computed them", 1),
        (another_end, f"one-end: r0.0 ended at step 24 with {'0' * 64}, r1.1 at 24 with {reference}", 2),
    ]
    for spoil, words, facts in told:
        check = spoiled(run, "r0.0", spoil)
        assert check.returncode == 1, f"{spoil.__name__}: {check.stdout}"
        first, *story, counts = check.stdout.splitlines()
        assert first.startswith(f"broken: {words}"), check.stdout
        assert len(story) == facts and all(line.startswith("  r") and '{"fact":' in line for line in story), check.stdout
        assert "24 steps, " in counts


def test_journals_are_sound_whenever_they_are_read_and_status_follows_a_kill(
    start: Callable[..., Run], digests: list[str]
) -> None:
    """The kills fall where they may: some tear a line, some hit a joiner, some a donor."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    run = start("--replicas", "3", "--restart-backoff", "0", script_args=ENDLESS)
    under_way(run)
    cwd = run.folder.parent
    kills = 0
    while kills < 6:
        status = json.loads(regrow("status", "--json", cwd=cwd).stdout)  # the newest run below cwd
        assert list(status)[:5] == ["job", "state", "step", "roster", "replicas"], status
        assert (status["job"], status["state"]) == ("run", "running"), status
        assert all(list(row)[:6] == ["name", "pid", "host", "state", "lanes", "step"] for row in status["replicas"]), status
        assert status["restarts"] == kills == sum(row["restarts"] for row in status["replicas"]), status
        victim = chance.choice(status["replicas"])
        others = [row for row in status["replicas"] if row is not victim and row["state"] == "running"]
        if victim["state"] not in ("running", "joining") or len(others) < 2:
            continue
        os.kill(victim["pid"], signal.SIGKILL)
        kills += 1
        check = regrow("check", cwd=cwd)
        assert check.returncode == 0, f"seed {seed}\n{check.stdout}{check.stderr}"

        def is_back(victim: dict[str, Any] = victim) -> bool:
            row = next(row for row in run.status()["replicas"] if row["name"] == victim["name"])
            return row["state"] == "running" and row["pid"] != victim["pid"]

        wait_for(is_back, f"{victim['name']} to be back (seed {seed})")
    wait_for(lambda: sum(len(row["lanes"]) for row in run.status()["replicas"]) == LANES, "all lanes to be seated")
    committed = max(fact.step for _, fact in run.facts(Committed))
    status = run.status()
    assert status["step"] > committed
    assert {row["host"] for row in status["replicas"]} == {socket.gethostname()}
    assert sorted(lane for row in status["replicas"] for lane in row["lanes"]) == list(range(LANES))
    assert status["roster"] == f"1.{run.facts(RosterMade)[-1][1].version.n}"
    run.interrupt()
    assert run.wait() == 130, run.story()
    last = {row["name"]: row["pid"] for row in status["replicas"]}
    members = {name for name, pid in run.pids().items() if pid in last.values()}
    prove_stopped(run, digests, members)
    deaths = [fact for _, fact in run.facts(WorkerExited) if not fact.clean]
    assert len(deaths) == kills, f"seed {seed}\n{run.story()}"
