"""Every way to feed a job, under kills: the weights are those of a job of one."""

from collections.abc import Callable

import pytest
from runs import HERE, Run, alone

from regrow.core.records import Committed, WorkerExited

pytestmark = pytest.mark.process

SCRIPT = HERE / "feeding.py"
FAULTS = ("--fault", "r1:backward:step=2:SIGKILL", "--fault", "r2:reduced:step=5:SIGKILL")
WAYS = ["function"]


def prove(run: Run, way: str, died: list[str]) -> None:
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {alone(way, script=SCRIPT)}, run.story()
    found = sorted(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert found == died, run.story()
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize("way", WAYS)
def test_fed_in_any_way_a_job_survives_kills(way: str, start: Callable[..., Run]) -> None:
    run = start("--replicas", "3", *FAULTS, script=SCRIPT, script_args=(way, "--hold", "3"))
    prove(run, way, ["r1", "r2"])
    assert len({fact.attempt for _, fact in run.facts(Committed)}) > 2, "nobody joined again"
