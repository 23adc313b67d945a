"""Jobs whose checkpoints are deltas: killed whole, they go on from a chain with the bits of an undisturbed run."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import Run, prove, wait_for

from regrow.checkpoint import Checkpointer
from regrow.core.records import SaveDurable, SaveFailed
from regrow.state.archive import Archive
from regrow.state.stores import open_store

pytestmark = pytest.mark.process

STEPS = 24
Start = Callable[..., Run]
FLAGS = ("--checkpoint-every", "2", "--checkpoint-delta", "3")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def depths(place: Path) -> list[int]:
    """Of the checkpoints there, the newest first: how many deltas lie on the whole one. All are whole."""
    archive = Archive(open_store(str(place)))
    pointers, damages = archive.pointers()
    assert damages == [] and all(archive.verify(pointer) == [] for pointer in pointers)
    return [len(archive.links(pointer, archive.manifest(pointer))) - 1 for pointer in pointers]


def test_a_job_killed_whole_goes_on_from_a_chain(start: Start, place: Path, reference: str) -> None:
    first = start("--replicas", "2", "--checkpoint", str(place), *FLAGS, script_args=("--pace", "0.05"))
    wait_for(lambda: len(first.facts(SaveDurable)) >= 3, "three durable saves")
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    found = depths(place)
    assert sorted(found)[0] == 0 and 1 <= max(found) <= 3, first.story()
    newest = Archive(open_store(str(place))).pointers()[0][0].step
    run = start("--replicas", "3", "--checkpoint", str(place), "--resume", "latest", *FLAGS)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=newest)
    assert not run.facts(SaveFailed), run.story()
    assert Archive(open_store(str(place))).pointers()[0][0].step == STEPS
    assert max(depths(place)) <= 3


def test_a_harmed_link_is_passed_over_loudly(start: Start, place: Path, reference: str) -> None:
    first = start("--replicas", "2", "--checkpoint", str(place), *FLAGS, script_args=("--pace", "0.05"))
    wait_for(lambda: len(first.facts(SaveDurable)) >= 3, "three durable saves")
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    archive = Archive(open_store(str(place)))
    pointers = archive.pointers()[0]
    harmed = pointers[-2]  # the first delta of the first chain, whose whole one is the oldest
    (file,) = (place / harmed.folder).glob("*.xor.zst")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    serves = next(pointer.step for pointer in pointers if archive.verify(pointer) == [])
    run = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest", *FLAGS)
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter(), first=serves)
    assert serves == pointers[0].step or f"{harmed.folder}/{file.name}" in run.output, run.story()


def test_a_writer_killed_in_a_delta_costs_no_step(start: Start, place: Path, reference: str) -> None:
    flags = ("--checkpoint", str(place), *FLAGS, "--fault", "writer:save-manifest:nth=3:SIGKILL")
    run = start("--replicas", "2", *flags, script_args=("--pace", "0.02"))
    assert run.wait() == 0, run.story()
    prove(run, reference, deaths=Counter())
    assert [fact.attempt for _, fact in run.facts(SaveFailed)] == [1], run.story()
    assert max(depths(place)) <= 3 and Archive(open_store(str(place))).pointers()[0][0].step == STEPS


def test_a_job_does_not_begin_from_a_state_that_is_not_exact(start: Start, place: Path) -> None:
    model = torch.nn.Linear(16, 32)
    with Checkpointer(place, moments="int8") as checkpointer:
        checkpointer.save(5, model=model)
    run = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    assert run.wait() == 2, run.story()
    assert "cannot begin a job, which promises equal bits: it was saved with moments='int8'" in run.output, run.story()
