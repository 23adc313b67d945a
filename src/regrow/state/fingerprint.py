"""The digest of a whole state, from its bytes. Without torch: the process that writes checkpoints has none.

The bytes of all tensors, in canonical order, are one ribbon; each piece of it has a digest, and the root is one over these
and all that is no tensor.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import xxhash

from regrow.core.skeleton import Json, canonical
from regrow.core.stripes import PIECE_BYTES

DIGEST_BYTES = 16
_LINES = 4
"""More than that are not faster: memory is the limit."""


def digest(views: Iterable[memoryview]) -> bytes:
    """Of one piece. Of large views without the GIL."""
    hasher = xxhash.xxh3_128()
    for view in views:
        hasher.update(view)
    return hasher.digest()


class Pieces:
    """The digest of each piece of a ribbon whose bytes come one part after the other."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._hasher = xxhash.xxh3_128()
        self._room = piece_bytes

    def add(self, view: memoryview) -> Iterator[bytes]:
        """Of those that end in this part, which is done with when the last one is there."""
        rest = view
        while len(rest):
            part = rest[: self._room]
            self._hasher.update(part)
            rest, self._room = rest[len(part) :], self._room - len(part)
            if not self._room:
                yield self._cut()

    def end(self) -> Iterator[bytes]:
        """Of the last piece, when it is shorter than others."""
        if self._room < self._piece_bytes:
            yield self._cut()

    def _cut(self) -> bytes:
        found = self._hasher.digest()
        self._hasher, self._room = xxhash.xxh3_128(), self._piece_bytes
        return found


def piece_digests(views: Iterable[memoryview], piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Of each piece of the ribbon that these tensors' bytes are, in this order. A view is done with when the next one is
    asked for."""
    pieces = Pieces(piece_bytes)
    for view in views:
        yield from pieces.add(view)
    yield from pieces.end()


def in_parallel(piece: Callable[[int], bytes], count: int) -> Iterator[bytes]:
    """In order. A line takes one piece after the other, so that none waits for the slowest."""
    lines = min(_LINES, len(os.sched_getaffinity(0)), count)
    if lines < 2:
        yield from map(piece, range(count))
        return
    with ThreadPoolExecutor(lines, "regrow-pieces") as pool:
        yield from pool.map(piece, range(count))


def root(skeleton: Json, digests: Iterable[bytes]) -> str:
    """What stands for the whole state, in hex."""
    hasher = xxhash.xxh3_128(canonical(skeleton))
    for each in digests:
        hasher.update(each)
    return str(hasher.hexdigest())
