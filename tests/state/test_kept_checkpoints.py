"""Checkpoints of earlier releases open for ever, with Regrow and with the ten lines of the document."""

import re
from pathlib import Path

import msgspec
import pytest
import torch
from kept import FIXTURES, FROZEN, MATHEMATICS, state
from shelf import Shelf, depth, drafted, load, same

from regrow.core.draft import draft_of
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
KEPT = sorted(FIXTURES.iterdir())


def test_one_of_each_version_is_kept() -> None:
    assert [folder.name for folder in KEPT] == ["version-1", "version-1-job", "version-2"]


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_checkpoint_that_was_kept_is_whole_and_holds_what_it_held(folder: Path) -> None:
    archive = Archive(LocalStore(folder))
    (pointer, *others), damages = archive.pointers()
    assert all(archive.verify(other) == [] for other in others)
    assert depth(archive, pointer) == len(others) == (2 if folder.name == "version-2" else 0)
    assert (pointer.step, pointer.term, damages) == (12, 1, [])
    assert archive.verify(pointer) == []
    found, wanted = load(archive, pointer), state()
    found["rng"], wanted["rng"] = torch.from_numpy(found["rng"]), torch.from_numpy(wanted["rng"])
    assert same(found, wanted)


def test_one_that_a_job_kept_has_its_mathematics_and_what_was_not_trained() -> None:
    archive = Archive(LocalStore(FIXTURES / "version-1-job"))
    manifest = archive.manifest(archive.pointers()[0][0])
    assert (manifest.mathematics, manifest.frozen) == (MATHEMATICS, FROZEN)
    draft = draft_of(manifest)
    assert (draft.mathematics, draft.frozen) == (MATHEMATICS, FROZEN), "and so has what is recalled from it"


def test_what_is_saved_today_has_them_as_well() -> None:
    draft, arena = drafted(state())
    draft = msgspec.structs.replace(draft, mathematics=MATHEMATICS, frozen=FROZEN)
    archive = Archive(Shelf())
    assert draft_of(archive.manifest(archive.write(draft, arena))) == draft


@pytest.mark.parametrize("reads_both", [False, True], ids=["", "with the lines for deltas"])
@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_documents_ten_lines_open_it_without_regrow(
    folder: Path, reads_both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, deltas = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "regrow" not in code + deltas and len([line for line in code.splitlines() if line]) <= 12
    if folder.name == "version-2" or reads_both:
        code, count = re.subn(r"^files = .*$", lambda _: deltas, code, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "checkpoints").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, dict[str, torch.Tensor]] = {}
    exec(code, names)
    wanted = {f"model.{name}": tensor for name, tensor in state()["model"].items()}
    wanted |= {f"optimizer.state.0.{name}": tensor for name, tensor in state()["optimizer"]["state"][0].items()}
    assert same(
        dict(sorted(names["tensors"].items())), dict(sorted({**wanted, "rng": torch.from_numpy(state()["rng"])}.items()))
    )
