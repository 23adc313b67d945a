"""The examples, as a reader would run them, with a kill in the middle: the digest is that of the script alone."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import HERE, Run, alone

from regrow.core.records import StateFetched, WorkerExited

pytestmark = pytest.mark.process

EXAMPLES = HERE.parent.parent / "examples"


@pytest.mark.parametrize("name", ["train_gpt", "train_resnet", "train_lora"])
def test_an_example_survives_a_kill(name: str, start: Callable[..., Run]) -> None:
    script, steps = EXAMPLES / f"{name}.py", ("--steps", "14")
    run = start("--replicas", "2", "--fault", "r1:backward:step=2:SIGKILL", script=script, script_args=steps)
    assert run.wait() == 0, run.story()
    assert set(run.digests()) == {alone(*steps, script=script)}, run.story()
    assert [str(fact.member) for _, fact in run.facts(WorkerExited) if not fact.clean] == ["r1.0"], run.story()
    assert [who for who, _ in run.facts(StateFetched)] == ["r1.1"], run.story()
    assert run.check().returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="the tensorboard package is not installed")
def test_curves_are_written_once_by_whoever_reports(start: Callable[..., Run], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = tmp_path / "curves"
    arguments = ("--steps", "14", "--tensorboard", str(curves))
    run = start(
        "--replicas",
        "2",
        "--fault",
        "r0:backward:step=5:SIGKILL",
        script=EXAMPLES / "train_resnet.py",
        script_args=arguments,
    )
    assert run.wait() == 0, run.story()
    steps = []
    for file in curves.iterdir():
        events = EventAccumulator(str(file))
        events.Reload()
        steps += [event.step for event in events.Scalars("accuracy")]
    assert sorted(steps) == list(range(14)), run.story()
