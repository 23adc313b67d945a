"""A checkpoint before it is written: which tensor goes into which shard, and where its bytes lie in the arena.

The arena is one run of memory that holds the bodies of all shards, one after the other. Whoever trains copies its tensors
there, and whoever writes only has to put a header before each body: no byte is moved again. A body starts at a multiple of a
page in the arena and, behind its padded header, in its file, so that a store may write without the page cache.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import msgspec

from regrow.core.checkpoint import Leaf, Manifest
from regrow.core.errors import Invariant
from regrow.core.inexact import Inexact
from regrow.core.roster import Version
from regrow.core.skeleton import in_order

ALIGNED_BYTES = 4096
_TAKEN = "__metadata__"
"""What no tensor of a safetensors file may be called."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All of a manifest but what only the bytes can tell: chunks and root."""

    step: int
    term: int
    mathematics: dict[str, str]
    skeleton: Any
    leaves: tuple[Leaf, ...]
    """By the index under which the skeleton names them."""
    order: tuple[tuple[int, ...], ...]
    """Per shard: the leaves in it, in the order of its file."""
    frozen: tuple[str, ...] = ()
    """Parameters that were not trained just then, by name."""
    roster: Version | None = None
    """Under which it was saved, where that is known."""
    inexact: Inexact | None = None
    """What lies in the arena is a state in fewer bits, and this says of which."""

    @cached_property
    def extents(self) -> tuple[tuple[int, int], ...]:
        """Per shard: where its body starts and stops in the arena."""
        found, start = [], 0
        for indices in self.order:
            stop = start + sum(self.leaves[index].size_bytes for index in indices)
            found.append((start, stop))
            start = _aligned(stop)
        return tuple(found)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Per leaf: where its bytes start in the arena."""
        found = [0] * len(self.leaves)
        for indices, (start, _) in zip(self.order, self.extents, strict=True):
            for index in indices:
                found[index] = start
                start += self.leaves[index].size_bytes
        return tuple(found)

    @property
    def arena_bytes(self) -> int:
        """Of whole pages: the last body may be written as such."""
        return _aligned(self.extents[-1][1]) if self.order else 0

    @property
    def size_bytes(self) -> int:
        """Of all tensors."""
        return sum(leaf.size_bytes for leaf in self.leaves)


def draft(
    *,
    step: int,
    term: int,
    mathematics: dict[str, str],
    skeleton: Any,
    tensors: Sequence[tuple[str, str, tuple[int, ...], int]],
    shard_bytes: int,
) -> Draft:
    """Of tensors given by path, dtype, shape and size, by index. Shards follow the canonical order, so that the root can be
    taken from one shard after the other; within a file the widest dtypes come first, which aligns every tensor without a
    gap: safetensors allows none."""
    indices = list(in_order(skeleton))
    if sorted(indices) != list(range(len(tensors))):
        raise Invariant(f"a skeleton that does not name each of {len(tensors)} tensors once: it names {len(indices)}")
    widths = [_width(*tensor) for tensor in tensors]
    order = [sorted(shard, key=lambda index: -widths[index]) for shard in _packed(indices, tensors, shard_bytes)]
    shard_of = {index: number for number, shard in enumerate(order) for index in shard}
    names = distinct(path for path, _, _, _ in tensors)
    leaves = tuple(
        Leaf(name=name, shard=shard_of[index], dtype=dtype, shape=tuple(shape), size_bytes=size)
        for index, (name, (_, dtype, shape, size)) in enumerate(zip(names, tensors, strict=True))
    )
    return Draft(
        step=step, term=term, mathematics=mathematics, skeleton=skeleton, leaves=leaves, order=tuple(map(tuple, order))
    )


def draft_of(manifest: Manifest) -> Draft:
    """The draft that a checkpoint was written from, as far as a manifest can tell: the same tensors in the same places."""
    order: list[list[int]] = [[] for _ in manifest.shards]
    for index in in_order(manifest.skeleton):
        order[manifest.leaves[index].shard].append(index)
    widths = [_width(leaf.name, leaf.dtype, leaf.shape, leaf.size_bytes) for leaf in manifest.leaves]
    return Draft(
        step=manifest.step,
        term=manifest.term,
        mathematics=manifest.mathematics,
        skeleton=manifest.skeleton,
        leaves=manifest.leaves,
        order=tuple(tuple(sorted(shard, key=lambda index: -widths[index])) for shard in order),
        frozen=manifest.frozen,
        roster=manifest.roster,
    )


def _packed(
    indices: Iterable[int], tensors: Sequence[tuple[str, str, tuple[int, ...], int]], shard_bytes: int
) -> list[list[int]]:
    """Filled one after the other. A tensor is never split: one that is larger than a shard has one of its own."""
    shards: list[list[int]] = []
    room = 0
    for index in indices:
        size = tensors[index][3]
        if not shards or size > room:
            shards.append([])
            room = max(size, shard_bytes)
        shards[-1].append(index)
        room -= size
    return shards


def _width(path: str, dtype: str, shape: tuple[int, ...], size_bytes: int) -> int:
    """Bytes of one element: what its address must be a multiple of."""
    count = prod(shape)
    if count == 0 == size_bytes:
        return 1
    if count == 0 or size_bytes % count:
        raise Invariant(f"{path} is {dtype}{list(shape)} and said to have {size_bytes} bytes")
    return size_bytes // count


def distinct(paths: Iterable[str]) -> list[str]:
    """The paths, and where one is taken already, a number added to it."""
    taken, names = {_TAKEN}, []
    for path in paths:
        name, number = path, 1
        while name in taken:
            number += 1
            name = f"{path}~{number}"
        taken.add(name)
        names.append(name)
    return names


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
