"""`regrow why` of real jobs under attack: it names whom the test attacked, and what that cost is in the journals."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from runs import LANES, REGROW, Run, prove, sparse

pytestmark = pytest.mark.process


class Case(NamedTuple):
    name: str
    faults: tuple[str, ...]
    episodes: list[list[tuple[str, str]]]
    """In each, who failed and how: (member, kind)."""
    replicas: int = 3
    lanes: int | None = None
    """Computed again, where the attack decides it."""


CASES = [
    Case("a kill", ("r1:reduce:step=3:SIGKILL",), [[("r1.0", "signal")]], lanes=2),
    Case("a segfault", ("r2:backward:step=2:SIGSEGV",), [[("r2.0", "signal")]]),
    Case("an exception", ("r2:forward:step=2:raise",), [[("r2.0", "exception")]]),
    Case("an exit code", ("r2:forward:step=2:exit",), [[("r2.0", "exit")]]),
    Case(
        "another while forming",
        ("r1:boundary:step=3:SIGKILL", "r2:form:roster=2:SIGKILL"),
        [[("r1.0", "signal"), ("r2.0", "signal")]],
        4,
    ),
    Case(
        "the joiner",
        ("r1:backward:step=2:SIGKILL", "r1.1:form:SIGKILL"),
        [[("r1.0", "signal")], [("r1.1", "signal")]],
    ),
]


@pytest.mark.parametrize("case", sparse(CASES, 4), ids=lambda case: case.name)
def test_it_names_whom_the_test_attacked(case: Case, start: Callable[..., Run], reference: str) -> None:
    faults = [arg for fault in case.faults for arg in ("--fault", fault)]
    run = start("--replicas", str(case.replicas), *faults, script_args=("--hold", f"5:{case.replicas}"))
    run.wait()
    prove(run, reference, deaths=Counter(fault.partition(":")[0].partition(".")[0] for fault in case.faults))
    report = why(run)
    assert report["state"] == "finished"
    episodes: list[dict[str, Any]] = report["tale"]["episodes"]
    named = [sorted((culprit["member"], culprit["kind"]) for culprit in episode["culprits"]) for episode in episodes]
    assert named == case.episodes, run.story()
    for episode in episodes:
        assert episode["roster"] is not None and episode["is_over"], episode
        assert episode["stall_s"] is not None and episode["restored_s"] is not None, episode
        for culprit, found in zip(episode["culprits"], episode["returns"], strict=True):
            replica, _, life = culprit["member"].rpartition(".")
            assert (found["member"], found["limit"]) == (f"{replica}.{int(life) + 1}", 20)
    assert [found["donors"] != [] for found in episodes[-1]["returns"]] == [True] * len(episodes[-1]["returns"])
    if case.lanes is not None:
        assert (episodes[0]["recomputed_lanes"], episodes[0]["step"]) == (case.lanes, 3), run.story()
        assert episodes[0]["recomputed_steps"] == pytest.approx(case.lanes / LANES)
    assert report["tale"]["summary"]["failures"] == len(case.faults)


def why(run: Run) -> dict[str, Any]:
    done = subprocess.run([*REGROW, "why", str(run.folder), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
