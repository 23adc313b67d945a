"""Ways in which people train, each under kills: the weights, and all else that is tracked, are those of a job of one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import HERE, Run, alone
from styles import STYLES

from regrow.core.records import Committed, WorkerExited

pytestmark = pytest.mark.process

SCRIPT = HERE / "styles.py"
FAULTS = ("--fault", "r1:backward:step=2:SIGKILL", "--fault", "r2:reduced:step=5:SIGKILL")


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once a test, and not once a process. Which of them a process runs is its own choice all the same."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))


def slow(style: str) -> object:
    """Inductor starts a C++ compiler, which takes a minute on a busy machine: in `make test-all`."""
    return pytest.param(style, marks=pytest.mark.matrix) if "Inductor" in style else style


@pytest.mark.parametrize("style", [slow(style) for style in STYLES])
def test_a_style_survives_kills(style: str, start: Callable[..., Run]) -> None:
    if "Inductor" in style and shutil.which("g++") is None:
        pytest.skip("the Inductor backend needs a C++ compiler")
    reference = alone(style, script=SCRIPT)
    run = start("--replicas", "3", "--bucket-mb", "0.0004", *FAULTS, script=SCRIPT, script_args=(style, "--hold", "3"))
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {reference}, run.story()
    died = sorted(fact.member.replica for _, fact in run.facts(WorkerExited) if not fact.clean)
    assert died == ["r1", "r2"], run.story()
    assert len({fact.attempt for _, fact in run.facts(Committed)}) > 2, "nobody joined again"
    check = run.check()
    assert check.returncode == 0, check.stdout + check.stderr
