"""One saved state out of its copies, in the host's memory and at places: the nearest first, and of each next one only what
is lacking still.

Copies are of one state when their manifests say so, by root and chunks. A copy in memory that is harmed is mended where it
lies, and keeps its label: whoever dies over it leaves what the next search mends. Runs in the thread of a search; what it
asks of generations is done by the loop, which owns them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from regrow.agent.generation import Generation, Label
from regrow.agent.patience import Abandoned, tried, within
from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.draft import Draft, draft_of
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.inexact import Inexact
from regrow.core.origin import MEMORY
from regrow.core.records import OriginMended, OriginPassedOver, Served
from regrow.shell.faultpoint import faultpoint
from regrow.shell.vaulting import Place
from regrow.state.archive import Archive
from regrow.state.mending import Copy, Mending
from regrow.state.pieces import Digests, digests
from regrow.state.shard import Told
from regrow.state.store import Store

T = TypeVar("T")


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop does for a search. Each may be called from any thread, and waits until it is done."""

    take: Callable[[int], Generation]
    """A generation with room for so many bytes, which from then on is busy. InfraError: there is no memory."""
    drop: Callable[[Generation, bool], None]
    """It holds nothing; True: and somebody may still write into it."""
    harmed: Callable[[Generation], None]
    """What lay there whole: whatever else lies in memory may be older than what lies at places."""
    noted: Callable[[OriginPassedOver | OriginMended], None]
    refused: Callable[[str, str], None]
    """A place, by its URL, could not be read, and why; it is tried again."""
    said: Callable[[str], None]
    """For people."""
    logged: Callable[[str, int], None]
    """This log came from a neighbour, under this name; the descriptor is the loop's from here on."""


