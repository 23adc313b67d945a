"""Ranks of a torch.distributed job restore together: real processes, which read one checkpoint among them."""

import itertools
import signal
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from collectives.ranks import Ranks
from saving import digest
from shelf import Moving

from regrow.core.checkpoint import CHUNK_BYTES, Manifest
from regrow.core.errors import RegrowError
from regrow.core.stretches import stretches
from regrow.state.archive import Archive
from regrow.state.stores import open_store
from regrow.worker.account import Report
from regrow.worker.checkpointer import Checkpointer

pytestmark = pytest.mark.process
_numbers = itertools.count()


class Restored(msgspec.Struct, frozen=True):
    """What a rank tells of its restore."""

    step: int | None
    digest: str
    report: Report


def restoring(
    folder: Path,
    world: int,
    faults: dict[int, str] | None = None,
    save: bool = False,
    harm: bool = False,
    moves: bool = False,
) -> Ranks:
    """Ranks that restore, after rank 0 has saved what they have, if so, and a bit has flipped in its copy of that.
    `moves`: what they read is removed for a newer one, once rank 0 looks at it."""
    meeting = folder.with_name(f"meeting-{next(_numbers)}").as_uri()
    return Ranks(world, _restores, folder, meeting, faults or {}, save, harm, moves)


def _restores(
    rank: int,
    world: int,
    form: object,
    parent: Connection,
    folder: Path,
    meeting: str,
    faults: dict[int, str],
    save: bool,
    harm: bool,
    moves: bool,
) -> None:
    """Goes on after an error until the test is through: no other rank learns of it from the end of this process."""
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    objects: dict[str, object] = {"model": model(rank)}
    checkpointer = Checkpointer(folder, shard_mb=24, _faults=faults.get(rank, ""))
    if moves and rank == 0:
        checkpointer._store = Moving(folder, ".safetensors")
    if save:
        checkpointer.save(3, **objects)
        checkpointer.wait()
        torch.distributed.barrier()
        if harm and rank == 0:
            for arena in checkpointer._saving._arenas._all:  # type: ignore[union-attr]
                if arena.fd >= 0:
                    arena.tensor(CHUNK_BYTES + 10_000, 1).bitwise_xor_(1)
        with torch.no_grad():
            objects["model"].weight.fill_(float("nan"))  # type: ignore[attr-defined]
    try:
        step = checkpointer.restore(**objects)
        parent.send(Restored(step, digest(objects), checkpointer.report()))
    except RegrowError as error:
        parent.send(f"{type(error).__name__}: {error}")
        parent.recv()  # with the error, and all that it refers to, at hand
    parent.recv()


def model(seed: int) -> torch.nn.Module:
    """Its bias is one stretch of a file, and its weight three of another."""
    torch.manual_seed(seed)
    return torch.nn.Linear(1000, 10_000)


def heard(ranks: Ranks) -> list[Any]:
    return [ranks.hear(rank) for rank in range(len(ranks.processes))]


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, str]:
    """Two checkpoints, and the digests of what is in them."""
    digests = {}
    with Checkpointer(tmp_path / "run", shard_mb=24) as checkpointer:
        for step in (1, 2):
            objects: dict[str, object] = {"model": model(100 + step)}
            digests[step] = digest(objects)
            checkpointer.save(step, **objects)
    return digests


def manifests(folder: Path) -> list[tuple[Path, Manifest]]:
    """Newest first, each with its folder."""
    archive = Archive(open_store(str(folder)))
    return [(folder / pointer.folder, archive.manifest(pointer)) for pointer in archive.pointers()[0]]


