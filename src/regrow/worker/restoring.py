"""The restoring half of a Checkpointer: the newest checkpoint that is whole, straight into the live tensors.

It comes from the nearest place: the memory of a process that saved it, and the store for what is harmed there.
Several ranks read it once among them (`passing`). A checkpoint of other objects or of another model is refused before a byte
is overwritten; once parts of a damaged one may be in the objects, that is said instead. A damaged one is told, and the one
before it is taken: by all ranks, also where only one of them found the damage. Where none is left, those are taken that were
completed meanwhile: whoever saves them removes the ones before.
"""

import enum
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TypeVar

import msgspec
import torch

from regrow.core.checkpoint import PLAIN, Manifest, Pointer
from regrow.core.errors import ConfigError, PeerError, StateError
from regrow.core.inexact import Inexact
from regrow.core.records import Served
from regrow.core.skeleton import Json, tensors
from regrow.shell.faultpoint import faultpoint
from regrow.state.archive import Archive
from regrow.state.chain import need_packages
from regrow.state.exact import exact, read_exact
from regrow.state.memory import bytes_of
from regrow.state.mending import Copy, MendingReader
from regrow.state.shard import ShardReader, Told
from regrow.state.tracked import Tracked
from regrow.worker.passing import read_together
from regrow.worker.ranks import Ranks
from regrow.worker.recollection import Recollection

_NOTHING = -1
_LOST = -2
"""There are checkpoints, and all are damaged."""
_AGAIN = -3
"""Others may have come meanwhile."""
_LISTINGS = 5
"""Whoever saves faster than this reads would keep it busy forever."""
_EXTRA = "_extra_state"
"""What a module keeps under a key that ends like this is its own affair."""
_LATER_KEYS = {"initial_lr"}
"""Of an optimizer's groups: schedulers add them."""

_Result = TypeVar("_Result")


class _Fate(enum.IntEnum):
    """What came of a try; the highest of all ranks counts."""

    DONE = 0
    DAMAGED = 1
    REFUSED = 2


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    pointer: Pointer
    where: str
    """The places that served it, in words."""
    served: tuple[Served, ...]
    """What this process read, by place."""
    passed_bytes: int
    """Of the same, what came from other ranks."""


def restore(
    archive: Archive, tracked: Tracked, ranks: Ranks, near: Recollection | None, warn: Callable[[str], None]
) -> Restored | None:
    """What was restored; None when there is no checkpoint. `near`: what this process has in memory of one of them."""
    tries = _Tries(archive, tracked, ranks, near, warn)
    try:
        for number, pointer in _offered(archive, ranks, warn):
            try:
                return tries.restored(pointer, number)
            except _Damaged as damage:
                warn(f"{damage}; taking the checkpoint before it")
    except ConfigError as error:
        if not tries.begun:
            raise
        parts = ", ".join(f"step {step}" for step in tries.begun)
        raise StateError(f"{error}; and the objects may hold parts of {parts}: do not train on with these") from error
    return None


def _offered(archive: Archive, ranks: Ranks, warn: Callable[[str], None]) -> Iterator[tuple[int, Pointer | None]]:
    """The same checkpoints in all ranks, newest first, and then what came meanwhile. StateError when there are no more;
    nothing at all where there never was one. None: this rank has no whole pointer of that number."""
    told: set[str] = set()
    highest = 0
    for listing in range(_LISTINGS):
        pointers, damages = _together(ranks, archive.pointers)
        for damage in damages:
            if damage not in told:
                warn(damage)
        told.update(damages)
        by_number = {pointer.number: pointer for pointer in pointers}
        newer = [each for each in by_number if each > highest]
        if highest and newer:
            warn(f"{archive.store.url} has newer checkpoints by now, for which those may have been removed: taking these")
        highest = max([highest, *newer])
        # One listing without any proves nothing: all that had names may have been removed before they were read.
        end = _AGAIN if newer or listing == 0 else _LOST if highest or told else _NOTHING
        candidates = iter(newer)
        while (number := ranks.agreed(next(candidates, end))) >= 0:
            yield number, by_number.get(number)
        if number == _NOTHING:
            return
        if number == _LOST:
            break
    why = "are damaged" if number == _LOST else "were gone before they were read: let whoever saves them keep more"
    raise StateError(
        f"all checkpoints in {archive.store.url} {why}, and the objects may hold parts of them: do not train on with these; "
        "the warnings name the files"
    )


