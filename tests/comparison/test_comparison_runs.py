"""The harness itself: Regrow and plain DDP, a tiny model, one kill each."""

import os
from pathlib import Path

import pytest
from compare import systems_ddp, systems_regrow
from compare.blame import RIGHT
from compare.experiments.kill import kill
from compare.runner import NotStarted, Run, marks
from compare.systems import Command, Work


def leftovers() -> list[int]:
    return [pid for pid, mark in marks() if mark.startswith(f"{os.getpid()}-")]


@pytest.mark.process
def test_a_kill_under_regrow_costs_no_step_and_no_other_process(tmp_path: Path) -> None:
    found = kill("tiny", 2, systems_regrow.BEST, tmp_path / "run", 0)
    assert isinstance(found["full_s"], float), found
    assert (found["exited"], found["steps_lost"], found["blame"]) == (0, 0, RIGHT)
    assert leftovers() == []


@pytest.mark.process
def test_a_kill_under_plain_ddp_ends_the_healthy_process_too(tmp_path: Path) -> None:
    found = kill("tiny", 2, systems_ddp.BEST, tmp_path / "run", 0)
    assert isinstance(found["full_s"], float), found
    assert found["exited"] == 1
    assert leftovers() == []


class Broken:
    name, settings, explained = "broken", "best", ""

    def unavailable(self) -> str:
        return ""

    def commands(self, work: Work, folder: Path) -> list[Command]:
        return [Command(name="launcher", argv=["sh", "-c", "sleep 1000 & echo no such module; exit 1"])]


def test_a_system_that_does_not_train_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    work = Work(size="tiny", replicas=2, microbatches=2, steps=1)
    with pytest.raises(NotStarted, match="no such module"), Run(Broken(), work, tmp_path / "run") as run:
        run.wait_started(lambda story: bool(story.commits))
    assert leftovers() == []
