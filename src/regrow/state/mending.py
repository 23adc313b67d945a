"""A state put together from its copies: what the nearest does not hold whole comes from the next.

Copies of one state, made from one draft, are the same files, and are read under one manifest: a chunk counts once it has the
digest that the manifest says, whichever copy it came from. So none is believed, and what one of them has whole is read from
no other.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from regrow.core.checkpoint import CHUNK_BYTES, Manifest, Pointer
from regrow.core.draft import Draft
from regrow.core.errors import StateError
from regrow.core.records import Served
from regrow.state.imprint import imprint
from regrow.state.safetensors import header
from regrow.state.shard import RUN_BYTES, ShardReader, Told, cut
from regrow.state.store import Readable

_LINES = 8
_NAMED = 3
"""So many harmed chunks are named where there are many."""

Chunk = tuple[int, int]
"""Of which shard, and which one of its file."""
_Run = tuple[int, int, int]
"""Of which shard; the first chunk, and the one behind the last."""


class Copy:
    """What one of them has given, and what it could not."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.harms: dict[Chunk, str] = {}
        """What is wrong with its chunks, in words."""
        self.was_refused = False
        """A part of it, by its store."""
        self._size_bytes = 0
        self._span_s: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def gave(self, size_bytes: int, begun_s: float) -> None:
        with self._lock:
            self._size_bytes += size_bytes
            first_s = begun_s if self._span_s is None else min(begun_s, self._span_s[0])
            self._span_s = first_s, time.monotonic()

    @property
    def served(self) -> Served:
        first_s, last_s = self._span_s or (0.0, 0.0)
        return Served(where=self.where, size_bytes=self._size_bytes, seconds=last_s - first_s)

    @property
    def harm(self) -> str:
        """In words; empty where all that was asked of it was whole."""
        words = list(dict.fromkeys(self.harms[chunk] for chunk in sorted(self.harms)))
        more = f", and {len(words) - _NAMED} more like it" if len(words) > _NAMED else ""
        return "; ".join(words[:_NAMED]) + more


