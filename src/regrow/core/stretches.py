"""Which part of a checkpoint's files is read at a time, and by which rank where several restore the same one.

A pure function of the manifest, so that all ranks go through the same stretches in the same order without a word about it.
"""

import msgspec

from regrow.core.checkpoint import CHUNK_BYTES, Manifest

STRETCH_BYTES = 4 * CHUNK_BYTES


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A run of whole chunks of one shard's file. A shard's first one holds all of the file's header."""

    shard: int
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


def stretches(manifest: Manifest) -> tuple[Stretch, ...]:
    """All of all shards, each shard's in the order of its file."""
    bodies = [0] * len(manifest.shards)
    for leaf in manifest.leaves:
        bodies[leaf.shard] += leaf.size_bytes
    found = []
    for number, (shard, body) in enumerate(zip(manifest.shards, bodies, strict=True)):
        head = -(-(shard.size_bytes - body) // CHUNK_BYTES) * CHUNK_BYTES
        start, stop = 0, min(max(head, STRETCH_BYTES), shard.size_bytes)
        while start < shard.size_bytes:
            found.append(Stretch(shard=number, start=start, stop=stop))
            start, stop = stop, min(stop + STRETCH_BYTES, shard.size_bytes)
    return tuple(found)


def reader_of(number: int, readers: tuple[int, ...]) -> int:
    """Of these ranks, the one that reads the stretch of this number: they take turns, so that all read at the same time and
    each reads as much as any other."""
    return readers[number % len(readers)]