class _Tries:
    """To restore one checkpoint after the other: each by every rank, or _Damaged in every rank."""

    def __init__(
        self, archive: Archive, tracked: Tracked, ranks: Ranks, near: Recollection | None, warn: Callable[[str], None]
    ) -> None:
        self._archive = archive
        self._tracked = tracked
        self._ranks = ranks
        self._near = near
        self._warn = warn
        self.begun: list[int] = []
        """Steps of which the objects may hold parts; the same in all ranks."""

    def restored(self, pointer: Pointer | None, number: int) -> Restored:
        known, manifest = _together(self._ranks, lambda: self._learned(pointer, number), damage=StateError)
        is_exact = not isinstance(manifest.inexact, Inexact)
        near = self._near if self._near is not None and is_exact and self._near.is_of(known) else None
        holder = self._ranks.first(near is not None)
        return self._from(known, manifest, near, tuple(range(self._ranks.count)) if holder is None else (holder,))

    def _learned(self, pointer: Pointer | None, number: int) -> tuple[Pointer, Manifest]:
        url = self._archive.store.url
        if pointer is None:
            raise StateError(f"{url} has no whole pointer {number} for this rank, and has it for rank 0")
        manifest = self._archive.manifest(pointer)
        if (words := difference(exact(manifest)[0], self._tracked)) is not None:
            raise ConfigError(f"{url}/{pointer.folder} is of something else: {words}")
        if manifest.version > PLAIN:
            need_packages(f"{url}/{pointer.folder}")
        return pointer, manifest

    def _from(self, pointer: Pointer, manifest: Manifest, near: Recollection | None, reading: tuple[int, ...]) -> Restored:
        """These ranks read it; where somebody has it in memory that one does, and of the store only what is harmed there."""
        gives, mends = Copy(Recollection.url), Copy(self._archive.store.url)
        skeleton, root = exact(manifest)
        is_exact = not isinstance(manifest.inexact, Inexact)
        passed_bytes = 0

        def readers(tally: Told) -> Sequence[ShardReader]:
            if near is None:
                return self._archive.readers(pointer, manifest, tally)
            far = cache(lambda: self._archive.readers(pointer, manifest))
            numbers = range(len(manifest.shards))
            return [MendingReader(number, pointer, manifest, near, far, gives, mends) for number in numbers]

        def read() -> list[torch.Tensor]:
            nonlocal passed_bytes
            begun_s = time.monotonic()

            def tally(size_bytes: int) -> None:
                mends.gave(size_bytes, begun_s)

            places = self._tracked.places(skeleton)
            views = [bytes_of(place) for place in places]
            if not is_exact:  # its files do not hold the state's bytes: each rank makes those for itself
                read_exact(self._archive, pointer, manifest, views, tally)
            elif self._ranks.count == 1:
                self._archive.read(pointer, manifest, views, tally, readers(tally))
            else:
                faultpoint("restore-read", step=pointer.step)
                passed_bytes = read_together(manifest, readers(tally), views, self._ranks, reading)
            return places

        self.begun.append(pointer.step)
        try:
            places = _together(self._ranks, read, damage=StateError)
        finally:
            if gives.harm:
                self._warn(f"{gives.harm}; reading that from {mends.where}")

        def take() -> None:
            try:
                self._tracked.restore(skeleton, places, root, keeps=True)
            except StateError as error:
                # Of what lies there, or of an object that made something else of it? That costs another look at every byte.
                if damages := self._archive.verify(pointer):
                    raise _SavedWrong(damages[0]) from error
                raise

        _together(self._ranks, take, damage=_SavedWrong)
        if isinstance(manifest.inexact, Inexact):
            self._warn(f"step {pointer.step} of {self._archive.store.url} is restored, but {manifest.inexact.words()}")
        served = tuple(copy.served for copy in (gives, mends) if copy.served.size_bytes)
        return Restored(pointer=pointer, where=self._where(served, reading), served=served, passed_bytes=passed_bytes)

    def _where(self, served: tuple[Served, ...], reading: tuple[int, ...]) -> str:
        if self._ranks.rank not in reading:
            return f"the memory of rank {reading[0]}"
        return " and ".join(one.where for one in served) or self._archive.store.url


