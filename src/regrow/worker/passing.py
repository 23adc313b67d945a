"""Reading a checkpoint once for all ranks: each reads some of its stretches, and passes them on to the others.

All ranks go through the stretches in the same order. Whoever reads one says first whether it could; then the bytes go round,
and every rank holds them to their digests and puts them into place for itself. What is wrong at one rank alone waits until
all are through: nobody may be left waiting for it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from regrow.core.checkpoint import Leaf, Manifest
from regrow.core.errors import StateError
from regrow.core.stretches import Stretch, reader_of, stretches
from regrow.shell.faultpoint import faultpoint
from regrow.state.shard import Place, ShardReader
from regrow.worker.ranks import Ranks

_AHEAD = 4
"""So many stretches are read before their turn comes."""


def read_together(
    manifest: Manifest,
    readers: Sequence[ShardReader],
    views: Sequence[memoryview],
    ranks: Ranks,
    reading: tuple[int, ...],
) -> int:
    """Fill a view per leaf, by index, or raise: each rank for itself, and all at the same stretch where one cannot be read.
    How many bytes came from other ranks.
    `readers` read this rank's files, shard by shard; `reading` are the ranks that read at all."""
    plan = stretches(manifest)
    held = [_Held(manifest, number, reader, views) for number, reader in enumerate(readers)]
    mine = [stretch for number, stretch in enumerate(plan) if reader_of(number, reading) == ranks.rank]
    problem: Exception | None = None
    with _Ahead(readers, mine) as ahead:
        for number, stretch in enumerate(plan):
            reader, why = reader_of(number, reading), None
            data = bytearray(stretch.size_bytes)
            if reader == ranks.rank:
                data, why = ahead.take()
            if not ranks.agreed(why is None, reader):
                raise why or StateError(f"rank {reader} cannot read it")
            ranks.passed(data, reader)
            faultpoint("restore-pass", step=manifest.step)
            try:
                held[stretch.shard].add(stretch, data)
            except Exception as error:  # raised below, when the others have what they need of this rank
                problem = problem or error
    if problem is not None:
        raise problem
    return sum(stretch.size_bytes for stretch in plan) - sum(stretch.size_bytes for stretch in mine)


class _Ahead:
    """Reads this rank's stretches before they are asked for, in their order."""

    def __init__(self, readers: Sequence[ShardReader], mine: Iterable[Stretch]) -> None:
        self._readers = readers
        self._rest = deque(mine)
        self._pool = ThreadPoolExecutor(_AHEAD, "regrow-stretches")
        self._begun: deque[Future[bytearray]] = deque()

    def __enter__(self) -> "_Ahead":
        self._go_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self) -> tuple[bytearray, Exception | None]:
        """The next stretch, or why it cannot be read."""
        begun = self._begun.popleft()
        self._go_on()
        error = begun.exception()
        if isinstance(error, Exception):
            return bytearray(), error
        return begun.result(), None

    def _go_on(self) -> None:
        while self._rest and len(self._begun) < _AHEAD:
            stretch = self._rest.popleft()
            self._begun.append(self._pool.submit(_read, self._readers[stretch.shard], stretch))


def _read(reader: ShardReader, stretch: Stretch) -> bytearray:
    if stretch.start == 0:
        reader.check_size()
    data = bytearray(stretch.size_bytes)
    for damage in reader.fill(stretch.start, [memoryview(data)]).values():
        raise StateError(damage)
    return data


class _Held:
    """One shard, as its stretches come."""

    def __init__(self, manifest: Manifest, number: int, reader: ShardReader, views: Sequence[memoryview]) -> None:
        self._window = _Window(reader.url, manifest.shards[number].size_bytes)
        self._reader = reader.through(self._window)
        self._leaves: list[tuple[Leaf, memoryview]] = [
            (leaf, view) for leaf, view in zip(manifest.leaves, views, strict=True) if leaf.shard == number
        ]
        self._places: list[Place] | None = None

    def add(self, stretch: Stretch, data: bytearray) -> None:
        """Into place, if it is whole."""
        start = stretch.start
        self._window.show(start, data)
        if start == 0:
            self._places, start = self._reader.begin(self._leaves)
        if self._places is None:
            return  # its header was none, which is told
        for damage in self._reader.read(start, stretch.stop, self._places):
            raise StateError(damage)


class _Window:
    """A file as far as it is at hand: one stretch of it."""

    def __init__(self, url: str, size_bytes: int) -> None:
        self.url = url
        self._size_bytes = size_bytes
        self._start = 0
        self._data = memoryview(b"")

    def show(self, start: int, data: bytearray) -> None:
        self._start, self._data = start, memoryview(data)

    def size_bytes(self, path: str) -> int | None:
        return self._size_bytes

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        at = start - self._start
        if at < 0 or at + len(view) > len(self._data):
            raise StateError(f"{self.url}/{path} has a longer header than its manifest says")
        view[:] = self._data[at : at + len(view)]
