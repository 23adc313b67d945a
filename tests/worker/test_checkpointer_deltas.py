"""A Checkpointer whose checkpoints are deltas where they can be, with a real writer."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

from regrow.core.checkpoint import Pointer
from regrow.core.errors import ConfigError
from regrow.core.roster import Endpoint, Member
from regrow.shell.door import WorkerDoor
from regrow.state.archive import Archive
from regrow.state.stores import open_store
from regrow.worker.checkpointer import Checkpointer


class Training:
    """A little of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.index = 0
        self.step()  # the optimizer has its state

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.index)
        self.model(torch.randn(8, 64, generator=generator)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.index += 1

    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer}

    def weights(self) -> list[bytes]:
        state = [self.model.weight, *(self.optimizer.state[self.model.weight][name] for name in ("exp_avg", "exp_avg_sq"))]
        return [tensor.detach().numpy().tobytes() for tensor in state]


def train(url: Path, steps: int, **settings: object) -> dict[int, list[bytes]]:
    training, seen = Training(), {}
    with Checkpointer(url, **settings) as checkpointer:  # type: ignore[arg-type]
        for _ in range(steps):
            training.step()
            seen[training.index] = training.weights()
            checkpointer.save(training.index, **training.objects())
            checkpointer.wait()
    return seen


def stored(url: Path) -> tuple[Archive, list[Pointer]]:
    archive = Archive(open_store(str(url)))
    pointers, damages = archive.pointers()
    assert damages == []
    return archive, pointers


def depths(url: Path) -> dict[int, int]:
    archive, pointers = stored(url)
    return {pointer.step: len(archive.links(pointer, archive.manifest(pointer))) - 1 for pointer in pointers}


def test_what_is_restored_through_a_chain_is_what_was_saved(tmp_path: Path) -> None:
    seen = train(tmp_path, 6, delta=3)
    assert depths(tmp_path) == {7: 1, 6: 0, 5: 3, 4: 2, 3: 1, 2: 0}
    archive, pointers = stored(tmp_path)
    assert all(archive.verify(pointer) == [] for pointer in pointers)
    assert pointers[0].size_bytes < pointers[1].size_bytes / 1.1
    other = Training()
    with Checkpointer(tmp_path, delta=3) as checkpointer:
        assert checkpointer.restore(**other.objects()) == 7
        assert other.weights() == seen[7]
        other.step()
        checkpointer.save(8, **other.objects())
        checkpointer.wait()
    assert depths(tmp_path)[8] == 0, "whoever restored begins a chain of its own"


def test_a_harmed_link_is_told_and_the_newest_that_does_not_need_it_is_taken(tmp_path: Path) -> None:
    seen = train(tmp_path, 6, delta=3)
    (file,) = tmp_path.glob("step-000000000004-*/*.xor.zst")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for pointer in stored(tmp_path)[1][:2]:
        (tmp_path / pointer.folder / "manifest.json").unlink()  # the whole one and what lies on it
    other = Training()
    with warnings.catch_warnings(record=True) as told, Checkpointer(tmp_path) as checkpointer:
        warnings.simplefilter("always")
        assert checkpointer.restore(**other.objects()) == 3
    assert other.weights() == seen[3]
    said = [str(warning.message) for warning in told if str(file) in str(warning.message)]
    assert len(said) == 1 and "taking the checkpoint before it" in said[0], "steps 5 and 4 are harmed alike: told once"


@pytest.mark.parametrize("settings", [{"delta": 3}, {"moments": "int8"}])
def test_without_the_packages_a_restore_is_refused_before_anything_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    train(tmp_path, 2, **settings)
    other = Training()
    before = other.weights()
    monkeypatch.delitem(sys.modules, "regrow.state.planes", raising=False)
    monkeypatch.delattr("regrow.state.planes", raising=False)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(ConfigError, match=r"needs .* pip install 'regrow\[delta\]'"):
        checkpointer.restore(**other.objects())
    assert other.weights() == before


@pytest.mark.parametrize("point", ["save-shard", "save-manifest", "save-pointer", "save-done"])
def test_a_writer_killed_in_a_delta_is_replaced_and_nothing_is_lost(tmp_path: Path, point: str) -> None:
    with pytest.warns(RuntimeWarning, match="the writer of step 3 died"):
        seen = train(tmp_path, 4, delta=9, _faults=f"writer:{point}:step=3:SIGKILL")
    if point == "save-done":  # it was complete: the next writer finds it so, and goes on from there
        assert depths(tmp_path) == {5: 3, 4: 2, 3: 1, 2: 0}
    else:
        assert depths(tmp_path) == {5: 2, 4: 1, 3: 0, 2: 0}
    other = Training()
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(**other.objects()) == 5
    assert other.weights() == seen[5]
    archive, pointers = stored(tmp_path)
    assert all(archive.verify(pointer) == [] for pointer in pointers)
    assert len(list(tmp_path.glob("step-*"))) == 4, "leftovers are swept"


def test_old_checkpoints_go_and_what_is_needed_stays(tmp_path: Path) -> None:
    train(tmp_path, 7, delta=2, keep_last=1)
    assert depths(tmp_path) == {8: 0}
    train_on = Training()
    with Checkpointer(tmp_path, delta=2, keep_last=1) as checkpointer:
        checkpointer.restore(**train_on.objects())
        for step in (9, 10, 11):
            train_on.step()
            checkpointer.save(step, **train_on.objects())
            checkpointer.wait()
    assert depths(tmp_path) == {11: 2, 10: 1, 9: 0}


def test_states_that_change_their_shapes_and_huge_changes_are_no_matter(tmp_path: Path) -> None:
    class Box:
        def __init__(self) -> None:
            self.state: dict[str, object] = {}

        def state_dict(self) -> dict[str, object]:
            return self.state

        def load_state_dict(self, state: dict[str, object]) -> None:
            self.state = state

    box = Box()
    with Checkpointer(tmp_path, delta=4) as checkpointer:
        for step, count in enumerate((5000, 5000, 6000, 6000), 1):
            box.state = {"x": torch.arange(count) + step, "step": step}
            checkpointer.save(step, box=box)
            checkpointer.wait()
        assert depths(tmp_path) == {4: 1, 3: 0, 2: 1, 1: 0}
        assert checkpointer.restore(box=box) == 4
    x = box.state["x"]
    assert isinstance(x, torch.Tensor) and x.tolist() == list(range(4, 6004)) and box.state["step"] == 4


def test_manifests_say_how_much_smaller_they_are(tmp_path: Path) -> None:
    train(tmp_path, 2, delta=1)
    _, (newest, whole) = stored(tmp_path)
    manifest = json.loads((tmp_path / newest.folder / "manifest.json").read_text())
    assert manifest["version"] == 2 and manifest["delta"]["ratio"] == pytest.approx(
        whole.size_bytes / newest.size_bytes, rel=1e-3
    )


def test_a_length_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delta=-1 must be at least 0"):
        Checkpointer(tmp_path, delta=-1)


# Moments in fewer bits


@pytest.mark.parametrize("moments", ["int8", "pruned"])
def test_moments_in_fewer_bits_are_restored_with_a_warning(tmp_path: Path, moments: str) -> None:
    seen = train(tmp_path, 2, moments=moments)
    train(tmp_path / "exact", 2)
    small, whole = stored(tmp_path)[1][0], stored(tmp_path / "exact")[1][0]
    assert small.size_bytes < whole.size_bytes / 1.5
    other = Training()
    with Checkpointer(tmp_path, moments=moments) as checkpointer:
        with pytest.warns(RuntimeWarning, match=rf"step 3 .* restored, but it was saved with moments='{moments}'"):
            assert checkpointer.restore(**other.objects()) == 3
        weights, *others = other.weights()
        assert weights == seen[3][0] and others != seen[3][1:]
        other.step()
        checkpointer.save(4, **other.objects())
        checkpointer.wait()
    assert [pointer.step for pointer in stored(tmp_path)[1]] == [4, 3, 2]


def test_moments_in_fewer_bits_are_refused_where_they_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="moments='int4': choose one of 'int8', 'pruned'"):
        Checkpointer(tmp_path, moments="int4")
    with pytest.raises(ConfigError, match="moments='int8' and delta=2: give one of them"):
        Checkpointer(tmp_path, moments="int8", delta=2)
    for name, value in worker().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="moments='int8' under `regrow run`: a job promises equal bits"):
        Checkpointer(tmp_path, moments="int8")


def worker() -> dict[str, str]:
    door = WorkerDoor(
        member=Member("r0", 0),
        coordinator=Endpoint("127.0.0.1", 1),
        token="",
        run_dir=Path("."),
        host="127.0.0.1",
        lanes=None,
    )
    return door.to_environ()
