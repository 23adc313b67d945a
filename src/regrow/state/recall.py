"""A state out of an arena, straight into tensors that are there, and what it is: each byte is read once.

A piece of the ribbon is read into its tensors block by block, and each block is digested while the cache still has it. It is
read, not mapped: the faults of a fresh mapping cost more than the copy.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import torch
import xxhash

from regrow.core.draft import Draft
from regrow.core.errors import StateError
from regrow.core.skeleton import in_order
from regrow.core.stripes import Cut
from regrow.state.fingerprint import in_parallel, root
from regrow.state.memory import bytes_of

BLOCK_BYTES = 1 << 20
"""A few of them lie in a core's cache, and a system call costs little beside one."""
_PARTS = 1024
"""The kernel's limit on the memory that one read is spread over."""


def fill(fd: int, draft: Draft, tensors: Sequence[torch.Tensor]) -> str:
    """Fill a tensor per leaf, by index, from the arena behind this descriptor, which must not change meanwhile. The root of
    what was read: the caller knows which one it must be, and what the tensors hold means nothing where it is another.
    StateError when the arena is too short. The tensors are contiguous, on the CPU, and share no memory."""
    for leaf, tensor in zip(draft.leaves, tensors, strict=True):
        if tensor.nbytes != leaf.size_bytes:
            raise ValueError(f"{leaf.name} has {leaf.size_bytes} bytes, its tensor {tensor.nbytes}")
    _check_size(fd, draft)
    order = list(in_order(draft.skeleton))
    cut = Cut([draft.leaves[index].size_bytes for index in order])
    places = [(draft.offsets[index], bytes_of(tensors[index])) for index in order]

    def piece(number: int) -> bytes:
        spans = ((places[span.leaf], span.start, span.stop) for span in cut.spans(number))
        parts = ((start + first, view[first:last]) for (start, view), first, last in spans)
        return _read(fd, parts)

    return root(draft.skeleton, in_parallel(piece, cut.count))


def _check_size(fd: int, draft: Draft) -> None:
    found, wanted = os.fstat(fd).st_size, max((stop for _, stop in draft.extents), default=0)
    if found < wanted:
        raise StateError(f"the arena of step {draft.step} has {found} bytes, and its state wants {wanted}")


class _Block(msgspec.Struct, kw_only=True):
    """Bytes that lie side by side in the arena, and where each part of them belongs."""

    start: int
    size_bytes: int = 0
    views: list[memoryview] = []


def _read(fd: int, parts: Iterable[tuple[int, memoryview]]) -> bytes:
    """Into these views, each from its place in the arena; the digest of all."""
    hasher = xxhash.xxh3_128()
    for block in _blocks(parts):
        found = os.preadv(fd, block.views, block.start)
        if found != block.size_bytes:
            raise StateError(f"the arena has {found} bytes from byte {block.start} on, and {block.size_bytes} are wanted")
        for view in block.views:
            hasher.update(view)
    return hasher.digest()


def _blocks(parts: Iterable[tuple[int, memoryview]]) -> Iterator[_Block]:
    """Small neighbours are read as one."""
    block = _Block(start=0)
    for start, view in parts:
        rest = view
        while rest:
            is_next = start == block.start + block.size_bytes and len(block.views) < _PARTS
            if not is_next or block.size_bytes == BLOCK_BYTES:
                if block.views:
                    yield block
                block = _Block(start=start)
            taken = rest[: BLOCK_BYTES - block.size_bytes]
            block.views.append(taken)
            block.size_bytes += len(taken)
            rest, start = rest[len(taken) :], start + len(taken)
    if block.views:
        yield block
