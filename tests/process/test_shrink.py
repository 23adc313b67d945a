"""--on-loss shrink: lost lanes are left out until their replica is back, and the journals say exactly which."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from runs import LANES, Run, alone

from regrow.core.lanes import missing
from regrow.core.records import Committed, WorkerExited

pytestmark = pytest.mark.process


def left_out(run: Run) -> list[list[int]]:
    """(step, lane) pairs that the journals say were left out."""
    commits = {fact.step: fact for _, fact in run.facts(Committed)}
    absent = {step: missing(LANES, [n for nodes in fact.holdings for n in nodes]) for step, fact in commits.items()}
    return [[step, lane] for step, lanes in sorted(absent.items()) for lane in sorted(lanes or ())]


@pytest.mark.parametrize("scale", [(), ("--scale", "linear"), ("--scale", "sqrt")], ids=["none", "linear", "sqrt"])
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
    faults: tuple[str, ...], scale: tuple[str, ...], start: Callable[..., Run], reference: str
) -> None:
    armed = [arg for fault in faults for arg in ("--fault", fault)]
    run = start("--replicas", "3", "--on-loss", "shrink", *armed, script_args=("--hold", "6:3", *scale))
    assert run.wait() == 0, run.story()
    skipped = left_out(run)
    assert skipped and max(step for step, _ in skipped) < 7, "some lanes were lost, and at the end all are back"
    replayed = alone("--skip", json.dumps(skipped), *scale)
    assert run.digests() == [replayed] * 3, run.story()
    assert replayed != reference, "it is another run than one without losses"
    died = Counter(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert died == Counter(fault.split(":")[0] for fault in faults), run.story()
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr
    told = [f"lanes {LANES - sum(step == lost for lost, _ in skipped)}" for step in range(8)]
    for step, words in enumerate(told):
        assert any(f"step {step} loss" in line and line.endswith(words) for line in run.output.splitlines()), run.story()