def harmed(folder: Path) -> Path:
    """A bit has flipped in what the second rank reads of the newest checkpoint: in which file."""
    newest, manifest = manifests(folder)[0]
    stretch = stretches(manifest)[1]
    file = newest / manifest.shards[stretch.shard].file
    data = bytearray(file.read_bytes())
    data[stretch.start + stretch.size_bytes // 2] ^= 1
    file.write_bytes(data)
    return file


def size_bytes(manifest: Manifest) -> int:
    return sum(shard.size_bytes for shard in manifest.shards)


@pytest.mark.parametrize("world", [2, 3])
def test_each_byte_is_read_once_by_one_rank_and_passed_on(saved: dict[int, str], tmp_path: Path, world: int) -> None:
    with restoring(tmp_path / "run", world) as ranks:
        said = heard(ranks)
    assert [(one.step, one.digest) for one in said] == [(2, saved[2])] * world
    reports = [one.report for one in said]
    size = size_bytes(manifests(tmp_path / "run")[0][1])
    assert sum(report.read_bytes for report in reports) == size
    assert all(report.read_bytes > 0 and report.read_bytes + report.passed_bytes == size for report in reports)
    assert {report.restored_from for report in reports} == {str(tmp_path / "run")}


@pytest.mark.parametrize("world", [2, 3])
def test_damage_that_one_rank_sees_takes_all_to_the_checkpoint_before(
    saved: dict[int, str], tmp_path: Path, world: int
) -> None:
    file = harmed(tmp_path / "run")
    with restoring(tmp_path / "run", world) as ranks:
        said = heard(ranks)
    assert [(one.step, one.digest) for one in said] == [(1, saved[1])] * world
    for rank, one in enumerate(said):
        (failure,) = one.report.failures
        assert failure.endswith("taking the checkpoint before it")
        assert (f"{file} is damaged between byte" if rank == 1 else "rank 1 cannot read it") in failure


def test_one_of_something_else_behind_a_damaged_one_is_no_clean_refusal_in_any_rank(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", shard_mb=24) as checkpointer:
        checkpointer.save(1, other=model(1))
        checkpointer.save(2, model=model(2))
    harmed(tmp_path / "run")
    with restoring(tmp_path / "run", 2) as ranks:
        for said in heard(ranks):
            assert said.startswith("StateError: ") and "the objects may hold parts of step 2: do not train on" in said


def test_what_is_removed_while_all_restore_is_no_damage_and_all_take_the_newer_one(
    saved: dict[int, str], tmp_path: Path
) -> None:
    Moving.put_off(tmp_path / "run")
    with restoring(tmp_path / "run", 2, moves=True) as ranks:
        assert [(one.step, one.digest) for one in heard(ranks)] == [(2, saved[2])] * 2


def test_a_file_that_is_missing_takes_all_to_the_checkpoint_before(saved: dict[int, str], tmp_path: Path) -> None:
    folder, manifest = manifests(tmp_path / "run")[0]
    (folder / manifest.shards[-1].file).unlink()
    with restoring(tmp_path / "run", 3) as ranks:
        assert [(one.step, one.digest) for one in heard(ranks)] == [(1, saved[1])] * 3


@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.matrix), 2])
@pytest.mark.parametrize("point", ["restore-read", "restore-pass:nth=2"])
def test_a_rank_that_is_killed_while_all_restore_leaves_nobody_waiting(
    saved: dict[int, str], tmp_path: Path, dead: int, point: str
) -> None:
    with restoring(tmp_path / "run", 3, {dead: f"trainer:{point}:SIGKILL"}) as ranks:
        for rank in {0, 1, 2} - {dead}:
            assert ranks.hear(rank).startswith("PeerError: another rank went away while all of them restore")
        assert ranks.exit_code(dead) == -signal.SIGKILL


def test_what_the_first_rank_has_in_memory_is_read_from_no_store(tmp_path: Path) -> None:
    with restoring(tmp_path / "run", 3, save=True) as ranks:
        said = heard(ranks)
    assert [(one.step, one.digest) for one in said] == [(3, digest({"model": model(0)}))] * 3
    size = size_bytes(manifests(tmp_path / "run")[0][1])
    served = [(one.report.read_bytes, one.report.passed_bytes, one.report.restored_from) for one in said]
    others = (0, size, "the memory of rank 0")
    assert served == [(size, 0, "the memory of this process"), others, others]


def test_what_is_harmed_in_the_memory_of_the_first_rank_alone_is_read_from_the_store(tmp_path: Path) -> None:
    with restoring(tmp_path / "run", 3, save=True, harm=True) as ranks:
        said = heard(ranks)
    assert [(one.step, one.digest) for one in said] == [(3, digest({"model": model(0)}))] * 3
    size = size_bytes(manifests(tmp_path / "run")[0][1])
    first, *others = (one.report for one in said)
    assert {one.where: one.size_bytes for one in first.served} == {
        "the memory of this process": size - CHUNK_BYTES,
        str(tmp_path / "run"): CHUNK_BYTES,
    }
    assert "is damaged between byte" in first.failures[0] and "; reading that from" in first.failures[0]
    assert {(report.read_bytes, report.passed_bytes, report.restored_from) for report in others} == {
        (0, size, "the memory of rank 0")
    }
