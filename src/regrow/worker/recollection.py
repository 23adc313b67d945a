"""The newest save of a Checkpointer as it still lies in the memory from which it was written: the nearest tier of all.

It is read as the files that lie in the store, and held to the same digests: whatever has befallen it is found, and named.
"""

import os
import re

from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.errors import StateError
from regrow.state.safetensors import header
from regrow.worker.arena import Arena

_SHARD = re.compile(r"shard-(\d+)\.safetensors")


class Recollection:
    """The shards of one checkpoint, readable for as long as nothing else is copied into the arena."""

    url = "the memory of this process"

    def __init__(self, pointer: Pointer, draft: Draft, arena: Arena) -> None:
        self._pointer = pointer
        self._heads = [header(draft.leaves[index] for index in order) for order in draft.order]
        self._extents = draft.extents
        self._arena = arena
        self._inode = os.fstat(arena.fd).st_ino

    def lies_in(self, arena: Arena) -> bool:
        return arena is self._arena

    def is_of(self, pointer: Pointer) -> bool:
        """Is it this checkpoint, and still there?"""
        return pointer == self._pointer and self._arena.fd >= 0 and os.fstat(self._arena.fd).st_ino == self._inode

    def size_bytes(self, path: str) -> int | None:
        number = self._number(path)
        if number is None:
            return None
        start, stop = self._extents[number]
        return len(self._heads[number]) + stop - start

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        number = self._number(path)
        size_bytes = self.size_bytes(path)
        if number is None or size_bytes is None or start + len(view) > size_bytes:
            raise StateError(f"{self.url} has {size_bytes or 0} bytes of {path}, and {start + len(view)} are wanted")
        head, body = self._heads[number], self._extents[number][0]
        part = head[start : start + len(view)]
        view[: len(part)] = part
        at, rest = body + max(0, start - len(head)), view[len(part) :]
        while rest:
            count = os.preadv(self._arena.fd, [rest], at)
            if not count:
                raise StateError(f"{self.url} ends at byte {at}, within {path}")
            rest, at = rest[count:], at + count

    def _number(self, path: str) -> int | None:
        folder, _, file = path.rpartition("/")
        found = _SHARD.fullmatch(file)
        if folder != self._pointer.folder or found is None or int(found[1]) >= len(self._heads):
            return None
        return int(found[1])