class Mending:
    """One state, on its way into an arena, which nobody else writes into."""

    def __init__(self, manifest: Manifest, draft: Draft, arena: memoryview) -> None:
        """StateError when these files cannot hold it."""
        self._manifest = manifest
        self._draft = draft
        self._arena = arena
        bodies = [stop - start for start, stop in draft.extents]
        self._heads = [shard.size_bytes - body for shard, body in zip(manifest.shards, bodies, strict=True)]
        """The sizes of what comes before the tensors in each file."""
        if min(self._heads, default=0) < 0:
            raise StateError(f"its files are too small for its tensors: {-min(self._heads)} bytes are lacking in one")
        self.lacking = {(n, chunk) for n, shard in enumerate(manifest.shards) for chunk in range(len(shard.chunks))}
        self._lock = threading.Lock()

    @property
    def lacking_bytes(self) -> int:
        """Of tensors."""
        return sum(len(self._views(shard, number, number + 1)[-1]) for shard, number in self.lacking)

    def stay(self, copy: Copy) -> None:
        """What is whole of what lies in the arena already."""
        begun_s = time.monotonic()
        heads = [header(self._draft.leaves[index] for index in order) for order in self._draft.order]
        found = imprint(self._draft, heads, self._arena, lambda _: None).chunks
        for chunk in sorted(self.lacking):
            shard, number = chunk
            if found[shard][number : number + 1] == self._manifest.shards[shard].chunks[number : number + 1]:
                self._has(chunk, copy, begun_s)
            else:
                copy.harms[chunk] = "its bytes have changed in memory"

    def take(self, copy: Copy, readers: Sequence[ShardReader], told: Told) -> None:
        """What is lacking, as far as it is whole there. What a store refuses is raised once all else is there, and may be
        taken again: only what is then lacking is read. `told` hears of what never will be read again from this copy."""
        failures: list[Exception] = []

        def take(run: tuple[int, int, int]) -> None:
            if len(failures) >= _LINES:
                return  # it refuses whatever is asked of it
            try:
                self._take(copy, readers[run[0]], run, told)
            except Exception as error:  # raised below: what another line can get counts
                failures.append(error)

        with ThreadPoolExecutor(_LINES, "regrow-mending") as pool:
            list(pool.map(take, [*self._runs(copy)]))
        if failures:
            copy.was_refused = True
            raise failures[0]

    def _runs(self, copy: Copy) -> Iterator[_Run]:
        """Neighbours are read as one, but where that was refused before."""
        wanted = sorted(self.lacking - copy.harms.keys())
        limit = 1 if copy.was_refused else RUN_BYTES // CHUNK_BYTES
        while wanted:
            shard, first = wanted[0]
            last = first + 1
            while last - first < limit and last - first < len(wanted) and wanted[last - first] == (shard, last):
                last += 1
            wanted = wanted[last - first :]
            yield shard, first, last

    def _take(self, copy: Copy, reader: ShardReader, run: _Run, told: Told) -> None:
        shard, first, last = run
        begun_s = time.monotonic()
        start, views = first * CHUNK_BYTES, self._views(shard, first, last)
        try:
            damages = reader.fill(start, [view for view in views if len(view)])
        except StateError as error:  # it ends before, or is missing
            if last - first > 1:
                for number in range(first, last):
                    self._take(copy, reader, (shard, number, number + 1), told)
                return
            damages = {first: str(error)}
        for number in range(first, last):
            if number in damages:
                copy.harms[shard, number] = damages[number]
            else:
                self._has((shard, number), copy, begun_s)
        told(sum(map(len, views)))

    def _has(self, chunk: Chunk, copy: Copy, begun_s: float) -> None:
        self.lacking.discard(chunk)
        shard, number = chunk
        copy.gave(len(self._views(shard, number, number + 1)[-1]), begun_s)

    def _views(self, shard: int, first: int, last: int) -> list[memoryview]:
        """Where these chunks belong: what they hold of the header nowhere, and of tensors in the arena."""
        head, body = self._heads[shard], self._draft.extents[shard][0]
        start, stop = first * CHUNK_BYTES, min(last * CHUNK_BYTES, self._manifest.shards[shard].size_bytes)
        aside = memoryview(bytearray(max(0, min(stop, head) - start)))
        into = self._arena[body + max(0, start - head) : body + max(0, stop - head)]
        return [aside, into]


class MendingReader(ShardReader):
    """One file of a near copy, in memory, and of a far one what the near copy does not hold whole."""

    block_bytes = 1 << 20
    """Digested while it lies in a core's cache."""

    def __init__(
        self,
        number: int,
        pointer: Pointer,
        manifest: Manifest,
        near: Readable,
        far: Callable[[], Sequence[ShardReader]],
        gives: Copy,
        mends: Copy,
    ) -> None:
        """`far`: the readers of all files, which are made when the first is needed. The copies are what is counted."""
        shard = manifest.shards[number]
        super().__init__(near, f"{pointer.folder}/{shard.file}", shard, lambda _: None)
        self._number = number
        self._far = far
        self._gives = gives
        self._mends = mends

    def check_size(self) -> None:
        """What is too short is found to lack chunks."""

    def fill(self, start: int, views: Sequence[memoryview]) -> dict[int, str]:
        begun_s = time.monotonic()
        first, stop = start // CHUNK_BYTES, start + sum(map(len, views))
        try:
            harms = super().fill(start, views)
        except StateError as error:
            harms = dict.fromkeys(range(first, -(-stop // CHUNK_BYTES)), str(error))
        self._gives.harms |= {(self._number, number): why for number, why in harms.items()}
        lacking_bytes = 0
        damages: dict[int, str] = {}
        for number in harms:
            at = number * CHUNK_BYTES
            part = cut(views, at - start, min(at + CHUNK_BYTES, stop) - start)
            lacking_bytes += sum(map(len, part))
            asked_s = time.monotonic()
            damages |= self._far()[self._number].fill(at, part)
            self._mends.gave(sum(map(len, part)), asked_s)
        self._gives.gave(stop - start - lacking_bytes, begun_s)
        return damages
