"""Checkpoints that are there: at a URL, or at all places of a run whose directory is named instead.

Of a run the nearest place comes first, one that cannot be reached hides none of the others, and one that holds nothing yet
is no error. Reads pointers and manifests; the tensors are for those who call this.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from regrow.cli.run_dir import RunDir, is_run
from regrow.core.checkpoint import Pointer
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.state.archive import Archive
from regrow.state.stores import open_store

_STEPS = 10
"""So many are named to somebody who asked for another."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. docs/checkpoints.md explains each field; fields are only ever added within one format."""

    number: int
    step: int
    term: int
    folder: str
    size_bytes: int
    state: str
    """whole (as far as it was read), damaged, or newer: it takes a newer release to read it."""
    problems: tuple[str, ...] = ()
    made_unix_s: float | None = None
    regrow: str | None = None
    shards: int | None = None
    tensors: int | None = None
    root: str | None = None
    mathematics: dict[str, str] | None = None
    base: str | None = None
    """Of a delta: the folder of the checkpoint that it is built on."""
    depth: int | None = None
    """Of a delta: so many of them lie on the whole one, this one included."""
    ratio: float | None = None
    """Of a delta: so many times smaller than it would be whole; with moments in fewer bits: than it would be exact."""
    moments: str | None = None
    """How moments are stored in fewer bits: the state is not exact."""


class Stored:
    """What lies at one place."""

    def __init__(self, url: str) -> None:
        """ConfigError when there is no way to such a place."""
        self.archive = Archive(open_store(url))
        self.pointers: list[Pointer] = []
        """Newest first."""
        self.damages: list[str] = []
        """Of pointers that cannot be read."""
        self.unreachable = ""
        """Why, when it is."""

    @property
    def url(self) -> str:
        return self.archive.store.url

    def look(self) -> None:
        """InfraError when it cannot be reached."""
        self.pointers, self.damages = self.archive.pointers()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    run: str | None
    """The run directory that was named; None for a URL."""
    places: tuple[Stored, ...]
    """Nearest first, at least one."""

    def at(self) -> str:
        return " or ".join(place.url for place in self.places)

    def newest(self, step: int | None) -> list[tuple[Stored, Pointer]]:
        """Those that will do, the best first: the newest, and of one step the nearest. At least one.

        ConfigError when there is none of that step, StateError when no pointer can be read, InfraError when it may be where
        nobody can look.
        """
        if step is None:
            every = [(place, pointer) for place in self.places for pointer in place.pointers]
            candidates = sorted(every, key=lambda pair: -pair[1].step)  # of one step they stay in their order
        else:
            candidates = [(p, next(x for x in p.pointers if x.step == step)) for p in self.places if step in _steps([p])]
        if candidates:
            return candidates
        damages = [damage for place in self.places for damage in place.damages]
        there = _steps(self.places)
        if any(place.unreachable for place in self.places):
            raise _unreachable(self.places)
        if not there:
            raise StateError("; ".join(damages))
        told = ", ".join(map(str, there[:_STEPS])) + (", ..." if len(there) > _STEPS else "")
        raise ConfigError(f"there is no checkpoint of step {step} at {self.at()}, there are those of {told}")


def look(where: str) -> Found:
    """ConfigError when there is nothing, InfraError when nobody can be reached."""
    if not is_run(where):
        place = Stored(where)
        place.look()
        if not place.pointers and not place.damages:
            raise ConfigError(f"there is no checkpoint at {place.url}: look at the address")
        return Found(run=None, places=(place,))
    urls = RunDir(Path(where)).job_file().checkpoints
    if not urls:
        raise ConfigError(f"the job of {where} saves no checkpoints: it was started without --checkpoint URL")
    found = Found(run=where, places=tuple(map(Stored, urls)))
    for place in found.places:
        try:
            place.look()
        except InfraError as error:
            place.unreachable = str(error)
    if all(place.unreachable for place in found.places):
        raise _unreachable(found.places)
    if not any(place.pointers or place.damages or place.unreachable for place in found.places):
        raise ConfigError(f"the job of {where} has no checkpoint yet at {found.at()}")
    return found


def read_row(archive: Archive, pointer: Pointer) -> Row:
    try:
        manifest = archive.manifest(pointer)
        archive.links(pointer, manifest)
    except StateError as error:
        return plain_row(pointer, "damaged", str(error))
    except ConfigError as error:
        return plain_row(pointer, "newer", str(error))
    delta = None if isinstance(manifest.delta, msgspec.UnsetType) else manifest.delta
    inexact = None if isinstance(manifest.inexact, msgspec.UnsetType) else manifest.inexact
    smaller = delta or inexact
    return msgspec.structs.replace(
        plain_row(pointer, "whole"),
        made_unix_s=manifest.made_unix_s,
        regrow=manifest.regrow,
        shards=len(manifest.shards),
        tensors=len(manifest.leaves),
        root=manifest.root,
        mathematics=manifest.mathematics,
        base=None if delta is None else delta.base,
        depth=None if delta is None else delta.depth,
        ratio=None if smaller is None else smaller.ratio,
        moments=None if inexact is None else inexact.mode,
    )


def plain_row(pointer: Pointer, state: str, *problems: str) -> Row:
    return Row(
        number=pointer.number,
        step=pointer.step,
        term=pointer.term,
        folder=pointer.folder,
        size_bytes=pointer.size_bytes,
        state=state,
        problems=problems,
    )


def _steps(places: Iterable[Stored]) -> list[int]:
    """Newest first."""
    return sorted({pointer.step for place in places for pointer in place.pointers}, reverse=True)


def _unreachable(places: Iterable[Stored]) -> InfraError:
    return InfraError("; ".join(place.unreachable for place in places if place.unreachable))