class _SavedWrong(StateError):
    """Every byte is as it was written, and they are not the state that was to be saved."""


class _Damaged(Exception):
    """This checkpoint is no good to one of the ranks, and so to none."""


def _together(
    ranks: Ranks, work: Callable[[], _Result], damage: type[Exception] | tuple[type[Exception], ...] = ()
) -> _Result:
    """What this rank has come to, once all have. One that raises must not leave the others waiting."""
    error: Exception | None = None
    try:
        result = work()
    except PeerError:
        raise  # nobody can be told any more
    except Exception as caught:  # raised again below, when the others know
        error = caught
    fate = _Fate.DONE if error is None else _Fate.DAMAGED if isinstance(error, damage) else _Fate.REFUSED
    worst = ranks.highest(fate)
    if fate == _Fate.REFUSED and error is not None:
        raise error
    if worst == _Fate.REFUSED:
        raise StateError("another rank cannot restore: see what it says")
    if worst == _Fate.DAMAGED:
        raise _Damaged(str(error or "another rank has found damage")) from error
    return result


def difference(skeleton: Json, tracked: Tracked) -> str | None:
    """The first thing in which a checkpoint does not fit the live objects, in words."""
    live = tracked.flatten().skeleton
    there, here = _members(skeleton), _members(live)
    if there.keys() != here.keys():
        return f"it holds {', '.join(there)}, and what is to be restored is {', '.join(here)}: name the same objects"
    for name, thing in tracked.objects.items():
        words = None
        if isinstance(thing, torch.nn.Module):
            words = _first(_described(there[name], name), _described(here[name], name), is_whole=True)
        elif isinstance(thing, torch.optim.Optimizer):
            words = _groups(there[name], here[name], name)
            words = words or _first(_described(there[name], name), _described(here[name], name), is_whole=False)
        if words is not None:
            return words
    return None


def _members(skeleton: Json) -> dict[str, Json]:
    kind, payload = skeleton
    return {key[1]: value for key, value in payload} if kind == "dict" else {}


def _described(skeleton: Json, name: str) -> dict[str, str]:
    """By path: what each tensor is."""
    return {
        ".".join([name, *(str(key) for _, key in path)]): f"{dtype}{shape}"
        for path, _, dtype, shape in tensors(skeleton)
        if not str(path[-1][1] if path else "").endswith(_EXTRA)
    }


def _first(there: dict[str, str], here: dict[str, str], is_whole: bool) -> str | None:
    """An optimizer that has not stepped has no state yet: what is on one side only is no difference then."""
    paths: Iterable[str] = [*here, *(path for path in there if path not in here)]
    for path in paths:
        is_one_sided = path not in there or path not in here
        if there.get(path) != here.get(path) and (is_whole or not is_one_sided):
            return f"{path} is {there.get(path, 'absent')} there, and {here.get(path, 'absent')} here"
    return None


def _groups(there: Json, here: Json, name: str) -> str | None:
    """Groups of as many parameters, with the same settings."""
    theirs, ours = _param_groups(there), _param_groups(here)
    if [count for _, count in theirs] != [count for _, count in ours]:
        counts = [", ".join(str(count) for _, count in groups) for groups in (theirs, ours)]
        return f"{name} has groups of {counts[0]} parameters there, and of {counts[1]} here"
    for (their_keys, _), (our_keys, _) in zip(theirs, ours, strict=True):
        if lost := sorted(our_keys - their_keys - _LATER_KEYS):
            return f"{name} has no {lost[0]!r} there, and has it here: it is of another kind, or of another release of torch"
    return None


def _param_groups(optimizer: Json) -> list[tuple[set[str], int]]:
    """Of each: its keys, and how many parameters it has."""
    groups = [_members(group) for group in _members(optimizer).get("param_groups", ["list", []])[1]]
    return [(set(group), len(group.get("params", ["list", []])[1])) for group in groups]
