"""Reading one shard: straight into the places where its tensors belong, every chunk held to its digest.

Large tensors are read in place. Small neighbours are read as one, aside, and copied: a store answers a few large questions
sooner than many small ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from regrow.core.checkpoint import CHUNK_BYTES, Leaf, Shard
from regrow.core.errors import StateError
from regrow.core.stretches import STRETCH_BYTES
from regrow.state.fingerprint import Pieces
from regrow.state.safetensors import header_bytes, parse
from regrow.state.store import Readable

RUN_BYTES = STRETCH_BYTES
"""What is read and checked at a time."""
_SMALL_BYTES = 1 << 20

Told = Callable[[int], None]
"""Hears how many more bytes were read."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of a file from `start` on belong."""

    start: int
    view: memoryview

    @property
    def stop(self) -> int:
        return self.start + len(self.view)


class ShardReader:
    """One file of one checkpoint."""

    block_bytes = RUN_BYTES
    """So much is asked for at a time, and digested when it is there."""

    def __init__(self, store: Readable, path: str, shard: Shard, told: Told) -> None:
        self._store = store
        self._path = path
        self._shard = shard
        self._told = told

    @property
    def url(self) -> str:
        """Of the store."""
        return self._store.url

    def through(self, store: Readable) -> "ShardReader":
        """The same file, read from there."""
        return ShardReader(store, self._path, self._shard, lambda _: None)

    def begin(self, leaves: Iterable[tuple[Leaf, memoryview]]) -> tuple[list[Place], int]:
        """Where the file has the bytes of these tensors, in its order; and where the chunks start that are still to be read:
        those with the header are, and so is what they hold of the tensors."""
        self.check_size()
        head = self._head()
        places = self._places(head, leaves)
        for place in places:
            taken = min(place.stop, len(head)) - place.start
            if taken > 0:
                place.view[:taken] = head[place.start : place.start + taken]
        return places, len(head)

    def runs(self, start: int) -> list[tuple[int, int]]:
        """From the chunk that starts there to the end of the file, in runs of whole chunks."""
        size = self._shard.size_bytes
        return [(at, min(at + RUN_BYTES, size)) for at in range(start, size, RUN_BYTES)]

    def read(self, start: int, stop: int, places: Sequence[Place]) -> list[str]:
        """Fill what of these places lies in a run of chunks. What is wrong with the chunks, in words; StateError when they
        are not there."""
        views, aside = [], []
        for segment in _segments(start, stop, places):
            if isinstance(segment, Place):
                views.append(segment.view)
            else:
                held = memoryview(bytearray(segment.stop - segment.start))
                views.append(held)
                aside.append((segment, held))
        damages = self.fill(start, views)
        for segment, held in aside:
            for place in segment.places:
                at = place.start - segment.start
                place.view[:] = held[at : at + len(place.view)]
        return [*damages.values()]

    def check_size(self) -> None:
        """StateError when the file is not of the size that it was saved with."""
        found = self._store.size_bytes(self._path)
        if found is None:
            raise StateError(f"{self._where} is missing")
        if found != self._shard.size_bytes:
            raise StateError(f"{self._where} has {found} bytes, the manifest says {self._shard.size_bytes}")
        if len(self._shard.chunks) != -(-found // CHUNK_BYTES):
            raise StateError(f"{self._where}: the manifest has {len(self._shard.chunks)} digests for {found} bytes")

    def _head(self) -> bytearray:
        """The chunks that hold the header."""
        size = self._shard.size_bytes
        head = bytearray()
        wanted = 1
        while len(head) < wanted:
            more = bytearray(min(-(-wanted // CHUNK_BYTES) * CHUNK_BYTES, size) - len(head))
            damages = self.fill(len(head), [memoryview(more)])
            for damage in damages.values():
                raise StateError(damage)
            head += more
            wanted = header_bytes(head)
            if wanted > size:
                raise StateError(f"{self._where} has {size} bytes, its header says that it is {wanted} bytes long itself")
        return head

    def _places(self, head: bytearray, leaves: Iterable[tuple[Leaf, memoryview]]) -> list[Place]:
        body, size = header_bytes(head), self._shard.size_bytes
        try:
            entries = parse(memoryview(head)[:body])
        except StateError as error:
            raise StateError(f"{self._where}: {error}") from error
        found = []
        for leaf, view in leaves:
            entry = entries.get(leaf.name)
            if entry is None:
                raise StateError(f"{self._where} has no tensor {leaf.name}, the manifest says that it has")
            start, stop = entry.data_offsets
            if stop - start != leaf.size_bytes or start < 0 or body + stop > size:
                raise StateError(
                    f"{self._where} has {leaf.name} in bytes {body + start} to {body + stop - 1} of {size}, the manifest "
                    f"says that it has {leaf.size_bytes} bytes"
                )
            if leaf.size_bytes:
                found.append(Place(start=body + start, view=view))
        return sorted(found, key=lambda place: place.start)

    def fill(self, start: int, views: Sequence[memoryview]) -> dict[int, str]:
        """From the file, from there on; and what is wrong with which of its chunks, in words."""
        at = start
        pieces = Pieces(CHUNK_BYTES)
        digests: list[bytes] = []
        for view in views:
            for first in range(0, len(view), self.block_bytes):
                block = view[first : first + self.block_bytes]
                self._store.read_into(self._path, at, block)
                self._told(len(block))
                digests += pieces.add(block)
                at += len(block)
        digests += pieces.end()
        damages = {}
        for number, found in enumerate(digests, start // CHUNK_BYTES):
            said = self._shard.chunks[number]
            if found.hex() != said:
                first = number * CHUNK_BYTES
                last = min(first + CHUNK_BYTES, self._shard.size_bytes) - 1
                damages[number] = (
                    f"{self._where} is damaged between byte {first} and byte {last}: they have digest {found.hex()}, the "
                    f"manifest says {said}"
                )
        return damages

    @property
    def _where(self) -> str:
        return f"{self._store.url}/{self._path}"


class _Aside(msgspec.Struct, kw_only=True):
    """A part of a file that is read as one and then copied where it belongs; what belongs nowhere is only checked."""

    start: int
    stop: int
    places: list[Place]


def _segments(start: int, stop: int, places: Sequence[Place]) -> Iterator[Place | _Aside]:
    """All of the run, in order."""
    aside = _Aside(start=start, stop=start, places=[])
    for place in places:
        first, last = max(start, place.start), min(stop, place.stop)
        if first >= last:
            continue
        part = Place(start=first, view=place.view[first - place.start : last - place.start])
        if len(part.view) < _SMALL_BYTES:
            aside.places.append(part)
            aside.stop = last
            continue
        aside.stop = first
        if aside.stop > aside.start:
            yield aside
        yield part
        aside = _Aside(start=last, stop=last, places=[])
    aside.stop = stop
    if aside.stop > aside.start:
        yield aside


def cut(views: Sequence[memoryview], first: int, last: int) -> list[memoryview]:
    """These bytes of what the views are one after the other."""
    found, start = [], 0
    for view in views:
        part = view[max(0, first - start) : max(0, last - start)]
        if len(part):
            found.append(part)
        start += len(view)
    return found
