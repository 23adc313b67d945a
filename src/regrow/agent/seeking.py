"""How an origin is found: the newest saved state that is whole, in the host's memory or at a place, and brought into memory.

Candidates come by (term, step), the newest first, and of two that are equal the nearer one. What is harmed is passed over,
and told. In an every-step job all that was committed after it is found as well, in the logs; and where no state was ever
whole, the job's own beginning, if the logs hold all that was committed since (rules L5 and L7).

A store that refuses, where no other place has the very same state, or a format that is too new, ends the search: an older
state must not silently take the place of one that may be there.

Runs in a thread of its own. What it asks of generations is done by the loop, which owns them.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

import msgspec

from regrow.agent.generation import Generation, Label
from regrow.agent.logs import Chained, beginning, chained, close
from regrow.agent.patience import Abandoned, begun, tried
from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.draft import Draft, draft_of
from regrow.core.errors import ConfigError, InfraError, StateError
from regrow.core.inexact import Inexact
from regrow.core.neighbour import is_neighbour
from regrow.core.origin import BEGINNING, MEMORY
from regrow.core.records import OriginPassedOver
from regrow.core.roster import NO_VERSION, Version
from regrow.shell.vaulting import Place, Seek
from regrow.state.archive import Archive
from regrow.state.neighbour_store import address_of, fetched_logs
from regrow.state.pieces import Digests, digests, harm
from regrow.state.shard import Told
from regrow.state.stores import open_store

T = TypeVar("T")


class Found(msgspec.Struct, kw_only=True):
    """It lies in this generation, whole."""

    generation: Generation
    draft: Draft
    digests: Digests
    since: Version
    """Under which it was saved, where that is known: of a state that comes from a place, under which it is brought, unless
    memory held the same one, harmed."""
    where: str
    seconds: float
    is_newest: bool
    """Nobody has saved anything that is newer, as far as this vault knows: saves may go on under its term."""

    @property
    def root(self) -> str:
        return self.digests.root


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was ever saved, and the logs hold all that was committed since the job began."""

    root: str


class Report(msgspec.Struct, kw_only=True):
    found: Found | None
    begun: Begun | None = None
    chained: Chained | None = None
    """What was committed after it; None without logs."""
    seconds: float = 0.0
    why: str
    """What was passed over, or why there is none."""
    newest_term: int = 0
    """Under which anything was saved at any place, where that was asked."""

    @property
    def since(self) -> Version:
        """The newest version of a roster that any of it belongs to, as far as it says so."""
        is_said = self.found is not None and self.found.draft.roster is not None
        since = self.found.since if self.found is not None and is_said else NO_VERSION
        return max([since, *(one.record.attempt for one in (self.chained.records if self.chained else ()))])


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop does for a search. Each may be called from any thread, and waits until it is done."""

    take: Callable[[int], Generation]
    """A generation with room for so many bytes, which from then on is busy. InfraError: there is no memory."""
    drop: Callable[[Generation, bool], None]
    """It holds nothing; True: and somebody may still write into it."""
    spoil: Callable[[Generation], None]
    """What it held whole is harmed."""
    passed: Callable[[OriginPassedOver], None]
    refused: Callable[[str, str], None]
    """A place, by its URL, could not be read, and why; it is tried again."""
    logged: Callable[[str, int], None]
    """This log came from a neighbour, under this name; the descriptor is the loop's from here on."""


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    term: int
    step: int
    rank: int
    """0 is memory, 1 the first place."""
    generation: Generation | None = None
    label: Label | None = None
    pointer: Pointer | None = None


_Listing = tuple[list[Pointer], list[str], int]


class _Stop(Exception):
    """The search ends, with this word."""


