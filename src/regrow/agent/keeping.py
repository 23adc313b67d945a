"""The saves of a host, from the first portion until they are whole in memory and handed to the places that take them.

At most one gathers portions; those before it may be digested. A save that will never be whole is void, which every worker
hears (rules S2 and S3). A generation that somebody may still write into is given another arena before it serves again: a
worker that was stopped in the middle of its copy may wake at any time.

One thread owns all of it. Digests, and making pages, are work for threads, which come back through `post`.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from regrow.agent.gathering import Gathering, Key, key_of
from regrow.agent.generation import Generation, Label, free, freest, newest
from regrow.agent.haste import Haste
from regrow.agent.pacing import Pacing
from regrow.agent.patience import begun
from regrow.agent.seeking import Found
from regrow.agent.tier import Post, Tier
from regrow.core.draft import Draft
from regrow.core.errors import InfraError
from regrow.core.records import SaveVoided, StateKept
from regrow.core.roster import Version
from regrow.core.saves import Urgency
from regrow.shell.faultpoint import faultpoint
from regrow.shell.journal import Journal
from regrow.shell.vaulting import (
    MEMORY,
    Based,
    Deposit,
    Held,
    Kept,
    Lacking,
    Lent,
    Renewed,
    Said,
    ToAgent,
    ToWorker,
    Void,
    Waits,
)
from regrow.state.pieces import Digests, digests

_SOOTHED_S = 1.0
_FIRST_RETRY_S = 2.0
_LAST_RETRY_S = 60.0
"""Where there is no memory for a copy a save is wished again at each boundary: no reason to look, and say so, each time."""
_VOIDS = 16
"""So many void saves are remembered, for portions of them that are still on their way."""


class Voices(msgspec.Struct, frozen=True, kw_only=True):
    """How others are told. None of it blocks."""

    worker: Callable[[str, ToWorker, int | None], None]
    """A member, if it has a line; the descriptor goes along."""
    workers: Callable[[ToWorker], None]
    agent: Callable[[ToAgent, int | None], None]
    has_line: Callable[[str], bool]
    kept: Callable[[int], None]
    """A state of this step is whole."""


class Keeping:
    def __init__(
        self,
        generations: list[Generation],
        tiers: list[Tier],
        term: int,
        begins: bool,
        journal: Journal,
        pacing: Pacing,
        post: Post,
        voices: Voices,
    ) -> None:
        self.generations = generations
        self.tiers = tiers
        self.begins = begins
        """No state has been whole here: an every-step job may still begin from its own beginning."""
        self.haste = Haste(tiers)
        self.term = term
        """Under which saves are made from now on."""
        self._has_kept = False
        """A state of this run became whole."""
        self._saved_term = 0
        """The newest under which anything was made."""
        self._lost: dict[int, str] = {}
        """Last saves that are void, and why, by their steps."""
        self._journal = journal
        self._pacing = pacing
        self._post = post
        self._voices = voices
        self._gathering: Gathering | None = None
        self._digesting: dict[Key, bool] = {}
        """True: it is a last one."""
        self._voided: dict[Key, str] = {}
        self._foreseen_bytes = 0
        self._takes: list[tuple[int, Future[Generation]]] = []
        """An origin waits for a generation of so many bytes."""
        self._is_fitting = False
        self._soothed_s = 0.0
        self._cramped = (0.0, "")
        """Until when no memory for a copy is looked for, and why."""
        self._retry_s = _FIRST_RETRY_S

    @property
    def is_busy(self) -> bool:
        """A save is on its way to be whole."""
        return bool(self._digesting) or self._gathering is not None

    @property
    def is_crowded(self) -> bool:
        """A save waits for an arena, or an origin does."""
        return bool(self._takes) or (self._gathering is not None and self._gathering.generation is None)

    @property
    def is_ready(self) -> bool:
        """A save that is wished now would be given an arena at once."""
        return not self.is_busy and not self._takes and bool(free(self.generations))

    def soothe(self) -> None:
        """Whoever waits hears why, and that somebody is there."""
        now_s = time.monotonic()
        if not self.is_crowded or now_s < self._soothed_s + _SOOTHED_S:
            return
        self._soothed_s = now_s
        self._press()
        gathering = self._gathering
        if gathering is None or gathering.generation is not None:
            return
        busy = [f"{tier.place.url} takes its time: {tier.under_way}" for tier in self.tiers if not tier.is_idle]
        for member in sorted(gathering.borrowers):
            self._voices.worker(member, Waits(why="; ".join(busy) or "memory is made ready"), None)

    def _press(self) -> None:
        """Where nothing but places that fail keeps the memory, they give way."""
        if any(generation.is_busy for generation in self.generations):
            return  # one is about to be free, or whole
        for tier in self.tiers:
            tier.press()
        self.provide()
        if self.is_crowded:
            for tier in self.tiers:
                tier.press_hard()

    @property
    def failures(self) -> list[str]:
        return [f"the last state (step {step}) is not saved: {why}" for step, why in self._lost.items()]

    @property
    def is_digesting(self) -> bool:
        return bool(self._digesting)

    def adopt(self) -> None:
        """What the vault before this one held whole is ours, and what it had not made durable."""
        labelled = [(one, one.label) for one in self.generations if one.label is not None]
        if labelled:
            self._based()
        self._has_kept = bool(labelled)
        for generation, label in sorted(labelled, key=lambda pair: pair[1].age):
            self.term = max(self.term, label.draft.term)
            for tier, last in zip(self.tiers, label.lasts, strict=True):
                tier.last = last
            urgency = Urgency.LAST if generation is newest(self.generations) else Urgency.DUE  # it may be a job's last
            for number in generation.unsettled():
                self.tiers[number].persist(label, generation, urgency)

    # Portions

    def foresee(self, size_bytes: int) -> None:
        self._pacing.begin()
        self._foreseen_bytes = max(self._foreseen_bytes, size_bytes)
        self.provide()

    def deposit(self, member: str, deposit: Deposit) -> None:
        key = key_of(deposit)
        gathering = self._gathering
        if (why := self._refusal(member, deposit)) is not None:
            self._voices.worker(member, why, None)
            return
        if gathering is None or gathering.key != key:
            if gathering is not None:
                self.void(f"step {deposit.step} is to be saved, and portions of this one have not come", is_replaced=True)
            gathering = self._gathering = Gathering(deposit, time.monotonic())
            if not gathering.is_last:
                self._pacing.gathers(deposit.step, deposit.members)
        elif misfit := gathering.misfit(deposit):
            self.void(misfit)
            return
        gathering.join(member, deposit)
        for other in deposit.members:
            if other != member and not self._voices.has_line(other):
                self._lose(gathering, other)
                if self._gathering is not gathering:
                    return
        if gathering.generation is not None:
            self._lend(gathering, member)
            self._ask(gathering)
        self.provide()

    def deposited(self, member: str, key: Key, index: int, why: str) -> None:
        gathering = self._gathering
        if gathering is None or gathering.key != key:
            return  # void since, or given by another
        if why:
            gathering.refuse(member, index)
            self._fill(gathering, f"{member}: {why}")
            return
        gathering.give(member, index)
        if gathering.is_complete:
            self._complete(gathering)

    def gone(self, member: str) -> None:
        """Its line is closed."""
        if self._gathering is not None:
            self._lose(self._gathering, member)

    def fate(self, step: int) -> ToWorker | None:
        """Of a save that a member gave its portion of; None: it is not decided yet, and all will hear of it."""
        whole = self.newest_label
        if whole is not None and whole.draft.step >= step:
            return Kept(step=whole.draft.step)
        if any(key[0] == step for key in self._digesting):
            return None
        if self._gathering is not None and self._gathering.key[0] == step:
            return None
        return Void(step=step, why="the vault was lost before this save was whole")

    def void(self, why: str, is_replaced: bool = False) -> None:
        """The save that is being gathered, if there is one. Whoever hears of it may already mean the one that takes its
        place: the same step, under a newer roster."""
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        step = gathering.key[0]
        self._voided[gathering.key] = why
        while len(self._voided) > _VOIDS:
            del self._voided[next(iter(self._voided))]
        if gathering.generation is not None:
            gathering.generation.is_busy = False
            gathering.generation.is_tainted |= bool(gathering.loans)
        self._journal.write(SaveVoided(step=step, why=why))
        if gathering.is_last:
            self._lost[step] = why
        self._voices.workers(Void(step=step, why=why, is_final=gathering.is_last and not is_replaced))
        self.provide()

    def _refusal(self, member: str, deposit: Deposit) -> ToWorker | None:
        """What to answer instead of an arena."""
        if not 0 <= deposit.index < len(deposit.members) or deposit.members[deposit.index] != member:
            return Void(step=deposit.step, why=f"{member} is not the one that gives portion {deposit.index}")
        whole = newest(self.generations)
        if whole is not None and whole.label is not None and whole.label.draft.step >= deposit.step:
            if whole.label.draft.step == deposit.step:
                self._hand_on(whole, whole.label, deposit.urgency)
            return Kept(step=whole.label.draft.step)
        key = key_of(deposit)
        later = max([*self._digesting, *([] if self._gathering is None else [self._gathering.key])], default=key)
        if later > key or key in self._digesting:
            return Void(step=deposit.step, why=f"step {later[0]} is being saved already, under roster {later[1]}")
        if (why := self._voided.get(key)) is not None:
            return Void(step=deposit.step, why=why, is_final=True)
        until_s, why = self._cramped
        if self._gathering is None and deposit.urgency < Urgency.ASKED and time.monotonic() < until_s:
            return Void(step=deposit.step, why=why)
        return None

    def _lose(self, gathering: Gathering, member: str) -> None:
        if gathering.lose(member):
            self._fill(gathering, f"{member} was gone before its portion was there")

    def _fill(self, gathering: Gathering, why: str) -> None:
        """A portion will not come from whom it was to come: of a last save another one gives it."""
        if not gathering.is_last:
            self.void(why)
            return
        silent = {member for member in gathering.first.members if self._voices.has_line(member)} - gathering.borrowers
        if gathering.has_orphans and not silent:
            self.void(f"{why}, and nobody is left who could give it")
        elif gathering.generation is not None:
            self._ask(gathering)

    def _ask(self, gathering: Gathering) -> None:
        """Others for portions that nobody is to give: of a last save, since any other is void by then."""
        step, version = gathering.key
        for giver, index in gathering.reassign():
            gathering.loans.add((giver, index))
            self._voices.worker(giver, Lacking(step=step, version=version, index=index), None)

    def _lend(self, gathering: Gathering, member: str) -> None:
        generation = gathering.generation
        assert generation is not None
        step, version = gathering.key
        gathering.loans |= {(member, index) for index in gathering.awaits(member)}
        lent = Lent(step=step, version=version, size_bytes=generation.size_bytes)
        self._voices.worker(member, lent, generation.fd)

    # Whole

    def _complete(self, gathering: Gathering) -> None:
        self._gathering = None
        generation, draft = gathering.generation, gathering.draft
        assert generation is not None
        generation.is_tainted |= bool(gathering.loans)
        if draft is None or draft.arena_bytes != gathering.first.arena_bytes:
            self._gathering = gathering
            self.void("nobody has said which tensor lies where")
            return
        self._digesting[gathering.key] = gathering.is_last
        view = generation.view(draft.arena_bytes)
        future = begun(lambda: digests(draft, view), "regrow-digest")
        future.add_done_callback(lambda done: self._post(lambda: self._digested(gathering, generation, draft, done)))

    def _digested(self, gathering: Gathering, generation: Generation, draft: Draft, done: "Future[Digests]") -> None:
        step, urgency = gathering.key[0], gathering.first.urgency
        del self._digesting[gathering.key]
        found = done.result()
        faultpoint("vault-whole", step=step)
        takers = [tier for tier in self.tiers if tier.takes(step, urgency, gathering.begun_s)]
        for tier in takers:
            tier.last = step
            self._pacing.took(tier.place, gathering.begun_s)
        self._saved_term = self.term
        draft = msgspec.structs.replace(draft, step=step, term=self.term, roster=gathering.key[1])
        label = self.label(generation, draft, found, gathering.key[1], tuple(tier.number for tier in takers))
        faultpoint("vault-kept", step=step)
        seconds = time.monotonic() - gathering.begun_s
        self._lost = {lost: why for lost, why in self._lost.items() if lost > step}
        self._pacing.note(StateKept(step=step, root=found.root, size_bytes=draft.size_bytes, seconds=seconds))
        self._voices.workers(Kept(step=step))
        self._voices.agent(Held(place=MEMORY, step=step), None)
        self._has_kept = True
        if urgency is Urgency.LAST and self.haste.by_s is not None:
            self.haste.take(takers, label, generation)
        else:
            for tier in takers:
                tier.persist(label, generation, urgency)
        generation.is_busy = False
        self._voices.kept(step)
        self.provide()

    def _hand_on(self, generation: Generation, label: Label, urgency: Urgency) -> None:
        """This state is wished again, by somebody who wishes more: places that did not take it do now."""
        takers = [tier for tier in self.tiers if tier.takes(label.draft.step, urgency)]
        for tier in takers:
            tier.last = label.draft.step
            generation.mark_taken(tier.number)
        if urgency is Urgency.LAST and self.haste.by_s is not None:
            self.haste.take(takers, label, generation)
        else:
            for tier in takers:
                tier.persist(label, generation, urgency)

    def hurry(self, by_s: float) -> None:
        """Time is short from here on."""
        self.haste.by_s = by_s
        self._insure()

    def look(self) -> None:
        """Is it time to send ahead what is there, or to begin another place?"""
        self.haste.go_on()
        if self.haste.again_s is not None and time.monotonic() >= self.haste.again_s:
            self._insure()

    def _insure(self) -> None:
        """In case the last state never comes. Where it is on its way nothing takes its time."""
        self.haste.again_s = None
        generation = newest(self.generations)
        is_coming = any(self._digesting.values()) or (self._gathering is not None and self._gathering.is_last)
        if generation is not None and generation.label is not None and not is_coming:
            self.haste.insure(generation.label, generation)

    def secure(self, is_finished: bool) -> None:
        """Nobody saves any more: what is newest in memory goes with it, unless places take it now. What was only found there
        is nothing of this run's, but for a finished job: its last state belongs to all places."""
        generation = newest(self.generations)
        label = None if generation is None else generation.label
        if generation is None or label is None:
            return
        if self._has_kept:
            self._hand_on(generation, label, Urgency.LAST)
        elif is_finished:
            for tier in self.tiers:
                if tier.durable != label.draft.step and tier.is_idle and not tier.failures:
                    generation.mark_taken(tier.number)
                    tier.persist(label, generation)

    def label(
        self, generation: Generation, draft: Draft, found: Digests, version: Version, takers: tuple[int, ...]
    ) -> Label:
        lasts = tuple(tier.last for tier in self.tiers)
        inode = generation.inode()
        label = Label(draft=draft, digests=found, version=version, inode=inode, lasts=lasts, takers=takers)
        generation.write_label(label)
        self._based()
        return label

    def _based(self) -> None:
        if self.begins:
            self.begins = False
            self._voices.agent(Based(), None)

    @property
    def newest_label(self) -> Label | None:
        generation = newest(self.generations)
        return None if generation is None else generation.label

    # Room

    def take(self, size_bytes: int) -> "Future[Generation]":
        """A generation for an origin, as soon as there is one."""
        future: Future[Generation] = Future()
        self._takes.append((size_bytes, future))
        self.provide()
        return future

    def hold(self) -> list[Generation]:
        """What is whole, for a search: it stays as it is meanwhile."""
        whole = [generation for generation in self.generations if generation.label is not None]
        for generation in whole:
            generation.is_busy = True
        return whole

    def release(self, held: list[Generation]) -> None:
        """Those that were not spoiled."""
        for generation in held:
            if generation.label is not None:
                generation.is_busy = False

    def spoil(self, generation: Generation) -> None:
        """One that was whole is harmed."""
        self.outdo(generation)
        generation.erase_label()
        generation.is_busy = False
        self.provide()

    def outdo(self, harmed: Generation) -> None:
        """All others, which are older, or may be older than what lies at places: whoever looks for the newest state has to
        look there as well, also when what is harmed is not to be seen any more."""
        for generation in self.generations:
            if generation is not harmed:
                generation.mark_outdone()

    def drop(self, generation: Generation, is_tainted: bool) -> None:
        """No origin came to be whole in it; maybe somebody still writes there."""
        generation.erase_label()
        generation.is_busy = False
        generation.is_tainted |= is_tainted
        self.provide()

    def begin_from(self, found: Found, newest_term: int) -> Draft:
        """This state is what the job goes on from. Where anything newer was saved, what is saved from here on has a term of
        its own, and so has this: else the newer would be found instead the next time."""
        generation, draft = found.generation, found.draft
        if found.is_newest:
            return draft
        terms = (one.label.draft.term for one in self.generations if one.label is not None)
        self.term = 1 + max([newest_term, self._saved_term, *terms])
        draft = msgspec.structs.replace(draft, term=self.term)
        for tier in self.tiers:
            tier.last = draft.step
        self.label(generation, draft, found.digests, found.since, tuple(sorted(generation.wanted)))
        generation.is_busy = False
        for other in self.generations:
            if other is not generation and not other.is_busy and not other.wanted:
                other.erase_label()
        self.provide()
        return draft

    def provide(self) -> None:
        """Give what is free to whoever waits for it, and make room for what is foreseen."""
        if self._is_fitting:
            return  # and is provided again when that is done
        if self._takes:
            size_bytes, _ = self._takes[0]
        elif self._gathering is not None and self._gathering.generation is None:
            size_bytes = self._gathering.first.arena_bytes
        else:
            self._prepare()
            return
        if (generation := freest(self.generations, size_bytes)) is None:
            return
        if not generation.has_room(size_bytes):
            self._fit(generation, size_bytes)
            return
        generation.is_busy = True
        generation.erase_label()
        if self._takes:
            self._takes.pop(0)[1].set_result(generation)
            self.provide()
        else:
            assert self._gathering is not None
            self._begin(self._gathering, generation)

    def _begin(self, gathering: Gathering, generation: Generation) -> None:
        faultpoint("vault-lend", step=gathering.key[0])
        gathering.generation = generation
        self._retry_s = _FIRST_RETRY_S
        for member in sorted(gathering.borrowers):
            self._lend(gathering, member)
        self._ask(gathering)

    def _prepare(self) -> None:
        for generation in free(self.generations):
            if self._foreseen_bytes and not generation.has_room(self._foreseen_bytes):
                self._fit(generation, self._foreseen_bytes)
                return

    def _fit(self, generation: Generation, size_bytes: int) -> None:
        generation.is_busy, self._is_fitting = True, True
        generation.erase_label()
        if generation.renew(size_bytes):
            self._voices.agent(Renewed(generation=generation.number), generation.fd)
        future = begun(lambda: generation.fit(size_bytes), "regrow-arena")
        future.add_done_callback(lambda done: self._post(lambda: self._fitted(generation, size_bytes, done)))

    def _fitted(self, generation: Generation, size_bytes: int, done: "Future[None]") -> None:
        generation.is_busy, self._is_fitting = False, False
        error = done.exception()
        if isinstance(error, InfraError):
            self._no_room(size_bytes, error)
        elif error is not None:
            raise error
        self.provide()

    def _no_room(self, size_bytes: int, error: InfraError) -> None:
        self._foreseen_bytes = 0  # not tried again and again: the save that needs the room does
        if self._takes:
            self._takes.pop(0)[1].set_exception(error)
        elif self._gathering is not None and self._gathering.generation is None:
            again = "" if self._gathering.is_last else f"; memory is looked for again in {self._retry_s:g} s"
            self._voices.agent(Said(text=f"step {self._gathering.key[0]} is not saved: {error}{again}"), None)
            self._cramped = time.monotonic() + self._retry_s, str(error)
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            self.void(str(error))
