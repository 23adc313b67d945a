"""How an origin is found: the newest saved state that is whole, in the host's memory or at a place, and brought into memory.

Candidates come by (term, step), the newest first, and of two that are equal the nearer one. What is harmed is passed over,
and told. In an every-step job all that was committed after it is found as well, in the logs; and where no state was ever
whole, the job's own beginning, if the logs hold all that was committed since (rules L5 and L7). What the logs of this host
lack a neighbour may hold (L8).

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

from regrow.agent.assembling import Assembled, Assembling, Hands, Hurt, Refused, Source, let_go, unsearchable
from regrow.agent.generation import Generation, Label
from regrow.agent.logs import Chained, beginning, chained, close
from regrow.agent.patience import begun, tried
from regrow.core.checkpoint import Pointer
from regrow.core.draft import Draft
from regrow.core.errors import ConfigError, InfraError
from regrow.core.neighbour import is_neighbour, lacking
from regrow.core.origin import BEGINNING, MEMORY
from regrow.core.records import OriginMended, OriginPassedOver, Served
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
    served: tuple[Served, ...]
    """By each tier, the nearest first."""
    seconds: float
    is_newest: bool
    """Nobody has saved anything that is newer, as far as this vault knows: saves may go on under its term."""

    @property
    def root(self) -> str:
        return self.digests.root

    @property
    def where(self) -> str:
        return " and ".join(one.where for one in self.served)


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


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    term: int
    step: int
    rank: int
    """0 is memory, 1 the first place."""
    generation: Generation | None = None
    label: Label | None = None
    pointer: Pointer | None = None

    def is_newest(self, term: int) -> bool:
        """Of all that was saved under this term, as far as it is in memory."""
        return self.term == term and self.generation is not None and not self.generation.is_outdone


_Listing = tuple[list[Pointer], list[str], int]


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
        self._neighbours = [place for place in places if seek.step is None and is_neighbour(place.url)]
        """Whose logs count."""
        self._has_fetched = False
        """Those logs."""
        self._patience_s = patience_s
        self._hands = msgspec.structs.replace(hands, noted=self._noted)
        self._note = hands.noted
        self._begun_s = time.monotonic()
        self._passed: list[str] = []
        self._newest_term = 0
        self._harmed: dict[tuple[int, str], Version] = {}
        """What lay whole in memory once, by step and root, and under which version it was saved."""
        self._hurts: list[Hurt] = []
        """Of that, what may yet be mended."""
        self._looked: set[int] = set()
        """The generations that were found to be harmed, by number."""
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
        except (Refused, ConfigError, InfraError) as error:
            let_go(self._hurts, self._hands)
            return self._report(None, str(error))
        finally:
            close(self._fetched)

    def _searched(self) -> Report:
        found = self._run()
        let_go(self._hurts, self._hands)
        if found is None or found.where != MEMORY:
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
        """What was committed after a state may lie at a neighbour, at whatever place that state is (rule L8). Refused where
        that cannot be asked; done again, it does nothing."""
        for place in [] if self._has_fetched else self._neighbours:
            try:
                fetched = self._tried(place, partial(fetched_logs, address_of(place.url)))
            except Exception as error:  # the edge of a store, as in `_listed`
                raise unsearchable(place.url, error) from error
            for name, fd in fetched.items():
                self._hands.logged(name, os.dup(fd))
            self._fetched |= fetched
            self._logs |= fetched
        self._has_fetched = True

    def _chained(self, step: int, since: Version) -> Chained | None:
        """By the logs of this host, and by a neighbour's where those lack something. One that cannot be asked is done
        without, told: the state is at hand, and training never depends on a neighbour."""
        found = chained(self._logs, step, since) if self._logs else None
        if found is None or self._has_fetched or not self._neighbours:
            return found
        if not (why := lacking(found.chain, len(found.damages))):
            return found
        urls = " and ".join(place.url for place in self._neighbours)
        self._hands.said(f"{why}: what lies in {urls} is read as well")
        try:
            self._fetch_logs()
        except Refused as refused:
            self._noted(OriginPassedOver(step=step + len(found.records), where=urls, why=str(refused)))
            return found
        return chained(self._logs, step, since)

    def _run(self) -> Found | None:
        newest = None if self._seek.step is not None or not self._memory else self._memory[0]
        if newest is not None and newest.is_newest(self._term) and (found := self._from_memory(newest, is_newest=True)):
            return found  # whatever lies at a place under this term was copied from here, before: no store need be asked
        candidates = [one for one in [*self._memory, *self._listed()] if self._seek.step in (None, one.step)]
        for _, equals in groupby(sorted(candidates, key=_nearest_newest), key=_age):
            if (found := self._first(equals)) is not None:
                return found
        return None

    def _first(self, equals: Iterable[_Candidate]) -> Found | None:
        """Of copies of the same state. Where one cannot be read, an older state must not take its place."""
        sources = []
        for candidate in equals:
            if candidate.label is None:
                assert candidate.pointer is not None
                archive, place = self._archives[candidate.rank - 1], self._places[candidate.rank - 1]
                sources.append(Source(archive=archive, place=place, pointer=candidate.pointer))
            elif (found := self._from_memory(candidate)) is not None:
                return found
        made = Assembling(candidate.step, sources, self._hurts, self._patience_s, self._hands).run()
        return None if made is None else self._made(made)

    def _made(self, made: Assembled) -> Found:
        # By its root it is the very state that was harmed in memory: what was logged after that one follows this one, too.
        since = self._harmed.get((made.draft.step, made.digests.root), self._since(made.draft))
        return self._found(made.generation, made.draft, made.digests, since, made.served)

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
        if generation.number in self._looked:
            return None
        begun_s = time.monotonic()
        why = harm(label.draft, label.digests, digests(label.draft, generation.view(label.draft.arena_bytes)))
        if why is None:
            served = Served(where=MEMORY, size_bytes=label.draft.size_bytes, seconds=time.monotonic() - begun_s)
            return self._found(generation, label.draft, label.digests, label.version, (served,), is_newest)
        key = label.draft.step, label.root
        self._harmed[key] = max(label.version, self._harmed.get(key, label.version))
        self._hurts.append(Hurt(generation=generation, label=label, why=why))
        self._looked.add(generation.number)
        self._hands.harmed(generation)
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
                raise unsearchable(place.url, error) from error
            self._newest_term = max(self._newest_term, term)
            for damage in damages:
                self._hands.noted(OriginPassedOver(step=-1, where=place.url, why=damage))
            candidates += [_Candidate(term=one.term, step=one.step, rank=rank, pointer=one) for one in pointers]
        return candidates

    def _since(self, draft: Draft) -> Version:
        """It says under which version it was saved, and that counts where logs come from a neighbour as well. Else it is
        older than everything that is logged by whoever asks."""
        return draft.roster if self._neighbours and draft.roster is not None else Version(self._seek.term, 0)

    def _tried(self, place: Place, work: Callable[[Told], T]) -> T:
        return tried(self._patience_s, place.url, work, lambda why: self._hands.refused(place.url, why))

    def _found(
        self,
        generation: Generation,
        draft: Draft,
        found: Digests,
        since: Version,
        served: tuple[Served, ...],
        is_newest: bool = False,
    ) -> Found:
        seconds = time.monotonic() - self._begun_s
        return Found(
            generation=generation,
            draft=draft,
            digests=found,
            since=since,
            served=served,
            seconds=seconds,
            is_newest=is_newest,
        )

    def _noted(self, fact: OriginPassedOver | OriginMended) -> None:
        how = "is passed over" if isinstance(fact, OriginPassedOver) else "is harmed, and mended"
        self._passed.append(f"step {fact.step} in {fact.where} {how}: {fact.why}" if fact.step >= 0 else fact.why)
        self._note(fact)


def _nearest_newest(candidate: _Candidate) -> tuple[int, int, int]:
    return -candidate.term, -candidate.step, candidate.rank


def _age(candidate: _Candidate) -> tuple[int, int]:
    return candidate.term, candidate.step
