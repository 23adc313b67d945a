"""Ways in which people train, each under kills: the weights, and all else that is tracked, are those of a job of one."""

from collections.abc import Callable

import pytest
from runs import HERE, Run, alone
from styles import STYLES

from regrow.core.records import Committed, WorkerExited

pytestmark = pytest.mark.process

SCRIPT = HERE / "styles.py"
FAULTS = ("--fault", "r1:backward:step=2:SIGKILL", "--fault", "r2:reduced:step=5:SIGKILL")


@pytest.mark.parametrize("style", STYLES)
def test_a_style_survives_kills(style: str, start: Callable[..., Run]) -> None:
    run = start("--replicas", "3", "--bucket-mb", "0.0004", *FAULTS, script=SCRIPT, script_args=(style, "--hold", "3"))
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {alone(style, script=SCRIPT)}, run.story()
    died = sorted(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert died == ["r1", "r2"], run.story()
    assert len({fact.attempt for _, fact in run.facts(Committed)}) > 2, "nobody joined again"
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr
