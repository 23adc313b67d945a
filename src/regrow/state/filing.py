"""The files of one save: written by a few lines at once, each once its bytes are there; whole, or as a delta on a base."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

import msgspec

from regrow.core.checkpoint import DeltaShard
from regrow.core.delta import Cost
from regrow.core.draft import Draft
from regrow.shell.faultpoint import faultpoint
from regrow.state.chaining import Base
from regrow.state.store import Store

WRITING_LINES = 4


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """What lies there of a shard."""

    whole_bytes: int
    """Of the file that would lie there whole."""
    size_bytes: int
    delta: DeltaShard | None = None
    encode_s: float = 0.0
    seconds: float = 0.0


class Filing:
    def __init__(
        self,
        store: Store,
        folder: str,
        draft: Draft,
        heads: Sequence[bytes],
        arena: memoryview,
        reach: Callable[[int], None],
        base: Base | None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._draft = draft
        self._shards = [
            [memoryview(head), arena[start:stop]] for head, (start, stop) in zip(heads, draft.extents, strict=True)
        ]
        self._reach = reach
        self._base = base

    def write(self, pool: ThreadPoolExecutor) -> list[Filed]:
        """All of them, or the first error."""
        writes = [pool.submit(self._write, number) for number in range(len(self._shards))]
        try:
            for write in as_completed(writes):
                write.result()
                faultpoint("save-shard", step=self._draft.step)
        finally:
            for write in writes:
                write.cancel()
            wait(writes)
        return [write.result() for write in writes]

    def _write(self, number: int) -> Filed:
        self._reach(self._draft.extents[number][1])
        begun_s = time.perf_counter()
        parts = self._shards[number]
        filed = Filed(whole_bytes=sum(map(len, parts)), size_bytes=sum(map(len, parts)))
        if self._base is None:
            self._store.put(f"{self._folder}/{shard_file(number)}", parts)
        else:
            packed = self._base.pack(number, self._draft, parts)
            self._store.put(f"{self._folder}/{packed.shard.file}", packed.views)
            filed = msgspec.structs.replace(
                filed, size_bytes=packed.shard.size_bytes, delta=packed.shard, encode_s=packed.encode_s
            )
        return msgspec.structs.replace(filed, seconds=time.perf_counter() - begun_s)


def shard_file(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def stored_file(number: int, filed: Filed) -> str:
    return shard_file(number) if filed.delta is None else filed.delta.file


def cost(filed: Sequence[Filed]) -> Cost:
    lines = max(1, min(WRITING_LINES, len(filed)))
    return Cost(
        size_bytes=sum(each.whole_bytes for each in filed),
        stored_bytes=sum(each.size_bytes for each in filed),
        encode_s=sum(each.encode_s for each in filed) / lines,
        seconds=sum(each.seconds for each in filed) / lines,
    )