class Hurt(msgspec.Struct, frozen=True, kw_only=True):
    """What lay whole in memory, and is harmed."""

    generation: Generation
    label: Label
    why: str

    def serves(self, draft: Draft, root: str) -> bool:
        """Does that state lie there, in these places, and does nobody else write there?"""
        mine = self.label.draft
        is_there = (mine.order, mine.leaves, self.label.root) == (draft.order, draft.leaves, root)
        return is_there and not self.generation.is_tainted


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A copy at a place."""

    archive: Archive
    place: Place
    pointer: Pointer


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    generation: Generation
    draft: Draft
    digests: Digests
    served: tuple[Served, ...]


class Refused(Exception):
    """A place may hold it, and cannot be searched."""


class _Work(msgspec.Struct, kw_only=True):
    """One try, in one generation."""

    manifest: Manifest
    draft: Draft
    generation: Generation
    mending: Mending
    copies: list[Copy] = []


class Assembling:
    """Of copies of one step, saved under one term."""

    def __init__(self, step: int, sources: Sequence[Source], hurts: list[Hurt], patience_s: float, hands: Hands) -> None:
        """The sources the nearest first. `hurts`: of any state; the one that is used is taken out, and all are let go where
        room for another state is wanted."""
        self._step = step
        self._sources = sources
        self._hurts = hurts
        self._patience_s = patience_s
        self._hands = hands
        self._harms: dict[str, str] = {}
        """What is wrong with a copy, in words, by where it is."""
        self._harmed_files: dict[str, str] = {}
        self._lacking_bytes: dict[str, int] = {}
        """So much was lacking still after that one."""
        self._refusals: dict[str, Exception] = {}

    def run(self) -> Assembled | None:
        """None when all copies together are not whole: what is wrong with them was told. Refused when one that may hold
        what is lacking could not be read."""
        found, rest = None, self._sources
        while found is None and rest:
            found, rest = self._assembled(rest)
        refusals = {} if found is None else {url: words(error) for url, error in self._refusals.items()}
        self._tell(() if found is None else found.served, refusals)
        if found is None:
            for url, error in self._refusals.items():
                raise unsearchable(url, error) from error
        return found

    def _assembled(self, sources: Sequence[Source]) -> tuple[Assembled | None, Sequence[Source]]:
        """The state of the first of them; and where that is not whole, those to try next."""
        work: _Work | None = None
        nearer: list[Source] = []
        others: list[Source] = []
        refused: list[tuple[Source, Store | None]] = []
        try:
            for source in sources:
                if (manifest := self._manifest(source)) is None:
                    nearer.append(source)
                    continue
                if work is None:
                    work = self._begun(manifest)
                    for one in nearer:  # whose files may be whole
                        self._take(work, one, one.archive.store, refused)
                if (manifest.root, manifest.shards) != (work.manifest.root, work.manifest.shards):
                    others.append(source)
                    continue
                self._take(work, source, None, refused)
                if not work.mending.lacking:
                    return self._finished(work, sources, source)
            for source, store in refused:
                assert work is not None
                self._take(work, source, store, None)
                if not work.mending.lacking:
                    return self._finished(work, sources, source)
        except _Silent as silent:
            self._drop(work, is_tainted=True)
            return None, [source for source in sources if source.place.url != silent.url]
        except BaseException:
            self._drop(work)
            raise
        self._drop(work)
        return None, others

    def _manifest(self, source: Source) -> Manifest | None:
        """None when it is harmed, or cannot be read."""
        pointer, url = source.pointer, source.place.url
        try:
            manifest = self._tried(url, lambda _: source.archive.manifest(pointer))
        except StateError as error:
            self._harms[url] = str(error)
            return None
        except ConfigError:
            raise
        except Exception as error:  # the edge of a store: its library raises what it likes
            self._refusals[url] = error
            return None
        if isinstance(manifest.inexact, Inexact):
            raise ConfigError(
                f"step {pointer.step} in {url} cannot begin a job, which promises equal bits: {manifest.inexact.words()}; "
                "restore it with a Checkpointer in a loop of your own"
            )
        return manifest

    def _begun(self, manifest: Manifest) -> _Work:
        draft = draft_of(manifest)
        hurt = next((one for one in self._hurts if one.serves(draft, manifest.root)), None)
        if hurt is not None:
            self._hurts.remove(hurt)
            self._harms[MEMORY] = hurt.why
            generation, stays = hurt.generation, [Copy(MEMORY)]
        else:
            let_go(self._hurts, self._hands)
            generation, stays = self._hands.take(draft.arena_bytes), []
        try:
            mending = Mending(manifest, draft, generation.view(draft.arena_bytes))
        except BaseException:
            self._hands.drop(generation, False)
            raise
        for copy in stays:
            mending.stay(copy)
            self._lacking_bytes[MEMORY] = mending.lacking_bytes
        return _Work(manifest=manifest, draft=draft, generation=generation, mending=mending, copies=stays)

    def _take(
        self, work: _Work, source: Source, store: Store | None, later: list[tuple[Source, Store | None]] | None
    ) -> None:
        """Into the generation. `store`: its files are read there under this manifest, not its own. `later`: what refuses is
        asked again once all others were; else it is asked here, until it has done nothing for long."""
        url = source.place.url
        copy = next((one for one in work.copies if one.where == url), None) or Copy(url)

        def take(told: Told) -> None:
            faultpoint("restore-read", step=self._step)
            readers = source.archive.readers(source.pointer, work.manifest, source=store)
            work.mending.take(copy, readers, told)

        try:
            if later is None:
                self._tried(url, take)
            else:
                within(self._patience_s, url, take)
            self._refusals.pop(url, None)
        except StateError as error:
            self._harms[url] = str(error)
        except ConfigError:
            raise
        except Exception as error:  # the edge of a store, as above
            self._refusals[url] = error
            if isinstance(error, Abandoned):
                raise _Silent(url) from error
            if later is not None:
                later.append((source, store))
        if copy not in work.copies:
            work.copies.append(copy)
        self._lacking_bytes[url] = work.mending.lacking_bytes
        if copy.harm:
            self._harmed_files[url] = copy.harm

    def _finished(self, work: _Work, sources: Sequence[Source], last: Source) -> tuple[Assembled | None, Sequence[Source]]:
        found = digests(work.draft, work.generation.view(work.draft.arena_bytes))
        if found.root == work.manifest.root:
            served = tuple(copy.served for copy in work.copies if copy.served.size_bytes)
            return Assembled(generation=work.generation, draft=work.draft, digests=found, served=served), ()
        was_in_memory = work.copies[0].where == MEMORY
        self._drop(work, is_tainted=was_in_memory)  # that memory holds nothing any more: other pages take its place
        if was_in_memory:
            return None, sources
        self._harms[last.place.url] = f"step {self._step} has the root {found.root}, its manifest says {work.manifest.root}"
        return None, [source for source in sources if source is not last]

    def _drop(self, work: _Work | None, is_tainted: bool = False) -> None:
        if work is not None:
            self._hands.drop(work.generation, is_tainted)

    def _tell(self, served: Sequence[Served], refusals: Mapping[str, str]) -> None:
        """What is wrong with each copy of which anything was asked."""
        givers = {one.where for one in served}
        for where in dict.fromkeys([*self._harms, *self._harmed_files, *refusals]):
            whys = (told.get(where) for told in (self._harms, self._harmed_files, refusals))
            why = "; ".join(filter(None, whys))
            if where in givers:
                lacking_bytes = self._lacking_bytes[where]
                self._hands.noted(OriginMended(step=self._step, where=where, lacking_bytes=lacking_bytes, why=why))
            else:
                self._hands.noted(OriginPassedOver(step=self._step, where=where, why=why))

    def _tried(self, url: str, work: Callable[[Told], T]) -> T:
        return tried(self._patience_s, url, work, lambda why: self._hands.refused(url, why))


def let_go(hurts: list[Hurt], hands: Hands) -> None:
    while hurts:
        hurt = hurts.pop()
        hands.drop(hurt.generation, False)
        hands.noted(OriginPassedOver(step=hurt.label.draft.step, where=MEMORY, why=hurt.why))


class _Silent(Exception):
    """A place does not answer, and its thread may still write into the arena."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def unsearchable(url: str, error: BaseException) -> Refused:
    return Refused(f"{url} cannot be searched, and may hold a newer state than any other: {words(error)}")


def words(error: BaseException) -> str:
    return str(error) if isinstance(error, InfraError | ConfigError | StateError) else f"{type(error).__name__}: {error}"
