"""A training script that saves, killed at every named point and at any moment: it resumes, and ends as if nothing was."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs import DEADLINE_S, sparse, wait_for
from state.mounts import mounted

from regrow.core.checkpoint import Pointer
from regrow.state.archive import Archive
from regrow.state.stores import open_store
from regrow.worker.checkpointer import Checkpointer

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).parent / "saving.py"
STEPS = 40
_numbers = itertools.count()
WRITING = ("save-shard", "save-manifest", "save-pointer", "save-done")


class Training:
    """One life of the script."""

    def __init__(self, folder: Path, *arguments: str, steps: int = STEPS, **environ: str) -> None:
        name = folder.with_name(f"life-{next(_numbers)}")
        self._out, self._errors = name.with_suffix(".txt"), name.with_suffix(".err")
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), str(steps), *arguments],
                stdout=out,
                stderr=errors,
                env={**os.environ, **environ},
            )

    def said(self, pattern: str) -> list[str]:
        return re.findall(pattern, self._out.read_text(), re.MULTILINE)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def resumed(self) -> int:
        found = wait_for(lambda: self.said(r"^resumed (\w+)$") or self.process.poll() is not None, "the restore")
        assert isinstance(found, list), self.errors
        return 0 if found[0] == "None" else int(found[0])

    def writer(self) -> int | None:
        """The process id of its writer, once there is one."""
        for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for child in children.read_text().split():
                if b"regrow.agent.writer" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def wait_stopped_writer(self) -> int:
        def stopped() -> int | None:
            pid = self.writer()
            return pid if pid and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T" else None

        pid = wait_for(stopped, "a writer that stands still")
        assert isinstance(pid, int)
        return pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def digest(self) -> str:
        assert self.process.wait(DEADLINE_S) == 0, self.errors
        return self.said(r"^digest (\w+)$")[0]


def checkpoints(folder: Path) -> list[Pointer]:
    pointers, damages = Archive(open_store(str(folder))).pointers()
    assert damages == []
    return pointers


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    training = Training(folder)
    digest = training.digest()
    assert [pointer.step for pointer in checkpoints(folder)] == list(range(STEPS, 0, -5))
    return digest


@pytest.mark.parametrize("point", WRITING)
def test_training_killed_while_its_writer_is_at_a_named_point_resumes(tmp_path: Path, undisturbed: str, point: str) -> None:
    folder = tmp_path / "run"
    training = Training(folder, f"writer:{point}:step=20:SIGSTOP")
    writer = training.wait_stopped_writer()
    training.kill()
    wait_for(lambda: is_gone(writer), "the end of the writer with its parent")
    last = 20 if point == "save-done" else 15
    assert checkpoints(folder)[0].step == last
    again = Training(folder)
    assert again.resumed() == last
    assert again.digest() == undisturbed
    named = {pointer.folder for pointer in checkpoints(folder)}
    assert {path.name for path in folder.glob("step-*")} == named, "leftovers are swept"


def test_training_killed_when_its_copy_is_made_resumes(tmp_path: Path, undisturbed: str) -> None:
    folder = tmp_path / "run"
    assert Training(folder, "trainer:save-copied:step=20:SIGKILL").process.wait(DEADLINE_S) == -signal.SIGKILL
    again = Training(folder)
    assert again.resumed() in (10, 15), "of two saves that have arenas, one is this"
    assert again.digest() == undisturbed


def test_training_killed_while_it_restores_resumes(tmp_path: Path, undisturbed: str) -> None:
    folder = tmp_path / "run"
    Training(folder, steps=20).digest()
    assert Training(folder, "trainer:restore-read:SIGKILL").process.wait(DEADLINE_S) == -signal.SIGKILL
    again = Training(folder)
    assert again.resumed() == 20
    assert again.digest() == undisturbed


@pytest.mark.parametrize("seed", sparse(range(12), 6))
def test_training_killed_at_any_moment_resumes(tmp_path: Path, undisturbed: str, seed: int) -> None:
    folder, chance = tmp_path / "run", random.Random(seed)
    for _ in range(3):
        training = Training(folder)
        goal = chance.randint(training.resumed(), STEPS)
        wait_for(lambda: int(["0", *training.said(r"^step (\d+)$")][-1]) >= goal or training.process.poll() == 0, "a step")  # noqa: B023
        training.kill()
        reached = int(["0", *training.said(r"^step (\d+)$")][-1])
        assert all(pointer.step <= reached + 5 for pointer in checkpoints(folder))
    assert Training(folder).digest() == undisturbed


def test_the_end_of_a_script_waits_for_its_last_save(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    training = Training(folder, "writer:save-manifest:step=5:SIGKILL", steps=5)  # the next writer takes a while to start
    training.digest()
    assert "regrow: waiting until 1 saves are durable" in training.errors
    assert "the writer of step 5 died" in training.errors
    assert [pointer.step for pointer in checkpoints(folder)] == [5]


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "none") as place:
        yield place


def test_a_full_disk_stops_no_training_and_no_later_save(small_disk: Path) -> None:
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(1, 300)).mean().backward()
        optimizer.step()

    with Checkpointer(small_disk / "run", keep_last=1, patience_s=30.0) as checkpointer:
        step()
        checkpointer.save(1, model=model, optimizer=optimizer)
        checkpointer.wait()
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(int(2.3 * (1 << 20))))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            checkpointer.save(2, model=model, optimizer=optimizer)
            wait_for(lambda: step() or checkpointer.report().attempts_failed >= 2, "two tries that failed")
            step()
        assert any("step 2 cannot be saved yet, and is tried again: no room for" in str(each.message) for each in told)
        assert checkpoints(small_disk / "run")[0].step == 1
        ballast.unlink()
        checkpointer.save(3, model=model, optimizer=optimizer)
        checkpointer.wait()
        report = checkpointer.report()
        assert (report.durable, report.given_up) == (3, 0)
        assert not any("died" in why for why in report.failures), "a refusal costs no writer"
        checkpointer.close()
        assert [pointer.step for pointer in checkpoints(small_disk / "run")] == [3]


def test_what_a_dead_writer_left_does_not_keep_a_disk_full(small_disk: Path) -> None:
    """Room for two states and a half: the newest, and most of one that will never be."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 300)).mean().backward()
    optimizer.step()
    faults = "writer.0:save-manifest:step=2:SIGKILL"
    with Checkpointer(small_disk / "run", keep_last=1, patience_s=DEADLINE_S, _faults=faults) as checkpointer:
        (small_disk / "ballast").write_bytes(bytes(int(1.2 * (1 << 20))))
        for step in (1, 2, 3):
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                checkpointer.save(step, model=model, optimizer=optimizer)
                wait_for(lambda step=step: checkpointer.report().durable == step, f"step {step}")
        assert "no room for" in "".join(checkpointer.report().failures)
    assert [pointer.step for pointer in checkpoints(small_disk / "run")] == [3]


