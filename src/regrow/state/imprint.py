"""The digests of a draft's bytes: of each file's chunks, and of the whole. Both in one pass over the arena.

Where a file has its tensors in canonical order, chunks and the pieces of the root run over the same bytes: each block is
digested twice while the cache has it. One that mixes dtypes is in another order, and is read twice.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from regrow.core.checkpoint import CHUNK_BYTES
from regrow.core.draft import Draft
from regrow.core.skeleton import in_order
from regrow.state.fingerprint import Pieces, root

_BLOCK_BYTES = 1 << 19
"""One lies in a core's own cache."""


class Imprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says of the bytes."""

    chunks: tuple[tuple[str, ...], ...]
    """Per shard, the header included."""
    root: str


def imprint(draft: Draft, heads: Sequence[bytes], arena: memoryview, reach: Callable[[int], None]) -> Imprint:
    """Of files with these headers. `reach` returns once so many bytes of the arena are there."""
    chunks: list[tuple[str, ...]] = []
    ribbon = Pieces()
    pieces: list[bytes] = []
    canonical = in_order(draft.skeleton)
    for order, head, (start, stop) in zip(draft.order, heads, draft.extents, strict=True):
        reach(stop)
        file = Pieces(CHUNK_BYTES)
        found = [*file.add(memoryview(head))]
        indices = tuple(islice(canonical, len(order)))  # shards follow that order
        if indices == order:
            for block in _blocks(arena[start:stop]):
                found += file.add(block)
                pieces += ribbon.add(block)
        else:
            found += file.add(arena[start:stop])
            for index in indices:
                first = draft.offsets[index]
                pieces += ribbon.add(arena[first : first + draft.leaves[index].size_bytes])
        found += file.end()
        chunks.append(tuple(each.hex() for each in found))
    pieces += ribbon.end()
    return Imprint(chunks=tuple(chunks), root=root(draft.skeleton, pieces))


def _blocks(view: memoryview) -> list[memoryview]:
    return [view[at : at + _BLOCK_BYTES] for at in range(0, len(view), _BLOCK_BYTES)]