class Seeking:
    """One search."""

    def __init__(
        self,
        seek: Seek,
        term: int,
        whole: Sequence[Generation],
        logs: Mapping[str, int],
        begins: bool,
        places: Sequence[Place],
        patience_s: float,
        hands: Hands,
    ) -> None:
        """`begins`: no state was ever whole in memory."""
        self._seek = seek
        self._logs = dict(logs)
        self._fetched: dict[str, int] = {}
        self._begins = begins
        self._term = term
        self._places = places
        self._patience_s = patience_s
        self._hands = hands
        self._begun_s = time.monotonic()
        self._passed: list[str] = []
        self._newest_term = 0
        self._harmed: dict[tuple[int, str], Version] = {}
        """What lay whole in memory once, by step and root, and under which version it was saved."""
        self._archives: list[Archive] = []
        labelled = [(one, one.label) for one in whole if one.label is not None]
        self._memory = sorted(
            (
                _Candidate(term=label.draft.term, step=label.draft.step, rank=0, generation=one, label=label)
                for one, label in labelled
            ),
            key=_nearest_newest,
        )

    def run(self) -> Report:
        try:
            return self._begun() or self._searched()
        except (_Stop, ConfigError, InfraError) as error:
            return self._report(None, str(error))
        finally:
            close(self._fetched)

    def _searched(self) -> Report:
        found = self._run()
        if self._seek.step is None and (found is None or found.where != MEMORY):
            self._fetch_logs()
        if found is not None:
            return self._report(found, "", self._chained(found.draft.step, found.since))
        if (begun := self._begun()) is not None:
            return begun
        if self._begins and self._logs:
            self._passed.append(f"{BEGINNING} is passed over: what was committed after it is not whole in the logs")
        return self._report(None, self._nothing())

    def _begun(self) -> Report | None:
        """From the job's own beginning, where logs hold all that was committed since. No place can have anything newer, as
        long as nothing was whole in memory: what lies at places was copied from there."""
        if not self._begins or self._seek.step is not None or (root := beginning(self._logs)) is None:
            return None
        since = self._chained(0, NO_VERSION)
        if since is None or since.chain.beyond is not None:
            return None
        return msgspec.structs.replace(self._report(None, "", since), begun=Begun(root=root))

    def _fetch_logs(self) -> None:
        """What was committed after a state may lie at a neighbour, at whatever place that state is (rule L8)."""
        for place in self._places:
            if is_neighbour(place.url):
                fetched = self._tried(place, partial(fetched_logs, address_of(place.url)))
                for name, fd in fetched.items():
                    self._hands.logged(name, os.dup(fd))
                self._fetched |= fetched
                self._logs |= fetched

    def _chained(self, step: int, since: Version) -> Chained | None:
        return chained(self._logs, step, since) if self._logs else None

    def _run(self) -> Found | None:
        rest = self._memory
        if self._seek.step is None and rest and rest[0].term == self._term:
            # Whatever lies at a place under this term was copied from here, before: no store need be asked.
            if (found := self._from_memory(rest[0], is_newest=True)) is not None:
                return found
            rest = rest[1:]
        candidates = [one for one in [*rest, *self._listed()] if self._seek.step in (None, one.step)]
        for _, equals in groupby(sorted(candidates, key=_nearest_newest), key=_age):
            if (found := self._first(equals)) is not None:
                return found
        return None

    def _first(self, equals: Iterable[_Candidate]) -> Found | None:
        """That can be read, of the same state at several places. Where none can be, an older one must not take its place."""
        refusals: list[tuple[_Candidate, _Stop]] = []
        for candidate in equals:
            try:
                found = self._from_memory(candidate) if candidate.generation is not None else self._from_place(candidate)
            except _Stop as stop:
                refusals.append((candidate, stop))
                continue
            if found is not None:
                for refused, refusal in refusals:
                    self._pass_over(refused.step, self._places[refused.rank - 1].url, _words(refusal.__cause__))
                return found
        if refusals:
            raise refusals[0][1]
        return None

    def _report(self, found: Found | None, why: str, followed: Chained | None = None) -> Report:
        return Report(
            found=found,
            chained=followed,
            seconds=time.monotonic() - self._begun_s,
            why="; ".join([*self._passed, *filter(None, [why])]),
            newest_term=self._newest_term,
        )

    def _nothing(self) -> str:
        where = ", ".join([MEMORY, *(place.url for place in self._places)])
        if self._seek.step is None:
            return f"no whole state is left in {where}" if self._passed else f"nothing was saved in {where}"
        return f"there is no whole state of step {self._seek.step} in {where}"

    def _from_memory(self, candidate: _Candidate, is_newest: bool = False) -> Found | None:
        generation, label = candidate.generation, candidate.label
        assert generation is not None and label is not None
        why = harm(label.draft, label.digests, digests(label.draft, generation.view(label.draft.arena_bytes)))
        if why is None:
            return self._found(generation, label.draft, label.digests, label.version, MEMORY, is_newest)
        self._hands.spoil(generation)
        key = label.draft.step, label.root
        self._harmed[key] = max(label.version, self._harmed.get(key, label.version))
        self._pass_over(candidate.step, MEMORY, why)
        return None

    def _listed(self) -> list[_Candidate]:
        """Of all places, asked at once."""

        def look(archive: Archive, place: Place) -> _Listing:
            def listed(_: Told) -> _Listing:
                pointers, damages = archive.pointers()
                return pointers, damages, archive.newest_term()

            return self._tried(place, listed)

        self._archives = [Archive(open_store(place.url)) for place in self._places]
        asked = [
            begun(partial(look, archive, place), "regrow-look")
            for archive, place in zip(self._archives, self._places, strict=True)
        ]
        candidates = []
        for rank, (answer, place) in enumerate(zip(asked, self._places, strict=True), 1):
            try:
                pointers, damages, term = answer.result()
            except Exception as error:  # the edge of a store: its library raises what it likes
                raise _Stop(_refusal(place, error)) from error
            self._newest_term = max(self._newest_term, term)
            for damage in damages:
                self._pass_over(-1, place.url, damage)
            candidates += [_Candidate(term=one.term, step=one.step, rank=rank, pointer=one) for one in pointers]
        return candidates

    def _from_place(self, candidate: _Candidate) -> Found | None:
        archive, place, pointer = self._archives[candidate.rank - 1], self._places[candidate.rank - 1], candidate.pointer
        assert pointer is not None
        try:
            manifest = self._tried(place, lambda _: archive.manifest(pointer))
            if isinstance(manifest.inexact, Inexact):
                raise ConfigError(
                    f"step {pointer.step} in {place.url} cannot begin a job, which promises equal bits: "
                    f"{manifest.inexact.words()}; restore it with a Checkpointer in a loop of your own"
                )
            return self._read(archive, place, pointer, manifest)
        except StateError as error:
            self._pass_over(candidate.step, place.url, str(error))
            return None
        except ConfigError:
            raise
        except Exception as error:  # the edge of a store, as above
            raise _Stop(_refusal(place, error)) from error

    def _read(self, archive: Archive, place: Place, pointer: Pointer, manifest: Manifest) -> Found:
        draft = draft_of(manifest)
        generation = self._hands.take(draft.arena_bytes)
        arena = generation.view(draft.arena_bytes)
        views = [arena[start : start + leaf.size_bytes] for start, leaf in zip(draft.offsets, draft.leaves, strict=True)]

        def read(told: Told) -> None:
            archive.read(pointer, manifest, views, told)

        try:
            self._tried(place, read)
            found = digests(draft, arena)
            if found.root != manifest.root:
                raise StateError(f"step {draft.step} has the root {found.root}, its manifest says {manifest.root}")
        except BaseException as error:
            self._hands.drop(generation, isinstance(error, Abandoned))
            raise
        # By its root it is the very state that was harmed in memory: what was logged after that one follows this one, too.
        since = self._harmed.get((draft.step, found.root), self._since(draft))
        return self._found(generation, draft, found, since, place.url, False)

    def _since(self, draft: Draft) -> Version:
        """It says under which version it was saved, and that counts where logs come from a neighbour as well. Else it is
        older than everything that is logged by whoever asks."""
        has_logs = self._seek.step is None and any(is_neighbour(place.url) for place in self._places)
        return draft.roster if has_logs and draft.roster is not None else Version(self._seek.term, 0)

    def _tried(self, place: Place, work: Callable[[Told], T]) -> T:
        return tried(self._patience_s, place.url, work, lambda why: self._hands.refused(place.url, why))

    def _found(
        self, generation: Generation, draft: Draft, found: Digests, since: Version, where: str, is_newest: bool
    ) -> Found:
        seconds = time.monotonic() - self._begun_s
        return Found(
            generation=generation,
            draft=draft,
            digests=found,
            since=since,
            where=where,
            seconds=seconds,
            is_newest=is_newest,
        )

    def _pass_over(self, step: int, where: str, why: str) -> None:
        self._passed.append(f"step {step} in {where} is passed over: {why}" if step >= 0 else why)
        self._hands.passed(OriginPassedOver(step=step, where=where, why=why))


def _nearest_newest(candidate: _Candidate) -> tuple[int, int, int]:
    return -candidate.term, -candidate.step, candidate.rank


def _age(candidate: _Candidate) -> tuple[int, int]:
    return candidate.term, candidate.step


def _refusal(place: Place, error: Exception) -> str:
    return f"{place.url} cannot be searched, and may hold a newer state than any other: {_words(error)}"


def _words(error: BaseException | None) -> str:
    return str(error) if isinstance(error, InfraError | ConfigError | StateError) else f"{type(error).__name__}: {error}"
