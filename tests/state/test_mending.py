"""A state put together from copies: what a store refused is read again, and nothing else is."""

from pathlib import Path

import pytest
import torch
from shelf import drafted

from regrow.core.errors import InfraError
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore
from regrow.state.mending import Copy, Mending


def test_what_is_refused_is_read_again_and_alone(tmp_path: Path) -> None:
    archive = Archive(LocalStore(tmp_path))
    tree = {name: torch.arange(9_000_000) + at for at, name in enumerate("ab")}
    made = drafted(tree, shard_bytes=1)
    pointer = archive.write(*made)
    manifest = archive.manifest(pointer)
    arena = memoryview(bytearray(made[0].arena_bytes))
    mending, copy = Mending(manifest, made[0], arena), Copy("there")
    sizes = [shard.size_bytes for shard in manifest.shards]
    shard, aside = tmp_path / pointer.folder / manifest.shards[1].file, tmp_path / "aside"
    shard.rename(aside)
    shard.symlink_to(shard.name)  # which leads nowhere, for ever
    for expected in (sizes[0], 0):  # a store that is only asked again has done nothing
        told: list[int] = []
        with pytest.raises(InfraError, match="shard-00001"):
            mending.take(copy, archive.readers(pointer, manifest), told.append)
        assert sum(told) == expected
        assert mending.lacking == {(1, number) for number in range(len(manifest.shards[1].chunks))}
    shard.unlink()
    aside.rename(shard)
    mending.take(copy, archive.readers(pointer, manifest), told.append)
    assert sum(told) == sizes[1] and not mending.lacking and not copy.harm
    assert copy.served.size_bytes == made[0].size_bytes
    assert arena == made[1]
