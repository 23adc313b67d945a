"""A state put together from copies: each gives what it has whole, and is asked for nothing else."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf import Shelf, drafted

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


HARMS = st.sets(st.tuples(st.integers(0, 4), st.sampled_from(["flip", "cut", "missing"])), max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    copies=st.lists(HARMS, min_size=1, max_size=3), in_memory=st.none() | st.sets(st.integers(0, 4)), seed=st.integers(0, 99)
)
def test_what_is_lacking_is_what_no_copy_has_whole(
    copies: list[set[tuple[int, str]]], in_memory: set[int] | None, seed: int
) -> None:
    """Each of five shards is one chunk. The copy in memory, if there is one, is mended where it lies."""
    made, whole = drafted({name: torch.arange(2000) + at for at, name in enumerate("abcde")}, shard_bytes=1)
    shelf, chance = Shelf(), random.Random(seed)
    pointer = Archive(shelf).write(made, whole)
    manifest = Archive(shelf).manifest(pointer)
    arena = memoryview(bytearray(len(whole)))
    mending = Mending(manifest, made, arena)
    lacking = set(range(5))
    if in_memory is not None:
        arena[:] = whole
        for shard in in_memory:
            arena[chance.randrange(*made.extents[shard])] ^= 1 << chance.randrange(8)
        memory = Copy("memory")
        mending.stay(memory)
        assert memory.served.size_bytes == 16_000 * (5 - len(in_memory))
        assert set(memory.harms) == {(shard, 0) for shard in in_memory}
        lacking = set(in_memory)
    for harms in copies:
        files = dict(shelf.files)
        for shard, harm in sorted(harms):
            path = f"{pointer.folder}/{manifest.shards[shard].file}"
            if path in files:
                files[path] = harmed(files[path], harm, chance)
                files = {name: data for name, data in files.items() if data}
        bad = {shard for shard, _ in harms}
        copy = Copy("there")
        mending.take(copy, Archive(Shelf(files)).readers(pointer, manifest), lambda _: None)
        assert copy.served.size_bytes == 16_000 * len(lacking - bad)
        assert set(copy.harms) == {(shard, 0) for shard in lacking & bad}
        assert all(manifest.shards[shard].file in why for (shard, _), why in copy.harms.items())
        lacking &= bad
    assert mending.lacking == {(shard, 0) for shard in lacking} and mending.lacking_bytes == 16_000 * len(lacking)
    for shard in set(range(5)) - lacking:
        start, stop = made.extents[shard]
        assert arena[start:stop] == whole[start:stop]


def harmed(data: bytes, harm: str, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    match harm:
        case "flip":
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case _:
            return b""
