"""A chain, written: the state that was saved last, kept in memory, and what differs from it.

The writer keeps a copy of what it saved last: one more state in memory, for each place that takes deltas, and one pass over
it after each save. To read it from the store again would cost the whole chain for each save. A writer that was started anew
has no copy and begins with a whole one. A chunk of the copy is held to the base's own digest before anything is built on it.
"""

import mmap
import time
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from regrow.core.checkpoint import CHUNK_BYTES, Delta, DeltaShard, Manifest, Part, Pointer
from regrow.core.delta import Before, Choice, Cost, NothingBefore, Onto, Thrift
from regrow.core.draft import Draft
from regrow.state.safetensors import header
from regrow.state.shard import cut

_NUMBERS = {1, 2, 4, 8, 16}
"""Sizes that numbers have."""


class Unfit(Exception):
    """Nothing can be built on this base: the save must be written whole."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a file that takes the place of a shard."""

    shard: DeltaShard
    views: list[memoryview]
    encode_s: float


class Base:
    """A checkpoint, and a copy of its state: what a delta is built on."""

    def __init__(self, pointer: Pointer, before: Before, arena: memoryview) -> None:
        self.pointer = pointer
        self.before = before
        self._arena = arena

    def pack(self, number: int, draft: Draft, shard: Sequence[memoryview]) -> Packed:
        """What differs in this shard, whose header and body are given. Unfit when the copy is not what was saved."""
        from regrow.state.planes import encoded, joined

        begun_s = time.perf_counter()
        start, stop = draft.extents[number]
        head = header(draft.leaves[index] for index in draft.order[number])
        base = [memoryview(head), self._arena[start:stop]]
        widths = _widths(draft, number, len(head))
        parts, views = [], []
        for chunk, said in enumerate(self.before.manifest.shards[number].chunks):
            first, last = chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES
            old, new = joined(cut(base, first, last)), joined(cut(shard, first, last))
            if xxhash.xxh3_128_hexdigest(old) != said:
                raise Unfit(f"the copy of step {self.pointer.step} in memory is not what was saved of it")
            data = encoded(new, old, widths[chunk])
            parts.append(Part(size_bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data), width=widths[chunk]))
            views.append(memoryview(data))
        packed = DeltaShard(file=f"shard-{number:05d}.xor.zst", parts=tuple(parts))
        return Packed(shard=packed, views=views, encode_s=time.perf_counter() - begun_s)

    def delta(self, packed: Sequence[DeltaShard], size_bytes: int) -> Delta:
        stored = sum(shard.size_bytes for shard in packed)
        return Delta(
            base=self.pointer.folder,
            manifest=self.pointer.manifest,
            depth=self.before.depth + 1,
            ratio=round(size_bytes / max(1, stored), 4),
            shards=tuple(packed),
        )


class Chaining:
    """One writer's: which of its saves are deltas, and what they are built on."""

    def __init__(self, limit: int) -> None:
        """At most so many deltas lie on a whole checkpoint; 0: there are none."""
        self._limit = limit
        self._thrift = Thrift(limit)
        self._memory: mmap.mmap | None = None
        self._base: Base | None = None
        self._choice: Choice = NothingBefore()
        self._begun_s: float | None = None
        self._interval_s = 0.0

    def begun(self) -> None:
        """A save was asked for."""
        now_s = time.monotonic()
        self._interval_s = 0.0 if self._begun_s is None else now_s - self._begun_s
        self._begun_s = now_s

    def base(self, draft: Draft) -> Base | None:
        """What this save is to be a delta on; None: it is to be whole."""
        self._choice = self._thrift.choose(None if self._base is None else self._base.before, draft)
        return self._base if isinstance(self._choice, Onto) else None

    def saved(
        self, draft: Draft, arena: memoryview, pointer: Pointer, cost: Cost | None, manifest: Callable[[Pointer], Manifest]
    ) -> str:
        """It is durable, and still lies in this arena. What people should hear of it, if anything."""
        if not self._limit:
            return ""
        try:
            self._base = self._kept(draft, arena, pointer, manifest(pointer))
        except Exception as error:  # what was saved is durable, whatever becomes of the next one
            self._base = None
            return f"the next checkpoint is written whole: the copy of step {draft.step} cannot be kept ({error})"
        is_delta = not isinstance(self._base.before.manifest.delta, msgspec.UnsetType)
        if cost is None or is_delta != isinstance(self._choice, Onto):
            return ""
        news = self._thrift.paid(self._choice, cost, self._interval_s)
        return "" if news is None else f"checkpoints are no longer written as deltas: {news.words()}"

    def _kept(self, draft: Draft, arena: memoryview, pointer: Pointer, manifest: Manifest) -> Base:
        size = max(1, draft.arena_bytes)
        if self._memory is None or len(self._memory) < size:
            self._base, self._memory = None, None  # two of them may not fit
            self._memory = mmap.mmap(-1, size)
        copy = memoryview(self._memory)
        copy[: draft.arena_bytes] = arena[: draft.arena_bytes]
        return Base(pointer, Before(draft=draft, manifest=manifest), copy)


def _widths(draft: Draft, number: int, head_bytes: int) -> list[int]:
    """For each chunk of a shard, the size of the numbers that most of its bytes belong to. The widest come first in a file,
    so that the start of each is a multiple of their size."""
    spans: list[tuple[int, int]] = []  # where the numbers of one size stop
    stop = head_bytes
    for index in draft.order[number]:
        leaf = draft.leaves[index]
        stop += leaf.size_bytes
        count = 1
        for length in leaf.shape:
            count *= length
        width = leaf.size_bytes // count if count else 1
        spans.append((stop, width if width in _NUMBERS else 1))
    found = []
    for first in range(0, max(1, stop), CHUNK_BYTES):
        weights: dict[int, int] = {}
        start = head_bytes
        for end, width in spans:
            inside = min(end, first + CHUNK_BYTES) - max(start, first)
            if inside > 0:
                weights[width] = weights.get(width, 0) + inside
            start = end
        found.append(max(weights, key=lambda width: (weights[width], width), default=1))
    return found
