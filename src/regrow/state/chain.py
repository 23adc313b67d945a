"""A chain, read: a delta, the deltas below it, and the whole checkpoint at its end. Every link is held to its digests.

A chunk is read from the whole one, and what each delta says of it is put on top, the oldest first. The bytes as they are
stored and the chunk that they make are both checked, at every link: damage is named where it lies. One chunk is in memory at
a time, for each line that reads.
"""

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from regrow.core.checkpoint import CHUNK_BYTES, Delta, DeltaShard, Manifest, Part, Shard
from regrow.core.errors import ConfigError, StateError
from regrow.state.manifests import read_manifest
from regrow.state.shard import ShardReader, Told
from regrow.state.store import Store


class Link(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    manifest: Manifest

    @property
    def delta(self) -> Delta | None:
        delta = self.manifest.delta
        return None if isinstance(delta, msgspec.UnsetType) else delta


def links(store: Store, folder: str, manifest: Manifest) -> list[Link]:
    """From this checkpoint down to the whole one. StateError when one of them is missing, damaged, or another one."""
    found = [Link(folder=folder, manifest=manifest)]
    while (delta := found[-1].delta) is not None:
        named_by = f"{store.url}/{found[-1].folder}, which is built on it,"
        base = Link(folder=delta.base, manifest=read_manifest(store, delta.base, delta.manifest, named_by))
        depth = 0 if base.delta is None else base.delta.depth
        if depth != delta.depth - 1 or _sizes(base.manifest) != _sizes(manifest):
            raise StateError(f"{store.url}/{base.folder} is not what {found[-1].folder} can be built on: their parts differ")
        found.append(base)
    return found


def _sizes(manifest: Manifest) -> list[int]:
    return [shard.size_bytes for shard in manifest.shards]


def has_files(store: Store, folder: str, manifest: Manifest) -> bool:
    """With their sizes: what can be told without reading them."""
    delta = manifest.delta
    files: Sequence[Shard | DeltaShard] = delta.shards if isinstance(delta, Delta) else manifest.shards
    return all(store.size_bytes(f"{folder}/{file.file}") == file.size_bytes for file in files)


def stands(folder: str, there: Mapping[str, Manifest], bases: Mapping[str, str]) -> bool:
    """Is all there that has to be read for it? A chain has an end: each base has fewer below it than what is built on it."""
    while folder in there and folder in bases:
        folder = bases[folder]
    return folder in there


def need_packages(who: str) -> None:
    """ConfigError, with what to install, where deltas can be neither written nor read."""
    try:
        from regrow.state import planes  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{who} needs the package {error.name}: pip install 'regrow[delta]'") from error


class ChainReader(ShardReader):
    """One shard of a delta, as if it lay there whole."""

    def __init__(self, store: Store, chain: Sequence[Link], number: int, told: Told) -> None:
        folder, shard = chain[0].folder, chain[0].manifest.shards[number]
        need_packages(f"{store.url}/{folder}, which is a delta,")
        super().__init__(store, f"{folder}/{shard.file}", shard, told)
        self._layers = [_Layer(store, link, number) for link in chain]

    def check_size(self) -> None:
        for layer in self._layers:
            layer.check_size()

    def fill(self, start: int, views: Sequence[memoryview]) -> dict[int, str]:
        damages = {}
        first, size = start // CHUNK_BYTES, sum(map(len, views))
        rest = iter(views)
        into = memoryview(b"")
        for number in range(first, first + -(-size // CHUNK_BYTES)):
            try:
                chunk = self._chunk(number)
            except StateError as error:
                damages[number] = str(error)
                chunk = memoryview(bytes(self._chunk_bytes(number)))
            while len(chunk):
                if not len(into):
                    into = next(rest)
                taken = chunk[: len(into)]
                into[: len(taken)] = taken
                into, chunk = into[len(taken) :], chunk[len(taken) :]
        return damages

    def _chunk(self, number: int) -> memoryview:
        size = self._chunk_bytes(number)
        chunk = memoryview(b"")
        for layer in reversed(self._layers):
            chunk = layer.over(number, chunk, size)
        self._told(self._layers[0].stored_bytes(number))
        return chunk

    def _chunk_bytes(self, number: int) -> int:
        return min(CHUNK_BYTES, self._shard.size_bytes - number * CHUNK_BYTES)


class _Layer:
    """What one link has of a shard."""

    def __init__(self, store: Store, link: Link, number: int) -> None:
        self._store = store
        self._shard = link.manifest.shards[number]
        self._delta: DeltaShard | None = None if link.delta is None else link.delta.shards[number]
        file = self._shard.file if self._delta is None else self._delta.file
        self._size_bytes = self._shard.size_bytes if self._delta is None else self._delta.size_bytes
        self._path = f"{link.folder}/{file}"
        parts: tuple[Part, ...] = () if self._delta is None else self._delta.parts
        self._starts = list(itertools.accumulate((part.size_bytes for part in parts), initial=0))

    def stored_bytes(self, number: int) -> int:
        return 0 if self._delta is None else self._delta.parts[number].size_bytes

    def check_size(self) -> None:
        found = self._store.size_bytes(self._path)
        if found is None:
            raise StateError(f"{self._where} is missing")
        if found != self._size_bytes:
            raise StateError(f"{self._where} has {found} bytes, the manifest says {self._size_bytes}")
        if len(self._shard.chunks) != -(-self._shard.size_bytes // CHUNK_BYTES):
            raise StateError(
                f"{self._where}: the manifest has {len(self._shard.chunks)} digests for {self._shard.size_bytes}"
            )

    def over(self, number: int, below: memoryview, size_bytes: int) -> memoryview:
        """The chunk as it is in this link, from what it is in the one below."""
        from regrow.state.planes import decoded

        if self._delta is None:
            chunk = self._read(number * CHUNK_BYTES, size_bytes)
        else:
            part, start = self._delta.parts[number], self._starts[number]
            data = self._read(start, part.size_bytes)
            self._check(data, part.digest, start, "they have")
            try:
                chunk = decoded(data.obj, below, part.width)  # type: ignore[arg-type]
            except StateError as error:
                raise StateError(f"{self._where} is damaged from byte {start} on: {error}") from error
        self._check(chunk, self._shard.chunks[number], number * CHUNK_BYTES, "what they make has")
        return chunk

    def _read(self, start: int, size_bytes: int) -> memoryview:
        data = memoryview(bytearray(size_bytes))
        self._store.read_into(self._path, start, data)
        return data

    def _check(self, data: memoryview, said: str, start: int, who: str) -> None:
        found = xxhash.xxh3_128_hexdigest(data)
        if found != said:
            last = start + len(data) - 1
            raise StateError(
                f"{self._where} is damaged between byte {start} and byte {last}: {who} digest {found}, the manifest says "
                f"{said}"
            )

    @property
    def _where(self) -> str:
        return f"{self._store.url}/{self._path}"
