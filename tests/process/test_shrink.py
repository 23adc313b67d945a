"""--on-loss shrink: lost lanes are left out until their replica is back, and the journals say exactly which."""

import json
import re
from collections import Counter
from collections.abc import Callable

import pytest
from runs import LANES, Run, alone, sparse

from regrow.core.lanes import missing
from regrow.core.records import Committed, WorkerExited

pytestmark = pytest.mark.process


def left_out(run: Run) -> list[list[int]]:
    """(step, lane) pairs that the journals say were left out."""
    commits = {fact.step: fact for _, fact in run.facts(Committed)}
    absent = {step: missing(LANES, [n for nodes in fact.holdings for n in nodes]) for step, fact in commits.items()}
    return [[step, lane] for step, lanes in sorted(absent.items()) for lane in sorted(lanes or ())]


@pytest.mark.parametrize(
    "scale", sparse([("--scale", "sqrt"), ("--scale", "linear"), ()], 3), ids=["sqrt", "linear", "none"]
)
@pytest.mark.parametrize(
    "faults",
    [
        ("r1:forward:step=3:SIGKILL",),
        ("r1:reduce:step=3:SIGKILL",),
        ("r0:passed:step=2:SIGSEGV", "r2:backward:step=4:SIGKILL"),
    ],
    ids=["in a lane", "in the reduce", "two, one after the other"],
)
def test_survivors_equal_each_other_and_a_replay_of_the_journal(
    faults: tuple[str, ...], scale: tuple[str, ...], start: Callable[..., Run], digests: list[str]
) -> None:
    armed = [arg for fault in faults for arg in ("--fault", fault)]
    run = start("--replicas", "3", "--on-loss", "shrink", *armed, script_args=("--steps", "20", "--hold", "6:3", *scale))
    assert run.wait() == 0, run.story()
    skipped = left_out(run)
    assert skipped and max(step for step, _ in skipped) < 19, "some lanes were lost, and at the end all are back"
    replayed = alone("--steps", "20", "--skip", json.dumps(skipped), *scale)
    assert run.digests() == [replayed] * 3, run.story()
    assert replayed != digests[20], "it is another run than one without losses"
    died = Counter(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert died == Counter(fault.split(":")[0] for fault in faults), run.story()
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr
    present = Counter(dict.fromkeys(range(20), LANES)) - Counter(step for step, _ in skipped)
    told = {int(step): int(lanes) for step, lanes in re.findall(r"step (\d+) loss \S+ lanes (\d+)", run.output)}
    assert told == {step: present[step] for step in told} and min(told.values()) < LANES, told