def test_a_checkpoint_that_could_not_be_removed_keeps_no_other_and_goes_with_a_later_save(tmp_path: Path) -> None:
    model, folder = torch.nn.Linear(4, 4), tmp_path / "run"
    with Checkpointer(folder, keep_last=1) as checkpointer:

        def save(step: int) -> None:
            checkpointer.save(step, model=model)
            checkpointer.wait()

        save(1)
        (first,) = folder.glob("step-*")
        with mounted(first / "held", "-t", "tmpfs", "none"), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for step in (2, 3, 4):
                save(step)
            wait_for(lambda: [pointer.step for pointer in checkpoints(folder)] == [4], "the others to go")
        assert any("an old checkpoint cannot be removed" in str(each.message) for each in told)
        save(5)
    assert [path.name[:17] for path in folder.glob("step-*")] == ["step-000000000005"]


# Several ranks


def pair(folder: Path, steps: int, widths: tuple[int, int] = (64, 64)) -> list[Training]:
    meeting = folder.with_name(f"meeting-{next(_numbers)}").as_uri()
    return [
        Training(folder, steps=steps, RANK=str(rank), MEETING=meeting, WIDTH=str(width)) for rank, width in enumerate(widths)
    ]


def test_two_ranks_write_once_and_both_restore(tmp_path: Path, undisturbed: str) -> None:
    folder = tmp_path / "run"
    lives = pair(folder, 20)
    for life in lives:
        life.digest()
    assert [life.said(r"^begun (\d+)$") for life in lives] == [["4"], ["0"]]
    assert [pointer.step for pointer in checkpoints(folder)] == [20, 15, 10, 5]
    again = pair(folder, STEPS)
    assert [life.resumed() for life in again] == [20, 20]
    assert [life.digest() for life in again] == [undisturbed] * 2


def test_a_rank_that_cannot_restore_stops_the_other_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Training(folder, steps=5).digest()
    first, second = pair(folder, STEPS, widths=(64, 65))
    assert first.process.wait(DEADLINE_S) == second.process.wait(DEADLINE_S) == 1
    assert "another rank cannot restore" in first.errors
    assert "model.0.weight is float32[64, 16] there, and float32[65, 16] here" in second.errors
