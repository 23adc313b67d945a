"""All checkpoints of one store: written, found, read, checked and removed. Without torch, and nothing is ever unpickled.

A save is shards, then the manifest, then the pointer that makes it count; whoever dies in between leaves a folder that no
pointer names, and the latest is what it was. Every byte that is read is held to its digest before it is used: StateError
names the file and, in a shard, the bytes.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import msgspec
import xxhash

from regrow.core.checkpoint import PLAIN, VERSION, Delta, Leaf, Manifest, Pointer, Shard, may_follow
from regrow.core.delta import Cost
from regrow.core.draft import Draft
from regrow.core.errors import Fenced, Harmed, InfraError, StateError
from regrow.core.release import RELEASE
from regrow.core.retention import Retention, doomed
from regrow.core.skeleton import in_order
from regrow.shell.faultpoint import faultpoint
from regrow.state.chain import ChainReader, Link, has_files, links, stands
from regrow.state.chaining import Base, Unfit
from regrow.state.filing import WRITING_LINES, Filed, Filing, cost, shard_file, stored_file
from regrow.state.fingerprint import piece_digests, root
from regrow.state.imprint import Imprint, imprint
from regrow.state.manifests import FOLDER, MANIFEST, read_manifest
from regrow.state.pointers import Pointers, sealed
from regrow.state.safetensors import header
from regrow.state.shard import ShardReader, Told
from regrow.state.store import Readable, Store

_READING_LINES = 8


def untold(size_bytes: int) -> None:
    """Nobody wants to know how far it is."""


Reach = Callable[[int], None]
"""Returns once so many bytes of an arena are there; StateError when they never will be. The last one only comes when all are
known to be of one moment."""


def at_once(size_bytes: int) -> None:
    """All are there already."""


Paid = Callable[[Cost], None]
"""Hears what a save has cost."""


def free(cost: Cost) -> None:
    """Nobody counts."""


class Archive:
    """Of one store, which others may use at the same time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._pointers = Pointers(store)

    # What is there

    def newest_term(self) -> int:
        """The highest under which anything was saved here, complete or not; 0 when nothing was."""
        newest = self._pointers.newest(self._pointers.numbers())
        started = [int(match[2]) for match in map(FOLDER.fullmatch, self.store.names()) if match is not None]
        return max([0 if newest is None else newest.term, *started])

    def pointers(self) -> tuple[list[Pointer], list[str]]:
        """Of the complete checkpoints, newest first; and the damage found on the way, in words."""
        return self._pointers.all()

    def manifest(self, pointer: Pointer) -> Manifest:
        """ConfigError when it takes a newer release to read it: an older checkpoint must not silently take its place."""
        return read_manifest(self.store, pointer.folder, pointer.manifest, f"a pointer (number {pointer.number})")

    def links(self, pointer: Pointer, manifest: Manifest) -> list[Link]:
        """All that has to be read for this checkpoint, itself first, the whole one at the end of its chain last. StateError
        when one of them cannot be what it was built on."""
        return links(self.store, pointer.folder, manifest)

    # Saving

    def write(
        self,
        draft: Draft,
        arena: memoryview,
        reach: Reach = at_once,
        known: str = "",
        base: Base | None = None,
        paid: Paid = free,
    ) -> Pointer:
        """Save what lies in the arena, or will: what is there must not change any more. The same save may be tried again
        after an InfraError or a death: one that turns out to be complete already is not written twice. Fenced when it may
        not become the latest; Harmed when its root is known already, and the arena has another one. On a base it is a delta,
        unless that is not the latest any more."""
        try:
            return self._write(draft, arena, reach, known, base, paid)
        except Unfit:
            return self._write(draft, arena, reach, known, None, paid)

    def _write(self, draft: Draft, arena: memoryview, reach: Reach, known: str, base: Base | None, paid: Paid) -> Pointer:
        folder = f"step-{draft.step:012d}-{draft.term}-{secrets.token_hex(4)}"
        heads = [header(draft.leaves[index] for index in order) for order in draft.order]
        with ThreadPoolExecutor(1 + WRITING_LINES, "regrow-archive") as pool:
            whole = pool.submit(imprint, draft, heads, arena, reach)
            there = self._settled(draft, whole, self._pointers.numbers())
            if there is not None:
                return there
            if base is not None and not self._is_newest(base):
                base = None
            try:
                filed = Filing(self.store, folder, draft, heads, arena, reach, base).write(pool)
                found = whole.result()
                if known and found.root != known:
                    raise Harmed(
                        f"its bytes have changed in memory: they have the root {found.root}, and had {known} when they were "
                        "whole; test this host's memory"
                    )
                unnamed = self._write_manifest(draft, folder, filed, found, base)
            except Exception as error:  # a store's library raises what it likes
                self._abandon(folder, error)  # a disk that is full would not take the next try besides it
                raise
        files = {MANIFEST, *(stored_file(number, each) for number, each in enumerate(filed))}
        pointer = self._publish(draft, whole, unnamed, files, base)
        paid(cost(filed))
        return pointer

    def _is_newest(self, base: Base) -> bool:
        """Is it still the latest, with all its files?"""
        newest = self._pointers.newest(self._pointers.numbers())
        return newest == base.pointer and has_files(self.store, newest.folder, base.before.manifest)

    def _settled(self, draft: Draft, whole: "Future[Imprint]", numbers: Sequence[int]) -> Pointer | None:
        """The pointer of this very save, when it is the latest already. Fenced when it may not become that."""
        newest = self._pointers.newest(numbers)
        why = may_follow(newest, draft.term, draft.step)
        if why is None:
            return None
        assert newest is not None  # nothing fences the first
        if (newest.term, newest.step) == (draft.term, draft.step) and self._has_root(newest, whole.result().root):
            self._pointers.settle()
            return newest
        raise Fenced(f"{self.store.url}: {why}")

    def _has_root(self, pointer: Pointer, root: str) -> bool:
        try:
            return self.manifest(pointer).root == root
        except StateError:
            return False

    def _write_manifest(
        self, draft: Draft, folder: str, filed: Sequence[Filed], found: Imprint, base: Base | None
    ) -> Pointer:
        """Of this save; nothing names it yet."""
        packed = [each.delta for each in filed if each.delta is not None]
        whole_bytes = sum(each.whole_bytes for each in filed)
        manifest = msgspec.json.encode(
            Manifest(
                version=PLAIN if base is None and draft.inexact is None else VERSION,
                regrow=RELEASE,
                step=draft.step,
                term=draft.term,
                made_unix_s=time.time(),
                mathematics=draft.mathematics,
                skeleton=draft.skeleton,
                frozen=draft.frozen,
                leaves=draft.leaves,
                shards=tuple(
                    Shard(file=shard_file(number), size_bytes=each.whole_bytes, chunks=chunks)
                    for number, (each, chunks) in enumerate(zip(filed, found.chunks, strict=True))
                ),
                root=found.root,
                roster=draft.roster,
                delta=msgspec.UNSET if base is None else base.delta(packed, whole_bytes),
                inexact=msgspec.UNSET if draft.inexact is None else draft.inexact,
            )
        )
        faultpoint("save-manifest", step=draft.step)
        self.store.put(f"{folder}/{MANIFEST}", [memoryview(manifest)])
        return Pointer(
            digest="",
            number=0,
            term=draft.term,
            step=draft.step,
            folder=folder,
            manifest=xxhash.xxh3_128_hexdigest(manifest),
            size_bytes=sum(each.size_bytes for each in filed),
        )

    def _publish(
        self, draft: Draft, whole: "Future[Imprint]", unnamed: Pointer, files: set[str], base: Base | None
    ) -> Pointer:
        """Compare-and-set: the pointer after the highest one that allows it. Of those who try one number, one succeeds, and
        the others look again. What is not known to have failed is not cleaned up. A delta has the number after its base's:
        whoever removes checkpoints sees the base as the latest, which stays, or sees what is built on it."""
        tried: set[int] = set()
        while True:
            numbers = sorted({*self._pointers.numbers(), *tried}, reverse=True)
            try:
                there = self._settled(draft, whole, numbers)
            except Fenced as error:
                self._abandon(unnamed.folder, error)
                raise
            if there is not None:
                self._abandon(unnamed.folder, None)
                return there
            pointer = sealed(msgspec.structs.replace(unnamed, number=1 + max(numbers, default=0)))
            if base is not None and pointer.number != base.pointer.number + 1:
                overtaken = Unfit(f"{self.store.url} has a newer checkpoint than number {base.pointer.number}")
                self._abandon(unnamed.folder, overtaken)
                raise overtaken
            faultpoint("save-pointer", step=draft.step)
            if lost := self._lost(unnamed.folder, files):
                swept = Fenced(f"{self.store.url}/{unnamed.folder}/{lost} was removed: another process saves there now")
                self._abandon(unnamed.folder, swept)
                raise swept
            if not self._pointers.create(pointer):
                tried.add(pointer.number)  # a listing may be older than that
            elif self._pointers.numbers()[:1] > [pointer.number]:
                # Those after which it was made are gone: retention removed them while this process stood still.
                self._pointers.remove(pointer.number)
            else:
                faultpoint("save-done", step=draft.step)
                return pointer

    def _lost(self, folder: str, files: set[str]) -> str:
        """A file of this save that is not there any more: whoever needed the room took this writer for dead, which stood
        still meanwhile."""
        missing = files - set(self.store.names(folder))
        return next((file for file in sorted(missing) if self.store.size_bytes(f"{folder}/{file}") is None), "")

    def _abandon(self, folder: str, error: Exception | None) -> None:
        """Remove what no pointer names, as far as the store lets us: `sweep` sees to the rest."""
        try:
            self.store.remove(folder)
        except Exception as other:  # as above
            if error is not None:
                error.add_note(f"{folder} could not be removed: {other}")

    # Reading

    def read(
        self,
        pointer: Pointer,
        manifest: Manifest,
        views: Sequence[memoryview],
        told: Told = untold,
        readers: Sequence[ShardReader] | None = None,
    ) -> None:
        """Fill a view of bytes per leaf, by index: all of them, or raise. What a view holds after an error means nothing.
        `readers`: of the shards, if not those of the store."""
        faultpoint("restore-read", step=pointer.step)
        for leaf, view in zip(manifest.leaves, views, strict=True):
            if view.nbytes != leaf.size_bytes or view.itemsize != 1:
                raise ValueError(f"{leaf.name} has {leaf.size_bytes} bytes, its view {view.nbytes} of {view.itemsize} each")
        with ThreadPoolExecutor(_READING_LINES, "regrow-archive") as pool:
            readers = readers or self.readers(pointer, manifest, told)
            begun = [
                pool.submit(reader.begin, mine) for reader, mine in zip(readers, _by_shard(manifest, views), strict=True)
            ]
            reads: list[Future[list[str]]] = []
            try:
                for reader, begin in zip(readers, begun, strict=True):
                    found, start = begin.result()
                    reads += [pool.submit(reader.read, first, last, found) for first, last in reader.runs(start)]
                for read in as_completed(reads):
                    for damage in read.result():
                        raise StateError(damage)
            finally:
                for begin in begun:
                    begin.cancel()
                for read in reads:
                    read.cancel()

    def verify(self, pointer: Pointer, told: Told = untold) -> list[str]:
        """What is wrong with it, in words: every byte is read. Takes the memory of one shard."""
        try:
            manifest = self.manifest(pointer)
            self.links(pointer, manifest)
        except StateError as error:
            return [str(error)]
        damages: list[str] = []
        found = root(manifest.skeleton, piece_digests(self._ribbon(pointer, manifest, told, damages)))
        if not damages and found != manifest.root:
            where = f"{self.store.url}/{pointer.folder}"
            damages.append(f"{where} has the root {found}, its manifest says {manifest.root}: it was saved wrong")
        return damages

    def _ribbon(self, pointer: Pointer, manifest: Manifest, told: Told, damages: list[str]) -> Iterator[memoryview]:
        """The tensors' bytes in canonical order, as far as they are whole. Shards follow that order, so each is let go
        before the next one is read."""
        readers = self.readers(pointer, manifest, told)
        held: dict[int, memoryview] = {}
        indices: list[list[int]] = [[] for _ in manifest.shards]
        for index, leaf in enumerate(manifest.leaves):
            indices[leaf.shard].append(index)
        with ThreadPoolExecutor(_READING_LINES, "regrow-archive") as pool:
            for index in in_order(manifest.skeleton):
                if index not in held:
                    shard = manifest.leaves[index].shard
                    mine = {i: memoryview(bytearray(manifest.leaves[i].size_bytes)) for i in indices[shard]}
                    damages += _load(pool, readers[shard], [(manifest.leaves[i], view) for i, view in mine.items()])
                    held |= mine
                yield held.pop(index)

    def readers(
        self, pointer: Pointer, manifest: Manifest, told: Told = untold, source: Readable | None = None
    ) -> list[ShardReader]:
        """Of each shard. `source`: where they are read as they would lie there whole, if not in the store."""
        chain = self.links(pointer, manifest) if source is None else []
        if len(chain) > 1:
            return [ChainReader(self.store, chain, number, told) for number in range(len(manifest.shards))]
        store = source or self.store
        return [ShardReader(store, f"{pointer.folder}/{shard.file}", shard, told) for shard in manifest.shards]

    # Removing

    def prune(self, retention: Retention, told: Told = untold) -> tuple[Pointer, ...]:
        """Remove what need not be kept, the oldest first; what was removed. The pointer goes before its folder: whoever dies
        in between leaves what `sweep` finds. One that cannot be removed keeps none but those it is built on; the first
        refusal is raised at the end. `told` hears of each that was looked at, or tried."""
        gone, bases = self._doomed(retention, told)
        needed: set[str | None] = set()
        refused: InfraError | None = None
        for pointer in gone:  # a delta comes before what it is built on
            stays = True
            if pointer.folder not in needed:
                faultpoint("save-prune", step=pointer.step)
                try:
                    self._pointers.remove(pointer.number)
                    stays = False  # it counts no more, whatever becomes of its files
                    self.store.remove(pointer.folder)
                except InfraError as error:
                    refused = refused or error
                told(pointer.size_bytes)
            if stays:
                needed.add(bases.get(pointer.folder))
        if refused is not None:
            raise refused
        return gone

    def doomed(self, retention: Retention, told: Told = untold) -> tuple[Pointer, ...]:
        """What `prune` would remove. A checkpoint with files missing is no reason to remove another, and stays; so does what
        a delta that is kept is built on."""
        gone, _ = self._doomed(retention, told)
        return gone

    def _doomed(self, retention: Retention, told: Told) -> tuple[tuple[Pointer, ...], dict[str, str]]:
        """And of each delta there, by folder, what it is built on."""
        if retention == Retention():
            return (), {}
        pointers, _ = self.pointers()
        if not doomed(pointers, retention):
            return (), {}
        there: dict[str, Manifest] = {}
        for pointer in pointers:
            if (manifest := self._there(pointer)) is not None:
                there[pointer.folder] = manifest
            told(pointer.size_bytes)
        bases = {folder: delta.base for folder, each in there.items() if isinstance(delta := each.delta, Delta)}
        return doomed([pointer for pointer in pointers if stands(pointer.folder, there, bases)], retention, bases), bases

    def _there(self, pointer: Pointer) -> Manifest | None:
        """None where its manifest is not whole or a file has not its size: what can be told without reading them."""
        try:
            manifest = self.manifest(pointer)
        except StateError:
            return None
        return manifest if has_files(self.store, pointer.folder, manifest) else None

    def sweep(self, mine: tuple[int, int] | None = None, told: Told = untold) -> tuple[str, ...]:
        """Remove what saves left that died or were given up; what was removed. One that cannot be keeps no other."""
        dead = self.leftovers(mine)
        refused: InfraError | None = None
        for folder in dead:
            try:
                self.store.remove(folder)
            except InfraError as error:
                refused = refused or error
            told(0)
        if refused is not None:
            raise refused
        return dead

    def leftovers(self, mine: tuple[int, int] | None = None) -> tuple[str, ...]:
        """What can never be completed: folders without a pointer, of a step that the latest has passed, under its term or an
        older one. None while a pointer is damaged: it may name one of them.

        `mine`: the term and step of a save that has to have the room, of which nothing lies there now. Nobody else saves
        under its term, so that what is unnamed up to it is dead as well, or of somebody who was replaced."""
        folders = self.store.names()
        pointers, damages = self.pointers()
        if damages:
            return ()
        passed = max([mine or (0, -1), *((pointer.term, pointer.step) for pointer in pointers[:1])])
        named = {pointer.folder for pointer in pointers}
        return tuple(
            match[0]
            for match in map(FOLDER.fullmatch, folders)
            if match is not None and match[0] not in named and (int(match[2]), int(match[1])) <= passed
        )


def _by_shard(manifest: Manifest, views: Sequence[memoryview]) -> list[list[tuple[Leaf, memoryview]]]:
    found: list[list[tuple[Leaf, memoryview]]] = [[] for _ in manifest.shards]
    for leaf, view in zip(manifest.leaves, views, strict=True):
        found[leaf.shard].append((leaf, view))
    return found


def _load(pool: ThreadPoolExecutor, reader: ShardReader, leaves: list[tuple[Leaf, memoryview]]) -> list[str]:
    """What is wrong with a shard, in words: all of it."""
    try:
        found, start = reader.begin(leaves)
    except StateError as error:
        return [str(error)]
    reads = [pool.submit(reader.read, first, last, found) for first, last in reader.runs(start)]
    damages = []
    for read in reads:
        try:
            damages += read.result()
        except StateError as error:
            damages.append(str(error))
    return damages
